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
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from proxy.errors import headers_too_large, malformed

TARGET = "tokgauge.target"
"""Scope extension: the request target in origin form, as bytes, exactly as sent."""

WRITE = "tokgauge.write"
"""Scope extension: `write(data)` sends a part of the answer's body without an `await`, once the
answer has begun. It returns whether the client keeps up: if not, the next `send` waits for it."""

HEAD_TOO_LARGE = "tokgauge.head_too_large"
"""Scope extension: the request's head is above the limit; it must be refused."""


_CHUNK_LINES = tuple(b"%x\r\n" % size for size in range(1024))
"""The lines before chunks of the size of an event, so that no event formats its own."""


def _status_line(status: int) -> bytes:
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return b"HTTP/1.1 %d %b\r\n" % (status, phrase.encode())


class Cycle(RequestResponseCycle):
    """One request and its answer on a connection."""

    _framing = b""
    """How the answer's body is framed: `chunked`, `length`, `close` or `none`."""

    _held = b""
    """The answer's head, until its first bytes of body come or the event loop turns."""

    async def run_asgi(self, app: Any) -> None:
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException as error:  # border: whatever the app raises ends this answer only
            if not isinstance(error, asyncio.CancelledError):
                self.logger.error("error in the application", exc_info=error)
        finally:
            if not self.response_complete and not self.disconnected:
                self._cut()
            self.on_response = lambda: None
            del self.scope["extensions"][WRITE]  # it refers back to this object

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
            self.response_started = True
            self.waiting_for_100_continue = False
            # A short answer is one write then, and one wake-up of the client.
            self._held = self._head(message["status"], message["headers"])
            asyncio.get_running_loop().call_soon(self._release_head)
            return
        body = message.get("body", b"")
        if body:
            self.write(body)
        if not message.get("more_body", False):
            self._complete()

    def write(self, body: bytes) -> bool:
        """Write a part of the answer's body, not empty; returns whether the client keeps up."""
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

    def _complete(self) -> None:
        end = self._held + b"0\r\n\r\n" if self._framing == b"chunked" else self._held
        self._held = b""
        if end:
            self.transport.write(end)
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    def _head(self, status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
        lines = [_status_line(status)]
        has_length = False
        for name, value in headers:
            has_length = has_length or name.lower() == b"content-length"
            lines.append(b"%b: %b\r\n" % (name, value))
        if self.scope["method"] == "HEAD" or status in (204, 304):
            self._framing = b"none"
        elif has_length:
            self._framing = b"length"
        elif self.scope["http_version"] == "1.0":
            self._framing = b"close"
        else:
            self._framing = b"chunked"
            lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)


class ProxyProtocol(HttpToolsProtocol):
    """One client connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.max_header_bytes = self.config.h11_max_incomplete_event_size or 65536
        self._head_bytes: int | None = None  # of an unfinished head, None outside of one
        self._deaf = False

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._unset_keepalive_if_required()
        in_head = self._head_bytes is not None
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

    def _refuse(self, refusal: Any) -> None:
        self._deaf = True
        head = [_status_line(refusal.status)]
        head += [b"%b: %b\r\n" % header for header in refusal.headers()]
        self.transport.write(b"".join(head) + b"connection: close\r\n\r\n" + refusal.body())
        self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        version = self.parser.get_http_version()
        target = _origin_form(self.url)
        path, _, query = target.partition(b"?")
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["http_version"] = version
        scope["raw_path"] = path
        scope["path"] = urllib.parse.unquote(path.decode("latin-1"))
        scope["query_string"] = query
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        scope["extensions"] = {TARGET: target, HEAD_TOO_LARGE: size > self.max_header_bytes}
        waiting = self.cycle
        self.cycle = Cycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=[],
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        scope["extensions"][WRITE] = self.cycle.write
        if waiting is None or waiting.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))


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
