"""Three questions, three answers: is it as fast as it should be, do people wait, do they get whole
answers. And which of them to show first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Literal, get_args

from tokgauge.diagnosis.steady import ALARM, Steady
from tokgauge.diagnosis.verdict import CAUSE_KINDS, AnswersCause, Verdict, WaitingCause

Question = Literal["speed", "waiting", "answers"]
QUESTIONS: tuple[Question, ...] = get_args(Question)

CAUSES_OF: Mapping[Question, tuple[str, ...]] = {
    "speed": CAUSE_KINDS,
    "waiting": get_args(WaitingCause),
    "answers": get_args(AnswersCause),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreeAnswers:
    """A verdict on each question."""

    speed: Verdict
    waiting: Verdict
    answers: Verdict

    def __iter__(self) -> Iterator[tuple[Question, Verdict]]:
        yield "speed", self.speed
        yield "waiting", self.waiting
        yield "answers", self.answers

    @property
    def worst(self) -> tuple[Question, Verdict]:
        """What titles the page: what is suspect, else what is worth watching, else the speed.

        Of several an engine that is down, then the first in the order of the questions. Nothing
        that is not judged hides an alarm, and where there is none, the speed stands there whether
        it is judged or not.
        """
        return max(self, key=lambda pair: (ALARM[pair[1].level], _is_down(pair[1])))

    def as_json(self) -> dict[str, object]:
        """As `/tokgauge/live` has it."""
        question, worst = self.worst
        return {
            "level": worst.level,
            "headline": worst.headline,
            "question": question,
            **{name: asdict(verdict) for name, verdict in self},
        }


def _is_down(verdict: Verdict) -> bool:
    return any(cause.kind == "engine_down" for cause in verdict.causes)


class OnShow:
    """The three answers as they are shown: steadily."""

    def __init__(self) -> None:
        self._steady = {question: Steady() for question in QUESTIONS}

    def show(self, found: ThreeAnswers, now: float) -> ThreeAnswers:
        """See `Steady.show`."""
        shown = {name: self._steady[name].show(verdict, now) for name, verdict in found}
        return ThreeAnswers(**shown)

    def forget_speed(self) -> None:
        """The speed on show is that of another model."""
        self._steady["speed"].forget()
