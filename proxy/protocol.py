"""The client side's HTTP: uvicorn's httptools protocol, stricter and leaner where a proxy needs it.

Beyond uvicorn's own: a bound on the request head, no answer written into the middle of another,
answers to HTTP/1.0 clients without chunks, 304 with a Content-Length, header names in their case, a
cut that a client can tell from an end, and less work per chunk.
"""

from __future__ import annotations

import asyncio
import http
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Any, Protocol, cast

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from proxy.client_request import REQUEST, ClientRequest, SeenHead, SeenHeads
from proxy.errors import headers_too_large, malformed
from proxy.headers import Header

CLIENT = "tokgauge.client"
"""Scope extension: the `Client` that sent the request."""

_MOST_WAITING = 8
"""Pipelined requests that are read ahead: reading goes on to see the client leave."""

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

    def begin_rendered(self, framing: bytes, head: bytes, *, body_follows: bool) -> bool:
        """`begin` with what `render_head` gave for a request and keep-alive like this one's."""

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


class AtOnce(Protocol):
    """The application of a `ProxyProtocol`, as far as it is more than ASGI."""

    heads: SeenHeads

    def carry_at_once(self, client: Client, server: tuple[str, int | None] | None) -> bool:
        """Carry a request that is here completely; False when it must go by ASGI."""


@cache
def _status_line(status: int) -> bytes:
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return b"HTTP/1.1 %d %b" % (status, phrase.encode())


class Cycle(RequestResponseCycle):
    """One request and its answer on a connection; also its `Client`."""

    # What uvicorn's class keeps, without a store for what seldom changes.
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

    body: bytes | bytearray = b""  # type: ignore[assignment]
    """What has come of the request's body and has not been received."""

    def __init__(self, connection: ProxyProtocol, request: ClientRequest) -> None:
        self.request = request
        self._connection = connection
        self.transport = connection.transport
        self.flow = connection.flow
        self.logger = connection.logger
        self.on_response = connection.on_response_complete
        self.keep_alive = request.keep_alive
        self.waiting_for_100_continue = connection.expect_100_continue

    @property
    def over(self) -> bool:
        """Whether nothing of this request or its answer is missing, and another one may follow."""
        return self.response_complete and not self.more_body and self.keep_alive

    @property
    def message_event(self) -> asyncio.Event:  # type: ignore[override]
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

    async def run_asgi(self, app: Any) -> None:
        connection = self._connection
        scope = self.request.scope(
            server=connection.server, client=connection.client, scheme=connection.scheme,
            extensions={CLIENT: self, REQUEST: self.request},
        )  # fmt: skip
        try:
            await app(scope, self.receive, self.send)
        except BaseException as error:  # border: whatever the app raises ends this answer only
            if not isinstance(error, asyncio.CancelledError):
                self.logger.error("error in the application", exc_info=error)
        finally:
            del scope["extensions"][CLIENT]  # it refers back to this object
            self.end()

    def hand_over(self, app: Application) -> None:
        self._connection._start_asgi_task(self, app)

    def end(self) -> None:
        if not self.response_complete and not self.disconnected:
            self._cut()
        self.on_response = _nothing
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
        self._stirred = False
        if self._message_event is not None:
            self._message_event.clear()
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
        framing, head = render_head(status, headers, self.request, keep_alive=self.keep_alive)
        return self.begin_rendered(framing, head, body_follows=body_follows)

    def begin_rendered(self, framing: bytes, head: bytes, *, body_follows: bool) -> bool:
        if self.disconnected:
            return True
        self.response_started = True
        self.waiting_for_100_continue = False
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
        self.stir()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()


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


def _nothing() -> None:
    """What follows on an answer that has ended already."""


class ProxyProtocol(HttpToolsProtocol):
    """One client connection."""

    cycle: Cycle

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.max_header_bytes = self.config.h11_max_incomplete_event_size or 65536
        self._head_bytes: int | None = None  # of an unfinished head, None outside of one
        self._head_at_most: int | None = None
        self._idle_since: float | None = None
        self._deaf = False
        self._arrived: Cycle | None = None  # a request whose body may be here, too
        self._active: Cycle | None = None  # whose answer is the one to send; others wait
        self._waiting: deque[Cycle] | None = None
        self._last_head: SeenHead | None = None
        # None for an application that is only ASGI.
        self._at_once = cast(AtOnce, self.app) if hasattr(self.app, "carry_at_once") else None

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._active is not None:
            self._active.full()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._active is not None:
            self._active.ready()
            if self._active.response_complete:
                self._carry_next()

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.discard(self)
        self.flow.resume_writing()
        if exc is None:
            self.transport.close()
        self._unset_keepalive_if_required()
        self.parser = None  # type: ignore[assignment]
        cycle = self._active
        if cycle is not None:
            if not cycle.response_complete:
                cycle.disconnected = True
            cycle.stir()
            cycle.left()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._idle_since = None
        at_once, active = self._at_once, self._active
        if (
            self._head_bytes is not None
            or (active is not None and not (active is self.cycle and active.over))
            or self.flow.write_paused
        ):
            at_once = None  # this is not where a request begins whose turn it is
        if at_once is not None:
            seen = self._last_head
            found = seen.match(data) if seen is not None else None
            if found is None and (seen := at_once.heads.find(data)) is not None:
                self._last_head = seen
                found = seen.match(data)
            if found is not None:
                self.expect_100_continue = False
                self.cycle = cycle = Cycle(self, found[0])
                cycle.body = found[1]
                cycle.more_body = False
                self._carry(cycle)
                return
        in_head = self._head_bytes is not None
        self._head_at_most = None if in_head else len(data)
        malformed: str | None = None
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # The request is read as if it had not asked; what follows it cannot be told apart.
            self._deaf = True
            if self.cycle is not None:
                self.cycle.keep_alive = False
        except httptools.HttpParserError as error:
            malformed = str(error)
        else:
            # A head that is complete is measured exactly; this bounds one that never ends.
            if in_head and self._head_bytes is not None:
                self._head_bytes += len(data)
                if self._head_bytes > self.max_header_bytes:
                    self._refuse(headers_too_large(self.max_header_bytes))
        arrived, self._arrived = self._arrived, None
        if arrived is not None:
            if at_once is not None and malformed is None:
                self._last_head = at_once.heads.keep(data, arrived.request)
            self._carry(arrived)
        if malformed is not None:
            self._malformed(malformed)

    def _carry(self, cycle: Cycle) -> None:
        """Begin to carry out a request, whose body may or may not be here."""
        self._active = cycle
        at_once = self._at_once
        if (
            at_once is None
            or cycle.more_body
            or cycle.waiting_for_100_continue
            or not at_once.carry_at_once(cycle, self.server)
        ):
            self._start_asgi_task(cycle, self.app)

    def _malformed(self, why: str) -> None:
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            self._refuse(malformed(f"This is not a valid HTTP/1.1 request: {why}"))
            return
        self._deaf = True
        cycle.keep_alive = False
        if cycle.more_body and self._waiting and cycle in self._waiting:
            # No word about it can come before the answers to the requests ahead of it.
            self._waiting.remove(cycle)
            last = self._waiting[-1] if self._waiting else self._active or cycle
            last.keep_alive = False
            if last.response_complete:
                self.transport.close()
        elif cycle.more_body:
            # The rest of its body will never come: the request cannot be carried out.
            if not cycle.response_started:
                self._refuse(malformed(f"The request body is malformed: {why}"))
            cycle.disconnected = True
            cycle.stir()
            self.transport.close()
            cycle.left()

    def _refuse(self, refusal: Any) -> None:
        self._deaf = True
        head = [_status_line(refusal.status)]
        head += [b"%b: %b" % header for header in refusal.headers()]
        head += [b"connection: close", b"", refusal.body()]
        self.transport.write(b"\r\n".join(head))
        self.transport.close()

    def on_message_begin(self) -> None:
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        version = self.parser.get_http_version()
        request = ClientRequest(
            self.parser.get_method().decode("ascii"),
            _origin_form(self.url),
            version,
            self.headers,
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            too_large=self._head_is_too_large(),
        )
        waiting = self.cycle
        self.cycle = Cycle(self, request)
        if waiting is None or (waiting.response_complete and not self.flow.write_paused):
            self._arrived = self.cycle
        else:
            if self._waiting is None:
                self._waiting = deque()
            self._waiting.append(self.cycle)
            if len(self._waiting) >= _MOST_WAITING:
                self.flow.pause_reading()

    def on_body(self, body: bytes) -> None:
        cycle = self.cycle
        if cycle.response_complete:
            return
        if cycle.body:
            if isinstance(cycle.body, bytes):
                cycle.body = bytearray(cycle.body)
            cycle.body += body
        else:
            cycle.body = body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.stir()

    def on_message_complete(self) -> None:
        if not self.cycle.response_complete:
            self.cycle.more_body = False
            self.cycle.stir()

    def _head_is_too_large(self) -> bool:
        at_most = self._head_at_most
        # The sum counts a space after each colon, which need not have been sent.
        if at_most is not None and at_most + len(self.headers) <= self.max_header_bytes:
            return False
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        return size > self.max_header_bytes

    def read_on(self) -> None:
        """Read from the client, unless enough of it waits already."""
        if self._waiting is None or len(self._waiting) < _MOST_WAITING:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        """As uvicorn's, with a timer that is armed once for many answers."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self._waiting:
            self._carry_next()
            return
        self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._look_again_after(self.timeout_keep_alive)

    def _carry_next(self) -> None:
        """The next pipelined request's turn, if the client takes the answers so far."""
        if self._waiting and not self.flow.write_paused and not self.transport.is_closing():
            self._carry(self._waiting.popleft())

    def _look_again_after(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self._look_at_idleness)

    def _look_at_idleness(self) -> None:
        self.timeout_keep_alive_task = None
        if self._idle_since is None:
            return  # a request is under way: its end arms the timer again
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._look_again_after(left)
        else:
            self.timeout_keep_alive_handler()


def _origin_form(target: bytes) -> bytes:
    """The path and query of a request target; scheme and authority never choose where it goes."""
    if target.startswith(b"/") or target == b"*":
        return target
    _, separator, rest = target.partition(b"://")
    if not separator:
        return b"/" + target  # authority form belongs to CONNECT, which the relay refuses
    slash = rest.find(b"/")
    question = rest.find(b"?")
    if slash < 0 or 0 <= question < slash:
        return b"/" if question < 0 else b"/" + rest[question:]
    return rest[slash:]
