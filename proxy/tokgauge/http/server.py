"""HTTP towards clients: one connection, its requests in order, and their responses.

A protocol class for uvicorn's setting `http`: uvicorn keeps sockets, signals and lifespan. Each
request becomes a `ClientStream`, whose exchange is opened by the application and is told, inside
the callbacks in which it happens, what the client sends and whether it takes more. Requests are
answered one after the other in the order in which they came, whatever the proxy itself has to say
about one of them.
"""

from __future__ import annotations

import asyncio
import http
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, cast

from tokgauge.http.error_responses import ErrorResponse, body_timed_out, head_timed_out
from tokgauge.http.headers import Header
from tokgauge.http.request import Request
from tokgauge.http.request_parser import RequestParser

_MOST_WAITING = 8
"""Pipelined requests that are read ahead: reading goes on to see the client leave."""

_HIGH_WATER = 64 * 1024
"""Bytes of a body that wait for their turn before no more is read."""

_LINGER = 2.0
_LINGER_BYTES = 1024 * 1024
"""Seconds and bytes for which a client that still sends may go on after its last response: closed
at once, the connection would be reset, and the response lost with it (RFC 9112, 9.6)."""

_CHUNK_LINES = tuple(b"%x\r\n" % size for size in range(1024))
"""The lines before chunks of the size of an event, so that no event formats its own."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientConnection(Protocol):
    """The client of one exchange, as the exchange sees it.

    All that the state machine knows of a client.
    """

    request: Request

    def begin(self, status: int, headers: Sequence[Header], *, body_follows: bool) -> None:
        """Begin the response. body_follows: `write`, `finish` or `release_head` is called next."""

    def release_head(self) -> None:
        """Send the head by itself: no body follows it yet."""

    def write(self, body: bytes, raw: bytes | None) -> None:
        """Send a part of the response's body, not empty.

        raw: the same bytes framed as one chunk of the transfer coding, where they came so.
        """

    def finish(self) -> None:
        """The response is complete: send its end."""

    def cut(self) -> None:
        """Nothing more comes: end the response so that the client can tell that it is not whole."""

    def respond(self, response: ErrorResponse, headers: Sequence[Header]) -> None:
        """Send the proxy's own response, whole."""

    def done(self) -> None:
        """Nothing is left to do for this exchange: the next one's turn may come."""

    def pause_reading(self) -> None:
        """Let the client wait with the rest of the request's body."""

    def resume_reading(self) -> None:
        """Take on the request's body."""


class Exchange(Protocol):
    """What the connection tells the exchange of one of its requests. None of these may raise."""

    def start(self) -> None:
        """It is the request's turn."""

    def request_data(self, piece: bytes) -> None:
        """A part of the request's body, not empty."""

    def request_end(self) -> None:
        """The request has been received completely."""

    def request_failed(self, response: ErrorResponse) -> None:
        """The rest of the request will never come; `response` says why."""

    def client_left(self) -> None:
        """The client has closed its connection."""

    def client_full(self) -> None:
        """The client takes no more of the response for now."""

    def client_ready(self) -> None:
        """It takes more."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What a client may take: bytes of a head; seconds for a head, between two reads of a body, and
    between two requests.
    """

    head_bytes: int
    head: float
    body: float
    idle: float


class Application(Protocol):
    """What is served; to uvicorn an ASGI application, of which only the lifespan runs."""

    limits: ClientLimits

    def open(self, client: ClientConnection) -> Exchange:
        """The exchange of a request, whose turn comes with `start`."""


class ClientStream:
    """One request on a connection and the response to it."""

    __slots__ = (
        "_ahead", "_connection", "_framing", "_held", "_waits_for_continue", "begun",
        "complete", "exchange", "keep_alive", "request", "request_ended",
    )  # fmt: skip

    exchange: Exchange

    def __init__(self, connection: ServerConnection, request: Request) -> None:
        self._connection = connection
        self.request = request
        self.keep_alive = request.keep_alive
        self._framing = b""
        self._held = b""
        """The response's head, until its first bytes of body come."""
        self._ahead = bytearray()
        """What has come of the body before it was this request's turn."""
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

    def start(self) -> None:
        """It is this request's turn."""
        exchange = self.exchange
        exchange.start()
        ahead, self._ahead = bytes(self._ahead), bytearray()
        if ahead:
            exchange.request_data(ahead)
        if self.request_ended and self.request.refusal is None:
            exchange.request_end()

    def ask_for_body(self) -> None:
        """It is this request's turn, and all that has come has been read."""
        if self._waits_for_continue and not (self.begun or self.request_ended):
            self._waits_for_continue = False
            self._connection.transport.write(_CONTINUE)

    def take_body(self, piece: bytes) -> None:
        """A part of the body, on this request's turn."""
        self._waits_for_continue = False
        self.exchange.request_data(piece)

    def read_ahead(self, piece: bytes) -> None:
        """Keep a part of the body until its turn."""
        self._waits_for_continue = False
        self._ahead += piece  # not a list of pieces: those may be of one byte each

    @property
    def size_ahead(self) -> int:
        """Bytes of the body that wait for its turn."""
        return len(self._ahead)


class ServerConnection(asyncio.Protocol):
    """One client's connection."""

    def __init__(
        self, config: Any, server_state: Any, app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:  # fmt: skip
        """As uvicorn makes it."""
        if not config.loaded:
            config.load()
        self._app = cast(Application, config.loaded_app)
        self._limits = limits = self._app.limits
        self._loop = _loop or asyncio.get_event_loop()
        self._server_state = server_state
        self._parser = RequestParser(self, limits.head_bytes)
        self._stream: ClientStream | None = None  # whose turn it is
        self._arriving: ClientStream | None = None  # whose body is being read
        self._waiting: list[ClientStream] = []
        self._reads_rest = False
        self._full = False  # the client takes no more
        self._reading = True
        self._lingered: int | None = None  # bytes since the last response, once nothing is read
        self._since = self._loop.time()  # when the client last did what it has a time limit for
        self._timer: asyncio.TimerHandle | None = None
        self.transport: asyncio.Transport

    # asyncio's and uvicorn's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._server_state.connections.add(self)
        self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server_state.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self.transport.close()
        self._parser.close()
        self._waiting.clear()
        stream, self._stream, self._arriving = self._stream, None, None
        if stream is not None and not stream.complete:
            stream.complete = True
            stream.exchange.client_left()

    def data_received(self, data: bytes) -> None:
        if self._lingered is not None:
            self._lingered += len(data)
            if self._lingered > _LINGER_BYTES:
                self.transport.close()
        elif not self._parser.ended:
            self._parser.feed(data)
            self._after_reading()

    def _after_reading(self) -> None:
        if self._parser.waits:
            self.pause_reading()
            if not self.has_enough and not self._reads_rest:
                self._reads_rest = True
                self._loop.call_soon(self._read_rest)
        elif self._stream is not None:
            self._stream.ask_for_body()

    def _read_rest(self) -> None:
        """Go on with what was too much for one turn of the loop."""
        self._reads_rest = False
        if self._lingered is None and not self.transport.is_closing():
            self._parser.resume()
            self._after_reading()
            self.resume_reading()

    def pause_writing(self) -> None:
        self._full = True
        if self._stream is not None:
            self._stream.exchange.client_full()

    def resume_writing(self) -> None:
        self._full = False
        if self._stream is not None:
            self._stream.exchange.client_ready()
        self._next_turn()

    def shutdown(self) -> None:
        """The server drains: what runs may end, nothing new begins."""
        last = self._waiting[-1] if self._waiting else self._stream
        if last is None:
            self.transport.close()
        else:
            last.keep_alive = False

    # The parser's side

    @property
    def has_enough(self) -> bool:
        """Whether as many requests wait as are read ahead."""
        waiting = self._waiting
        return bool(waiting) and (
            len(waiting) >= _MOST_WAITING
            or sum(stream.size_ahead for stream in waiting) > _HIGH_WATER
        )

    def head_begins(self) -> None:
        self._since = self._loop.time()

    def request_begins(self, request: Request) -> None:
        """A head is complete. A refusal that it carries is said when it is its turn."""
        self._since = self._loop.time()
        stream = ClientStream(self, request)
        self._arriving = None if stream.request_ended else stream
        stream.exchange = self._app.open(stream)
        if self._stream is None and not self._full:
            self._stream = stream
            stream.start()
        else:
            self._waiting.append(stream)

    def head_broken(self, request: Request) -> None:
        if self._stream is None and not self._waiting:
            self.request_begins(request)
        else:
            self._end_with(self._waiting[-1] if self._waiting else self._stream)

    def request_body(self, data: bytes) -> None:
        stream = self._arriving
        if stream is None or stream.complete:
            return  # nobody wants it any more, and it has no more time than is left
        self._since = self._loop.time()
        if stream is self._stream:
            stream.take_body(data)
        else:
            stream.read_ahead(data)
            if self.has_enough:
                self.pause_reading()

    def request_ends(self) -> None:
        stream, self._arriving = self._arriving, None
        if stream is None:
            return
        stream.request_ended = True
        if stream is not self._stream:
            return
        if stream.complete:
            self.turn_may_end(stream)
        else:
            stream.exchange.request_end()

    def body_refused(self, refusal: ErrorResponse) -> None:
        """The rest of a body makes no sense, or does not come."""
        stream, self._arriving = self._arriving, None
        if stream is None:
            return
        if stream is not self._stream:
            self._waiting.remove(stream)
            self._end_with(self._waiting[-1] if self._waiting else self._stream)
            return
        stream.keep_alive = False
        if stream.complete:
            self._linger()
        else:
            stream.exchange.request_failed(refusal)

    def _end_with(self, last: ClientStream | None) -> None:
        """Close after the response to this request; what comes behind it cannot be read."""
        if last is None:
            self._linger()
        else:
            last.keep_alive = False

    # The streams' side: responses, one after the other

    def pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the client, unless enough of it waits already."""
        if not (self._reading or self.has_enough or self._parser.waits):
            self._reading = True
            self._since = self._loop.time()
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def turn_may_end(self, stream: ClientStream) -> None:
        """A response has been sent; the next one's turn comes when its request has been read."""
        if self.transport.is_closing() or stream is not self._stream:
            return
        self._since = self._loop.time()
        if not stream.request_ended and not self._parser.ended:
            self.resume_reading()
            return
        self._stream = None
        self._server_state.total_requests += 1
        if stream.keep_alive:
            self._next_turn()
            self.resume_reading()
        elif self._parser.broken or not stream.request_ended:
            self._linger()
        else:
            self.transport.close()

    def _next_turn(self) -> None:
        """The next pipelined request's turn, if the client takes the responses so far."""
        while self._waiting and self._stream is None and not self._full:
            if self.transport.is_closing():
                return
            stream = self._stream = self._waiting.pop(0)
            self._since = self._loop.time()
            stream.start()
            self._parser.resume()
            self._after_reading()
            self.resume_reading()

    def _linger(self) -> None:
        """Close, but in such a way that the client can read the response while it still sends."""
        if self.transport.is_closing():
            return
        self._parser.ended = True
        self._lingered = 0
        self.transport.write_eof()
        if not self._reading:
            self._reading = True
            self.transport.resume_reading()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_LINGER, self.transport.close)

    # Time limits

    def _look_later(self, wait: float | None = None) -> None:
        limits = self._limits
        every = max(0.01, min(limits.head, limits.body, limits.idle) / 4)
        wait = every if wait is None else min(every, wait)
        self._timer = self._loop.call_later(wait, self._look_at_time)

    def _look_at_time(self) -> None:
        """One timer for whatever the connection waits for: none has to be moved for a request."""
        limit = self._limit()
        if limit is None:
            self._look_later()
            return
        left = self._since + limit - self._loop.time()
        if left > 0:
            self._look_later(left)
            return
        self._too_late()
        if self._lingered is None and not self.transport.is_closing():
            self._look_later()

    def _limit(self) -> float | None:
        """Seconds that the client has for what it is to do now; None if it is not its turn."""
        stream = self._stream
        if stream is not None:
            arrives = stream is self._arriving and self._reading and not self._parser.ended
            running = stream.begun and not stream.complete
            return self._limits.body if arrives and not running else None
        return self._limits.head if self._parser.in_head else self._limits.idle

    def _too_late(self) -> None:
        if self._arriving is not None:
            self._parser.give_up(body_timed_out(self._limits.body))
        elif self._parser.in_head:
            self._parser.give_up(head_timed_out(self._limits.head))
        else:
            self.transport.close()


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
