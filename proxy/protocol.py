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
import urllib.parse
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from proxy.errors import headers_too_large, malformed
from proxy.headers import Header

TARGET = "tokgauge.target"
"""Scope extension: the request target in origin form, as bytes, exactly as sent."""

CLIENT = "tokgauge.client"
"""Scope extension: the `Client` that sent the request."""

HEAD_TOO_LARGE = "tokgauge.head_too_large"
"""Scope extension: the request's head is above the limit; it must be refused."""


_ASGI = {"version": "3.0", "spec_version": "2.3"}

_CHUNK_LINES = tuple(b"%x\r\n" % size for size in range(1024))
"""The lines before chunks of the size of an event, so that no event formats its own."""


class Client(Protocol):
    """The client of one request, without a message, a coroutine or a task for each step.

    `begin` and `write` return whether the client keeps up: if not, ASGI's `send` waits for it.
    """

    def whole_body(self) -> bytes | None:
        """The request's body if all of it is here and nobody has received any of it."""

    def when_left(self, callback: Callable[[], None]) -> None:
        """Call `callback` once if the client leaves before the answer is complete.

        For when the request has been received completely: nothing is read of it any more.
        """

    def begin(self, status: int, headers: Sequence[Header], *, body_follows: bool) -> bool:
        """Begin the answer. body_follows: `write` or `finish` is called before anything else."""

    def write(self, body: bytes) -> bool:
        """Send a part of the answer's body, not empty."""

    def finish(self) -> None:
        """The answer is complete."""


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
    """How the answer's body is framed: `chunked`, `length`, `close` or `none`."""

    _held = b""
    """The answer's head, until its first bytes of body come or the event loop turns."""

    _on_left: Callable[[], None] | None = None

    def __init__(self, connection: ProxyProtocol, keep_alive: bool) -> None:
        self.scope = connection.scope
        self.transport = connection.transport
        self.flow = connection.flow
        self.logger = connection.logger
        self.message_event = asyncio.Event()
        self.on_response = connection.on_response_complete
        self.keep_alive = keep_alive
        self.waiting_for_100_continue = connection.expect_100_continue
        self.body = bytearray()

    async def run_asgi(self, app: Any) -> None:
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException as error:  # border: whatever the app raises ends this answer only
            if not isinstance(error, asyncio.CancelledError):
                self.logger.error("error in the application", exc_info=error)
        finally:
            if not self.response_complete and not self.disconnected:
                self._cut()
            self.on_response = _nothing
            self._on_left = None
            del self.scope["extensions"][CLIENT]  # it refers back to this object

    def _cut(self) -> None:
        """End an unfinished answer so that the client can tell that it is not complete."""
        self._release_head()
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
            asyncio.get_running_loop().call_soon(self._release_head)
            return
        body = message.get("body", b"")
        if body:
            self.write(body)
        if not message.get("more_body", False):
            self.finish()

    def whole_body(self) -> bytes | None:
        if self.more_body or self.disconnected or self.waiting_for_100_continue:
            return None
        body, self.body = bytes(self.body), bytearray()
        self.message_event.clear()
        self.flow.resume_reading()
        return body

    def when_left(self, callback: Callable[[], None]) -> None:
        if self.disconnected:
            asyncio.get_running_loop().call_soon(callback)
        else:
            self._on_left = callback
            self.flow.resume_reading()

    def left(self) -> None:
        """The client has gone."""
        callback, self._on_left = self._on_left, None
        if callback is not None and not self.response_complete:
            callback()

    def begin(self, status: int, headers: Sequence[Header], *, body_follows: bool) -> bool:
        if self.disconnected:
            return True
        self.response_started = True
        self.waiting_for_100_continue = False
        head = self._head(status, headers)
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

    def _release_head(self) -> None:
        head, self._held = self._held, b""
        if head and not self.transport.is_closing():
            self.transport.write(head)

    def finish(self) -> None:
        if self.disconnected:
            return
        end = self._held + b"0\r\n\r\n" if self._framing == b"chunked" else self._held
        self._held = b""
        if end:
            self.transport.write(end)
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    def _head(self, status: int, headers: Sequence[Header]) -> bytes:
        lines = [_status_line(status)]
        has_length = False
        for header in headers:
            lines.append(b": ".join(header))
            if header[0].lower() == b"content-length":
                has_length = True
        if self.scope["method"] == "HEAD" or status in (204, 304):
            self._framing = b"none"
        elif has_length:
            self._framing = b"length"
        elif self.scope["http_version"] == "1.0":
            self._framing = b"close"
        else:
            self._framing = b"chunked"
            lines.append(b"transfer-encoding: chunked")
        if not self.keep_alive:
            lines.append(b"connection: close")
        lines.append(b"\r\n")
        return b"\r\n".join(lines)


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

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        if self.cycle is not None:
            self.cycle.left()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._idle_since = None
        in_head = self._head_bytes is not None
        self._head_at_most = None if in_head else len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # The request is read as if it had not asked; what follows it cannot be told apart.
            self._deaf = True
            if self.cycle is not None:
                self.cycle.keep_alive = False
        except httptools.HttpParserError as error:
            self._malformed(str(error))
        else:
            # A head that is complete is measured exactly; this bounds one that never ends.
            if in_head and self._head_bytes is not None:
                self._head_bytes += len(data)
                if self._head_bytes > self.max_header_bytes:
                    self._refuse(headers_too_large(self.max_header_bytes))

    def _malformed(self, why: str) -> None:
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            self._refuse(malformed(f"This is not a valid HTTP/1.1 request: {why}"))
            return
        self._deaf = True
        cycle.keep_alive = False
        if cycle.more_body:
            # The rest of its body will never come: the request cannot be carried out.
            if not cycle.response_started:
                self._refuse(malformed(f"The request body is malformed: {why}"))
            cycle.disconnected = True
            cycle.message_event.set()
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
        target = _origin_form(self.url)
        path, _, query = target.partition(b"?")
        text = path.decode("latin-1")
        extensions: dict[str, Any] = {TARGET: target, HEAD_TOO_LARGE: self._head_is_too_large()}
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": "",
            "method": self.parser.get_method().decode("ascii"),
            "raw_path": path,
            "path": urllib.parse.unquote(text) if b"%" in path else text,
            "query_string": query,
            "headers": self.headers,
            "extensions": extensions,
        }
        self.scope = scope  # type: ignore[assignment]
        waiting = self.cycle
        keep_alive = version != "1.0" and self.parser.should_keep_alive()
        self.cycle = extensions[CLIENT] = Cycle(self, keep_alive)
        if waiting is None or waiting.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def _head_is_too_large(self) -> bool:
        at_most = self._head_at_most
        # The sum counts a space after each colon, which need not have been sent.
        if at_most is not None and at_most + len(self.headers) <= self.max_header_bytes:
            return False
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        return size > self.max_header_bytes

    def on_response_complete(self) -> None:
        """As uvicorn's, with a timer that is armed once for many answers."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
            return
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._look_again_after(self.timeout_keep_alive)

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
