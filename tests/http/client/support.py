"""A scripted engine on loopback, and a caller that writes down what it is told."""

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from tokgauge.http.client.connection import EngineConnection
from tokgauge.http.client.failures import EngineFailure
from tokgauge.http.client.limits import Limits
from tokgauge.http.client.parser import RawHeaders, ResponseParser
from tokgauge.http.client.pool import Address, Pool
from tokgauge.http.client.request_head import request_head

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Engine:
    """The scripted engine: where it listens, and how its clients left."""

    port: int
    connections: int = 0
    ended: asyncio.Queue[str] = field(default_factory=asyncio.Queue)


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


@contextlib.asynccontextmanager
async def pool(
    here: Engine | int, limits: Limits | None = None, *, host: str = "127.0.0.1",
    secure: bool = False, **options: Any,
) -> AsyncIterator[Pool]:  # fmt: skip
    """The connections to an engine; none is left at the end."""
    port = here if isinstance(here, int) else here.port
    made = Pool(Address(host, port, secure), limits or Limits(), **options)
    try:
        yield made
    finally:
        await made.close()
        assert (made.stats.active, made.stats.idle) == (0, 0)


class Recorder:
    """A `Call` that writes down what it is told. `at_head` and `at_data` may do more in there."""

    def __init__(self) -> None:
        self.heads: list[tuple[int, bool]] = []
        self.headers: RawHeaders = []
        self.reason = self.version = b""
        self.reads: list[bytes] = []
        self.raws: list[bytes | None] = []
        self.arrivals: list[float] = []
        self.delays: list[float] = []
        self.ends: list[Exception | None] = []
        self.told_after_end = 0
        self.is_full = False
        self.done = asyncio.Event()
        self.at_head: Callable[[], None] = lambda: None
        self.at_data: Callable[[], None] = lambda: None
        self.connection: EngineConnection | None = None
        self.reused = False

    def response_head(self, head: ResponseParser, *, body_follows: bool) -> None:
        self.told_after_end += bool(self.ends)
        self.heads.append((head.status, body_follows))
        self.headers, self.reason, self.version = head.headers, head.reason, head.version
        self.at_head()

    def response_data(self, at: float, body: bytes, raw: bytes | None) -> None:
        self.told_after_end += bool(self.ends)
        assert body
        assert raw is None or raw == b"%x\r\n%b\r\n" % (len(body), body)
        self.reads.append(body)
        self.raws.append(raw)
        self.arrivals.append(at)
        self.delays.append(monotonic() - at)
        self.at_data()

    def response_end(self) -> None:
        self._end(None)

    def failed(self, failure: EngineFailure) -> None:
        self._end(failure)

    def broken(self, error: Exception) -> None:
        self._end(error)

    def engine_full(self) -> None:
        self.is_full = True

    def engine_ready(self) -> None:
        self.is_full = False

    def _end(self, why: Exception | None) -> None:
        self.told_after_end += bool(self.ends)
        self.ends.append(why)
        self.done.set()

    @property
    def body(self) -> bytes:
        return b"".join(self.reads)

    def pause(self) -> None:
        assert self.connection is not None
        self.connection.pause_reading()

    def resume(self) -> None:
        assert self.connection is not None
        self.connection.resume_reading()

    def leave(self) -> None:
        assert self.connection is not None
        self.connection.close()

    async def end(self) -> Exception | None:
        """How it ended; nothing is told after that."""
        await asyncio.wait_for(self.done.wait(), 20)
        await asyncio.sleep(0.02)  # whatever else would come
        assert len(self.ends) == 1
        assert self.told_after_end == 0
        return self.ends[0]

    async def whole(self) -> bytes:
        """The body of a response that ends as it should."""
        why = await self.end()
        assert why is None, why
        return self.body


class _Waiter:
    def __init__(self) -> None:
        self.found: asyncio.Future[EngineConnection] = asyncio.get_running_loop().create_future()

    def connected(self, connection: EngineConnection) -> None:
        if self.found.done():
            connection.close()
        else:
            self.found.set_result(connection)

    def failed(self, failure: EngineFailure) -> None:
        if not self.found.done():
            self.found.set_exception(failure)


async def connect(to: Pool) -> EngineConnection:
    """A new connection; given up when this is cancelled."""
    waiter = _Waiter()
    give_up = to.connect(waiter)
    try:
        return await waiter.found
    except asyncio.CancelledError:
        give_up()
        if waiter.found.done() and not waiter.found.cancelled() and not waiter.found.exception():
            waiter.found.result().close()
        raise


HOST = (b"Host", b"engine")
CHUNKED_BODY = (b"Transfer-Encoding", b"chunked")


def length(number: int) -> tuple[bytes, bytes]:
    return (b"Content-Length", b"%d" % number)


async def ask(
    to: Pool, method: str = "GET", target: bytes = b"/",
    headers: Sequence[tuple[bytes, bytes]] = (), body: bytes = b"", *, complete: bool = True,
    reads_body: bool = True, fresh: bool = False, call: Recorder | None = None,
) -> Recorder:  # fmt: skip
    """Send one request, or its beginning; returns when it is sent. Raises EngineFailure."""
    call = call or Recorder()
    head = request_head(method, target, [HOST, *headers])
    connection = (None if fresh else to.take()) or await connect(to)
    call.connection = connection
    call.reused = connection.reused
    connection.send(call, head, body, complete=complete, reads_body=reads_body)
    return call


async def upload(call: Recorder, pieces: Sequence[bytes], gap: float = 0.0) -> int:
    """Send the rest of a request as its client would, until it is over; returns how many went."""
    assert call.connection is not None
    for number, piece in enumerate(pieces):
        if gap:
            await asyncio.sleep(gap)
        while call.is_full and not call.ends:
            await asyncio.sleep(0.001)
        if call.ends:
            return number
        call.connection.send_body(piece)
    call.connection.end_body()
    return len(pieces)


async def until(condition: Callable[[], object], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
