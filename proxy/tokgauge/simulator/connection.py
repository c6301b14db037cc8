"""One HTTP exchange over ASGI: reading, answering, streaming, and the faults of the transport."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any, NoReturn

import msgspec
from starlette.types import Receive, Scope, Send

from tokgauge.simulator import errors
from tokgauge.simulator.faults import Faults

TRANSPORT = "simulator.transport"
"""ASGI extension with the socket's asyncio.Transport, see server.py."""
VARY = (b"vary", b"Origin")
_STREAM_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), VARY]
_DONE = b"data: [DONE]\n\n"

Headers = Iterable[tuple[bytes, bytes]]


class ResponseOver(Exception):  # noqa: N818 - a way out, not an error
    """A fault ended the response, or the client went away: nothing more is to be sent."""


class Connection:
    """The request and the way back to its client."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.scope = scope
        self._receive = receive
        self._send = send
        self.headers: dict[bytes, bytes] = dict(scope["headers"])

    async def body(self) -> bytes:
        parts = []
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ResponseOver
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        return b"".join(parts)

    async def json_body(self) -> dict[str, Any]:
        """The body as a JSON object, or the error that vLLM gives for it."""
        raw = await self.body()
        kind = self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/json":
            text = "Unsupported Media Type: Only 'application/json' is allowed"
            raise errors.ApiError(f"1 validation error:\n  {text}", kind="Bad Request")
        if not raw:
            raise errors.validation("missing", "body", "Field required", "'input': 'None'")
        try:
            body = json.loads(raw)
        except UnicodeDecodeError:
            text = "There was an error parsing the body"
            raise errors.DetailError(400, text, []) from None
        except json.JSONDecodeError as error:
            extra = f"'input': '<dict of 0 items>', 'ctx': {{'error': '{error.msg}'}}"
            raise errors.validation(
                "json_invalid", f"body.{error.pos}", "JSON decode error", extra
            ) from None
        if not isinstance(body, dict):
            text = "Input should be a valid dictionary or object to extract fields from"
            size = len(body) if isinstance(body, list) else 0
            found = f"'input': '<{type(body).__name__} of {size} items>'"
            raise errors.validation("model_attributes_type", "body", text, found)
        return body

    async def disconnected(self) -> None:
        """Returns when the client is gone."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def start(self, status: int, headers: Headers) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def send(self, data: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def respond(
        self,
        status: int,
        body: bytes = b"",
        *,
        content_type: bytes | None = b"application/json",
        headers: Headers = (),
        vary: bool = True,
    ) -> None:
        """A whole response, its headers in vLLM's order."""
        fields = [*headers, (b"content-length", b"%d" % len(body))]
        if content_type is not None:
            fields.append((b"content-type", content_type))
        if vary:
            fields.append(VARY)
        await self.start(status, fields)
        await self.send(body, more=False)

    async def respond_json(self, value: object) -> None:
        await self.respond(200, msgspec.json.encode(value))

    async def answer(self, value: object, faults: Faults) -> None:
        """A successful answer that is not streamed, with what the faults do to it."""
        if faults.error_after is not None:
            raise errors.engine_dead()
        if faults.stall_after is not None:
            await self.stall()
        if faults.empty:
            await self.respond(200)
        elif faults.cut_after is not None:
            body = msgspec.json.encode(value)
            length = (b"content-length", b"%d" % len(body))
            await self.start(200, [length, (b"content-type", b"application/json"), VARY])
            await self.send(body[: len(body) // 2], more=True)
            await self.cut()
        else:
            await self.respond_json(value)

    async def stall(self) -> NoReturn:
        """Say nothing until the client gives up."""
        await self.disconnected()
        raise ResponseOver

    async def cut(self) -> NoReturn:
        """Close the socket in the middle of the response, after what was already sent."""
        self.close()
        await self.disconnected()
        raise ResponseOver

    def close(self) -> None:
        """Close the socket after what was sent."""
        transport: asyncio.Transport = self.scope["extensions"][TRANSPORT]["transport"]
        transport.close()


class EventStream:
    """A streamed response: one event per HTTP chunk, and the faults counted in events."""

    def __init__(self, connection: Connection, faults: Faults) -> None:
        self._connection = connection
        self._faults = faults
        self._events = 0
        self._until_fault = min(
            (
                n
                for n in (faults.cut_after, faults.stall_after, faults.error_after)
                if n is not None
            ),
            default=None,
        )

    async def start(self) -> None:
        await self._connection.start(200, _STREAM_HEADERS)
        if self._faults.empty:
            await self._end()
        await self._fault_if_due()

    async def event(self, data: bytes) -> None:
        """Send one event, `data` being all of its bytes."""
        await self._connection.send(data, more=True)
        self._events += 1
        await self._fault_if_due()

    async def finish(self, *, done: bool = True) -> NoReturn:
        """End the response cleanly, with [DONE] in the dialects that have it."""
        if done and not self._faults.no_done:
            await self._connection.send(_DONE, more=True)
        await self._end()

    async def _end(self) -> NoReturn:
        await self._connection.send(b"", more=False)
        raise ResponseOver

    async def _fault_if_due(self) -> None:
        if self._until_fault is None or self._events < self._until_fault:
            return
        if self._faults.cut_after == self._until_fault:
            await self._connection.cut()
        if self._faults.stall_after == self._until_fault:
            await self._connection.stall()
        await self._connection.send(errors.ENGINE_DEAD_EVENT, more=True)
        await self.finish()
