"""HTTP towards clients: one connection, its requests in order, and their responses.

A protocol class for uvicorn's setting `http`: uvicorn keeps sockets, signals and lifespan. Each
request becomes a `ClientStream`, whose exchange is opened by the application and is told, inside
the callbacks in which it happens, what the client sends and whether it takes more. Requests are
answered one after the other in the order in which they came: the next one begins when the response
to the one before has been sent.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol, cast

from tokgauge.http.client_connection import ClientConnection, Exchange
from tokgauge.http.client_stream import ClientStream
from tokgauge.http.error_responses import ErrorResponse, body_timed_out, head_timed_out
from tokgauge.http.request import Request
from tokgauge.http.request_parser import RequestParser

_HIGH_WATER = 64 * 1024
"""Bytes that may wait for the end of the response before them. Up to there reading goes on: to see
the client leave."""

_LINGER = 2.0
_LINGER_BYTES = 1024 * 1024
"""Seconds and bytes for which a client that still sends may go on after its last response: closed
at once, the connection would be reset, and the response lost with it (RFC 9112, 9.6)."""


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
        self._stream: ClientStream | None = None
        self._reads_rest = False
        self._behind = False  # what is read now came before the response to what is before it
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
        stream, self._stream = self._stream, None
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
        kept = self._parser.kept
        if kept and not (self._parser.between and self.has_enough):
            self.pause_reading()
            if not self._reads_rest:
                self._reads_rest = True
                self._loop.call_soon(self._read_rest)
        elif kept > _HIGH_WATER:
            self.pause_reading()
        elif self._stream is not None:
            self._stream.ask_for_body()

    def _read_rest(self) -> None:
        """Go on with what was too much for one turn of the loop."""
        self._reads_rest = False
        if self._lingered is None and not self.transport.is_closing():
            self._go_on()

    def _go_on(self) -> None:
        """Read what is kept, and then more."""
        self._behind = self._parser.between
        self._parser.resume()
        self._behind = False
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
        elif not self.transport.is_closing():
            self._go_on()

    def shutdown(self) -> None:
        """The server drains: what runs may end, nothing new begins."""
        if self._stream is None:
            self.transport.close()
        else:
            self._stream.keep_alive = False

    # The parser's side

    @property
    def has_enough(self) -> bool:
        """Whether no further request may begin: one runs, or the client has not taken the last."""
        return self._stream is not None or self._full

    def head_begins(self) -> None:
        self._since = self._loop.time()

    def request_begins(self, request: Request) -> None:
        """A head is complete, or is broken: then its refusal is said, unless it was sent behind a
        request whose response was still to come. There, only what can be read gets one.
        """
        self._since = self._loop.time()
        if self._behind and not request.readable:
            self._linger()
            return
        self._stream = stream = ClientStream(self, request)
        stream.exchange = self._app.open(stream)
        stream.exchange.start()

    def request_body(self, data: bytes) -> None:
        stream = self._stream
        if stream is None or stream.complete:
            return  # nobody wants it any more, and it has no more time than is left
        self._since = self._loop.time()
        stream.take_body(data)

    def request_ends(self) -> None:
        stream = self._stream
        if stream is None:
            return
        stream.request_ended = True
        if stream.complete:
            self.turn_may_end(stream)
        else:
            stream.exchange.request_end()

    def body_refused(self, refusal: ErrorResponse) -> None:
        """The rest of a body makes no sense, or does not come."""
        stream = self._stream
        if stream is None:
            return
        stream.keep_alive = False
        if self._behind and not stream.begun:  # see `request_begins`
            stream.complete = True
            stream.exchange.client_left()
        if stream.complete:
            self._linger()
        else:
            stream.exchange.request_failed(refusal)

    # The stream's side

    def pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the client, unless enough of it waits already."""
        if not (self._reading or self._reads_rest or self._parser.kept > _HIGH_WATER):
            self._reading = True
            self._since = self._loop.time()
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def turn_may_end(self, stream: ClientStream) -> None:
        """A response has been sent; the next request may begin when this one has been read."""
        if self.transport.is_closing() or stream is not self._stream:
            return
        self._since = self._loop.time()
        if not stream.request_ended and not self._parser.ended:
            self.resume_reading()
            return
        self._stream = None
        self._server_state.total_requests += 1
        if stream.keep_alive:
            if not self._full:
                self._go_on()
        elif self._parser.broken or not stream.request_ended:
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        """Close, but in such a way that the client can read the response while it still sends."""
        if self.transport.is_closing() or self._lingered is not None:
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
            arrives = not stream.request_ended and self._reading and not self._parser.ended
            running = stream.begun and not stream.complete
            return self._limits.body if arrives and not running else None
        return self._limits.head if self._parser.in_head else self._limits.idle

    def _too_late(self) -> None:
        if self._stream is not None:
            self._parser.give_up(body_timed_out(self._limits.body))
        elif self._parser.in_head:
            self._parser.give_up(head_timed_out(self._limits.head))
        else:
            self.transport.close()
