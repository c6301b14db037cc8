"""Tokens per second over a sliding window."""

from __future__ import annotations

_SHORTEST = 1.0
"""Seconds that a rate is taken over at least."""


class RateWindow:
    """Tokens per second over the last `length` seconds, kept in slots of a hundredth of that."""

    def __init__(self, length: float) -> None:
        self._length = length
        self._slot = length / 100
        self._since: float | None = None
        self._slots: dict[int, float] = {}

    def add(self, start: float, end: float, tokens: float) -> None:
        """Spread `tokens` evenly over `start`…`end` (monotonic seconds)."""
        if self._since is None or start < self._since:
            self._since = start
        size, span = self._slot, end - start
        first, last = int(max(start, end - self._length - size) / size), int(end / size)
        if first == last or span <= 0:
            self._slots[last] = self._slots.get(last, 0.0) + tokens
            return
        for slot in range(first, last + 1):
            share = (min(end, (slot + 1) * size) - max(start, slot * size)) / span
            self._slots[slot] = self._slots.get(slot, 0.0) + tokens * max(share, 0.0)

    def rate(self, now: float) -> float:
        """Tokens per second up to `now`, since the first ones where that is not so long ago."""
        if self._since is None:
            return 0.0
        begins = now - self._length
        oldest = int(begins / self._slot)
        for slot in [slot for slot in self._slots if slot < oldest]:
            del self._slots[slot]
        # Of the slot in which the window begins, only a part lies in it.
        outside = self._slots.get(oldest, 0.0) * (begins / self._slot - oldest)
        tokens = max(0.0, sum(self._slots.values()) - outside)
        return tokens / min(self._length, max(now - self._since, _SHORTEST))
