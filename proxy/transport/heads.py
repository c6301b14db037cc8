"""Heads of answers that have been parsed before: an engine sends the same one again and again."""

from __future__ import annotations

import re
from typing import Any

RawHeaders = list[tuple[bytes, bytes]]

_DATE = b"date"
_DATE_LENGTH = 29
_USUAL_DATE = re.compile(rb"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT").fullmatch
"""An IMF-fixdate (RFC 9110, 5.6.7); in any other form there may be what the parser refuses."""
_LENGTH = b"content-length"
_LENGTH_DIGITS = 15
_LONGEST = 4096
_PATIENCE = 32
"""Heads in a row that were seen for the first time, after which only one in so many is kept."""
_MOST = 8
"""Kinds of answers that are remembered: streams and bodies of a few routes."""


class SeenAnswer:
    """What heads have in common that differ in nothing but the values of Date and Content-Length.

    All are a 200 in HTTP/1.1. varying: where in the headers the two stand, in the head's order.
    chunked: the body comes in chunks. length_at: else, which of the values is Content-Length.
    onward: for whoever passes it on, to keep what alike answers have in common.
    """

    __slots__ = ("_begins", "_date", "_headers", "_rest", "chunked", "keep_alive", "length_at",
                 "onward", "reason", "varying")  # fmt: skip

    def __init__(
        self, head: bytes, headers: RawHeaders, reason: bytes, *, keep_alive: bool
    ) -> None:
        """Raises ValueError for a head that is not of this kind."""
        names = [name.lower() for name, _ in headers]
        self.chunked = _LENGTH not in names
        if (
            names.count(_DATE) > 1
            or names.count(b"transfer-encoding") != self.chunked
            or names.count(_LENGTH) != (not self.chunked)
            or head.count(b"\n") != len(headers) + 2
            or head.count(b"\r\n") != len(headers) + 2
        ):
            raise ValueError("not only Date and Content-Length vary")
        self._headers = headers
        self.reason = reason
        self.keep_alive = keep_alive
        self.onward: dict[Any, Any] = {}
        self._date = b""  # the latest: most answers of a second have the same
        self.varying = [at for at, name in enumerate(names) if name in (_DATE, _LENGTH)]
        varying = [names[at] for at in self.varying]
        self.length_at = 0 if self.chunked else varying.index(_LENGTH)
        pieces: list[bytes] = []
        start = 0
        for at in self.varying:
            name, value = headers[at]
            line = b"\r\n%b: %b\r\n" % (name, value)
            end = head.index(line, max(0, start - 2)) + len(line) - 2
            pieces.append(head[start : end - len(value)])
            start = end
            if names[at] == _DATE and _USUAL_DATE(value) is None:
                raise ValueError("an unusual date")
        self._begins, *following = *pieces, head[start:]
        self._rest = tuple(
            (names[at] == _DATE, piece) for at, piece in zip(self.varying, following, strict=True)
        )

    def match(self, data: bytes) -> tuple[list[bytes], bytes] | None:
        """The values that vary, and what follows, when `data` begins with such a head."""
        # Cheaper than startswith, which has its arguments unpacked.
        rest = data.removeprefix(self._begins)
        if len(rest) + len(self._begins) != len(data):
            return None
        values: list[bytes] = []
        for is_date, piece in self._rest:
            if is_date:
                value = rest[:_DATE_LENGTH]
                if value != self._date:
                    if _USUAL_DATE(value) is None:
                        return None
                    self._date = value
            else:
                end = rest.find(b"\r", 0, _LENGTH_DIGITS)
                value = rest[:end]
                if end < 0 or not value.isdigit():
                    return None
            values.append(value)
            after = rest[len(value) :]
            rest = after.removeprefix(piece)
            if len(rest) + len(piece) != len(after):
                return None
        return values, rest

    def headers(self, values: list[bytes]) -> RawHeaders:
        """The headers of the head in which these values stand."""
        headers = self._headers.copy()
        for at, value in zip(self.varying, values, strict=True):
            headers[at] = (headers[at][0], value)
        return headers


class SeenAnswers:
    """The heads that have been parsed before, those that come often first.

    A head with a value of its own, say a request's id, is never seen again: such heads take each
    other's place, and after some of them only few are still remembered.
    """

    def __init__(self) -> None:
        self._seen: list[SeenAnswer] = []
        self._misses = 0

    def find(self, data: bytes) -> tuple[SeenAnswer, list[bytes], bytes] | None:
        """What is known of the head that `data` begins with: see `SeenAnswer.match`."""
        for place, seen in enumerate(self._seen):
            matched = seen.match(data)
            if matched is not None:
                self._misses = 0
                if place:
                    self._seen[place] = self._seen[place - 1]
                    self._seen[place - 1] = seen
                return seen, *matched
        return None

    def keep(self, data: bytes, headers: RawHeaders, reason: bytes, *, keep_alive: bool) -> None:
        """Remember the head of `data`, which the parser took for a 200 with these headers."""
        self._misses += 1
        if self._misses > _PATIENCE and self._misses % _PATIENCE:
            return
        end = data.find(b"\r\n\r\n", 0, _LONGEST) + 4
        if end < 4 or not data.startswith(b"HTTP/1.1 200 "):
            return
        try:
            seen = SeenAnswer(data[:end], headers, reason, keep_alive=keep_alive)
        except ValueError:
            return
        del self._seen[_MOST - 1 :]
        self._seen.append(seen)
