"""Do people get whole answers? From how the answers of a window ended to a level and causes.

docs/verdict.md has the thresholds with their reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tokgauge.diagnosis.answers import Answers
from tokgauge.diagnosis.notes import FELT_WAIT, MANY_TRUNCATED, MANY_UNSTREAMED
from tokgauge.diagnosis.verdict import AnswersCause, Level

MIN_ANSWERS = 10
"""Requests for text below which a share says nothing."""

MIN_FAULTS = 3
"""Faults below which they may be chance."""


@dataclass(frozen=True, slots=True)
class Found:
    """So many of so many."""

    number: int
    of: int

    @property
    def share(self) -> float:
        """The one ÷ the other; 0 of none is none."""
        return self.number / self.of if self.of else 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Shares from which on it is worth watching, and something is wrong (None: it never is).

    at_least: below that number it is chance.
    """

    watch: float
    suspect: float | None = None
    at_least: int = 1


_FAULT = Limits(0.02, 0.10, MIN_FAULTS)

LIMITS: Mapping[AnswersCause, Limits] = {
    "engine_unreachable": _FAULT,
    "engine_errors": _FAULT,
    "broken_off": _FAULT,
    "proxy_errors": _FAULT,
    "cut_by_context": Limits(MANY_TRUNCATED, 0.20),
    # Whoever sets a limit may want it: nothing is wrong then, but somebody may miss the rest.
    "cut_by_request_limit": Limits(MANY_TRUNCATED),
    "cut_by_unknown_limit": Limits(MANY_TRUNCATED),
    "clients_leave": Limits(0.20, None, MIN_FAULTS),
    "not_streamed": Limits(MANY_UNSTREAMED),
}
"""Most serious first, which is the order in which causes are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswersJudgement:
    """The answer; causes as `LIMITS` has them, those of the worse level first.

    asked: requests for text that ended. found: of each cause, how many of how many. wait: median
    [s] until an answer that is not streamed came, None without any. judged: whether there were
    enough of them.
    """

    level: Level
    asked: int
    found: Mapping[AnswersCause, Found]
    wait: float | None = None
    causes: tuple[AnswersCause, ...] = ()

    @property
    def judged(self) -> bool:
        """Whether there were enough answers."""
        return self.level != "not_judged"


def judge_answers(answers: Answers | None) -> AnswersJudgement:
    """Whether people get whole answers, and if not, what is missing."""
    if answers is None:
        return AnswersJudgement(level="not_judged", asked=0, found={})
    asked, wait = answers.endings.total(), answers.waits.median()
    found = {kind: Found(*count(answers)) for kind, count in _COUNTS.items()}
    if asked < MIN_ANSWERS:
        return AnswersJudgement(level="not_judged", asked=asked, found=found, wait=wait)
    suspect = tuple(kind for kind in LIMITS if _exceeds(found[kind], LIMITS[kind], "suspect"))
    watch = tuple(
        kind
        for kind in LIMITS
        if kind not in suspect
        and _exceeds(found[kind], LIMITS[kind], "watch")
        and (kind != "not_streamed" or wait is None or wait >= FELT_WAIT)
    )
    return AnswersJudgement(
        level="suspect" if suspect else "watch" if watch else "healthy",
        asked=asked,
        found=found,
        wait=wait,
        causes=suspect + watch,
    )


def _exceeds(found: Found, limits: Limits, level: Level) -> bool:
    limit = limits.suspect if level == "suspect" else limits.watch
    return limit is not None and found.number >= limits.at_least and found.share >= limit


_COUNTS: Mapping[AnswersCause, Callable[[Answers], tuple[int, int]]] = {
    "engine_unreachable": lambda a: (a.endings["unreachable"], a.endings.total()),
    "engine_errors": lambda a: (a.endings["engine_error"], a.endings.total()),
    "broken_off": lambda a: (a.endings["broken_off"], a.endings.total()),
    "proxy_errors": lambda a: (a.endings["proxy_error"], a.endings.total()),
    "cut_by_context": lambda a: (a.cuts["context"], a.finished),
    "cut_by_request_limit": lambda a: (a.cuts["request"], a.finished),
    "cut_by_unknown_limit": lambda a: (a.cuts["unknown"], a.finished),
    "clients_leave": lambda a: (a.endings["client_left"], a.endings.total()),
    "not_streamed": lambda a: (a.unstreamed, a.seen),
}
