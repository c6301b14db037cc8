"""A line in the log whenever the worst of the three answers changes."""

from __future__ import annotations

import logging

from tokgauge.diagnosis.steady import ALARM
from tokgauge.diagnosis.three_answers import Question, ThreeAnswers
from tokgauge.diagnosis.verdict import Level

logger = logging.getLogger("tokgauge")


class VerdictLog:
    """Remembers what was logged last.

    A pause in which nothing can be judged is no change: else each pause would be two lines.
    """

    def __init__(self) -> None:
        self._logged: tuple[Question, Level] | None = None

    def note(self, shown: ThreeAnswers) -> None:
        """Log the worst, if it is another one."""
        question, worst = shown.worst
        now = question, worst.level
        if worst.level == "not_judged" or now == self._logged:
            return
        self._logged = now
        level = logging.WARNING if ALARM[worst.level] else logging.INFO
        logger.log(level, "%s: %s", question, worst.headline)
