"""How long people waited for first tokens, and how much of it their own prompts explain.

Kept as counts of rounded numbers, so that a window of many answers costs no more than one of few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from tokgauge.diagnosis.counted import median
from tokgauge.diagnosis.expected_time import Interval
from tokgauge.measure.record import Record

_STEP = 0.1
_LONGEST = 3600.0
_TOKENS_STEP = 64


class _Slot(NamedTuple):
    """seconds: in steps. least, most: tokens of the prompt that were computed, in steps; None where
    the prompt's length is not known.
    """

    seconds: int
    least: int | None
    most: int | None


@dataclass(slots=True)
class FirstTokens:
    """Times to the first token of streams that have ended, each with its prompt."""

    counts: dict[_Slot, int] = field(default_factory=dict)

    def add(self, done: Record) -> None:
        """Count a stream, if it had a first token."""
        if done.time_to_first_token is None:
            return
        most, cached = done.prompt_tokens, done.cached_prompt_tokens
        # What the prefix cache gave is not computed. An engine that does not tell may have had all.
        least = None if most is None else 0 if cached is None else max(0, most - cached)
        if least:
            most = least
        slot = _Slot(
            round(min(done.time_to_first_token, _LONGEST) / _STEP),
            None if least is None else least // _TOKENS_STEP,
            None if most is None else most // _TOKENS_STEP,
        )
        self.counts[slot] = self.counts.get(slot, 0) + 1

    def take(self, other: Self) -> None:
        """Add what another one has counted."""
        for slot, count in other.counts.items():
            self.counts[slot] = self.counts.get(slot, 0) + count

    def __len__(self) -> int:
        return sum(self.counts.values())

    def median(self, so_far: Iterable[float] = ()) -> float | None:
        """Half of the streams waited as long or longer [s].

        so_far: how long others have waited that still do: they will have waited longer.
        """
        return median(
            [
                *((slot.seconds * _STEP, count) for slot, count in self.counts.items()),
                *((seconds, 1) for seconds in so_far),
            ]
        )

    def beyond_prompts(self, expected: Callable[[float], Interval]) -> Interval | None:
        """Median of what is left when the time that the own prompt takes is subtracted [s].

        expected: seconds for so many prompt tokens. None where no prompt's length is known.
        """
        low, high = [], []
        for slot, count in self.counts.items():
            if slot.least is None or slot.most is None:
                continue
            waited = slot.seconds * _STEP
            low.append((waited - _STEP / 2 - expected((slot.most + 1) * _TOKENS_STEP).high, count))
            high.append((waited + _STEP / 2 - expected(slot.least * _TOKENS_STEP).low, count))
        shortest, longest = median(low), median(high)
        if shortest is None or longest is None:
            return None
        return Interval(shortest, longest)

    def prompt_tokens(self) -> float | None:
        """Median of the tokens that were computed at most; None where nobody told them."""
        return median(
            [
                (slot.most * _TOKENS_STEP, count)
                for slot, count in self.counts.items()
                if slot.most is not None
            ]
        )
