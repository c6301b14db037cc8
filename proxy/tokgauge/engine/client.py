"""The proxy's own questions to the engine."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any

import httpx2

from tokgauge.engine.address import EngineAddress
from tokgauge.settings import Engine

_ANSWER_LIMIT = 4 * 1024 * 1024


class AnswerTooLarge(httpx2.ReadError):
    """An answer to a question of the proxy's own is larger than such answers are."""


def http_client(
    engine: Engine, headers: Mapping[str, str], **options: Any
) -> tuple[EngineAddress, httpx2.AsyncClient]:
    """The engine's address, and a client that asks it as itself, with the proxy's own key.

    options: of `httpx2.AsyncClient`. Raises OSError when the file with certificates cannot be used.
    """
    address = EngineAddress.of(
        engine.upstream, host_header=engine.upstream_host, ca_file=engine.upstream_ca_file
    )
    own = {"host": address.own_host.decode("latin-1"), **headers}
    if engine.api_key is not None:
        own["authorization"] = f"Bearer {engine.api_key.get_secret_value()}"
    verify: ssl.SSLContext | bool = address.tls_context() or False  # None without TLS
    return address, httpx2.AsyncClient(headers=own, verify=verify, trust_env=False, **options)


class EngineClient:
    """Asks the engine of the settings. Belongs to one event loop.

    Raises OSError as `http_client` does.
    """

    def __init__(self, engine: Engine) -> None:
        self.address, self._client = http_client(engine, {"accept": "*/*"}, timeout=None)

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
