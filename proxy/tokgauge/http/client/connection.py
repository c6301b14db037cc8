"""One connection to the engine: an asyncio protocol that serves one request at a time.

It is used again only after exactly the declared bytes of the request went up and exactly the framed
bytes of the response came down; whatever else happens closes it. So no request is ever read as the
rest of another, and no response ever reaches a client whose request it does not belong to.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from time import monotonic
from typing import Protocol, cast

from tokgauge.http.client.failures import (
    ConnectionClosed,
    EngineFailure,
    FirstByteTimedOut,
    ResponseInvalid,
    StreamTimedOut,
)
from tokgauge.http.client.limits import Limits
from tokgauge.http.client.parser import ResponseParser, chunk_body
from tokgauge.http.client.request_head import RequestHead

_LARGE_READ = 64 * 1024
"""After a read of this size it is the other connections' turn: libuv would read up to 32 of them
from one socket before it looks at the next."""

_PROBE_AFTER = 60
"""Seconds of silence before TCP probes the peer: an engine whose machine died is noticed although
there is no limit on the wait for its first byte."""


class Call(Protocol):
    """Who has sent a request: is told what comes of it, inside the callbacks in which it comes.

    `response_head` comes at most once, then `response_data` for each read with body bytes in it;
    `response_end` or `failed` comes once and last. What these raise is a bug: it closes the
    connection and is told to `broken`.
    """

    def response_head(self, head: ResponseParser, *, body_follows: bool) -> None:
        """The head. body_follows: `response_data` is called before anything else happens."""

    def response_data(self, at: float, body: bytes, raw: bytes | None) -> None:
        """Body bytes, and when they came off the socket (`monotonic()`).

        raw: the same bytes as they came, when they are exactly one chunk of the transfer coding.
        """

    def response_end(self) -> None:
        """The response is complete."""

    def failed(self, failure: EngineFailure) -> None:
        """The response broke off, or did not come at all."""

    def broken(self, error: Exception) -> None:
        """One of these methods raised `error`."""

    def engine_full(self) -> None:
        """The engine takes no more of the request's body for now."""

    def engine_ready(self) -> None:
        """It takes more."""


class Owner(Protocol):
    """The pool's side of a connection."""

    def connection_idle(self, connection: EngineConnection) -> None: ...
    def connection_closed(self, connection: EngineConnection) -> None: ...
    def connection_gone(self, connection: EngineConnection) -> None: ...


class EngineConnection(asyncio.Protocol):
    """Connected by the pool; then `send` for every request, until it is `closed`, or about to be.

    reused: it has served an earlier request. sent_at: when the request had been handed to the
    socket completely (`monotonic()`), None before.
    """

    __slots__ = (
        "_between_chunks", "_call", "_close_after", "_has_body", "_head_limit", "_head_told",
        "_last_read", "_left", "_loop", "_owner", "_parser", "_paused", "_poller", "_transport",
        "closed", "established", "reused", "sent_at",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, owner: Owner, head_limit: int) -> None:
        self._loop = loop
        self._owner = owner
        self._head_limit = head_limit
        self._transport: asyncio.Transport | None = None
        self._poller: select.poll | None = None
        self._call: Call | None = None
        self._parser: ResponseParser | None = None
        self._left: int | None = 0
        """Bytes of the request's body still to be sent; None: until `end_body` (chunked)."""
        self._last_read = 0.0
        self._between_chunks = False
        self._head_told = False
        self._paused = False
        self._close_after = False
        self._has_body = False
        self.closed = False
        self.established = False
        self.reused = False
        self.sent_at: float | None = None

    # The pool's side

    @property
    def transport(self) -> asyncio.Transport:
        """The connected transport."""
        assert self._transport is not None  # noqa: S101
        return self._transport

    @transport.setter
    def transport(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def usable(self) -> bool:
        """Whether an idle connection still looks alive, with a look into the kernel.

        The event loop may not have read the engine's FIN yet; one poll costs about a microsecond.
        """
        if self.closed or self.transport.is_closing():
            return False
        if self._poller is None:
            self._poller = select.poll()
            self._poller.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not self._poller.poll(0)

    def check(self, now: float, limits: Limits) -> None:
        """End the exchange when one of its time limits has passed."""
        parser = self._parser
        if parser is None or self._call is None:
            return
        if self._paused:
            self._last_read = now  # the silence is ours
            return
        failure: type[EngineFailure]
        if parser.begun:
            since, limit, failure = self._last_read, limits.stream_idle, StreamTimedOut
            what = "the engine went silent inside the response"
        elif self.sent_at is not None:
            since, limit, failure = self.sent_at, limits.first_byte, FirstByteTimedOut
            what = "the engine did not begin to respond"
        else:
            return
        if limit is not None and now - since > limit:
            self._fail(failure(f"{what} for {limit:g} s"))

    def shut(self) -> None:
        """The pool closes: a running exchange fails."""
        self._fail(self._closed_because("the proxy shuts down"))

    # The caller's side

    def send(
        self, call: Call, head: RequestHead, body: bytes, *, complete: bool, reads_body: bool
    ) -> None:
        """Send a request; what comes of it is told to `call`.

        complete: `body` is all of it, else the rest follows by `send_body` and `end_body`.
        reads_body: a good response means that the engine has read the body. A connection is not
        used again where it may lie there unread: an engine that does not throw it away would take
        it for the next request, and whoever asks next for the one who sent that.

        Raises ValueError, and is closed, when these are not the declared bytes.
        """
        self._parser = ResponseParser(head_request=head.method == "HEAD", limit=self._head_limit)
        self._call = call
        self._last_read = 0.0
        self._between_chunks = self._head_told = False
        self._has_body = head.length != 0
        self._close_after = head.close or (self._has_body and not reads_body)
        self.sent_at = None
        self._left = head.length
        if head.length is None:
            self.transport.write(head.block + _chunk(body))
        else:
            self._take_from_declared(len(body))
            self.transport.write(head.block + body)
        if complete:
            self.end_body()

    def send_body(self, piece: bytes) -> None:
        """Send a part of the request's body, not empty. Raises ValueError beyond its length."""
        if self.closed:
            return
        if self._left is None:
            self.transport.write(_chunk(piece))
        else:
            self._take_from_declared(len(piece))
            self.transport.write(piece)

    def end_body(self) -> None:
        """The request's body is complete. Raises ValueError when it is not."""
        if self.closed:
            return
        if self._left is None:
            self.transport.write(b"0\r\n\r\n")
            self._left = 0
        elif self._left:
            self.close()
            raise ValueError("the request's body is shorter than declared")
        self.sent_at = monotonic()

    def _take_from_declared(self, size: int) -> None:
        assert self._left is not None  # noqa: S101
        if size > self._left:
            self.close()
            raise ValueError("the request's body is longer than declared")
        self._left -= size

    def pause_reading(self) -> None:
        """Let the engine wait with its response."""
        self._paused = True
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Take on its response."""
        if self._paused:
            self._paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def close(self) -> None:
        """Close the socket at once; `call` hears no more. May be called at any time, repeatedly."""
        if self.closed:
            return
        self.closed = True
        self._call = None
        if self._parser is not None:
            self._parser.release()
            self._parser = None
        if self._transport is not None:
            self._transport.abort()
        self._owner.connection_closed(self)

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.closed:
            self._transport.abort()
            return
        sock = transport.get_extra_info("socket")
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_KEEPIDLE"):  # not on macOS
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_AFTER)

    def data_received(self, data: bytes) -> None:
        at = monotonic()
        call = self._call
        if self._between_chunks and call is not None and (body := chunk_body(data)) is not None:
            # The parser would stand after this chunk where it stands now: no need to tell it.
            self._last_read = at
            try:
                call.response_data(at, body, data)
            except Exception as error:  # border: a bug of the caller's ends its exchange only
                self._break_off(error)
            return
        self._read(at, data)

    def eof_received(self) -> None:
        parser = self._parser
        if parser is None:
            self.close()
            return
        parser.feed_eof()
        if parser.complete:
            self._finish(parser)
        elif self._last_read:
            self._fail(self._closed_because("the engine closed inside the response"))
        else:
            self._fail(self._closed_because("the engine closed without a response"))

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._read_what_is_left()
        self._fail(self._closed_because(str(exc) if exc else "the connection was closed"))
        self._owner.connection_gone(self)

    def pause_writing(self) -> None:
        if self._call is not None:
            self._call.engine_full()

    def resume_writing(self) -> None:
        if self._call is not None:
            self._call.engine_ready()

    # One response

    def _read(self, at: float, data: bytes) -> None:
        parser, call = self._parser, self._call
        if parser is None or call is None:
            self.close()  # nobody has asked for anything
            return
        self._last_read = at
        body = parser.feed(data)
        self._between_chunks = parser.between_chunks
        try:
            if parser.head_done and not self._head_told:
                self._head_told = True
                call.response_head(parser, body_follows=bool(body))
            if body and self._call is call:
                call.response_data(at, body, None)
        except Exception as error:  # border: as in `data_received`
            self._break_off(error)
            return
        if self._call is not call:
            return  # whoever got the head or the body has closed the connection
        if parser.fault is not None:
            self._fail(ResponseInvalid(parser.fault))
        elif parser.complete:
            self._finish(parser)
        elif len(data) >= _LARGE_READ and not self._paused:
            self.transport.pause_reading()
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self.closed and not self._paused:
            self.transport.resume_reading()

    def _finish(self, parser: ResponseParser) -> None:
        """The response is complete: the connection goes back to the pool, or closes."""
        call, self._call = self._call, None
        transport = self.transport
        reusable = (
            self.sent_at is not None
            and parser.keep_alive
            and not parser.surplus
            and not self._close_after
            and not (self._has_body and parser.status >= 300)  # refused, and the body unread?
            and not transport.is_closing()
            and transport.get_write_buffer_size() == 0
        )
        self._between_chunks = False
        if reusable:
            parser.release()
            self._parser = None
            if self._paused:
                self.resume_reading()
            self.reused = True
            self._owner.connection_idle(self)
        else:
            self.close()
        if call is not None:
            try:
                call.response_end()
            except Exception as error:  # border: as in `data_received`
                call.broken(error)

    def _closed_because(self, why: str) -> ConnectionClosed:
        return ConnectionClosed(why, died_idle=self.reused and not self._last_read)

    def _fail(self, failure: EngineFailure) -> None:
        call = self._call
        self.close()
        if call is not None:
            try:
                call.failed(failure)
            except Exception as error:  # border: as in `data_received`
                call.broken(error)

    def _break_off(self, error: Exception) -> None:
        call = self._call
        self.close()
        if call is not None:
            call.broken(error)

    def _read_what_is_left(self) -> None:
        """Read what the kernel still holds after a failed write.

        An engine that refuses a body answers and closes; the next write then fails and the event
        loop gives up, although the response lies in the receive buffer. Not with TLS.
        """
        sock = self.transport.get_extra_info("socket")
        if sock is None or self.transport.get_extra_info("ssl_object") is not None:
            return
        while self._call is not None:
            try:
                data = os.read(sock.fileno(), 64 * 1024)
            except OSError:
                return
            if not data:
                return  # not a clean end: the kernel tells a reset only once
            self.data_received(data)


def _chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
