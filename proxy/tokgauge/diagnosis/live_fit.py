"""Constants from the windows that `serve` sees: while conditions stay, the newest count most."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import replace

from tokgauge.diagnosis.fit import Fitted, NotTold, Observation, fit

_KEPT = 90
"""Observations: a fit of so many takes some 20 ms."""

_HALF_LIFE = 1800.0
"""Seconds in which an observation comes to count half."""

_LEAST = 12
"""Observations below which a fit would follow chance."""

_APART = 10.0
"""Seconds between observations that are kept: windows that overlap tell the same twice."""


class LiveFit:
    """What was seen under the present conditions.

    conditions: whatever makes another machine of it: model, engine start, neighbours, card.
    """

    def __init__(self) -> None:
        self._kept: deque[tuple[float, Observation]] = deque(maxlen=_KEPT)
        self._conditions: Hashable = None
        self._bandwidth: float | None = None
        self._fitted: Fitted | NotTold | None = None

    def add(
        self, at: float, observation: Observation, conditions: Hashable, bandwidth: float | None
    ) -> None:
        """One look's window, at monotonic seconds `at`. bandwidth: theoretical [bytes/s]."""
        if (conditions, bandwidth) != (self._conditions, self._bandwidth):
            self._kept.clear()
            self._conditions, self._bandwidth = conditions, bandwidth
            self._fitted = None
        if self._kept and at - self._kept[-1][0] < _APART:
            return
        self._kept.append((at, observation))
        self._fitted = None

    def fitted(self) -> Fitted | NotTold:
        """The constants that follow, made anew when an observation was kept."""
        if self._fitted is None:
            self._fitted = self._fit()
        return self._fitted

    def _fit(self) -> Fitted | NotTold:
        if len(self._kept) < _LEAST:
            return fit([], "fitted")
        now = self._kept[-1][0]
        faded = [
            replace(o, weight=o.weight * 0.5 ** ((now - at) / _HALF_LIFE)) for at, o in self._kept
        ]
        return fit(faded, "fitted", self._bandwidth)
