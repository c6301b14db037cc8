"""The check's own requests to the engine."""

from __future__ import annotations

import asyncio

import httpx2

from proxy.settings import Settings
from proxy.upstream import Upstream

_PAGE_SECONDS = 10.0
TOKEN_SECONDS = 60.0
"""A queue may stand before the one token."""

_ANSWER_LIMIT = 4 * 1024 * 1024


class Asking:
    """Requests of the check's own, on the proxy's way to the engine."""

    def __init__(self, upstream: Upstream, settings: Settings) -> None:
        self._upstream = upstream
        self._key = settings.engine.api_key

    async def get(self, target: bytes) -> tuple[int, bytes]:
        """Status and body. Raises httpx2's errors and TimeoutError."""
        return await self._send("GET", target, b"", _PAGE_SECONDS)

    async def post(self, target: bytes, body: bytes) -> tuple[int, bytes]:
        """Status and body of a generating request. Raises as `get` does."""
        return await self._send("POST", target, body, TOKEN_SECONDS)

    async def _send(
        self, method: str, target: bytes, body: bytes, limit: float
    ) -> tuple[int, bytes]:
        headers = [(b"host", self._upstream.own_host), (b"accept", b"*/*")]
        if body:
            headers += [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
            ]
        if self._key is not None:
            headers.append((b"authorization", b"Bearer " + self._key.get_secret_value().encode()))
        request = self._upstream.request(method, target, headers, httpx2.ByteStream(body))
        async with asyncio.timeout(limit):
            response = await self._upstream.send(request)
            stream = response.stream
            assert isinstance(stream, httpx2.AsyncByteStream)  # noqa: S101
            answer = b""
            try:
                async for piece in stream:
                    answer += piece
                    if len(answer) > _ANSWER_LIMIT:
                        raise httpx2.ReadError("the answer is too large")
            finally:
                await stream.aclose()
        return response.status_code, answer
