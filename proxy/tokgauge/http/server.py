"""The client side's HTTP: a protocol for uvicorn's server, made for a proxy.

Requests are answered one after the other in the order in which they came, whatever the proxy itself
has to say about one of them. Beyond what applications need: answers to HTTP/1.0 clients without
chunks, 304 with a Content-Length, header names in their case, a cut that a client can tell from an
end, a bound on everything that a client can make endless, and little work per chunk.
"""

from __future__ import annotations

import asyncio
import http
import logging
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, cast

import uvicorn
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.utils import get_local_addr, get_remote_addr
from uvicorn.server import ServerState

from tokgauge.http.error_responses import Refusal, Refused, body_timed_out, head_timed_out
from tokgauge.http.headers import Header
from tokgauge.http.request import REQUEST, ClientRequest
from tokgauge.http.request_parser import RequestReader

logger = logging.getLogger("uvicorn.error")

CLIENT = "tokgauge.client"
"""Scope extension: the `Client` that sent the request."""

_MOST_WAITING = 8
"""Pipelined requests that are read ahead: reading goes on to see the client leave."""

_LINGER = 2.0
_LINGER_BYTES = 1024 * 1024
"""Seconds and bytes for which a client that still sends may go on after its last answer: closed at
once, the connection would be reset, and the answer lost with it."""

_CHUNK_LINES = tuple(b"%x\r\n" % size for size in range(1024))
"""The lines before chunks of the size of an event, so that no event formats its own."""


class Client(Protocol):
    """The client of one request, without a message, a coroutine or a task for each step.

    `begin` and `write` return whether the client keeps up; if not, `when_ready` tells when it does
    again.
    """

    request: ClientRequest
    keep_alive: bool

    def whole_body(self) -> bytes | None:
        """The request's body if all of it is here and nobody has received any of it."""

    def when_left(self, callback: Callable[[], None]) -> None:
        """Call `callback` once if the client leaves before the answer is complete.

        For when the request has been received completely: nothing is read of it any more.
        """

    def when_ready(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the client, which does not keep up, takes more."""

    def begin(self, status: int, headers: Sequence[Header], *, body_follows: bool) -> bool:
        """Begin the answer. body_follows: `write`, `finish` or `release_head` is called next."""

    def release_head(self) -> bool:
        """Send the head by itself: no body follows it yet."""

    def write(self, body: bytes) -> bool:
        """Send a part of the answer's body, not empty."""

    def chunk_writer(self, full: Callable[[], None]) -> Callable[[bytes], None] | None:
        """What writes a part of the body that is framed as one chunk, when the head has left.

        None if that is not how this answer is framed. full: called whenever the client does not
        keep up any longer.
        """

    def finish(self) -> None:
        """The answer is complete."""

    def hand_over(self, app: Application) -> None:
        """Leave the rest to an ASGI application, in a task of its own."""

    def end(self) -> None:
        """Nothing more comes: an answer that is not complete is cut."""


Application = Callable[[Any, Any, Any], Awaitable[None]]
"""An ASGI application."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What a client may take: bytes of a head; seconds for a head, between two reads of a body, and
    between two requests.
    """

    head_bytes: int
    head: float
    body: float
    idle: float


class ProxyApplication(Protocol):
    """The application of a `ProxyProtocol`: ASGI and more."""

    limits: ClientLimits

    def __call__(self, scope: Any, receive: Any, send: Any) -> Awaitable[None]: ...

    def carry_at_once(self, client: Client, server: tuple[str, int | None] | None) -> bool:
        """Carry a request that is here completely; False when it must go by ASGI."""


@cache
def _status_line(status: int) -> bytes:
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return b"HTTP/1.1 %d %b" % (status, phrase.encode())


class Cycle:
    """One request and its answer on a connection; also its `Client`."""

    # What seldom changes, without a store for it.
    disconnected = False
    more_body = True
    response_started = False
    response_complete = False

    _framing = b""
    """How the answer's body is framed, see `render_head`."""

    _held = b""
    """The answer's head, until its first bytes of body come or the event loop turns."""

    _on_full: Callable[[], None] | None = None
    _on_left: Callable[[], None] | None = None
    _on_ready: Callable[[], None] | None = None
    _message_event: asyncio.Event | None = None
    _stirred = False
    _fault: Refusal | None = None

    body: bytes | bytearray = b""
    """What has come of the request's body and has not been received."""

    def __init__(self, connection: ProxyProtocol, request: ClientRequest) -> None:
        self.request = request
        self._connection = connection
        self.transport = connection.transport
        self.flow = connection.flow
        self.keep_alive = request.keep_alive
        self.waiting_for_100_continue = (
            request.incoming.expects and request.version != "1.0" and request.has_body
        )

    @property
    def message_event(self) -> asyncio.Event:
        """What `receive` waits for; made for those only who call it."""
        event = self._message_event
        if event is None:
            event = self._message_event = asyncio.Event()
            if self._stirred:
                event.set()
        return event

    def stir(self) -> None:
        """Something has happened that `receive` waits for."""
        self._stirred = True
        if self._message_event is not None:
            self._message_event.set()

    async def run_asgi(self, app: Application) -> None:
        connection = self._connection
        scope = self.request.scope(
            server=connection.server, client=connection.client, scheme="http",
            extensions={CLIENT: self, REQUEST: self.request},
        )  # fmt: skip
        try:
            await app(scope, self.receive, self.send)
        except BaseException as error:  # border: whatever the app raises ends this answer only
            if not isinstance(error, asyncio.CancelledError):
                logger.error("error in the application", exc_info=error)
        finally:
            del scope["extensions"][CLIENT]  # it refers back to this object
            self.end()

    async def receive(self) -> dict[str, Any]:
        """ASGI's. Raises Refused when the rest of the body can never come."""
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        if not self.disconnected and not self.response_complete and self._fault is None:
            self._connection.read_on()
            await self.message_event.wait()
            self._forget_stir()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        if self._fault is not None:
            raise Refused(self._fault)
        body, self.body = bytes(self.body), b""
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    def _forget_stir(self) -> None:
        self._stirred = False
        if self._message_event is not None:
            self._message_event.clear()

    def take_body(self, data: bytes) -> None:
        """A part of the request's body has come."""
        self.waiting_for_100_continue = False
        if self.body:
            if isinstance(self.body, bytes):
                self.body = bytearray(self.body)
            self.body += data
        else:
            self.body = data
        self.stir()

    def body_is_whole(self) -> None:
        """The request's body has come."""
        self.more_body = False
        self.stir()

    def break_body(self, refusal: Refusal) -> None:
        """The rest of the request's body can never come."""
        self._fault = refusal
        self.stir()

    def hand_over(self, app: Application) -> None:
        self._connection._start_task(self, app)

    def end(self) -> None:
        if not self.response_complete and not self.disconnected:
            self._cut()
        self._on_left = self._on_ready = self._on_full = None

    def _cut(self) -> None:
        """End an unfinished answer so that the client can tell that it is not complete."""
        self.release_head()
        if self._framing == b"close":
            # An answer that ends with the connection looks complete unless it is reset.
            sock = self.transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()
        else:
            self.transport.close()

    async def send(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if not self.response_started:
            self.begin(message["status"], message["headers"], body_follows=True)
            asyncio.get_running_loop().call_soon(self.release_head)
            return
        body = message.get("body", b"")
        if body:
            self.write(body)
        if not message.get("more_body", False):
            self.finish()

    def whole_body(self) -> bytes | None:
        if self.more_body or self.disconnected or self.waiting_for_100_continue:
            return None
        body, self.body = bytes(self.body), b""
        self._forget_stir()
        self._connection.read_on()
        return body

    def when_left(self, callback: Callable[[], None]) -> None:
        if self.disconnected:
            asyncio.get_running_loop().call_soon(callback)
        else:
            self._on_left = callback
            self._connection.read_on()

    def left(self) -> None:
        """The client has gone."""
        callback, self._on_left = self._on_left, None
        if callback is not None and not self.response_complete:
            callback()

    def when_ready(self, callback: Callable[[], None]) -> None:
        self._on_ready = callback

    def ready(self) -> None:
        """The client takes more."""
        callback, self._on_ready = self._on_ready, None
        if callback is not None:
            callback()

    def begin(self, status: int, headers: Sequence[Header], *, body_follows: bool) -> bool:
        if self.disconnected:
            return True
        if self.waiting_for_100_continue:
            self.waiting_for_100_continue = False
            self.keep_alive = False  # nobody can tell whether its body comes now
        framing, head = render_head(status, headers, self.request, keep_alive=self.keep_alive)
        self.response_started = True
        self._framing = framing
        if body_follows:
            # A short answer is one write then, and one wake-up of the client.
            self._held = head
        else:
            self.transport.write(head)
        return not self.flow.write_paused

    def write(self, body: bytes) -> bool:
        if self.disconnected:
            return True
        if self._framing == b"chunked":
            size = len(body)
            line = _CHUNK_LINES[size] if size < len(_CHUNK_LINES) else b"%x\r\n" % size
            body = line + body + b"\r\n"
        elif self._framing == b"none":
            return True
        if self._held:
            body = self._held + body
            self._held = b""
        self.transport.write(body)
        return not self.flow.write_paused

    def chunk_writer(self, full: Callable[[], None]) -> Callable[[bytes], None] | None:
        if self._framing != b"chunked" or self._held or self.disconnected:
            return None
        self._on_full = full
        return self.transport.write

    def full(self) -> None:
        """The client does not keep up any longer."""
        if self._on_full is not None:
            self._on_full()

    def release_head(self) -> bool:
        head, self._held = self._held, b""
        if head and not self.transport.is_closing():
            self.transport.write(head)
        return not self.flow.write_paused

    def finish(self) -> None:
        self._on_full = None  # the engine has nothing left to wait with
        if self.disconnected:
            return
        end = self._held + b"0\r\n\r\n" if self._framing == b"chunked" else self._held
        self._held = b""
        if end:
            self.transport.write(end)
        self.response_complete = True
        self.body = b""
        self.stir()
        self._connection.answered(self)


def render_head(
    status: int, headers: Sequence[Header], request: ClientRequest, *, keep_alive: bool
) -> tuple[bytes, bytes]:
    """How the body of an answer to `request` is framed, and the answer's head.

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


class ProxyProtocol(asyncio.Protocol):
    """One client connection."""

    def __init__(
        self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:  # fmt: skip
        if not config.loaded:
            config.load()
        self._app = cast(ProxyApplication, config.loaded_app)
        self._limits = limits = self._app.limits
        self._loop = _loop or asyncio.get_event_loop()
        self._server_state = server_state
        self._reader = RequestReader(self, limits.head_bytes)
        self._cycle: Cycle | None = None  # the last request that was read
        self._arrived: Cycle | None = None  # a request whose body may be here, too
        self._active: Cycle | None = None  # whose answer is the one to send; others wait
        self._waiting: list[Cycle] = []
        self._reads_rest = False
        self._lingered: int | None = None  # bytes since the last answer, once nothing is read
        self._since = self._loop.time()  # when the client last did what it has a time limit for
        self._timer: asyncio.TimerHandle | None = None
        self._look_every = max(0.01, min(limits.head, limits.body, limits.idle) / 4)
        self.transport: asyncio.Transport
        self.flow: FlowControl
        self.server: tuple[str, int | None] | None = None
        self.client: tuple[str, int] | None = None

    # The server's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.flow = FlowControl(self.transport)
        self.server = get_local_addr(self.transport)
        self.client = get_remote_addr(self.transport)
        self._server_state.connections.add(self)  # type: ignore[arg-type]
        self._timer = self._loop.call_later(self._look_every, self._look_at_time)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server_state.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self.flow.resume_writing()
        self.transport.close()
        self._reader.close()
        cycle = self._active
        if cycle is not None:
            if not cycle.response_complete:
                cycle.disconnected = True
            cycle.stir()
            cycle.left()

    def shutdown(self) -> None:
        """Called by the server: end with the answer that is being made."""
        if self._cycle is None or self._cycle.response_complete:
            self.transport.close()
        else:
            self._cycle.keep_alive = False

    def _start_task(self, cycle: Cycle, app: Application) -> None:
        tasks = self._server_state.tasks
        task = self._loop.create_task(cycle.run_asgi(app))
        task.add_done_callback(tasks.discard)
        tasks.add(task)

    def pause_writing(self) -> None:
        self.flow.pause_writing()
        if self._active is not None:
            self._active.full()

    def resume_writing(self) -> None:
        self.flow.resume_writing()
        if self._active is not None:
            self._active.ready()
            if self._active.response_complete:
                self._carry_next()

    # Requests as they are read

    def data_received(self, data: bytes) -> None:
        if self._lingered is not None:
            self._lingered += len(data)
            if self._lingered > _LINGER_BYTES:
                self.transport.close()
        elif not self._reader.ended:
            self._reader.feed(data)
            self._after_reading()

    def _after_reading(self) -> None:
        arrived, self._arrived = self._arrived, None
        if arrived is not None:
            self._carry(arrived)
        if self._reader.waits:
            self.flow.pause_reading()
            if not self.has_enough and not self._reads_rest:
                self._reads_rest = True
                self._loop.call_soon(self._read_rest)

    def _read_rest(self) -> None:
        """Go on with what was too much for one turn of the loop."""
        self._reads_rest = False
        if self._lingered is None and not self.transport.is_closing():
            self._reader.resume()
            self._after_reading()
            self.read_on()

    @property
    def has_enough(self) -> bool:
        """Whether as many requests wait as are read ahead."""
        waiting = self._waiting
        return bool(waiting) and (
            len(waiting) >= _MOST_WAITING
            or sum(len(cycle.body) for cycle in waiting) > HIGH_WATER_LIMIT
        )

    def head_begins(self) -> None:
        """A request's first byte is here."""
        self._since = self._loop.time()

    def request_begins(self, request: ClientRequest) -> None:
        """A request's head is here. A refusal that it carries is said when it is its turn."""
        before = self._cycle
        self._cycle = cycle = Cycle(self, request)
        if request.refusal is not None:
            cycle.more_body = False  # none of it is read
        self._since = self._loop.time()
        if before is None or (before.response_complete and not self.flow.write_paused):
            self._arrived = cycle
        else:
            self._waiting.append(cycle)

    def head_broken(self, request: ClientRequest) -> None:
        """What is here can never be read as a request's head."""
        before = self._cycle
        if before is None or (before.response_complete and not self.flow.write_paused):
            self.request_begins(request)
        else:
            self._end_with(before)

    def request_body(self, data: bytes) -> None:
        """A part of the last request's body is here."""
        cycle = self._cycle
        assert cycle is not None  # noqa: S101
        if cycle.response_complete:
            return  # nobody wants it any more, and it has no more time than is left
        self._since = self._loop.time()
        cycle.take_body(data)
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()

    def request_ends(self) -> None:
        """All of the last request's body is here."""
        assert self._cycle is not None  # noqa: S101
        self._cycle.body_is_whole()
        if self._cycle.response_complete:
            self._since = self._loop.time()

    def body_refused(self, refusal: Refusal) -> None:
        """The rest of the last request's body makes no sense or does not come."""
        cycle = self._cycle
        assert cycle is not None  # noqa: S101
        if self._waiting and cycle is self._waiting[-1]:
            self._waiting.pop()
            before = self._waiting[-1] if self._waiting else self._arrived or self._active
            assert before is not None  # noqa: S101
            self._end_with(before)
            return
        self._end_with(cycle)
        if cycle is self._active:
            cycle.break_body(refusal)
        else:
            cycle.request.refuse(refusal)

    def _end_with(self, last: Cycle) -> None:
        """Close after the answer to this request; what comes behind it cannot be read."""
        last.keep_alive = False
        if last.response_complete:
            self._linger()

    def read_on(self) -> None:
        """Read from the client, unless enough of it waits already."""
        if self.flow.read_paused and not self.has_enough and not self._reader.waits:
            self._since = self._loop.time()
            self.flow.resume_reading()

    # Answers, one after the other

    def _carry(self, cycle: Cycle) -> None:
        """Begin to carry out a request, whose body may or may not be here."""
        self._active = cycle
        self._since = self._loop.time()
        if cycle.more_body or not self._app.carry_at_once(cycle, self.server):
            self._start_task(cycle, self._app)

    def answered(self, cycle: Cycle) -> None:
        """The answer of the active request is complete."""
        self._server_state.total_requests += 1
        self._since = self._loop.time()
        if self.transport.is_closing():
            return
        if cycle.keep_alive:
            if self._waiting:
                # Not yet: whoever counts what is in flight still counts this one.
                self._loop.call_soon(self._carry_next)
            self.read_on()
        elif cycle.more_body or self._reader.broken:
            self._linger()
        else:
            self.transport.close()

    def _carry_next(self) -> None:
        """The next pipelined request's turn, if the client takes the answers so far."""
        busy = self._active is not None and not self._active.response_complete
        if self._waiting and not (busy or self.flow.write_paused or self.transport.is_closing()):
            self._carry(self._waiting.pop(0))
            self._reader.resume()
            self._after_reading()
            self.read_on()

    def _linger(self) -> None:
        """Close, but in such a way that the client can read the answer while it still sends."""
        if self.transport.is_closing():
            return
        self._reader.ended = True
        self._lingered = 0
        self.flow.resume_reading()
        self.transport.write_eof()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_LINGER, self.transport.close)

    # Time limits

    def _look_at_time(self) -> None:
        """One timer for whatever the connection waits for: none has to be moved for a request."""
        limit = self._limit()
        wait = self._look_every
        if limit is not None:
            left = self._since + limit - self._loop.time()
            if left <= 0:
                self._too_late()
                if self._lingered is not None or self.transport.is_closing():
                    return
            else:
                wait = min(wait, left)
        self._timer = self._loop.call_later(wait, self._look_at_time)

    def _limit(self) -> float | None:
        """Seconds that the client has for what it is to do now; None if it is not its turn."""
        cycle = self._cycle
        if cycle is not None and not (cycle.response_complete and not cycle.more_body):
            if not cycle.more_body or cycle is not self._active or self.flow.read_paused:
                return None
            running = cycle.response_started and not cycle.response_complete
            return None if running or self._reader.ended else self._limits.body
        return self._limits.head if self._reader.in_head else self._limits.idle

    def _too_late(self) -> None:
        cycle = self._cycle
        if cycle is not None and cycle.more_body:
            self._reader.give_up(body_timed_out(self._limits.body))
        elif self._reader.in_head:
            self._reader.give_up(head_timed_out(self._limits.head))
            self._after_reading()
        else:
            self.transport.close()
