"""The request as it goes on the wire: its head, and how its body is framed."""

from collections.abc import Sequence
from typing import NamedTuple

import httpx2

_FRAMING = frozenset((b"content-length", b"transfer-encoding", b"connection", b"host"))


class RequestHead(NamedTuple):
    """What the headers say, and their bytes.

    block: request line and headers with the closing empty line.
    chunked: the body must be framed in chunks.
    length: declared bytes of the body (0 when nothing is declared); unused when `chunked`.
    close: the request asks for the connection to be closed.
    """

    block: bytes
    chunked: bool
    length: int
    close: bool


def request_head(method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> RequestHead:
    """Serialise a request with its headers verbatim: order, case, duplicates; nothing added.

    Raises httpx2.LocalProtocolError when the result would not be the one request it should be:
    line breaks in it, no Host, a Content-Length that is not a number or is contradicted.
    """
    lines = [b"%b %b HTTP/1.1" % (method.encode("ascii"), target)]
    chunked = close = host = False
    length: int | None = None
    for header in headers:
        lines.append(b": ".join(header))
        lowered = header[0].lower()
        if lowered not in _FRAMING:
            continue
        value = header[1]
        if lowered == b"content-length":
            if not value.isdigit() or (length is not None and length != int(value)):
                raise httpx2.LocalProtocolError("Content-Length is not one number")
            length = int(value)
        elif lowered == b"transfer-encoding":
            chunked = value.rpartition(b",")[2].strip().lower() == b"chunked"
            if not chunked:
                raise httpx2.LocalProtocolError("Transfer-Encoding does not end in chunked")
        elif lowered == b"connection":
            close = close or b"close" in value.lower()
        else:
            host = True
    lines.append(b"\r\n")
    block = b"\r\n".join(lines)
    if block.count(b"\n") != len(headers) + 2 or block.count(b"\r") != len(headers) + 2:
        raise httpx2.LocalProtocolError("a line break inside the request's head")
    if b" " in target:
        raise httpx2.LocalProtocolError("a space inside the request's target")
    if not host:
        raise httpx2.LocalProtocolError("the request has no Host header")
    if chunked and length is not None:
        raise httpx2.LocalProtocolError("both Content-Length and Transfer-Encoding")
    return RequestHead(block, chunked, length or 0, close)
