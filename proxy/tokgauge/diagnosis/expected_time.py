"""How long the engine's work should take: from work and constants to an interval of seconds.

    t = n t0 + s t_seq + bytes / B_eff + prompt tokens / P_eff

n steps, t0 the fixed cost of a step (the engine's), s running sequences summed over the steps,
B_eff the bandwidth that the cards can be read with, P_eff the rate at which prompts are computed.
Reading and computing overlap in a step that does both, so the shortest time takes the longer of the
two, and the longest their sum. What is decoded is computed while weights are read, and only shows
where that takes longer. Pure; docs/normal.md has the evidence and worked examples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

FAR = 0.75
"""Below this part of the lower end of the normal range a share is suspect: on the founding case (7B
in 16 bits on an RTX A6000) that is the founding text's 50 %."""

TELLS_NOTHING = 4.2
"""A normal range whose ends are so many times apart calls hardly anything slow: nothing is judged.

The widest ranges of docs/normal.md, small models on eight cards, are 4.1 wide."""

ConstantsSource = Literal["calibrated", "fitted", "typical"]
CONSTANTS_SOURCES: tuple[ConstantsSource, ...] = get_args(ConstantsSource)


@dataclass(frozen=True, slots=True)
class Interval:
    """From `low` to `high`, both within."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The geometric mean, as far from both ends; the arithmetic one where an end is 0 or less.

        For a constant that is known to a factor, not to a sum.
        """
        if self.low <= 0:
            return (self.low + self.high) / 2
        return math.sqrt(self.low * self.high)

    @property
    def width(self) -> float:
        """How many times the upper end is the lower one."""
        return self.high / self.low if self.low > 0 else float("inf")

    def times(self, factor: float | Interval) -> Interval:
        """Both ends, by the factor's ends."""
        if isinstance(factor, Interval):
            return Interval(self.low * factor.low, self.high * factor.high)
        return Interval(self.low * factor, self.high * factor)

    def plus(self, other: Interval) -> Interval:
        """The ends added."""
        return Interval(self.low + other.low, self.high + other.high)

    def meets(self, other: Interval) -> bool:
        """Whether some number is in both."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What an engine did in some time. bytes: read by all steps, of all GPUs that serve a step.

    sequence_steps: running sequences, summed over the steps. prompt_tokens: computed in them, those
    that the prefix cache gave left out; prompts: how many prompts these are, 0 where nobody tells.
    decoded_tokens: computed of what is decoded, drafts that were verified too.
    """

    steps: float
    bytes: float
    sequence_steps: float
    prompt_tokens: float = 0.0
    prompts: float = 0.0
    decoded_tokens: float = 0.0

    def ideal_seconds(self, bandwidth: float) -> float:
        """Reading alone, at the cards' theoretical bandwidth [bytes/s]."""
        return self.bytes / bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What a step costs here.

    fixed: t0, of a step [s]. per_sequence: t_seq, of each running sequence and step [s]. bandwidth:
    B_eff of all GPUs that serve a step [bytes/s]. prefill: P_eff [tokens/s]; None where nothing
    tells.
    """

    fixed: Interval
    per_sequence: Interval
    bandwidth: Interval
    prefill: Interval | None
    source: ConstantsSource

    @property
    def constants(self) -> Constants:
        """Nothing is known of how their errors go together."""
        return self

    def expected(self, work: StepWork) -> Interval | None:
        """Seconds that the work should take; None where prompts came at an unknown rate."""
        fixed = self.fixed.times(work.steps).plus(self.per_sequence.times(work.sequence_steps))
        reading = _at(work.bytes, self.bandwidth)
        if self.prefill is None:
            return None if work.prompt_tokens else fixed.plus(reading)
        decoding = _at(work.decoded_tokens, self.prefill)
        prompts = _at(work.prompt_tokens, self.prefill)
        shortest = max(reading.low, decoding.low + prompts.low)
        longest = max(reading.high, decoding.high) + prompts.high
        return fixed.plus(Interval(shortest, longest))


def _at(amount: float, rate: Interval) -> Interval:
    return Interval(amount / rate.high, amount / rate.low)


class Costs(Protocol):
    """Constants that are known together: their errors may cancel out in what they predict."""

    @property
    def constants(self) -> Constants:
        """Each by itself."""

    def expected(self, work: StepWork) -> Interval | None:
        """Seconds that the work should take; None where it cannot be told."""


SlowPart = Literal["card", "engine", "prefill"]
"""What a constant is of: B_eff of the card, t0 and t_seq of the engine, P_eff of both."""

Band = Literal["above", "healthy", "watch", "suspect"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Normal:
    """What would be normal for the work of a window, and what it took.

    expected, seconds: of the work [s]. ideal: of reading alone, at the theoretical bandwidth [s].
    source: where the constants come from. prefill_share: about which part of the expected time goes
    into prompts; None where it cannot be told. slow_parts: what costs more than it should by the
    constants that the traffic itself shows, None where it does not show them.
    normal_by_the_other_bandwidth: another source of the bandwidth makes the time normal.
    like_eager: a step costs what is usual without CUDA graphs.
    """

    expected: Interval
    seconds: float
    ideal: float
    source: ConstantsSource
    prefill_share: float | None = 0.0
    slow_parts: frozenset[SlowPart] | None = None
    normal_by_the_other_bandwidth: bool = False
    like_eager: bool = False

    @property
    def share(self) -> float:
        """Of the theoretical bandwidth: time of reading alone ÷ time that it took."""
        return self.ideal / self.seconds

    @property
    def range(self) -> Interval:
        """Of the share: see `normal_range`."""
        return normal_range(self.ideal, self.expected)

    @property
    def ratio(self) -> float:
        """Time that it took ÷ the middle of the expected time; 1 is as expected."""
        return self.seconds / self.expected.middle

    @property
    def tells(self) -> bool:
        """Whether the range is narrow enough to tell healthy from slow."""
        return tells(self.expected)

    @property
    def band(self) -> Band:
        """Within or above the range healthy, below it watch, far below it suspect.

        Above 1 one read per step does not explain it: nothing follows from it.
        """
        if self.share > 1:
            return "above"
        return band_of(self.share, self.range)


def normal_range(ideal: float, expected: Interval) -> Interval:
    """Time of reading alone ÷ expected time, at both ends."""
    return Interval(ideal / expected.high, ideal / expected.low)


def tells(expected: Interval) -> bool:
    """Whether it is narrow enough to tell healthy from slow."""
    return expected.width < TELLS_NOTHING


def band_of(share: float, normal: Interval) -> Band:
    """Which band a share of the bandwidth is in, given its normal range; see `Normal.band`."""
    if share > 1:
        return "above"
    if share >= normal.low:
        return "healthy"
    return "watch" if share >= FAR * normal.low else "suspect"
