"""The proxy's own questions to the engine."""

from __future__ import annotations

import asyncio
import ssl

import httpx2

from tokgauge.engine.address import EngineAddress
from tokgauge.settings import Engine

_ANSWER_LIMIT = 4 * 1024 * 1024


class AnswerTooLarge(httpx2.ReadError):
    """An answer to a question of the proxy's own is larger than such answers are."""


class EngineClient:
    """Asks the engine, with the proxy's own key. Belongs to one event loop.

    Raises OSError when the file with certificates cannot be used.
    """

    def __init__(self, address: EngineAddress, api_key: str | None) -> None:
        self.address = address
        headers = {"host": address.own_host.decode("latin-1"), "accept": "*/*"}
        if api_key is not None:
            headers["authorization"] = f"Bearer {api_key}"
        verify: ssl.SSLContext | bool = address.tls_context() or False  # None without TLS
        self._client = httpx2.AsyncClient(
            headers=headers, verify=verify, trust_env=False, timeout=None
        )

    async def ask(self, method: str, target: str, body: bytes, timeout: float) -> tuple[int, bytes]:
        """Status and body of the answer. body: JSON, or nothing.

        Raises httpx2's errors (AnswerTooLarge above 4 MiB) and, after `timeout` seconds,
        TimeoutError.
        """
        headers = {"content-type": "application/json"} if body else {}
        url = self.address.url + target
        async with (
            asyncio.timeout(timeout),
            self._client.stream(method, url, content=body or None, headers=headers) as response,
        ):
            answer = b""
            async for piece in response.aiter_bytes():
                answer += piece
                if len(answer) > _ANSWER_LIMIT:
                    raise AnswerTooLarge("the answer is too large")
            return response.status_code, answer

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def engine_client(engine: Engine) -> EngineClient:
    """A client for the engine of the settings. Raises OSError as `EngineClient` does."""
    address = EngineAddress.of(
        engine.upstream, host_header=engine.upstream_host, ca_file=engine.upstream_ca_file
    )
    key = engine.api_key.get_secret_value() if engine.api_key is not None else None
    return EngineClient(address, key)
