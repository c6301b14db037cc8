"""From evidence to a judgement: level, causes and the rest as kinds, without a sentence.

`wording` turns it into words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tokgauge.diagnosis.causes import (
    causes_of,
    neighbours_ruled_out,
    power_cap_ruled_out,
    ruled_out_by,
)
from tokgauge.diagnosis.cross_checks import CrossCheck, disagreements
from tokgauge.diagnosis.evidence import Evidence, band, sane, speculation_is_open
from tokgauge.diagnosis.not_judged import (
    REASON_OF,
    WhyNotJudged,
    range_tells,
    too_weak,
    unclear_steps,
)
from tokgauge.diagnosis.notes import ClientSide, Note, client_side, notes_of, notes_on_health
from tokgauge.diagnosis.verdict import CauseKind, Level, NotJudgedReason

_AS_GOOD_AS_IT_GETS = 0.85
# STREAM reads reach 97 % on the best card known (H100 NVL): more is no praise but a doubt.
_HARDLY_POSSIBLE = 0.97

Grade = Literal["as_good_as_it_gets", "hardly_possible"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The answer to one question about a window, and the evidence that it stands on.

    `causes` come most likely first. `certain` says that the first one is meant; without it any of
    them may be. `cross_checks` are those that disagree and that the verdict mentions as notes.
    `why` is set when the level is `not_judged`, and only then.
    """

    evidence: Evidence
    level: Level
    causes: tuple[CauseKind, ...] = ()
    certain: bool = True
    ruled_out: tuple[CauseKind, ...] = ()
    notes: tuple[Note, ...] = ()
    cross_checks: tuple[CrossCheck, ...] = ()
    client_side_advice: tuple[ClientSide, ...] = ()
    grade: Grade | None = None
    why: WhyNotJudged | None = None

    @property
    def reason(self) -> NotJudgedReason | None:
        """What kind of `why` it is."""
        return None if self.why is None else REASON_OF[self.why]


def judge(evidence: Evidence) -> Judgement:
    """Whether the engine is as fast as is normal here, and if not, why.

    Numbers that cannot be (negative, not finite, shares above 1) count as unknown.
    """
    e = sane(evidence)
    weak = too_weak(e)
    if weak is not None:
        return _not_judged(e, weak)
    found = band(e)
    if found is None:
        return _not_judged(e, "no_efficiency")
    if found == "above":
        return _above(e)
    if unclear_steps(e):
        return _not_judged(e, "speculation_unknown")
    if not range_tells(e):
        return _not_judged(e, "range_too_wide")
    if found == "healthy":
        return _healthy(e)
    return Judgement(
        evidence=e,
        level=found,
        causes=causes_of(e),
        ruled_out=ruled_out_by(e),
        notes=notes_of(e),
        cross_checks=disagreements(e, "lower"),
        client_side_advice=client_side(e),
    )


def _not_judged(e: Evidence, why: WhyNotJudged) -> Judgement:
    return Judgement(
        evidence=e,
        level="not_judged",
        ruled_out=neighbours_ruled_out(e),
        notes=notes_of(e),
        client_side_advice=client_side(e),
        why=why,
    )


def _above(e: Evidence) -> Judgement:
    doubted = bool(disagreements(e, "lower")) or e.basis == "checkpoint"
    causes: list[CauseKind] = ["wrong_ceiling_inputs", "cached_weights"]
    if speculation_is_open(e) and e.speculative is not False:
        causes.insert(0 if e.speculative or not doubted else 1, "speculative_decoding")
    return Judgement(
        evidence=e,
        level="above_ceiling",
        causes=tuple(causes),
        certain=doubted or bool(e.speculative),
        ruled_out=neighbours_ruled_out(e),
        notes=notes_of(e),
        cross_checks=disagreements(e, "higher"),
        client_side_advice=client_side(e),
    )


def _healthy(e: Evidence) -> Judgement:
    grade: Grade | None = None
    ratio = e.efficiency or 0.0
    if ratio > _HARDLY_POSSIBLE:
        grade = "hardly_possible"
    elif ratio >= _AS_GOOD_AS_IT_GETS:
        grade = "as_good_as_it_gets"
    return Judgement(
        evidence=e,
        level="healthy",
        ruled_out=(*neighbours_ruled_out(e), *power_cap_ruled_out(e)),
        notes=(*notes_of(e), *notes_on_health(e)),
        cross_checks=disagreements(e),
        client_side_advice=client_side(e),
        grade=grade,
    )
