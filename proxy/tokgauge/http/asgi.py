"""HTTP towards clients through ASGI: an exchange's `ClientConnection` under anybody's server.

Reading requests strictly, framing responses, keeping connections and limits of time are that
server's business; what it lets through is looked at as `Request` says. ASGI has no message for a
response that breaks off: that is an exception here. Trailers are dropped, as by our own server.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from tokgauge.http.asgi_request import Message, request_of, tells_of_body
from tokgauge.http.client_connection import ClientConnection, Exchange
from tokgauge.http.error_responses import ErrorResponse
from tokgauge.http.headers import Header
from tokgauge.http.request import Request

Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_HIGH_WATER = 64 * 1024
"""Bytes of a response that wait for the server before the engine has to wait, too."""


class ResponseCutError(Exception):
    """The response breaks off: servers close its connection then, without the end of its body."""


async def carry(
    scope: Message, receive: Receive, send: Send, opens: Callable[[ClientConnection], Exchange]
) -> None:
    """Carry one request. Raises ResponseCutError after a response that is not whole."""
    first = None if tells_of_body(scope) else await receive()
    has_body = first is not None and bool(first.get("body") or first.get("more_body"))
    client = AsgiClient(request_of(scope, unsaid_body=has_body), receive, send)
    await client.run(opens(client), first)


class AsgiClient:
    """The client of one exchange; the exchange calls, and one task sends what it has called for."""

    def __init__(self, request: Request, receive: Receive, send: Send) -> None:
        self.request = request
        self._receive, self._send = receive, send
        self._exchange: Exchange
        self._out: deque[Message] = deque()
        self._size = 0  # bytes of body in there
        self._full = False
        self._more, self._may_read = asyncio.Event(), asyncio.Event()
        self._may_read.set()
        self._complete = self._is_cut = self._left = False

    # The exchange's side

    def begin(self, status: int, headers: Sequence[Header], *, body_follows: bool) -> None:
        lowered = [(name.lower(), value) for name, value in headers]  # as ASGI asks
        self._put({"type": "http.response.start", "status": status, "headers": lowered})
        if not body_follows:
            self.release_head()

    def release_head(self) -> None:
        self._put({"type": "http.response.body", "body": b"", "more_body": True})

    def write(self, body: bytes, raw: bytes | None) -> None:
        self._put({"type": "http.response.body", "body": body, "more_body": True})
        self._size += len(body)
        if self._size > _HIGH_WATER and not self._full:
            self._full = True
            self._exchange.client_full()

    def finish(self) -> None:
        self._put({"type": "http.response.body", "body": b"", "more_body": False})
        self._complete = True

    def cut(self) -> None:
        if not self._complete:
            self.release_head()
            self._complete = self._is_cut = True

    def respond(self, response: ErrorResponse, headers: Sequence[Header]) -> None:
        self.begin(response.status, [*response.headers(), *headers], body_follows=True)
        self.write(response.body(), None)
        self.finish()

    def done(self) -> None: ...

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()

    def _put(self, message: Message) -> None:
        if not self._complete:
            self._out.append(message)
            self._more.set()

    # The server's side

    async def run(self, exchange: Exchange, first: Message | None) -> None:
        """Until the response has been sent, or the client leaves. Raises ResponseCutError."""
        self._exchange = exchange
        exchange.start()
        reading = asyncio.create_task(self._read(first))
        try:
            await self._send_all()
        finally:
            reading.cancel()
            self._leave()
        if self._is_cut:
            raise ResponseCutError("the response broke off: its connection has to be closed")

    async def _send_all(self) -> None:
        while not self._left:
            if self._out:
                message = self._out.popleft()
                try:
                    await self._send(message)
                except OSError:  # so servers say that the client has left
                    return
                self._size -= len(message.get("body", b""))
                if self._full and self._size <= _HIGH_WATER // 2:
                    self._full = False
                    self._exchange.client_ready()
            elif self._complete:
                return
            else:
                self._more.clear()
                await self._more.wait()

    async def _read(self, message: Message | None) -> None:
        """Tell the exchange what comes, and when the client leaves: whoever fails has left."""
        try:
            while (message := message or await self._receive())["type"] != "http.disconnect":
                if message.get("body"):
                    self._exchange.request_data(message["body"])
                if not message.get("more_body"):
                    self._exchange.request_end()
                message = None
                await self._may_read.wait()
        finally:
            self._leave()

    def _leave(self) -> None:
        if not (self._complete or self._left):
            self._left = True
            self._more.set()
            self._exchange.client_left()
