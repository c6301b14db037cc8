"""An engine that accepts nothing but strict HTTP, and knows what came on which connection."""

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Self, cast

from tests.support.strict import NotStrict, Request, read_request

Answering = Callable[["EngineConnection", Request], object]
"""Answers one request: `connection.send`, `connection.close` and so on, at once or later."""


class EngineConnection(asyncio.Protocol):
    """One connection of the proxy's. After `done` the next request is read."""

    def __init__(self, engine: "StrictEngine") -> None:
        self.engine = engine
        self.buffer = bytearray()
        self.number = 0
        self.busy = False
        self.last: Request | None = None
        self.gone = False
        self.paused = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.engine.open.add(self)
        self.engine.opened += 1
        self.number = self.engine.opened

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if not self.busy:
            self.next()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        self.engine.open.discard(self)
        self.engine.left(self)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False

    def next(self) -> None:
        """Read the next request, if it is here."""
        engine = self.engine
        while self.buffer and not self.busy and not self.gone:
            try:
                request = engine.early(self) or read_request(self.buffer)
                if request is not None and request.refusable:
                    raise NotStrict(request.refusable)
            except NotStrict as error:
                engine.faults.append(f"{error} in {bytes(self.buffer[:400])!r}")
                self.transport.abort()
                return
            if request is None:
                return
            del self.buffer[: request.end]
            self.busy = True
            self.last = request
            engine.take(self, request)

    def send(self, data: bytes) -> None:
        if not self.gone:
            self.transport.write(data)

    def done(self) -> None:
        """The answer has been sent: another request may follow."""
        self.busy = False
        self.next()

    def close(self) -> None:
        self.transport.close()

    def reset(self) -> None:
        if not self.gone:
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.transport.abort()


class StrictEngine:
    """Serves in the running event loop (`listen`), or in a thread as a context manager.

    faults: what came up that is not strict HTTP. seen: how often each request came, by what `key`
    makes of it; requests of the proxy's own are left out.
    """

    def __init__(self, answering: Answering | None = None) -> None:
        self.answering = answering or echo
        self.faults: list[str] = []
        self.seen: Counter[tuple[bytes, bytes, bytes]] = Counter()
        self.requests: list[Request] = []
        self.open: set[EngineConnection] = set()
        self.opened = 0
        self.port = 0
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def early(self, connection: EngineConnection) -> Request | None:
        """For engines that answer before the body is here."""
        return None

    def left(self, connection: EngineConnection) -> None:
        """The connection has ended."""

    def take(self, connection: EngineConnection, request: Request) -> None:
        if request.target in (b"/v1/models", b"/metrics") and request.method == b"GET":
            connection.send(answer(b'{"object":"list","data":[{"id":"qwen","object":"model"}]}'))
            connection.done()
            return
        self.seen[request.method, request.target, request.body] += 1
        self.requests.append(request)
        self.answering(connection, request)

    async def listen(self) -> None:
        self._server = await asyncio.get_running_loop().create_server(
            lambda: EngineConnection(self), "127.0.0.1", self.port, backlog=1024
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self.open):
            connection.transport.abort()

    def __enter__(self) -> Self:
        started = threading.Event()

        async def run() -> None:
            self._loop = asyncio.get_running_loop()
            self._stop = asyncio.Event()
            await self.listen()
            started.set()
            await self._stop.wait()
            self.stop_listening()
            await asyncio.sleep(0)

        self._thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
        self._thread.start()
        assert started.wait(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)


def answer(body: bytes, head: bytes = b"HTTP/1.1 200 OK") -> bytes:
    """A response by Content-Length."""
    return b"%b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        head, len(body), body,
    )  # fmt: skip


def echo(connection: EngineConnection, request: Request) -> None:
    """What came, told back: to whom it belongs is in it."""
    body = b"%b %b %b" % (request.method, request.target, request.body)
    connection.send(answer(body if request.method != b"HEAD" else b""))
    connection.done()
