"""What a step costs on this engine: as it was calibrated, and as the traffic shows it."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence

from tokgauge.diagnosis.calibration_file import Entry, HoldsFor, matching
from tokgauge.diagnosis.expected_time import Costs
from tokgauge.diagnosis.fit import Fitted, Observation
from tokgauge.diagnosis.live_fit import LiveFit

logger = logging.getLogger("tokgauge")


class StepCosts:
    """entries: of the calibration file; none where there is no such file."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self._live = LiveFit()
        self._told: str | None = None

    def calibrated(self, now: HoldsFor) -> Costs | None:
        """What was measured of what serves now; the log says once why nothing was."""
        if not self._entries:
            return None
        found = matching(self._entries, now)
        if isinstance(found, Entry):
            self._told = None
            return found.fitted
        if found != self._told:
            self._told = found
            logger.warning("%s; until then typical constants are used", found)
        return None

    def saw(
        self, at: float, observed: Observation, conditions: Hashable, bandwidth: float | None
    ) -> None:
        """A window at monotonic seconds `at`; see `LiveFit.add`."""
        self._live.add(at, observed, conditions, bandwidth)

    def fitted(self) -> Costs | None:
        """As the traffic shows it; None where it does not tell."""
        found = self._live.fitted()
        return found if isinstance(found, Fitted) else None
