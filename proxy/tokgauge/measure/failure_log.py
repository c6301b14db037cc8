"""What the log says of failures of the measuring side."""

from __future__ import annotations

import logging

logger = logging.getLogger("tokgauge")

_MOST_KINDS = 100


class FailureLog:
    """Logs the first failure of each kind: a bug may come back with every event."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, str]] = set()

    def note(self, where: str, error: Exception) -> None:
        """Measuring failed in a place; in any thread. Never raises."""
        kind = (where, type(error).__name__)
        if kind not in self._logged and len(self._logged) < _MOST_KINDS:
            self._logged.add(kind)
            logger.error(
                "measuring failed in %s; the traffic is not affected, and this is logged once",
                where, exc_info=error,
            )  # fmt: skip
