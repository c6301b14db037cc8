"""One situation: an engine, its load, what is wrong with it, and which first causes are right.

What is right is decided by the hidden truth alone, whatever the product says: how much longer the
same steps take than on the slowest of the engine's healthy peers, which have the same card, model
and precision.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from tokgauge.diagnosis.verdict import CauseKind

from tests.physics.conditions import Conditions
from tests.physics.engine import Engine
from tests.physics.loads import LOADS, Load, LoadKind, drawn_load
from tests.physics.machine import Machine
from tests.physics.truth import KINDS, Kind, Truth, drawn

FaultKind = Literal[
    "neighbour", "memory_clock", "eager", "stolen_cpu", "guided", "slow_reading", "slow_prefill",
    "small_cache", "wrong_bandwidth",
]  # fmt: skip
FAULTS: tuple[FaultKind, ...] = (
    "neighbour", "memory_clock", "eager", "stolen_cpu", "guided", "slow_reading", "slow_prefill",
    "small_cache", "wrong_bandwidth",
)  # fmt: skip

_ENGINE: tuple[CauseKind, ...] = ("slow_engine", "cpu_bound")
RIGHT: dict[FaultKind, tuple[CauseKind, ...]] = {
    "neighbour": ("active_neighbour",),
    "memory_clock": ("memory_clock_low",),
    # From outside the three are one: the engine itself takes long, its GPU waits.
    "eager": _ENGINE,
    "stolen_cpu": _ENGINE,
    "guided": _ENGINE,
    "slow_reading": ("slow_card",),
    "slow_prefill": ("slow_prefill",),
    "small_cache": ("preemption", "kv_cache_full"),
    "wrong_bandwidth": ("wrong_ceiling_inputs",),
}

_PEERS = 16
_MATTERS = 1.15
"""A part of a combination that makes less of the slowness need not be named."""

Moment = Literal["start", "later"]


@dataclass(frozen=True, slots=True)
class Fault:
    """severity: of the kind's own quantity, see `conditions` and `truth`."""

    kind: FaultKind
    severity: float

    @property
    def conditions(self) -> dict[str, Any]:
        """What changes while the engine runs."""
        changes: dict[FaultKind, dict[str, Any]] = {
            "neighbour": {"neighbour": self.severity},
            "memory_clock": {"memory_clock": self.severity},
            "eager": {"eager": True},
            "stolen_cpu": {"stolen_cpu": self.severity},
            "guided": {"guided": self.severity},
            "small_cache": {"cache": self.severity},
        }
        return changes.get(self.kind, {})

    def worsened(self, truth: Truth) -> Truth:
        """The engine with what no condition changes."""
        if self.kind == "slow_reading":
            return replace(truth, attainable=truth.attainable * self.severity)
        if self.kind == "slow_prefill":
            peak = truth.tensor_peak * self.severity
            attention = truth.prefill_attention * self.severity
            return replace(truth, tensor_peak=peak, prefill_attention=attention)
        return truth


@dataclass(frozen=True)
class Situation:
    """crowded: more users than the engine takes at once."""

    seed: int
    kind: Kind
    load_kind: LoadKind
    faults: tuple[Fault, ...] = ()
    moment: Moment = "start"
    crowded: bool = False

    @cached_property
    def healthy(self) -> Truth:
        """The engine with nothing wrong."""
        truth = drawn(self.seed, self.kind, eager=False)
        return replace(truth, max_num_seqs=8) if self.crowded else truth

    @cached_property
    def truth(self) -> Truth:
        """The engine as it is."""
        truth = self.healthy
        for fault in self.faults:
            truth = fault.worsened(truth)
        return truth

    @cached_property
    def load(self) -> Load:
        """That fits into the cache of the healthy engine."""
        load = drawn_load(self.healthy, self.load_kind, self.seed)
        return replace(load, users=24) if self.crowded else load

    @property
    def conditions(self) -> dict[str, Any]:
        """Of all faults."""
        return {name: value for f in self.faults for name, value in f.conditions.items()}

    @property
    def gpu_bandwidth(self) -> float | None:
        """As the user set it; None: not at all."""
        wrong = [f.severity for f in self.faults if f.kind == "wrong_bandwidth"]
        return self.truth.card.bandwidth * wrong[0] if wrong else None

    @property
    def bystanders(self) -> bool:
        return self.seed % 3 == 0

    def right(self, engine: Engine, since: float) -> tuple[CauseKind, ...]:
        """First causes that are right for the steps from then on, by their own share in it."""
        steps = sampled(engine, since)
        if len(self.faults) < 2:
            return tuple(cause for fault in self.faults for cause in self._right(fault))
        whole = _seconds(self.truth, self.conditions, steps)
        right: list[CauseKind] = []
        for fault in self.faults:
            others = replace(self, faults=tuple(f for f in self.faults if f is not fault))
            matters = _seconds(others.truth, others.conditions, steps) * _MATTERS < whole
            if matters or fault.kind in ("small_cache", "wrong_bandwidth"):
                right += self._right(fault)
        return tuple(right)

    def _right(self, fault: Fault) -> tuple[CauseKind, ...]:
        if fault.kind == "memory_clock" and self.truth.card.memory == "lpddr":
            return ("slow_card",)  # NVML tells no clock of it
        if fault.kind == "memory_clock" and self.bystanders:
            return ("memory_clock_low", "power_throttling")  # a power cap is on, too
        return RIGHT[fault.kind]

    def slowness(self, engine: Engine, since: float) -> float:
        """Time that the steps from then on took ÷ on the slowest of the healthy peers.

        What preempted sequences compute again is no work of healthy peers, and a bandwidth that was
        set wrongly is that of theirs.
        """
        steps = sampled(engine, since)
        took = sum(seconds for seconds, *_ in steps)
        return took / max(_seconds(peer, {}, steps) for peer in self._peers())

    def prompt_share(self, engine: Engine, since: float) -> float:
        """Share of the time of the steps from then on that computing prompts takes in health."""
        steps = sampled(engine, since)
        decoding = [(seconds, decodes, contexts, 0) for seconds, decodes, contexts, _ in steps]
        alone = _seconds(self.healthy, {}, [step for step in decoding if step[1]])
        return 1 - alone / _seconds(self.healthy, {}, steps)

    def _peers(self) -> Iterator[Truth]:
        healthy = self.healthy
        card = healthy.card
        if self.gpu_bandwidth is not None:
            card = replace(card, bandwidth=self.gpu_bandwidth)
        for seed in range(10_000, 10_000 + _PEERS):
            peer = drawn(
                seed, self.kind, healthy.card, healthy.model, healthy.precision, eager=False
            )
            yield replace(
                peer, card=card, draft_tokens=healthy.draft_tokens, draft_bytes=healthy.draft_bytes
            )


Step = tuple[float, int, int, int]
"""Seconds, sequences that decode, their contexts, prompt tokens that had to be computed."""


def sampled(engine: Engine, since: float, most: int = 100) -> list[Step]:
    """Steps from then on, evenly, without what was computed for a second time."""
    log = engine.log
    first = next((i for i, end in enumerate(log.ends) if end >= since), len(log.ends))
    computed = sum(log.prompt_tokens[first:])
    asked = sum(
        request.prompt_tokens - request.cached_tokens
        for request in engine.requests
        if (at := request.first_event_at) is not None and since <= at <= engine.time
    )
    needed = min(1.0, asked / computed) if engine.conditions.cache < 1 and computed else 1.0
    every = max(1, (len(log.ends) - first) // most)
    return [
        (log.seconds[i], log.decodes[i], log.contexts[i], int(needed * log.prompt_tokens[i]))
        for i in range(first, len(log.ends), every)
    ]


def _seconds(truth: Truth, conditions: dict[str, Any], steps: list[Step]) -> float:
    machine = Machine(truth, Conditions(**conditions))
    total = 0.0
    for _, decodes, contexts, prompt in steps:
        longest = contexts // decodes if decodes else 0
        total += machine.seconds(decodes, contexts, longest, [(0, prompt)] if prompt else [])
    return total


def healthy_situations(seeds: range) -> Iterator[Situation]:
    """Every load on every kind, and a queue on every kind."""
    for seed in seeds:
        for kind in KINDS:
            for load in LOADS:
                yield Situation(seed, kind, load)
            yield Situation(seed, kind, "batch", crowded=True)


_LOADS_OF: dict[FaultKind, tuple[LoadKind, ...]] = {
    "slow_prefill": ("prompts", "mixed"),
    "small_cache": ("batch", "mixed", "long"),
}
_ANY: tuple[LoadKind, ...] = (
    "one", "batch", "short", "long", "prompts", "mixed", "cached", "chunks", "pauses"
)  # fmt: skip


def faulty_situations(seeds: range) -> Iterator[Situation]:
    """Every fault on every kind, from the start or after a healthy time."""
    for seed in seeds:
        for number, fault in enumerate(FAULTS):
            for kind in KINDS:
                rng = random.Random(f"fault {seed} {fault} {kind}")
                loads = _LOADS_OF.get(fault, _ANY)
                yield Situation(
                    seed + 100,
                    kind,
                    rng.choice(loads),
                    (Fault(fault, _severity(fault, rng)),),
                    _moment(fault, (seed + number) % 2 == 0),
                )


_TOGETHER: tuple[tuple[FaultKind, FaultKind], ...] = (
    ("neighbour", "memory_clock"),
    ("neighbour", "eager"),
    ("neighbour", "wrong_bandwidth"),
    ("memory_clock", "stolen_cpu"),
    ("memory_clock", "small_cache"),
    ("guided", "wrong_bandwidth"),
    ("slow_reading", "stolen_cpu"),
    ("slow_reading", "neighbour"),
)


def combined_situations(seeds: range) -> Iterator[Situation]:
    """Two faults at once."""
    for seed in seeds:
        for pair in _TOGETHER:
            for kind in KINDS:
                rng = random.Random(f"faults {seed} {pair} {kind}")
                faults = tuple(Fault(fault, _severity(fault, rng)) for fault in pair)
                load = rng.choice(_LOADS_OF["small_cache"] if "small_cache" in pair else _ANY)
                yield Situation(seed + 200, kind, load, faults)


def _moment(fault: FaultKind, later: bool) -> Moment:
    """What is no condition has always been so."""
    return "later" if later and Fault(fault, 0.5).conditions else "start"


def _severity(fault: FaultKind, rng: random.Random) -> float:
    if fault == "neighbour":
        return rng.uniform(0.5, 0.8)
    if fault == "memory_clock":
        return rng.uniform(0.15, 0.45)
    if fault == "stolen_cpu":
        return rng.uniform(15, 90)
    if fault == "guided":
        return 10 ** rng.uniform(-3, -1.8)
    if fault == "slow_reading":
        return rng.uniform(0.15, 0.45)
    if fault == "slow_prefill":
        return rng.uniform(0.06, 0.25)
    if fault == "small_cache":
        return rng.uniform(0.02, 0.3)
    if fault == "wrong_bandwidth":
        return rng.uniform(2.5, 5.0)
    return 1.0
