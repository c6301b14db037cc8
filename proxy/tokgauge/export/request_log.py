"""The request log: one JSON line for each exchange, without prompt, answer or key."""

from __future__ import annotations

import logging
import queue
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import msgspec

from tokgauge.measure.record import Record

logger = logging.getLogger("tokgauge")

STANDARD_OUTPUT = Path("-")

_CLOSING = 5.0
"""Seconds that the end of the process waits for a disk or a reader that takes no more lines."""

_STDOUT = 1

QUEUE_LIMIT = 10_000
"""Lines that may wait for a slow disk; further ones are dropped and their number is logged."""

_NOT_WRITTEN = ("progress", "ended_at", "gaps", "gaps_total")
"""Fields for the analyst alone: among them the model's name as the client wrote it."""


class RequestLog:
    """Appends measurements to a file (`-`: standard output) from a thread of its own.

    Raises OSError from the constructor when the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._owned = path != STANDARD_OUTPUT
        # Unbuffered: nothing may be left over that the end of the interpreter stumbles upon.
        self._file: IO[bytes] = open(  # noqa: SIM115 - closed by close()
            path if self._owned else _STDOUT, "ab", buffering=0, closefd=self._owned
        )
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="request-log", daemon=True)
        self._thread.start()

    def write(self, done: Record, model_label: str) -> None:
        """Queue one line. Never blocks."""
        if self._lines.qsize() >= QUEUE_LIMIT:
            self._dropped += 1
            return
        ended = datetime.now(UTC).isoformat(timespec="milliseconds")
        # The label, not the requested name: free text from a client does not belong into a log.
        fields = msgspec.structs.asdict(done)
        for name in _NOT_WRITTEN:
            del fields[name]
        line = {"time": ended, **fields, "model": model_label}
        self._lines.put(msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        """Write what is queued and close the file. Blocks for some seconds at most."""
        self._lines.put(None)
        self._thread.join(_CLOSING)
        if self._thread.is_alive():
            self._dropped += self._lines.qsize()
        elif self._owned:
            self._file.close()
        if self._dropped:
            logger.warning(
                "the request log lost %d lines that could not be written in time", self._dropped
            )

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
