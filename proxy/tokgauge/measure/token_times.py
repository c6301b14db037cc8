"""When the token events of one response came. All times in seconds, monotonic."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence


class TokenTimes:
    """First and last, and the gaps between, as counts per histogram bucket.

    bounds: upper bounds of the buckets. arrivals: reads that brought a token.
    """

    __slots__ = ("_bounds", "_counts", "_taken_up_to", "arrivals", "first", "first_output", "last")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts: list[int] | None = None
        self._taken_up_to: float | None = None
        self.arrivals = 0
        self.first: float | None = None
        self.first_output: float | None = None
        self.last: float | None = None

    def add(self, at: float) -> None:
        """Token events came together with the one before, or are the first."""
        if self.last is None:
            self.first = self.last = at
        else:
            self.add_gaps(self.last, (at,))

    def add_gaps(self, last: float, times: Sequence[float]) -> None:
        """Token events came at `times`, one after the other, the one before them at `last`."""
        counts, bounds = self._counts, self._bounds
        if counts is None:
            counts = self._counts = [0] * (len(bounds) + 1)
        above = up_to = -1.0
        bucket = alike = 0
        for at in times:
            gap = at - last
            last = at
            if above < gap <= up_to:  # most likely it belongs where the last one did
                alike += 1
                continue
            counts[bucket] += alike
            alike = 1
            bucket = bisect_left(bounds, gap)
            above = bounds[bucket - 1] if bucket else -1.0
            up_to = bounds[bucket] if bucket < len(bounds) else math.inf
        counts[bucket] += alike
        self.last = last

    def take_gaps(self) -> tuple[list[int], float]:
        """The gaps since the last call, and their sum.

        `[i]` is the number of gaps up to the i-th bound and above the bound before; the last entry
        counts those above every bound. Empty when there was none.
        """
        counts, self._counts = self._counts, None
        since = self._taken_up_to if self._taken_up_to is not None else self.first
        self._taken_up_to = self.last
        if self.last is None or since is None:
            return [], 0.0
        return counts or [], self.last - since
