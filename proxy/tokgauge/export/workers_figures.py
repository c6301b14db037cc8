"""The figures of several workers as one, through prometheus_client's multiprocess mode.

Reaches into its file format (pinned to a minor version in pyproject.toml).
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Metric, mmap_dict, values
from prometheus_client.multiprocess import MultiProcessCollector

_TRY_AGAIN = 1.0
"""Seconds between two tries to get room for a value."""

_PAUSES = (0.01, 0.05, 0.2)
"""Seconds between the tries."""


class WorkersFigures(MultiProcessCollector):
    """Sums the files of all workers, whatever they are doing to them at that moment.

    A file that a worker is just creating is empty for an instant, and one that a worker has left
    behind may go while it is being read. The library takes both for errors; here it reads again.
    """

    def __init__(self, registry: CollectorRegistry, directory: Path) -> None:
        # The library looks the class up whenever it makes a file.
        values.MmapedDict = _AllocatedFile  # type: ignore[attr-defined]
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


def take_failure() -> OSError | None:
    """Why values of this process had no room in its files lately; None when all of them have."""
    failure, _AllocatedFile.failure = _AllocatedFile.failure, None
    return failure


class _AllocatedFile(mmap_dict.MmapedDict):
    """A file of values whose room is taken before it is written to.

    The library maps a file that has its size and no room yet: on a full disk the first write to it
    ends the process (SIGBUS). Here a value without room waits in memory. It is a running total, so
    nothing of it is missing once there is room again; until then its sample is absent or lacks what
    this process has counted, which `take_failure` tells.
    """

    failure: OSError | None = None

    def __init__(self, filename: str, read_mode: bool = False) -> None:
        self._waiting: dict[str, tuple[float, float]] = {}
        self._not_before = 0.0
        self._name = filename
        self._used = self._capacity = 0
        self._positions: dict[str, int] = {}
        self._f: Any = None
        self._begin()

    def _begin(self) -> None:
        try:
            descriptor = os.open(self._name, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, mmap_dict._INITIAL_MMAP_SIZE)
            except OSError:
                if not os.fstat(descriptor).st_size:
                    os.unlink(self._name)  # an empty file cannot be read
                raise
            finally:
                os.close(descriptor)
            super().__init__(self._name)  # type: ignore[no-untyped-call]
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        _AllocatedFile.failure = error
        self._not_before = time.monotonic() + _TRY_AGAIN

    def _has_room(self, key: str) -> bool:
        """Whether the key has its place in the file, now or from now on."""
        if key in self._positions:
            return True
        if time.monotonic() < self._not_before:
            return False
        if self._f is None:
            self._begin()
        if self._f is None:
            return False
        # Length, key, padding and two doubles, as the library writes them.
        end = self._used + 4 + len(key.encode()) + 8 + 16
        capacity = self._capacity
        while end > capacity:
            capacity *= 2
        try:
            if capacity != self._capacity:
                os.posix_fallocate(self._f.fileno(), 0, capacity)
            self._init_value(key)  # type: ignore[no-untyped-call]
        except OSError as error:
            self._fail(error)
            return False
        return True

    def read_value(self, key: str) -> tuple[float, float]:
        if self._has_room(key):
            found: tuple[float, float] = super().read_value(key)  # type: ignore[no-untyped-call]
            return found
        return self._waiting.setdefault(key, (0.0, 0.0))

    def write_value(self, key: str, value: float, timestamp: float) -> None:
        if self._waiting:
            self._waiting[key] = (value, timestamp)
            self._bring_in()
        elif self._has_room(key):
            super().write_value(key, value, timestamp)  # type: ignore[no-untyped-call]
        else:
            self._waiting[key] = (value, timestamp)

    def _bring_in(self) -> None:
        """Write all that waits, as far as there is room."""
        for key in list(self._waiting):
            if self._has_room(key):
                super().write_value(key, *self._waiting.pop(key))  # type: ignore[no-untyped-call]
