"""The check's own requests to the engine."""

from __future__ import annotations

from tokgauge.engine.client import EngineClient

_PAGE_SECONDS = 10.0
TOKEN_SECONDS = 60.0
"""A queue may stand before the one token."""


class Asking:
    """Requests of the check's own."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    async def get(self, target: str) -> tuple[int, bytes]:
        """Status and body. Raises httpx2's errors and TimeoutError."""
        return await self._client.ask("GET", target, b"", _PAGE_SECONDS)

    async def post(self, target: str, body: bytes) -> tuple[int, bytes]:
        """Status and body of a generating request. Raises as `get` does."""
        return await self._client.ask("POST", target, body, TOKEN_SECONDS)
