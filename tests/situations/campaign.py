"""Plays situations and says what was mistaken for what."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tokgauge.diagnosis.assess import Assessment

from tests.physics.engine import Engine
from tests.physics.truth import BLOCK
from tests.situations.serving import INTERVAL, WINDOW, Serving
from tests.situations.situation import Situation

FINDABLE = 1.5
"""Times as long as on the slowest healthy peer: what is to be found. Less may be found."""

FINDABLE_IN_PROMPTS = 3.0
"""The same where prompts take more than `_PROMPTS` of the time or are what is slow: how fast they
are usually computed is known to a factor of three only (docs/normal.md)."""
_PROMPTS = 0.25

_STEPS = 40
"""Fewer in a window are too little traffic to judge."""

_BEFORE = 170.0
"""Healthy seconds before a fault that comes later: enough for a fit of live traffic."""
_AFTER = 60.0
_WARM_UP = 20.0
_SETTLED = 2 * WINDOW
"""After a fault the window holds nothing of before."""


@dataclass(slots=True)
class Played:
    """accused: by level and first cause, while all was healthy. answer: the first cause of the last
    look, or its level where there is none; expected: likewise, those that are right. slowness: see
    `Situation`."""

    situation: Situation
    accused: list[str]
    answer: str
    expected: tuple[str, ...]
    slowness: float
    findable: float
    last: Assessment = field(repr=False)

    @property
    def is_right(self) -> bool:
        return not self.accused and self.answer in self.expected

    @property
    def must_be_found(self) -> bool:
        return bool(self.situation.faults) and self.slowness >= self.findable


def play(situation: Situation) -> Played:
    """The whole of it."""
    truth = situation.truth
    engine = Engine(truth)
    fault_at = _BEFORE if situation.moment == "later" else 0.0
    until = fault_at + _AFTER
    if situation.conditions:
        engine.change(fault_at, **_bearable(situation))
    situation.load.start(engine, situation.seed, until)
    serving = Serving(
        engine, gpu_bandwidth=situation.gpu_bandwidth, bystanders=situation.bystanders
    )
    accused = []
    last = None
    while engine.time < until:
        engine.run_until(engine.time + INTERVAL)
        last = serving.look()
        is_healthy = not situation.faults or engine.time < fault_at
        if is_healthy and engine.time > _WARM_UP and last.speed.level in ("watch", "suspect"):
            accused.append(_answer(last))
    assert last is not None
    since = fault_at + _SETTLED
    slowness = situation.slowness(engine, since)
    expected: tuple[str, ...] = situation.right(engine, since)
    in_prompts = situation.prompt_share(engine, since) > _PROMPTS or any(
        fault.kind == "slow_prefill" for fault in situation.faults
    )
    findable = FINDABLE_IN_PROMPTS if in_prompts else FINDABLE
    if sum(end > until - WINDOW for end in engine.log.ends) < _STEPS:
        findable = math.inf
    if not situation.faults or slowness < findable:
        expected = (*expected, "healthy", "not_judged", "no cause")
    return Played(situation, accused, _answer(last), expected, slowness, findable, last)


def _bearable(situation: Situation) -> dict[str, float]:
    """No single request may be larger than the cache."""
    conditions = dict(situation.conditions)
    if "cache" in conditions:
        load = situation.load
        largest = load.prompt[1] + load.output[1] + 4 * BLOCK
        least = 1.2 * largest / situation.truth.kv_cache_tokens
        conditions["cache"] = max(conditions["cache"], least)
    return conditions


def _answer(assessment: Assessment) -> str:
    judgement = assessment.speed
    if judgement.level in ("watch", "suspect"):
        return judgement.causes[0] if judgement.causes else "no cause"
    return judgement.level


@dataclass(slots=True)
class Figures:
    played: list[Played]

    @property
    def falsely_accused(self) -> list[Played]:
        return [p for p in self.played if p.accused or (not p.situation.faults and not p.is_right)]

    @property
    def to_be_found(self) -> list[Played]:
        return [p for p in self.played if p.must_be_found]

    @property
    def found(self) -> float:
        """Share of those to be found that have the right first cause."""
        to_be_found = self.to_be_found
        right = sum(p.answer in p.expected for p in to_be_found)
        return right / len(to_be_found) if to_be_found else 1.0

    def table(self) -> Iterator[tuple[str, int, int, str]]:
        """What is wrong, situations, those answered rightly, what the others were taken for."""
        rows: dict[str, list[Played]] = {}
        for played in self.played:
            rows.setdefault(_row(played), []).append(played)
        for name, found in rows.items():
            wrong = Counter(
                p.accused[0] if p.accused else p.answer for p in found if not p.is_right
            )
            mistaken = ", ".join(f"{what} {n}" for what, n in wrong.most_common())
            yield name, len(found), sum(p.is_right for p in found), mistaken


def _row(played: Played) -> str:
    if not played.situation.faults:
        return "nothing"
    names = " + ".join(fault.kind for fault in played.situation.faults)
    return names if played.must_be_found else f"{names}, too little to be found"
