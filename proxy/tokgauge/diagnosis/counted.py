"""Numbers that are kept as counts."""

from __future__ import annotations

from collections.abc import Iterable


def median(counted: Iterable[tuple[float, int]]) -> float | None:
    """Of numbers, each with how often it came: at least half are as large. None without any."""
    known = sorted(counted)
    below = (sum(count for _, count in known) - 1) // 2
    for value, count in known:
        below -= count
        if below < 0:
            return value
    return None
