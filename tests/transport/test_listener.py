"""Exchanges with a listener: within the read, in order, with back-pressure, ends and errors."""

import asyncio
import socket
from collections.abc import Callable
from itertools import count, pairwise
from threading import Thread
from time import monotonic, sleep
from typing import Any

import httpx2
import pytest
from tokgauge.http.client import EngineStream, EngineTransport, Passage, ResponseReader

from tests.transport.support import Engine, Handler, answer, engine, reset, transport

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECES = [b"%d\n\n" % number for number in range(6)]
CHUNKS = [b"3\r\n%b\r\n" % piece for piece in PIECES]
END = b"0\r\n\r\n"
WARM = b"GET /warm HTTP/1.1\r\n"
WARM_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Recorder:
    """A listener that notes all calls. `ready` decides on every read; `at_take` may do more."""

    def __init__(self) -> None:
        self.heads: list[tuple[int, bool]] = []
        self.reads: list[bytes] = []
        self.asked = 0
        self._passing = (0.0, b"")
        self.delays: list[float] = []
        self.times: list[float] = []
        self.ends: list[Exception | None] = []
        self.calls_after_end = 0
        self.done = asyncio.Event()
        self.ready: Callable[[], bool] = lambda: True
        self.ready_at_head = True
        self.at_head: Callable[[], None] = lambda: None
        self.at_take: Callable[[], None] = lambda: None
        self.stream: EngineStream | None = None

    def answered(self, head: ResponseReader, *, body_follows: bool) -> bool:
        self.calls_after_end += bool(self.ends)
        self.heads.append((head.status, body_follows))
        self.at_head()
        return self.ready_at_head

    def take(self, at: float, data: bytes) -> bool:
        self.calls_after_end += bool(self.ends)
        assert data
        now = monotonic()
        self.reads.append(data)
        self.times.append(now)
        self.delays.append(now - at)
        self.at_take()
        return self.ready()

    def passage(self) -> Passage | None:
        """Every second whole chunk passes."""
        return self._knows, self._pass

    def passage_failed(self, error: Exception) -> None:
        raise NotImplementedError

    def _knows(self, at: float, data: bytes) -> bool:
        self.asked += 1
        if self.asked % 2:
            return False
        self._passing = (at, data)
        return True

    def _pass(self, chunk: bytes) -> None:
        at, data = self._passing
        assert chunk == b"%x\r\n%b\r\n" % (len(data), data)
        if not self.take(at, data):
            assert self.stream is not None
            self.stream.pause()

    def ended(self, error: Exception | None) -> None:
        self.calls_after_end += bool(self.ends)
        self.ends.append(error)
        self.done.set()

    @property
    def body(self) -> bytes:
        return b"".join(self.reads)

    async def until_ended(self) -> Exception | None:
        await asyncio.wait_for(self.done.wait(), 10)
        await asyncio.sleep(0.03)  # whatever else would come
        assert len(self.ends) == 1
        assert self.calls_after_end == 0
        return self.ends[0]


def warmed(handler: Handler) -> Handler:
    """The same engine, but a request for /warm is answered at once."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(WARM):
                break
            writer.write(WARM_ANSWER)
        again = asyncio.StreamReader()
        again.feed_data(head)

        class Both:
            """The head once more, then what follows it."""

            async def readuntil(self, separator: bytes) -> bytes:
                if again._buffer:  # type: ignore[attr-defined]
                    return await again.readuntil(separator)
                return await reader.readuntil(separator)

        try:
            await handler(Both(), writer)  # type: ignore[arg-type]
        except RuntimeError as error:  # uvloop's word for it when it is noticed by a write
            raise ConnectionResetError from error

    return serve


async def start(here: Engine, to: EngineTransport, way: str, listener: Recorder) -> EngineStream:
    """Begin an exchange: `exchange` on a new connection, or `exchange_at_once` on an idle one."""
    origin = ("http", "127.0.0.1", here.port)
    headers = [(b"Host", b"engine")]
    if way == "exchange":
        stream = await to.exchange(origin, "GET", b"/", headers, b"", listener)
    else:
        warm = Recorder()
        await to.exchange(origin, "GET", b"/warm", headers, b"", warm)
        assert await warm.until_ended() is None
        at_once = to.exchange_at_once(origin, "GET", b"/", headers, b"", listener)
        assert at_once is not None
        stream = at_once
    listener.stream = stream
    return stream


WAYS = pytest.mark.parametrize("way", ["exchange", "at_once"])


@WAYS
def test_every_read_reaches_the_listener_when_it_comes(run: Any, way: str) -> None:
    async def main() -> None:
        handler = warmed(answer(CHUNKED, *CHUNKS, END, pause=0.03))
        async with engine(handler) as here, transport() as to:
            got = Recorder()
            stream = await start(here, to, way, got)
            assert await got.until_ended() is None
            assert got.heads == [(200, False)]
            assert got.reads == PIECES
            assert all(b - a > 0.01 for a, b in pairwise(got.times))
            assert max(got.delays) < 0.02
            assert stream.sent_at is not None
            assert to.stats().idle == 1, "a complete answer gives its connection back"

    run(main())


def test_at_once_without_an_idle_connection_nothing_happens(run: Any) -> None:
    async def main() -> None:
        async with engine(answer(WARM_ANSWER)) as here, transport() as to:
            got = Recorder()
            origin = ("http", "127.0.0.1", here.port)
            headers = [(b"Host", b"engine")]
            assert to.exchange_at_once(origin, "GET", b"/", headers, b"", got) is None
            await asyncio.sleep(0.03)
            assert here.connections == 0
            assert (got.heads, got.ends) == ([], [])

    run(main())


@WAYS
@pytest.mark.parametrize("cut", ["one_write", "head_apart"])
def test_the_head_says_whether_body_came_with_it(run: Any, way: str, cut: str) -> None:
    async def main() -> None:
        whole = b"HTTP/1.1 201 Made\r\nContent-Length: 5\r\n\r\n"
        parts = [whole + b"hello"] if cut == "one_write" else [whole, b"hello"]
        async with engine(warmed(answer(*parts, pause=0.03))) as here, transport() as to:
            got = Recorder()
            await start(here, to, way, got)
            assert await got.until_ended() is None
            assert got.heads == [(201, cut == "one_write")]
            assert got.reads == [b"hello"]

    run(main())


def test_an_answer_without_body_is_only_a_head_and_an_end(run: Any) -> None:
    async def main() -> None:
        parts = [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"]
        async with engine(answer(*parts)) as here, transport() as to:
            for _ in range(3):  # known from the second on
                got = Recorder()
                await start(here, to, "exchange", got)
                assert await got.until_ended() is None
                assert (got.heads, got.reads) == ([(200, False)], [])
            assert here.connections == 1

    run(main())


@WAYS
@pytest.mark.parametrize("body_follows", [True, False])
def test_what_comes_while_the_listener_is_not_ready_waits(
    run: Any, way: str, body_follows: bool
) -> None:
    async def main() -> None:
        parts = [CHUNKED + CHUNKS[0], *CHUNKS[1:]] if body_follows else [CHUNKED, *CHUNKS]
        handler = warmed(answer(*parts, END, pause=0.01))
        async with engine(handler) as here, transport() as to:
            got = Recorder()
            got.ready_at_head = False
            may_come = False
            unasked: list[bytes] = []

            def note() -> None:
                nonlocal may_come
                if not may_come:
                    unasked.append(got.reads[-1])
                may_come = got.ready()

            got.at_take = note
            got.ready = lambda: len(got.reads) % 2 == 0
            stream = await start(here, to, way, got)
            await asyncio.sleep(0.1)
            assert got.heads == [(200, body_follows)]
            assert got.reads == []
            while not got.ends:
                may_come = True
                stream.resume()
                await asyncio.sleep(0.03)
            assert unasked == []
            assert got.body == b"".join(PIECES)
            assert await got.until_ended() is None

    run(main())


@WAYS
def test_the_engine_is_held_back_while_the_listener_is_not_ready(run: Any, way: str) -> None:
    big = b"x" * 8_000_000

    async def main() -> None:
        parts = [CHUNKED, b"%x\r\n%b\r\n" % (len(big), big), END]
        async with engine(warmed(answer(*parts))) as here, transport() as to:
            got = Recorder()
            got.ready = lambda: False
            stream = await start(here, to, way, got)
            while not got.reads:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert stream.paused
            assert len(got.reads) == 1
            first = len(got.body)
            assert first < 1_000_000
            stream.resume()  # what was queued, one read
            await asyncio.sleep(0.05)
            assert len(got.body) < first + 1_000_000, "little was read ahead"
            got.ready = lambda: True
            stream.resume()
            assert await got.until_ended() is None
            assert got.body == big

    run(main())


@WAYS
@pytest.mark.parametrize("end", ["close", "reset"])
def test_a_cut_comes_after_its_bytes_and_once(run: Any, way: str, end: str) -> None:
    async def main() -> None:
        handler = warmed(answer(CHUNKED, *CHUNKS, pause=0.01, after=end))
        async with engine(handler) as here, transport() as to:
            got = Recorder()
            await start(here, to, way, got)
            assert isinstance(await got.until_ended(), httpx2.TransportError)
            assert got.reads == PIECES

    run(main())


@pytest.mark.parametrize("end", ["close", "reset"])
def test_a_cut_waits_for_a_listener_that_is_not_ready(run: Any, end: str) -> None:
    async def main() -> None:
        handler = answer(CHUNKED, *CHUNKS, pause=0.01, after=end)
        async with engine(handler) as here, transport() as to:
            got = Recorder()
            got.ready = lambda: False
            stream = await start(here, to, "exchange", got)
            await asyncio.sleep(0.2)
            assert len(got.reads) == 1
            assert got.ends == []
            while not got.ends:
                stream.resume()
                await asyncio.sleep(0.02)
            assert isinstance(await got.until_ended(), httpx2.TransportError)
            assert b"".join(PIECES).startswith(got.body)
            if end == "close":
                assert got.body == b"".join(PIECES)

    run(main())


@WAYS
@pytest.mark.parametrize("how", ["close", "reset", "garbage", "half_head"])
def test_no_answer_at_all_is_only_an_end(run: Any, way: str, how: str) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if how == "reset":
            reset(writer)
            return
        if how == "garbage":
            writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        elif how == "half_head":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-")
        writer.close()
        await writer.wait_closed()

    async def main() -> None:
        async with engine(warmed(handler)) as here, transport() as to:
            got = Recorder()
            await start(here, to, way, got)
            assert isinstance(await got.until_ended(), httpx2.TransportError)
            assert (got.heads, got.reads) == ([], [])
            assert to.stats().active == 0

    run(main())


@WAYS
@pytest.mark.parametrize("where", ["head", "first", "third", "after_resume"])
def test_what_the_listener_raises_ends_its_own_stream_only(run: Any, way: str, where: str) -> None:
    released = asyncio.Event()
    turn = count()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_other = next(turn) == 0
        await reader.readuntil(b"\r\n\r\n")
        for part in (CHUNKED, *CHUNKS, END):
            if part is END and is_other:
                await released.wait()
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.03)

    async def main() -> None:
        async with engine(warmed(handler)) as here, transport() as to:
            other = Recorder()
            await start(here, to, "exchange", other)
            while not other.heads:
                await asyncio.sleep(0.01)
            got = Recorder()
            wrong = ValueError("full")

            def fail() -> None:
                raise wrong

            def fail_at_third() -> None:
                if len(got.reads) == 3:
                    fail()

            if where == "head":
                got.at_head = fail
            elif where == "third":
                got.at_take = fail_at_third
            elif where == "first":
                got.at_take = fail
            else:
                got.ready = lambda: False
            stream = await start(here, to, way, got)
            if where == "after_resume":
                await asyncio.sleep(0.15)
                got.at_take = fail
                stream.resume()
            assert await got.until_ended() is wrong
            assert other.ends == []
            left = await asyncio.wait_for(here.ended.get(), 1)
            assert left in ("eof", "reset"), "its connection is closed"
            released.set()
            assert await other.until_ended() is None
            assert other.body == b"".join(PIECES)

    run(main())


@WAYS
@pytest.mark.parametrize("inside", ["head", "take", "outside", "not_ready"])
def test_after_a_close_nothing_comes(run: Any, way: str, inside: str) -> None:
    async def main() -> None:
        handler = warmed(answer(CHUNKED + CHUNKS[0], *CHUNKS[1:], END, pause=0.02))
        async with engine(handler) as here, transport() as to:
            got = Recorder()

            def leave() -> None:
                assert got.stream is not None
                got.stream.close()

            if inside == "head":
                got.at_head = leave
            elif inside == "take":
                got.at_take = leave
                got.ready = lambda: False  # whatever it says then
            elif inside == "not_ready":
                got.ready = lambda: False
            stream = await start(here, to, way, got)
            while not got.heads:
                await asyncio.sleep(0.001)
            if inside == "not_ready":
                await asyncio.sleep(0.05)
            if inside in ("outside", "not_ready"):
                leave()
            seen = len(got.reads)
            assert await asyncio.wait_for(here.ended.get(), 1) in ("eof", "reset")
            await asyncio.sleep(0.1)
            stream.resume()
            stream.close()
            assert len(got.reads) == seen <= 1
            assert got.ends == []
            stats = to.stats()
            assert (stats.active, stats.idle) == (0, 0)

    run(main())


def test_closing_the_transport_ends_every_stream_once(run: Any) -> None:
    async def main() -> None:
        async with engine(answer(CHUNKED, CHUNKS[0], pause=0.05)) as here, transport() as to:
            ready, waiting = Recorder(), Recorder()
            waiting.ready = lambda: False
            await start(here, to, "exchange", ready)
            stream = await start(here, to, "exchange", waiting)
            await asyncio.sleep(0.2)
            await to.aclose()
            assert isinstance(await ready.until_ended(), httpx2.ReadError)
            stream.resume()
            assert isinstance(await waiting.until_ended(), httpx2.ReadError)

    run(main())


def test_a_busy_engine_gets_one_large_read_in_each_turn_of_the_loop(run: Any) -> None:
    size = 16_000_000

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
            connection.sendall(bytes(size))
            connection.recv(1)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        large_reads_in_turn = [0]
        got = Recorder()

        def next_turn() -> None:
            large_reads_in_turn.append(0)
            if not got.ends:
                loop.call_soon(next_turn)

        def note() -> None:
            large_reads_in_turn[-1] += len(got.reads[-1]) > 60_000
            sleep(0.002)  # slower than the engine: there is always more to read

        got.at_take = note
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = Thread(target=serve, args=(listener,))
            thread.start()
            async with transport() as to:
                loop.call_soon(next_turn)
                await start(Engine(listener.getsockname()[1]), to, "exchange", got)
                assert await got.until_ended() is None
            thread.join()
        assert len(got.body) == size
        assert sum(large_reads_in_turn) > 10
        assert max(large_reads_in_turn) <= 2

    run(main())
