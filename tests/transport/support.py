"""A scripted engine on loopback for the tests of the transport."""

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2
from tokgauge.http.client import EngineTransport

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Engine:
    """The scripted engine: where it listens, and how its clients left."""

    port: int
    connections: int = 0
    ended: asyncio.Queue[str] = field(default_factory=asyncio.Queue)

    def request(
        self,
        method: str = "GET",
        path: str = "/",
        *,
        headers: list[tuple[bytes, bytes]] | None = None,
        body: bytes | httpx2.AsyncByteStream = b"",
        target: bytes | None = None,
        scheme: str = "http",
        host: str = "127.0.0.1",
    ) -> httpx2.Request:
        fields = [(b"Host", b"engine"), *(headers or [])]
        if isinstance(body, bytes) and body:
            fields.append((b"Content-Length", b"%d" % len(body)))
        return httpx2.Request(
            method,
            f"{scheme}://{host}:{self.port}{path}",
            headers=fields,
            stream=httpx2.ByteStream(body) if isinstance(body, bytes) else body,
            extensions={} if target is None else {"target": target},
        )


@contextlib.asynccontextmanager
async def engine(
    handler: Handler, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[Engine]:
    tasks: set[asyncio.Task[None]] = set()
    here = Engine(0)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        here.connections += 1
        try:
            await handler(reader, writer)
            here.ended.put_nowait("done")
        except asyncio.IncompleteReadError:
            here.ended.put_nowait("eof")
        except (ConnectionError, ssl.SSLError):
            here.ended.put_nowait("reset")
        except asyncio.CancelledError:
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(connected, host, 0, ssl=tls, limit=1 << 20)
    here.port = server.sockets[0].getsockname()[1]
    try:
        yield here
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.01)


def answer(*parts: bytes, pause: float = 0.0, after: str = "keep") -> Handler:
    """Every request without a body is answered by `parts`; then keep, close or reset."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(pause)
            if after == "close":
                return close(writer)
            if after == "reset":
                return reset(writer)

    return handler


def close(writer: asyncio.StreamWriter) -> None:
    writer.close()


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST instead of FIN."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def collect(response: httpx2.Response) -> bytes:
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    try:
        return b"".join([piece async for piece in response.stream])
    finally:
        await response.stream.aclose()


@contextlib.asynccontextmanager
async def transport(**options: Any) -> AsyncIterator[EngineTransport]:
    made = EngineTransport(**options)
    try:
        yield made
    finally:
        await made.aclose()
        stats = made.stats()
        assert (stats.active, stats.idle) == (0, 0)
