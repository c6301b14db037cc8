"""Looks at the GPUs once a second in a thread of its own, so that nobody waits for a driver."""

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from tokgauge.gpu.readings import Snapshot

__all__ = ["GpuSampler", "Reader"]

_log = logging.getLogger(__name__)


class Reader(Protocol):
    """What the sampler reads from; `NvmlReader` is one."""

    def read(self) -> Snapshot: ...

    def close(self) -> None: ...


class GpuSampler:
    """Calls `reader.read` every `interval_seconds` in a daemon thread, which also closes it.

    `on_snapshot` runs in the same thread after each look (`ContentionHistory.add`). Errors of both
    never reach a caller: `on_error`, which must not raise, is told of them in the same thread.
    Without it they are logged once per type.
    """

    def __init__(
        self,
        reader: Reader,
        *,
        interval_seconds: float = 1.0,
        on_snapshot: Callable[[Snapshot], None] | None = None,
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        self._reader = reader
        self._interval = interval_seconds
        self._on_snapshot = on_snapshot
        self._on_error = on_error or self._log_once
        self._latest: Snapshot | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._logged: set[type[Exception]] = set()

    def start(self) -> None:
        """Start the thread; does nothing when it was started before."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gpu-sampler", daemon=True)
            self._thread.start()

    def latest(self) -> Snapshot | None:
        """The newest snapshot, at once; None before the first. Its `age` tells whether it is stale:
        a driver that hangs leaves the last one standing.
        """
        return self._latest

    def stop(self, timeout_seconds: float = 2.0) -> bool:
        """End the thread and close the reader; False when NVML hangs and the thread is left behind
        (it is a daemon and ends with the process).
        """
        self._stopping.set()
        thread = self._thread
        if thread is None:
            return True
        thread.join(timeout_seconds)
        return not thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._sample()
            self._stopping.wait(self._interval)
        try:
            self._reader.close()
        except Exception as error:
            self._on_error(error)

    def _sample(self) -> None:
        # The border between GPU reading and everything else: a failure costs a sample, no more.
        try:
            snapshot = self._reader.read()
            self._latest = snapshot
            if self._on_snapshot is not None:
                self._on_snapshot(snapshot)
        except Exception as error:
            self._on_error(error)

    def _log_once(self, error: Exception) -> None:
        if type(error) not in self._logged:
            self._logged.add(type(error))
            _log.warning("reading the GPUs failed", exc_info=error)
