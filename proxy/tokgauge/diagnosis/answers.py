"""What people got and how long they waited for it: the answers of a window, counted.

Kept as counts, so that an answer costs the same however many there are, and so does their memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from tokgauge.measure.record import Record

_WAIT_STEP = 0.1
_LONGEST_WAIT = 3600.0
_RATIO_STEP = 0.001
_LARGEST_RATIO = 10.0


@dataclass(slots=True)
class Spread:
    """Numbers of 0 and above, each rounded down to a multiple of `step` and at most `top`."""

    step: float
    top: float
    counts: dict[int, int] = field(default_factory=dict)

    def add(self, value: float) -> None:
        """Count one number."""
        slot = int((value if value < self.top else self.top) / self.step)
        self.counts[slot] = self.counts.get(slot, 0) + 1

    def take(self, other: Self) -> None:
        """Add what another one with the same steps has counted."""
        for slot, count in other.counts.items():
            self.counts[slot] = self.counts.get(slot, 0) + count

    def median(self) -> float | None:
        """At least half of the numbers are as large; None without any, and from `top` on."""
        below = (sum(self.counts.values()) - 1) // 2
        for slot in sorted(self.counts):
            below -= self.counts[slot]
            if below < 0:
                return slot * self.step if slot < int(self.top / self.step) else None
        return None


def _waits() -> Spread:
    return Spread(_WAIT_STEP, _LONGEST_WAIT)


def _ratios() -> Spread:
    return Spread(_RATIO_STEP, _LARGEST_RATIO)


@dataclass(slots=True)
class Answers:
    """Answers that ended.

    seen: those that showed somebody something. unstreamed: of them, those that came in one piece,
    with `waits` for them [s]. finished: those that said why they end; truncated: of them, those
    with a choice that a token limit ended. ratios: `Record.ceiling_ratio` where known.
    """

    seen: int = 0
    unstreamed: int = 0
    finished: int = 0
    truncated: int = 0
    waits: Spread = field(default_factory=_waits)
    ratios: Spread = field(default_factory=_ratios)

    def add(self, done: Record, *, streamed: bool) -> None:
        """Count an exchange that ended; `streamed` as it came, whatever was asked for."""
        if done.silent_wait is not None:
            self.seen += 1
            if not streamed:
                self.unstreamed += 1
                self.waits.add(done.silent_wait)
        if done.finish_reasons:
            self.finished += 1
            if done.truncations:
                self.truncated += 1
        if done.ceiling_ratio is not None:
            self.ratios.add(done.ceiling_ratio)

    @property
    def unstreamed_ratio(self) -> float | None:
        """Share of the answers that were not streamed; None without answers."""
        return self.unstreamed / self.seen if self.seen else None

    @property
    def truncated_ratio(self) -> float | None:
        """Share of the answers that a token limit cut off; None without answers."""
        return self.truncated / self.finished if self.finished else None


def merge(parts: Iterable[Answers]) -> Answers:
    """Several parts of a window as one."""
    whole = Answers()
    for part in parts:
        whole.seen += part.seen
        whole.unstreamed += part.unstreamed
        whole.finished += part.finished
        whole.truncated += part.truncated
        whole.waits.take(part.waits)
        whole.ratios.take(part.ratios)
    return whole
