"""The head of a request as it goes to the engine, and how its body is framed."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import NamedTuple

from tokgauge.http.client.failures import RequestInvalid

_SPECIAL = frozenset((b"content-length", b"transfer-encoding", b"connection", b"host", b"upgrade"))
_LENGTH_DIGITS = 18
_NAME = b"!#$%&'*+-.^_`|~" + (string.digits + string.ascii_letters).encode()
"""What header names are made of (RFC 9110, 5.6.2): a blank in one could hide a Content-Length."""


class RequestHead(NamedTuple):
    """What the headers say, and their bytes.

    block: request line and headers with the closing empty line.
    length: declared bytes of the body (0 when nothing is declared); None: framed in chunks.
    close: the request asks for the connection to be closed.
    """

    method: str
    block: bytes
    length: int | None
    close: bool


def request_head(method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> RequestHead:
    """Serialise a request with its headers verbatim: order, case, duplicates; nothing added.

    Raises RequestInvalid when the result would not be the one request it should be:
    line breaks in it, no Host, a body whose length can be read in two ways, a switch of protocols.
    """
    if method == "CONNECT":
        raise RequestInvalid("CONNECT is not supported")
    lines = [b"%b %b HTTP/1.1" % (method.encode("ascii"), target)]
    close = host = False
    length: int | None = None
    coding: bytes | None = None
    for header in headers:
        lines.append(b": ".join(header))
        lowered = header[0].lower()
        if lowered not in _SPECIAL:
            continue
        value = header[1]
        if lowered == b"content-length":
            digits = value.strip(b" \t")
            if not digits.isdigit() or len(digits) > _LENGTH_DIGITS or length is not None:
                raise RequestInvalid("Content-Length is not one number")
            length = int(digits)
        elif lowered == b"transfer-encoding":
            if value.strip(b" \t").lower() != b"chunked" or coding is not None:
                raise RequestInvalid("Transfer-Encoding is not chunked alone")
            coding = value
        elif lowered == b"connection":
            close = close or b"close" in value.lower()
        elif lowered == b"upgrade":
            raise RequestInvalid("an offer to switch protocols")
        else:
            host = True
    names = [header[0] for header in headers]
    if b"".join(names).translate(None, _NAME) or b"" in names:
        raise RequestInvalid("a header name that is none")
    lines.append(b"\r\n")
    block = b"\r\n".join(lines)
    lines_expected = len(headers) + 2
    if block.count(b"\n") != lines_expected or block.count(b"\r") != lines_expected:
        raise RequestInvalid("a line break inside the request's head")
    if b"\0" in block:
        raise RequestInvalid("a NUL inside the request's head")
    if b" " in target:
        raise RequestInvalid("a space inside the request's target")
    if not host:
        raise RequestInvalid("the request has no Host header")
    if coding is not None and length is not None:
        raise RequestInvalid("both Content-Length and Transfer-Encoding")
    return RequestHead(method, block, None if coding is not None else length or 0, close)
