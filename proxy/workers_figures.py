"""The figures of several workers as one, through prometheus_client's multiprocess mode."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.multiprocess import MultiProcessCollector

_PAUSES = (0.01, 0.05, 0.2)
"""Seconds between the tries."""


class WorkersFigures(MultiProcessCollector):
    """Sums the files of all workers, whatever they are doing to them at that moment.

    A file that a worker is just creating is empty for an instant, and one that a worker has left
    behind may go while it is being read. The library takes both for errors; here it reads again.
    """

    def __init__(self, registry: CollectorRegistry, directory: Path) -> None:
        super().__init__(registry, str(directory))  # type: ignore[no-untyped-call]

    def collect(self) -> Iterable[Metric]:
        """All metrics. Not for the event loop: it reads files and may wait for a moment."""
        for pause in _PAUSES:
            try:
                return self._read()
            except (struct.error, FileNotFoundError):
                time.sleep(pause)
        return self._read()

    def _read(self) -> Iterable[Metric]:
        found: Iterable[Metric] = super().collect()  # type: ignore[no-untyped-call]
        return found
