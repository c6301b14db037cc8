"""The check's own requests to the engine."""

from __future__ import annotations

from tokgauge.relay.upstream import Upstream

_PAGE_SECONDS = 10.0
TOKEN_SECONDS = 60.0
"""A queue may stand before the one token."""


class Asking:
    """Requests of the check's own, on the proxy's way to the engine."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def get(self, target: bytes) -> tuple[int, bytes]:
        """Status and body. Raises httpx2's errors and TimeoutError."""
        return await self._upstream.ask("GET", target, b"", _PAGE_SECONDS)

    async def post(self, target: bytes, body: bytes) -> tuple[int, bytes]:
        """Status and body of a generating request. Raises as `get` does."""
        return await self._upstream.ask("POST", target, body, TOKEN_SECONDS)
