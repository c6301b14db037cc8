"""One request on a client's connection, and the response to it."""

from __future__ import annotations

import http
import socket
import struct
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from tokgauge.http.client_connection import Exchange
from tokgauge.http.error_responses import ErrorResponse
from tokgauge.http.headers import Header
from tokgauge.http.request import Request

if TYPE_CHECKING:
    from tokgauge.http.server import ServerConnection

_CHUNK_LINES = tuple(b"%x\r\n" % size for size in range(1024))
"""The lines before chunks of the size of an event, so that no event formats its own."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientStream:
    """One request on a connection and the response to it."""

    __slots__ = (
        "_connection", "_framing", "_held", "_waits_for_continue", "begun", "complete",
        "exchange", "keep_alive", "request", "request_ended",
    )  # fmt: skip

    exchange: Exchange

    def __init__(self, connection: ServerConnection, request: Request) -> None:
        self._connection = connection
        self.request = request
        self.keep_alive = request.keep_alive
        self._framing = b""
        self._held = b""
        """The response's head, until its first bytes of body come."""
        self._waits_for_continue = request.expects_continue
        self.begun = False
        self.complete = False
        self.request_ended = request.refusal is not None  # nothing more is read of it

    # The exchange's side

    def begin(self, status: int, headers: Sequence[Header], *, body_follows: bool) -> None:
        if self.complete:
            return
        self.begun = True
        if self._waits_for_continue:
            self.keep_alive = False  # nobody can tell whether its body comes now
        self._framing, head = _render_head(
            status, headers, self.request, keep_alive=self.keep_alive
        )
        if body_follows:
            self._held = head  # a short response is one write then, and one wake-up of the client
        else:
            self._connection.transport.write(head)

    def release_head(self) -> None:
        head, self._held = self._held, b""
        if head:
            self._connection.transport.write(head)

    def write(self, body: bytes, raw: bytes | None) -> None:
        if self.complete:
            return
        framing = self._framing
        if framing == b"chunked":
            if raw is None:
                size = len(body)
                line = _CHUNK_LINES[size] if size < len(_CHUNK_LINES) else b"%x\r\n" % size
                raw = line + body + b"\r\n"
            body = raw
        elif framing == b"none":
            return
        if self._held:
            body = self._held + body
            self._held = b""
        self._connection.transport.write(body)

    def finish(self) -> None:
        if self.complete:
            return
        end = self._held + b"0\r\n\r\n" if self._framing == b"chunked" else self._held
        self._held = b""
        if end:
            self._connection.transport.write(end)
        self.complete = True

    def cut(self) -> None:
        if self.complete:
            return
        self.complete = True
        self.release_head()
        transport = self._connection.transport
        if self._framing == b"close":
            # A response that ends with the connection looks complete unless it is reset.
            sock = transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
        else:
            transport.close()

    def respond(self, response: ErrorResponse, headers: Sequence[Header]) -> None:
        # What is still to come of the request's body is read and dropped, within its time.
        self.begin(response.status, [*response.headers(), *headers], body_follows=True)
        self.write(response.body(), None)
        self.finish()

    def done(self) -> None:
        self._connection.turn_may_end(self)

    def pause_reading(self) -> None:
        self._connection.pause_reading()

    def resume_reading(self) -> None:
        self._connection.resume_reading()

    # The connection's side

    def ask_for_body(self) -> None:
        """All that has come has been read."""
        if self._waits_for_continue and not (self.begun or self.request_ended):
            self._waits_for_continue = False
            self._connection.transport.write(_CONTINUE)

    def take_body(self, piece: bytes) -> None:
        """A part of the body."""
        self._waits_for_continue = False
        self.exchange.request_data(piece)


def _render_head(
    status: int, headers: Sequence[Header], request: Request, *, keep_alive: bool
) -> tuple[bytes, bytes]:
    """How the body of a response to `request` is framed, and the response's head.

    The framing is `chunked`, `length`, `close` or `none`.
    """
    lines = [_status_line(status)]
    has_length = False
    for header in headers:
        lines.append(b": ".join(header))
        if header[0].lower() == b"content-length":
            has_length = True
    if request.method == "HEAD" or status in (204, 304):
        framing = b"none"
    elif has_length:
        framing = b"length"
    elif request.version == "1.0":
        framing = b"close"
    else:
        framing = b"chunked"
        lines.append(b"transfer-encoding: chunked")
    if not keep_alive:
        lines.append(b"connection: close")
    lines.append(b"\r\n")
    return framing, b"\r\n".join(lines)


@cache
def _status_line(status: int) -> bytes:
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return b"HTTP/1.1 %d %b" % (status, phrase.encode())
