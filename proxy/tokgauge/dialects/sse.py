"""Bytes of an event stream → events, incrementally and in bounded memory.

Follows the "event stream interpretation" of the WHATWG HTML standard (§9.2.6): lines end in LF,
CRLF or CR; fields `data` and `event` are kept; comments, `id`, `retry` and unknown fields are
passed over. An event ends at its blank line, even when the stream ends right there.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"

EVENT_LIMIT = 1024 * 1024
"""Bytes of one event beyond which it is passed over."""


class Event(NamedTuple):
    """One dispatched event: its `event:` name (empty when absent) and its data."""

    name: bytes
    data: bytes


class EventReader:
    """Splits a stream into events; `feed` any cutting of the same bytes gives the same events.

    An event larger than `limit` bytes is passed over without being kept, and `overflows` counts it:
    whoever counts tokens then knows that one count is missing.
    """

    __slots__ = (
        "_at_start",
        "_data",
        "_kept",
        "_line",
        "_name",
        "_scan",
        "_skip_lf",
        "_skipping",
        "between",
        "limit",
        "overflows",
    )  # fmt: skip

    def __init__(self, limit: int = EVENT_LIMIT) -> None:
        self.limit = limit
        self.overflows = 0
        self._line = bytearray()  # the unfinished line
        self._scan = 0  # bytes of it known to hold no line end
        self._data: list[bytes] = []
        self._name = b""
        self._kept = 0  # bytes held for the current event
        self._skip_lf = False  # the last line ended in CR: an LF that follows belongs to it
        self._skipping = False  # the current event is over the limit
        self._at_start = True
        self.between = True
        """Whether the next byte begins an event: nothing of one has come yet."""

    def feed(self, chunk: bytes) -> list[Event]:
        """Take the next bytes; return the events that they completed, in order."""
        # What engines send: whole events of one data line each, most often one in a read.
        if (
            self.between
            and chunk.startswith(b"data: ")
            and chunk.endswith(b"\n\n")
            and len(chunk) <= self.limit
            and chunk.find(b"\r") < 0
        ):
            lines = chunk[6:-2].split(b"\n\ndata: ")
            if chunk.count(b"\n") == 2 * len(lines):
                self._at_start = False
                return [Event(b"", line) for line in lines]
        return self._feed_lines(chunk)

    def _feed_lines(self, chunk: bytes) -> list[Event]:
        events: list[Event] = []
        if self._skip_lf and chunk:
            self._skip_lf = False
            if chunk.startswith(b"\n"):
                chunk = chunk[1:]
        line = self._line
        line += chunk
        start = 0
        while True:
            match = _LINE_END.search(line, max(start, self._scan))
            if match is None:
                break
            end = match.end()
            if match.group() == b"\r" and end == len(line):
                self._skip_lf = True
            self._take_line(bytes(line[start : match.start()]), events)
            start = end
            self._scan = start
        del line[:start]
        self._scan = len(line)
        if len(line) + self._kept > self.limit:
            self._overflow()
        self.between = not (line or self._data or self._name or self._skip_lf or self._skipping)
        return events

    def _take_line(self, line: bytes, events: list[Event]) -> None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            if self._data and not self._skipping:
                events.append(Event(self._name, b"\n".join(self._data)))
            self._data = []
            self._name = b""
            self._kept = 0
            self._skipping = False
            return
        if self._skipping:
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._kept += len(value) + 1
            if self._kept > self.limit:
                self._overflow()
        elif field == b"event":
            self._name = value

    def _overflow(self) -> None:
        if not self._skipping:
            self.overflows += 1
        self._skipping = True
        self._data = []
        self._kept = 0
        # Only whether the line is empty still matters; one byte stands for all of it.
        if len(self._line) > 1:
            del self._line[1:]
            self._scan = len(self._line)
