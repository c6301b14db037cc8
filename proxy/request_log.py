"""The request log: one JSON line for each exchange, without prompt, answer or key."""

from __future__ import annotations

import logging
import queue
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import msgspec

from proxy.measurement import Measurement

logger = logging.getLogger("tokgauge")

QUEUE_LIMIT = 10_000
"""Lines that may wait for a slow disk; further ones are dropped and their number is logged."""


class RequestLog:
    """Appends measurements to a file (`-`: standard output) from a thread of its own.

    Raises OSError from the constructor when the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = (
            sys.stdout.buffer if str(path) == "-" else path.open("ab", buffering=0)
        )
        self._owned = str(path) != "-"
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="request-log", daemon=True)
        self._thread.start()

    def write(self, done: Measurement, model_label: str) -> None:
        """Queue one line. Never blocks."""
        if self._lines.qsize() >= QUEUE_LIMIT:
            self._dropped += 1
            return
        ended = datetime.now(UTC).isoformat(timespec="milliseconds")
        # The label, not the requested name: free text from a client does not belong into a log.
        line = {"time": ended, **msgspec.structs.asdict(done), "model": model_label}
        self._lines.put(msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        """Write what is queued and close the file."""
        self._lines.put(None)
        self._thread.join()
        if self._owned:
            self._file.close()
        if self._dropped:
            logger.warning("the request log lost %d lines: its disk was too slow", self._dropped)

    def _write(self) -> None:
        broken = False
        while (line := self._lines.get()) is not None:
            try:
                self._file.write(line)
                self._file.flush()
                broken = False
            except OSError as error:
                self._dropped += 1
                if not broken:
                    logger.error("the request log cannot be written: %s", error)
                broken = True
