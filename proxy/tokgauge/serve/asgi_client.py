"""A client behind any ASGI server: the second implementation of `ClientConnection`.

What the exchange writes waits in a queue for `send`; what `receive` gives goes to the exchange.
uvicorn under `tokgauge serve` does without it, and so without a task and a message for each event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tokgauge.http.error_responses import ErrorResponse
from tokgauge.http.headers import Header
from tokgauge.http.request import Request
from tokgauge.http.server import Exchange

_HIGH_WATER = 64 * 1024
"""Bytes that wait for `send` before the engine has to wait."""

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class CutShort(Exception):  # noqa: N818 - tells the server to end the connection uncleanly
    """The response is not whole: a server that sees this must not end it as if it were."""


class AsgiClient:
    """One request under ASGI. `run` carries its exchange from beginning to end."""

    def __init__(self, scope: Any, receive: Receive, send: Send) -> None:
        path, query = scope["raw_path"], scope["query_string"]
        self.request = Request(
            scope["method"],
            path + b"?" + query if query else path,
            scope["http_version"] if scope["http_version"] == "1.0" else "1.1",
            list(scope["headers"]),
            keep_alive=True,
        )
        self._receive = receive
        self._send = send
        self._exchange: Exchange | None = None
        self._messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._queued = 0
        self._full = False
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._begun = self._over = self._is_cut = False

    async def run(self, exchange: Exchange) -> None:
        """Carry the exchange. Raises CutShort when the response broke off."""
        self._exchange = exchange
        exchange.start()
        reading = asyncio.create_task(self._read(exchange))
        try:
            while (message := await self._messages.get()) is not None:
                await self._send(message)
                self._sent(len(message.get("body", b"")), exchange)
        finally:
            reading.cancel()
            if not self._over:
                self._over = True
                exchange.client_left()
        if self._is_cut:
            raise CutShort

    async def _read(self, exchange: Exchange) -> None:
        more = True
        while True:
            await self._may_read.wait()
            message = await self._receive()
            if message["type"] == "http.disconnect":
                break
            if more and (body := message.get("body", b"")):
                exchange.request_data(body)
            if more and not message.get("more_body", False):
                more = False
                exchange.request_end()
        if not self._over:
            self._over = True
            exchange.client_left()
            self._messages.put_nowait(None)

    def _sent(self, size: int, exchange: Exchange) -> None:
        self._queued -= size
        if self._full and self._queued < _HIGH_WATER // 2:
            self._full = False
            exchange.client_ready()

    # ClientConnection

    def begin(self, status: int, headers: Sequence[Header], *, body_follows: bool) -> None:
        self._begun = True
        self._put({"type": "http.response.start", "status": status, "headers": list(headers)})

    def release_head(self) -> None: ...

    def write(self, body: bytes, raw: bytes | None) -> None:
        self._put({"type": "http.response.body", "body": body, "more_body": True})
        self._queued += len(body)
        if self._queued > _HIGH_WATER and not self._full and self._exchange is not None:
            self._full = True
            self._exchange.client_full()

    def finish(self) -> None:
        self._put({"type": "http.response.body", "body": b"", "more_body": False})
        self._end()

    def done(self) -> None: ...

    def cut(self) -> None:
        self._is_cut = True
        self._end()

    def respond(self, response: ErrorResponse, headers: Sequence[Header]) -> None:
        self.begin(response.status, [*response.headers(), *headers], body_follows=True)
        self.write(response.body(), None)
        self.finish()

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()

    def _put(self, message: dict[str, Any]) -> None:
        if not self._over:
            self._messages.put_nowait(message)

    def _end(self) -> None:
        if not self._over:
            self._over = True
            self._messages.put_nowait(None)
