"""What people got and how long they waited for it: the answers of a window, counted.

Kept as counts, so that an answer costs the same however many there are, and so does their memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

from tokgauge.diagnosis.counted import median
from tokgauge.diagnosis.first_tokens import FirstTokens
from tokgauge.measure.record import Outcome, Record

Ending = Literal["whole", "broken_off", "engine_error", "unreachable", "client_left", "proxy_error"]
"""How a request for text ended; what the engine or the proxy refused as wrong counts nowhere."""

_ENDINGS: Mapping[Outcome, Ending] = {
    "ok": "whole",
    "client_closed": "client_left",
    "stream_error": "broken_off",
    "upstream_incomplete": "broken_off",
    "upstream_stalled": "broken_off",
    "upstream_unreachable": "unreachable",
    "timeout": "unreachable",
    "proxy_error": "proxy_error",
}

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
        slot = median(self.counts.items())
        return None if slot is None or slot >= int(self.top / self.step) else slot * self.step


def _waits() -> Spread:
    return Spread(_WAIT_STEP, _LONGEST_WAIT)


def _ratios() -> Spread:
    return Spread(_RATIO_STEP, _LARGEST_RATIO)


@dataclass(slots=True)
class Answers:
    """Answers that ended.

    seen: those that showed somebody something. unstreamed: of them, those that came in one piece,
    with `waits` for them [s]. finished: those that said why they end; truncated: of them, those
    with a choice that a token limit ended. ratios: `Record.ceiling_ratio` where known. endings: of
    all requests for text. cuts: of the truncated ones by what cut them (`request`, `context`,
    `unknown`). first_tokens: of those that were streamed.
    """

    seen: int = 0
    unstreamed: int = 0
    finished: int = 0
    truncated: int = 0
    waits: Spread = field(default_factory=_waits)
    ratios: Spread = field(default_factory=_ratios)
    endings: Counter[Ending] = field(default_factory=Counter)
    cuts: Counter[str] = field(default_factory=Counter)
    first_tokens: FirstTokens = field(default_factory=FirstTokens)

    def add(self, done: Record, *, streamed: bool) -> None:
        """Count an exchange that ended; `streamed` as it came, whatever was asked for."""
        ending = _ending(done)
        if ending is not None:
            self.endings[ending] += 1
        self.first_tokens.add(done)
        if done.silent_wait is not None:
            self.seen += 1
            if not streamed:
                self.unstreamed += 1
                self.waits.add(done.silent_wait)
        if done.finish_reasons:
            self.finished += 1
            if done.truncations:
                self.truncated += 1
                self.cuts.update(set(map(_cut_by, done.truncations)))
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


def _ending(done: Record) -> Ending | None:
    if done.outcome == "upstream_error":
        return "engine_error" if done.status is not None and done.status >= 500 else None
    return _ENDINGS.get(done.outcome)


def _cut_by(truncation: str | int) -> str:
    return truncation if isinstance(truncation, str) else "unknown"


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
        whole.endings.update(part.endings)
        whole.cuts.update(part.cuts)
        whole.first_tokens.take(part.first_tokens)
    return whole
