"""Divides the time of a run among its parts."""

from __future__ import annotations

import time
from collections.abc import Iterable


class Schedule:
    """Parts that follow one another; what one leaves over goes to those after it.

    `parts` are (name, seconds that it is expected to need). Only the proportions matter: a part may
    take its share of what is left, which is more than expected when time is plentiful.
    """

    def __init__(self, seconds: float, parts: Iterable[tuple[str, float]]) -> None:
        self._end = time.monotonic() + seconds
        self._parts = list(parts)

    def left(self) -> float:
        """Seconds until the end of the run."""
        return max(0.0, self._end - time.monotonic())

    def take(self, name: str) -> float:
        """The seconds that the part `name` may use from now on; parts before it are over."""
        while self._parts[0][0] != name:
            self._parts.pop(0)
        share = self._parts[0][1] / sum(expected for _, expected in self._parts)
        self._parts.pop(0)
        return self.left() * share
