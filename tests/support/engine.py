"""A scripted engine: it records every request byte for byte and answers exactly as told.

The engine is an asyncio server in its own thread. A script is a coroutine function that gets one
`Conversation` (one request on one connection) and sends whatever it likes, whenever it likes, then
closes, resets, or leaves the connection open for the next request. Nothing is framed for it.
"""

import asyncio
import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

Script = Callable[["Conversation"], Awaitable[None]]

_LINGER_ZERO = struct.pack("ii", 1, 0)


@dataclass
class Received:
    """One request as it arrived. Times are `time.monotonic()` seconds."""

    connection: int
    at: float
    head: bytes
    body: bytearray = field(default_factory=bytearray)
    trailers: bytes = b""
    complete_at: float | None = None
    closed_at: float | None = None
    _changed: threading.Condition = field(default_factory=threading.Condition, repr=False)

    @property
    def request_line(self) -> str:
        return self.head.split(b"\r\n", 1)[0].decode("latin-1")

    @property
    def method(self) -> str:
        return self.request_line.split(" ")[0]

    @property
    def target(self) -> str:
        return self.request_line.split(" ")[1]

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return parse_headers(self.head)

    def values(self, name: str) -> list[bytes]:
        """All raw values of one header, in order."""
        return [value for key, value in self.headers if key.lower() == name.lower().encode()]

    def header(self, name: str) -> bytes | None:
        values = self.values(name)
        return values[0] if values else None

    def wait_complete(self, timeout: float = 5.0) -> None:
        """Wait until the whole body is here."""
        self._wait(lambda: self.complete_at is not None, timeout, "the request was never complete")

    def wait_closed(self, timeout: float = 5.0) -> float:
        """Wait until the connection that carried this request was closed by the peer; when."""
        self._wait(lambda: self.closed_at is not None, timeout, "the peer never closed")
        assert self.closed_at is not None
        return self.closed_at

    def _wait(self, met: Callable[[], bool], timeout: float, complaint: str) -> None:
        with self._changed:
            if not self._changed.wait_for(met, timeout):
                raise AssertionError(f"{complaint} within {timeout} s: {self.request_line}")

    def _complete(self) -> None:
        with self._changed:
            self.complete_at = time.monotonic()
            self._changed.notify_all()

    def _closed(self) -> None:
        with self._changed:
            if self.closed_at is None:
                self.closed_at = time.monotonic()
            self._changed.notify_all()


def parse_headers(head: bytes) -> list[tuple[bytes, bytes]]:
    """The raw (name, value) pairs of a request or response head, without its first line."""
    pairs = []
    for line in head.split(b"\r\n")[1:]:
        if line:
            name, _, value = line.partition(b":")
            pairs.append((name, value.strip(b" \t")))
    return pairs


class _Connection(asyncio.Protocol):
    """One accepted connection: buffers what arrives and knows when the peer left."""

    def __init__(self, engine: "ScriptedEngine") -> None:
        self._engine = engine
        self._buffer = bytearray()
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self.gone = asyncio.Event()
        self.transport: asyncio.Transport
        self.number = 0
        self.current: Received | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.number = self._engine._opened(self)
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._news.set()

    def eof_received(self) -> bool:
        self._lost()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()
        self._writable.set()
        self._engine._ended(self)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _lost(self) -> None:
        self.gone.set()
        self._news.set()
        if self.current is not None:
            self.current._closed()

    async def _more(self) -> bool:
        """Wait for bytes; False when the peer has left."""
        if self.gone.is_set():
            return False
        self._news.clear()
        await self._news.wait()
        return not self.gone.is_set()

    async def _serve(self) -> None:
        with contextlib.suppress(ConnectionError):
            while await self._one_request():
                pass
        if not self.transport.is_closing():
            self.transport.close()

    async def _one_request(self) -> bool:
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if not await self._more():
                return False
        received = Received(self.number, time.monotonic(), bytes(self._buffer[: end + 4]))
        del self._buffer[: end + 4]
        self.current = received
        script, early = self._engine._record(received)
        conversation = Conversation(self, received)
        if early:
            await script(conversation)
        elif not await conversation.read_body():
            return False
        else:
            await script(conversation)
        return not self.transport.is_closing() and not self.gone.is_set()

    async def read_body(self, received: Received) -> bool:
        te = received.header("transfer-encoding")
        if te is not None and te.lower() == b"chunked":
            return await self._read_chunked(received)
        length = int(received.header("content-length") or 0)
        while len(received.body) < length:
            if not self._buffer and not await self._more():
                return False
            take = length - len(received.body)
            received.body += self._buffer[:take]
            del self._buffer[:take]
        received._complete()
        return True

    async def _read_chunked(self, received: Received) -> bool:
        while True:
            while (end := self._buffer.find(b"\r\n")) < 0:
                if not await self._more():
                    return False
            size = int(bytes(self._buffer[:end]).split(b";")[0], 16)
            if size == 0:
                return await self._read_trailers(received)
            while len(self._buffer) < end + 2 + size + 2:
                if not await self._more():
                    return False
            received.body += self._buffer[end + 2 : end + 2 + size]
            del self._buffer[: end + 2 + size + 2]

    async def _read_trailers(self, received: Received) -> bool:
        """Read the end of a chunked body, from its last chunk's line on."""
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if not await self._more():
                return False
        received.trailers = bytes(self._buffer[self._buffer.index(b"\r\n") + 2 : end + 2])
        del self._buffer[: end + 4]
        received._complete()
        return True


class Conversation:
    """What a script holds: one request, and the way to answer it."""

    def __init__(self, connection: _Connection, received: Received) -> None:
        self._connection = connection
        self.request = received

    @property
    def peer_gone(self) -> bool:
        return self._connection.gone.is_set()

    async def send(self, *pieces: bytes) -> None:
        """Write each piece at once and on its own; waits while the peer does not read."""
        for piece in pieces:
            await self._connection._writable.wait()
            if self._connection.transport.is_closing():
                raise ConnectionResetError("the peer has left")
            self._connection.transport.write(piece)
            await asyncio.sleep(0)

    async def chunk(self, *payloads: bytes) -> None:
        """Write each payload as one HTTP chunk."""
        for payload in payloads:
            await self.send(b"%x\r\n%b\r\n" % (len(payload), payload))

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def until(self, event: threading.Event, timeout: float = 20.0) -> None:
        """Wait for a signal of the test's thread (or give up, so that nothing hangs)."""
        end = time.monotonic() + timeout
        while not event.is_set() and time.monotonic() < end:
            await asyncio.sleep(0.002)

    async def until_peer_leaves(self, timeout: float = 20.0) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._connection.gone.wait()

    async def read_body(self) -> bool:
        """Read the request's body (done already unless the script is an early one)."""
        return await self._connection.read_body(self.request)

    def close(self) -> None:
        """End the connection in order, after what was sent."""
        self._connection.transport.close()

    def reset(self) -> None:
        """End the connection with a TCP reset."""
        sock = self._connection.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        self._connection.transport.abort()


class ScriptedEngine:
    """The server. `requests` holds what came for scripted paths, in order of arrival.

    A path without a script is answered as background: `/v1/models` lists `models`, everything else
    is 404; such requests are kept in `background`, so that a proxy's own polling disturbs no test.
    """

    def __init__(self, models: Iterable[str] = ("qwen", "gemma"), port: int = 0) -> None:
        self.models = list(models)
        self.max_model_len: int | None = None
        self.port = port
        self.requests: list[Received] = []
        self.background: list[Received] = []
        self.connections = 0
        self.open_connections: set[_Connection] = set()
        self._scripts: dict[str, list[tuple[Script, bool]]] = {}
        self._lock = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def on(self, path: str, *scripts: Script, early: bool = False) -> None:
        """Answer requests for `path` (without query) by the scripts in turn; the last one stays.

        With `early` the script starts when the request's head is there, before the body.
        """
        self._scripts[path] = [(script, early) for script in scripts]

    def forget(self) -> None:
        """Drop all scripts and all records, and close what is open: a clean desk for a test."""
        self._scripts.clear()
        with self._lock:
            self.requests = []
            self.background = []

    def wait_requests(self, count: int, timeout: float = 5.0) -> list[Received]:
        """Wait until `count` requests for scripted paths have arrived (their heads at least)."""
        with self._lock:
            if not self._lock.wait_for(lambda: len(self.requests) >= count, timeout):
                raise AssertionError(f"{len(self.requests)} of {count} requests in {timeout} s")
            return list(self.requests)

    def drop_connections(self) -> None:
        """Close every open connection in order (as an engine does with idle ones)."""

        def drop() -> None:
            for connection in list(self.open_connections):
                connection.transport.close()

        self._call(drop)

    def start(self) -> None:
        started = threading.Event()
        failure: list[BaseException] = []

        async def run() -> None:
            loop = asyncio.get_running_loop()
            self._loop = loop
            self._stop = asyncio.Event()
            try:
                sock = socket.create_server(("127.0.0.1", self.port), backlog=2048)
                self.port = sock.getsockname()[1]
                server = await loop.create_server(lambda: _Connection(self), sock=sock)
            except BaseException as error:
                failure.append(error)
                started.set()
                return
            started.set()
            await self._stop.wait()
            # Whoever was just accepted gets a transport first: a closed server leaves them open.
            loop.remove_reader(sock)
            for _ in range(3):
                await asyncio.sleep(0)
            server.close()
            for connection in list(self.open_connections):
                connection.transport.abort()
            tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
        self._thread.start()
        started.wait(10)
        if failure:
            raise failure[0]

    def stop(self) -> None:
        """Stop listening and reset what is open; `start` takes the same port again."""
        if self._thread is None:
            return
        self._call(lambda: self._stop.set())
        self._thread.join(10)
        self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _call(self, what: Callable[[], object]) -> None:
        assert self._loop is not None
        done = threading.Event()

        def run() -> None:
            what()
            done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait(5)

    def _opened(self, connection: _Connection) -> int:
        self.open_connections.add(connection)
        self.connections += 1
        return self.connections

    def _ended(self, connection: _Connection) -> None:
        self.open_connections.discard(connection)

    def _record(self, received: Received) -> tuple[Script, bool]:
        scripts = self._scripts.get(received.target.split("?", 1)[0])
        with self._lock:
            if scripts is None:
                self.background.append(received)
            else:
                self.requests.append(received)
            self._lock.notify_all()
        if scripts is None:
            return self._background_answer, False
        return scripts.pop(0) if len(scripts) > 1 else scripts[0]

    async def _background_answer(self, conversation: Conversation) -> None:
        if conversation.request.target == "/v1/models":
            limit = {} if self.max_model_len is None else {"max_model_len": self.max_model_len}
            cards = [{"id": m, "object": "model", "root": m, **limit} for m in self.models]
            await conversation.send(json_answer({"object": "list", "data": cards}))
        else:
            await conversation.send(json_answer({"detail": "Not Found"}, status="404 Not Found"))


EVENT_STREAM = (
    b"HTTP/1.1 200 OK\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def answer(
    body: bytes,
    status: str = "200 OK",
    content_type: str = "application/json",
    extra: Iterable[tuple[str, str]] = (),
) -> bytes:
    """A complete response with a Content-Length."""
    lines = [f"HTTP/1.1 {status}", f"content-type: {content_type}", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in extra]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


def json_answer(
    document: object, status: str = "200 OK", extra: Iterable[tuple[str, str]] = ()
) -> bytes:
    """A complete JSON response with a Content-Length."""
    return answer(json.dumps(document).encode(), status, extra=extra)


def send(*pieces: bytes) -> Script:
    """A script that writes the pieces one by one and keeps the connection."""

    async def script(conversation: Conversation) -> None:
        await conversation.send(*pieces)

    return script


def stream(*payloads: bytes, gap: float = 0.0, end: bool = True) -> Script:
    """A script: an event stream with one HTTP chunk per payload, `gap` seconds between them.

    Without `end` the connection is closed in order where the last chunk should come: a cut.
    """

    async def script(conversation: Conversation) -> None:
        await conversation.send(EVENT_STREAM)
        for number, payload in enumerate(payloads):
            if number and gap:
                await conversation.pause(gap)
            await conversation.chunk(payload)
        if end:
            await conversation.send(LAST_CHUNK)
        else:
            conversation.close()

    return script


def event(document: object) -> bytes:
    """One `data:` event as vLLM writes it: compact JSON, LF."""
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def chat_event(
    delta: object = None,
    *,
    index: int = 0,
    finish: str | None = None,
    usage: dict[str, object] | None = None,
) -> bytes:
    """One chunk of a chat stream with one choice; `delta` may be a text or a whole delta."""
    if delta is None:
        delta = {}
    elif isinstance(delta, str):
        delta = {"content": delta}
    document: dict[str, object] = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "qwen",
        "choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}],
    }
    if usage is not None:
        document["usage"] = usage
    return event(document)


ROLE = chat_event({"role": "assistant", "content": ""})


def usage_event(completion: int, prompt: int = 5) -> bytes:
    """The extra event that `include_usage` adds: no choices, only usage."""
    return event(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "qwen",
            "choices": [],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "total_tokens": prompt + completion,
            },
        }
    )
