"""The head of a client's request, looked through once, and those that have been seen before."""

from __future__ import annotations

import urllib.parse
from collections.abc import Sequence
from typing import Any

from proxy.headers import Header, Incoming

_ASGI = {"version": "3.0", "spec_version": "2.3"}

REQUEST = "tokgauge.request"
"""Scope extension: the `ClientRequest`."""

_LENGTH_NAMES = (b"\r\nContent-Length: ", b"\r\ncontent-length: ")
_LENGTH_DIGITS = 10
_LONGEST_HEAD = 4096
_MOST_HEADS = 256


class ClientRequest:
    """What a request's head says; the same object whether ASGI carries the request or not.

    method: in upper case. target: in origin form, exactly as sent. path: the target's, raw.
    version: `1.0` or `1.1`. length: what Content-Length says, 0 without one. encoding: the first
    Content-Encoding. too_large: the head is above the limit; the request must be refused.
    simple: nothing in the head needs a closer look before the request goes on.
    upward: for whoever sends it on, to keep what alike requests have in common.
    """

    __slots__ = (
        "_headers", "_incoming", "_like", "_query", "encoding", "keep_alive", "length", "method",
        "path", "simple", "target", "too_large", "upward", "version",
    )  # fmt: skip

    def __init__(
        self, method: str, target: bytes, version: str, headers: Sequence[Header], *,
        keep_alive: bool, too_large: bool,
    ) -> None:  # fmt: skip
        self.method = method
        self.target = target
        self.path, _, self._query = target.partition(b"?")
        self.version = version
        self.keep_alive = keep_alive
        self.too_large = too_large
        self.upward: dict[Any, Any] = {}
        self._like = self
        self._headers: Sequence[Header] | None = headers
        self._incoming: Incoming | None = Incoming(headers)
        incoming = self._incoming
        self.length = incoming.length
        self.encoding = incoming.encoding
        self.simple = (
            incoming.hosts == 1
            and not incoming.codings
            and not too_large
            and method != "CONNECT"
            and version == "1.1"
        )

    def of_length(self, length: int) -> ClientRequest:
        """The same head with another Content-Length."""
        if length == self.length:
            return self
        other = ClientRequest.__new__(ClientRequest)
        other.method = self.method
        other.target = self.target
        other.path = self.path
        other._query = self._query
        other.version = self.version
        other.keep_alive = self.keep_alive
        other.too_large = self.too_large
        other.upward = self.upward
        other.encoding = self.encoding
        other.simple = self.simple
        other.length = length
        other._like = self
        other._headers = other._incoming = None
        return other

    @property
    def headers(self) -> Sequence[Header]:
        """The headers in order, names in lower case, else as sent."""
        if self._headers is None:
            self._headers = [
                (name, b"%d" % self.length) if name == b"content-length" else (name, value)
                for name, value in self._like.headers
            ]
        return self._headers

    @property
    def incoming(self) -> Incoming:
        """What the headers mean."""
        if self._incoming is None:
            self._incoming = Incoming(self.headers)
        return self._incoming

    def scope(self, **connection: Any) -> dict[str, Any]:
        """ASGI's connection scope. connection: what only the connection knows."""
        text = self.path.decode("latin-1")
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": self.version,
            "root_path": "",
            "method": self.method,
            "raw_path": self.path,
            "path": urllib.parse.unquote(text) if b"%" in self.path else text,
            "query_string": self._query,
            "headers": self.headers,
            **connection,
        }


class SeenHead:
    """A head that has been parsed before: all but the digits of its Content-Length."""

    __slots__ = ("_after", "_before", "_has_length", "_request")

    def __init__(self, before: bytes, after: bytes, request: ClientRequest) -> None:
        """before, after: what stands around the digits; all of it is `before` without them."""
        self._before = before
        self._after = after
        self._has_length = bool(after)
        self._request = request

    def match(self, data: bytes) -> tuple[ClientRequest, bytes] | None:
        """The request and its body when `data` is exactly one request with this head."""
        # Cheaper than startswith, which has its arguments unpacked.
        rest = data.removeprefix(self._before)
        if len(rest) + len(self._before) != len(data):
            return None
        if not self._has_length:
            return None if rest else (self._request.of_length(0), rest)
        stop = rest.find(b"\r", 0, _LENGTH_DIGITS)
        digits, after = rest[:stop], rest[stop:]
        body = after.removeprefix(self._after)
        if stop < 0 or not digits.isdigit() or len(body) + len(self._after) != len(after):
            return None
        length = int(digits)
        # The length goes on as it was written: `007` is for the parser.
        if len(body) != length or (digits[0] == 0x30 and stop > 1):
            return None
        return self._request.of_length(length), body


class SeenHeads:
    """Request heads that have been parsed before: a client sends the same one again and again.

    Heads hold API keys: they are kept in memory only, a few hundred of them, and shown to nobody.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[bytes, bytes], SeenHead] = {}

    def find(self, data: bytes) -> SeenHead | None:
        """The head that `data` begins with, if it has been seen."""
        around = _around_length(data)
        return None if around is None else self._seen.get(around)

    def keep(self, data: bytes, request: ClientRequest) -> SeenHead | None:
        """Remember the head of `data`, which the parser took for `request`."""
        around = _around_length(data)
        if around is None or not request.simple or not request.keep_alive:
            return None
        if around in self._seen:
            return self._seen[around]  # its body came in pieces: nothing new about the head
        before, after = around
        names = [name for name, _ in request.headers]
        lengths = [value for name, value in request.headers if name == b"content-length"]
        lines = len(names) + 2
        line_ends = before.count(b"\r\n") + after.count(b"\r\n")
        if (
            lengths != ([b"%d" % request.length] if after else [])
            or b"expect" in names
            or b"upgrade" in names
            or before.count(b"\n") + after.count(b"\n") != lines
            or line_ends != lines
        ):
            return None
        if len(self._seen) >= _MOST_HEADS:
            del self._seen[next(iter(self._seen))]
        seen = self._seen[around] = SeenHead(before, after, request)
        return seen


def _around_length(data: bytes) -> tuple[bytes, bytes] | None:
    """The head before and after the digits of its Content-Length; all of it and nothing without."""
    end = data.find(b"\r\n\r\n", 0, _LONGEST_HEAD) + 4
    if end < 4:
        return None
    for name in _LENGTH_NAMES:
        at = data.find(name, 0, end)
        if at >= 0:
            start = at + len(name)
            return data[:start], data[data.find(b"\r", start, end) : end]
    return data[:end], b""
