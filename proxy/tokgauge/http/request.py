"""The head of a client's request, looked through once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Self

from tokgauge.http.error_responses import ErrorResponse, malformed
from tokgauge.http.headers import Header, Incoming

_HOST = re.compile(rb"([\w.~!$&'()*+,;=%-]*|\[[\w:.%~-]+\])(:[0-9]*)?")
"""RFC 9110 §7.2: what else is taken for a part of it, two readers take in two ways."""


class Request:
    """What a request's head says.

    method: in upper case. target: in origin form, exactly as sent. path: the target's, raw.
    version: `1.0` or `1.1`. headers: in order, names in lower case, else as sent. incoming: what
    they mean. length: what Content-Length says, 0 without one. encoding: the first
    Content-Encoding. keep_alive: whether the connection may carry another request after this one.
    refusal: what the client is told instead of the request being carried out; None when it may be.
    readable: whether it is a head at all.
    """

    __slots__ = (
        "encoding", "headers", "incoming", "keep_alive", "length", "method", "path",
        "readable", "refusal", "target", "version",
    )  # fmt: skip

    def __init__(
        self, method: str, target: bytes, version: str, headers: Sequence[Header], *,
        keep_alive: bool,
    ) -> None:  # fmt: skip
        self.method = method
        self.target = target
        self.path = target.partition(b"?")[0]
        self.version = version
        self.keep_alive = keep_alive
        self.headers = headers
        self.incoming = incoming = Incoming(headers)
        self.length = incoming.length
        self.encoding = incoming.encoding
        self.readable = True
        self.refusal: ErrorResponse | None = None
        why = _why_not(method, version, incoming)
        if why is not None:
            self.refuse(malformed(why))

    @classmethod
    def broken(cls, method: str, target: bytes, refusal: ErrorResponse) -> Self:
        """One whose head cannot be read. method, target: as far as they are known."""
        request = cls("", target, "1.0", (), keep_alive=False)
        request.method = method
        request.readable = False
        request.refuse(refusal)
        return request

    def refuse(self, refusal: ErrorResponse) -> None:
        """The request must not be carried out, and nothing behind it on its connection be read."""
        self.refusal = refusal
        self.keep_alive = False

    @property
    def has_body(self) -> bool:
        """Whether a body is declared, and it is not empty by its length."""
        return self.length > 0 or bool(self.incoming.codings)

    @property
    def expects_continue(self) -> bool:
        """Whether the client waits for `100 Continue`; to HTTP/1.0 that means nothing."""
        return self.incoming.expects and self.version != "1.0" and self.has_body


def _why_not(method: str, version: str, incoming: Incoming) -> str | None:
    """What forbids to carry a request out: above all, that it could be read in two ways."""
    if method == "CONNECT":
        return "CONNECT is not supported: this is a reverse proxy."
    if incoming.codings:
        if [value.strip(b" \t").lower() for value in incoming.codings] != [b"chunked"]:
            return "The only Transfer-Encoding accepted is chunked."
        if version == "1.0":
            return "HTTP/1.0 knows no Transfer-Encoding."
        if incoming.lengths:
            return "Both Content-Length and Transfer-Encoding."
    if len(incoming.lengths) > 1 or not all(map(_is_length, incoming.lengths)):
        return "Content-Length is not one number."
    if incoming.hosts > 1 or (incoming.hosts == 0 and version == "1.1"):
        return "The request must have exactly one Host header."
    if incoming.host is not None and _HOST.fullmatch(incoming.host) is None:
        return "Host is not a name or an address, with or without a port."
    return None


def _is_length(value: bytes) -> bool:
    return value.isdigit() and len(value) <= 18


def origin_form(target: bytes) -> bytes:
    """The path and query of a request target; scheme and authority never choose where it goes."""
    if target.startswith(b"/") or target == b"*":
        return target
    _, separator, rest = target.partition(b"://")
    if not separator:
        return b"/" + target  # authority form belongs to CONNECT, which is refused
    slash = rest.find(b"/")
    question = rest.find(b"?")
    if slash < 0 or 0 <= question < slash:
        return b"/" if question < 0 else b"/" + rest[question:]
    return rest[slash:]
