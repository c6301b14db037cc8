"""One connection to the engine: an asyncio protocol that serves one exchange at a time."""

import asyncio
import os
import select
import socket
from collections.abc import Callable
from time import monotonic
from typing import Protocol, cast

import httpx2

from tokgauge.http.client.errors import transport_error
from tokgauge.http.client.reader import ResponseReader, chunk_body
from tokgauge.http.client.request import RequestHead
from tokgauge.http.client.stream import EngineStream, Listener
from tokgauge.http.client.timeouts import Timeouts

INLINE_BODY = 64 * 1024
"""Bodies in memory up to this size leave with the head, in one write and without a task."""

_LARGE_READ = 64 * 1024
"""After a read of this size it is the other connections' turn: libuv would read up to 32 of them
from one socket before it looks at the next."""

_KEEPALIVE_AFTER = 60
"""Seconds of silence before TCP probes the peer: an engine whose machine died is noticed although
there is no limit on the wait for its first byte."""


class Owner(Protocol):
    """The pool's side of a connection."""

    def connection_idle(self, connection: "Connection") -> None: ...
    def connection_gone(self, connection: "Connection") -> None: ...
    def connection_lost(self, connection: "Connection") -> None: ...


class Connection(asyncio.Protocol):
    """Connected by the pool, then `start` for every exchange, until `discard`.

    While no exchange runs, anything that the engine sends or does discards the connection.
    """

    __slots__ = (
        "_close_after",
        "_discarded",
        "_fd",
        "_gate",
        "_has_body",
        "_header_limit",
        "_in_passage",
        "_knows",
        "_last_read",
        "_loop",
        "_next_reader",
        "_owner",
        "_pass_on",
        "_paused_at",
        "_poller",
        "_reader",
        "_request_done",
        "_stream",
        "_transport",
        "_upload",
        "established",
        "headers_at",
        "origin",
        "reused",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        owner: Owner,
        origin: tuple[str, str, int],
        header_limit: int,
    ) -> None:
        self._loop = loop
        self._owner = owner
        self.origin = origin
        self._header_limit = header_limit
        self._transport: asyncio.Transport | None = None
        self._fd = -1
        self._poller: select.poll | None = None
        self._discarded = False
        self._reader: ResponseReader | None = None
        self._next_reader: ResponseReader | None = None
        self._stream: EngineStream | None = None
        self._knows: Callable[[float, bytes], bool] | None = None
        """With `_pass_on` the listener's passage, while the parser stands between two chunks."""
        self._pass_on: Callable[[bytes], object] = _nowhere
        self._in_passage = 0.0
        self._upload: asyncio.Task[None] | None = None
        self._gate: asyncio.Future[None] | None = None
        self._paused_at = 0.0
        self._last_read = 0.0
        self._request_done = False
        self._has_body = self._close_after = False
        self.headers_at = 0.0
        self.reused = False
        self.established = False

    # The pool's side

    @property
    def transport(self) -> asyncio.Transport:
        if self._transport is None:
            raise RuntimeError("not connected")
        return self._transport

    @transport.setter
    def transport(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    @property
    def discarded(self) -> bool:
        """Whether this connection is gone, or about to be."""
        return self._discarded

    def usable(self) -> bool:
        """Whether an idle connection still looks alive, with a look into the kernel.

        The event loop may not have read the engine's FIN yet; one poll costs about a microsecond.
        """
        if self._discarded or self.transport.is_closing():
            return False
        if self._poller is None:
            self._poller = select.poll()
            self._poller.register(self._fd, select.POLLIN)
        return not self._poller.poll(0)

    def start(
        self, head: RequestHead, body: bytes | httpx2.AsyncByteStream, *, head_request: bool,
        reused: bool, reads_body: bool = True, listener: Listener | None = None,
    ) -> tuple[ResponseReader, EngineStream]:  # fmt: skip
        """Send a request; its response arrives in the reader (head) and the stream (body).

        reads_body: a good response means that the engine has read the request's body. A connection
        is not used again where it may lie there unread: an engine that does not throw it away
        would take it for the next request, and whoever asks next for the one who sent that.

        Raises httpx2.LocalProtocolError, and sends nothing, when the body in memory is not of the
        length that the head declares. One that turns out so later ends the exchange.
        """
        if isinstance(body, bytes):
            if not head.chunked and len(body) != head.length:
                raise httpx2.LocalProtocolError(
                    f"a request body of {len(body)} bytes, declared as one of {head.length}"
                )
            if len(body) > INLINE_BODY or head.chunked:
                body = httpx2.ByteStream(body)
        reader, stream = self._begin(head_request, reused, listener)
        self._has_body = head.chunked or head.length > 0
        self._close_after = head.close or (self._has_body and not reads_body)
        if isinstance(body, bytes):
            self.transport.write(head.block + body)
            self._request_sent(stream)
        else:
            self.transport.write(head.block)
            self._upload = self._loop.create_task(self._send_body(body, head, stream))
        return reader, stream

    def _begin(
        self, head_request: bool, reused: bool, listener: Listener | None
    ) -> tuple[ResponseReader, EngineStream]:
        reader, self._next_reader = self._next_reader, None
        if reader is None or head_request:
            reader = self._new_reader(head_request)
        self._reader = reader
        self._stream = stream = EngineStream(self._loop, self, listener)
        self._last_read = self.headers_at = 0.0
        self._request_done = False
        self.reused = reused
        return reader, stream

    def _new_reader(self, head_request: bool) -> ResponseReader:
        return ResponseReader(head_request=head_request, limit=self._header_limit)

    def check(self, now: float, timeouts: Timeouts) -> None:
        """End the exchange when one of its time limits has passed."""
        stream, reader = self._stream, self._reader
        if stream is None or reader is None:
            return
        if self._gate is not None:
            limit = timeouts.write
            if limit is not None and now - self._paused_at > limit:
                self._fail(httpx2.WriteTimeout, f"the engine took no request body for {limit:g} s")
                return
        if stream.paused:
            self._last_read = now  # the silence is ours
            return
        if reader.begun:
            since = self._last_read
            limit, what = timeouts.stream_idle, "the engine went silent inside the response"
        elif stream.sent_at is not None:
            since = stream.sent_at
            limit, what = timeouts.first_byte, "the engine did not begin to answer"
        else:
            return
        if limit is not None and now - since > limit:
            self._fail(httpx2.ReadTimeout, f"{what} for {limit:g} s")

    def shut(self) -> None:
        """The whole transport closes: end a running exchange with an error."""
        if self._stream is None:
            self.discard()
        else:
            self._fail(httpx2.ReadError, "the transport was closed")

    # The stream's side

    def pause_reading(self) -> None:
        self._close_passage()
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def discard(self) -> None:
        """Close the socket at once and leave the pool. May be called at any time, repeatedly."""
        if self._discarded:
            return
        self._discarded = True
        self._close_passage()
        self._stop_upload()
        for reader in (self._reader, self._next_reader):
            if reader is not None:
                reader.release()
        self._reader = self._next_reader = self._stream = None
        if self._transport is not None:
            self._transport.abort()
        self._owner.connection_gone(self)

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._discarded:
            self._transport.abort()
            return
        sock = transport.get_extra_info("socket")
        self._fd = sock.fileno()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):  # not on macOS
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_AFTER)

    def data_received(self, data: bytes) -> None:
        now = monotonic()
        knows = self._knows
        if knows is None or (body := chunk_body(data)) is None:
            self._read(now, data)
            return
        # The parser would be after this chunk where it is now: no need to tell it.
        self._last_read = now
        try:
            known = knows(now, body)
        except Exception as error:  # border: the listener's fault changes no byte
            self._passage_failed(error)
            known = False
        if not known:
            self._push(now, body)
            return
        pass_on = self._pass_on
        try:
            pass_on(data)
        except Exception as error:  # border: as in `EngineStream.push`
            self._break_off(error)
        self._in_passage += monotonic() - now

    def _push(self, now: float, body: bytes) -> None:
        """Give the listener the body of a chunk that may not pass it by."""
        if self._stream is not None:
            self._stream.push(now, body)
        self._find_passage()

    def _find_passage(self) -> None:
        passage = self._stream.passage() if self._stream is not None else None
        if passage is not None:
            self._knows, self._pass_on = passage
        else:
            self._knows = None

    def _close_passage(self) -> None:
        self._knows = None
        self._pass_on = _nowhere
        if self._stream is not None:
            self._stream.in_passage += self._in_passage
        self._in_passage = 0.0

    def _break_off(self, error: Exception) -> None:
        if self._stream is not None:
            self._stream.break_off(error)

    def _passage_failed(self, error: Exception) -> None:
        if self._stream is not None:
            self._stream.passage_failed(error)

    def _read(self, now: float, data: bytes) -> None:
        reader, stream = self._reader, self._stream
        if reader is None or stream is None:
            self.discard()
            return
        body = reader.feed(data)
        self._last_read = now
        if reader.news:
            self._react(reader, stream, now, body)
        elif body:
            stream.push(now, body)
        if self._stream is stream and reader.between_chunks:
            self._find_passage()
        else:
            self._knows = None
        if len(data) >= _LARGE_READ:
            self._give_way()

    def eof_received(self) -> None:
        reader, stream = self._reader, self._stream
        if reader is None or stream is None:
            self.discard()
            return
        reader.feed_eof()
        if reader.complete:
            self._finish(reader, stream)
        else:
            where = "inside the response" if self._last_read else "without a response"
            self._fail(httpx2.RemoteProtocolError, f"the engine closed {where}", left=True)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and self.origin[0] == "http":
            self._salvage()
        if self._stream is not None:
            why = str(exc) if exc is not None else "the connection was closed"
            received = self._request_done or self._last_read
            kind = httpx2.ReadError if received else httpx2.WriteError
            self._fail(kind, why, exc, left=True)
        else:
            self.discard()
        self._owner.connection_lost(self)

    def pause_writing(self) -> None:
        self._gate = self._loop.create_future()
        self._paused_at = monotonic()

    def resume_writing(self) -> None:
        gate, self._gate = self._gate, None
        if gate is not None and not gate.done():
            gate.set_result(None)

    # The exchange

    def _react(self, reader: ResponseReader, stream: EngineStream, now: float, body: bytes) -> None:
        reader.news = False
        if reader.head_done and not self.headers_at:
            self.headers_at = now
            if reader.status >= 400:
                # The engine has decided. A success may still need the rest of the body.
                self._stop_upload()
            stream.answered(reader, body_follows=bool(body))
        if body:
            stream.push(now, body)
        if self._stream is not stream:
            return  # whoever got the head or the body has closed the stream
        if reader.fault is not None:
            self._fail(httpx2.RemoteProtocolError, reader.fault)
        elif reader.complete:
            self._finish(reader, stream)

    def _finish(self, reader: ResponseReader, stream: EngineStream) -> None:
        transport = self.transport
        reusable = (
            reader.keep_alive
            and not reader.surplus
            and self._request_done
            and not self._close_after
            and not (self._has_body and reader.status >= 300)  # refused, and the body unread?
            and not transport.is_closing()
            and transport.get_write_buffer_size() == 0
        )
        self._close_passage()
        stream.finish()
        if not reusable:
            self.discard()
            return
        reader.release()
        self._reader = self._stream = None
        if stream.paused:
            transport.resume_reading()
        self._next_reader = self._new_reader(head_request=False)  # now, not when it is needed
        self._owner.connection_idle(self)

    def _fail(
        self,
        kind: type[httpx2.TransportError],
        message: str,
        cause: BaseException | None = None,
        *,
        left: bool = False,
    ) -> None:
        """End the exchange in an error. left: because the engine has left."""
        error = transport_error(
            kind, message, reused=self.reused, engine_left=left,
            response_bytes=self._last_read != 0.0,
        )  # fmt: skip
        error.__cause__ = cause
        self._end(error)

    def _end(self, error: Exception) -> None:
        stream = self._stream
        self.discard()
        if stream is not None:
            stream.fail(error)

    def _salvage(self) -> None:
        """Read what the kernel still holds after a failed write.

        An engine that refuses a body answers and closes; the next write then fails and the event
        loop gives up, although the answer lies in the receive buffer.
        """
        while self._stream is not None:
            try:
                data = os.read(self._fd, 64 * 1024)
            except OSError:
                return
            if not data:
                return  # not a clean end: the kernel tells a reset only once
            self.data_received(data)

    def _give_way(self) -> None:
        self.pause_reading()
        self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        stream = self._stream
        if not self._discarded and (stream is None or not stream.paused):
            self.resume_reading()

    # The request

    def _request_sent(self, stream: EngineStream) -> None:
        self._request_done = True
        stream.sent_at = monotonic()

    def _stop_upload(self) -> None:
        upload, self._upload = self._upload, None
        if upload is not None:
            upload.cancel()

    async def _send_body(
        self, body: httpx2.AsyncByteStream, head: RequestHead, stream: EngineStream
    ) -> None:
        try:
            await self._write_body(body, head)
        except (
            Exception
        ) as error:  # border: the caller's stream may raise anything; it gets it back
            self._upload = None
            self._end(error)
        else:
            self._upload = None
            self._request_sent(stream)

    async def _write_body(self, body: httpx2.AsyncByteStream, head: RequestHead) -> None:
        write = self.transport.write
        sent = 0
        async for piece in body:
            if not piece:
                continue
            sent += len(piece)
            if head.chunked:
                write(b"%x\r\n%b\r\n" % (len(piece), piece))
            elif sent > head.length:
                raise httpx2.LocalProtocolError("request body longer than its Content-Length")
            else:
                write(piece)
            if self._gate is not None:
                await self._gate
        if head.chunked:
            write(b"0\r\n\r\n")
        elif sent < head.length:
            raise httpx2.LocalProtocolError("request body shorter than its Content-Length")
        if self._gate is not None:
            await self._gate


def _nowhere(chunk: bytes) -> None:
    """No chunk passes."""
