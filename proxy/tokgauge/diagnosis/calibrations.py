"""What `tokgauge calibrate` has measured of what serves now."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tokgauge.diagnosis.calibration_file import Entry, HoldsFor, matching
from tokgauge.diagnosis.expected_time import Costs

logger = logging.getLogger("tokgauge")


class Calibrations:
    """entries: of the calibration file; none where there is no such file."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self._told: str | None = None

    def of(self, now: HoldsFor) -> Costs | None:
        """What was measured of this one; the log says once why nothing was."""
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
