"""Pouring a response into a sink: within the read, in order, with back-pressure and errors."""

import asyncio
import re
import socket
from itertools import pairwise
from threading import Thread
from time import monotonic, sleep
from typing import Any

import httpx2
import pytest

from proxy.transport import EngineStream
from tests.transport.support import Engine, answer, engine, transport

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECES = [b"%d\n" % number for number in range(6)]
CHUNKS = [b"2\r\n%b\r\n" % piece for piece in PIECES]
END = b"0\r\n\r\n"


async def stream_of(here: Any, to: Any) -> EngineStream:
    response = await to.handle_async_request(here.request())
    assert isinstance(response.stream, EngineStream)
    return response.stream


def test_every_read_reaches_the_sink_when_it_comes(run: Any) -> None:
    async def main() -> None:
        got: list[tuple[float, float, bytes]] = []

        def sink(at: float, data: bytes) -> bool:
            got.append((at, monotonic(), data))
            return True

        async with engine(answer(CHUNKED, *CHUNKS, END, pause=0.03)) as here, transport() as to:
            stream = await stream_of(here, to)
            await asyncio.sleep(0.1)  # what came before is queued and goes first
            assert await stream.pour(sink) is True
            assert [data for _, _, data in got] == PIECES
            assert all(b[0] - a[0] > 0.01 for a, b in pairwise(got))
            assert got[-1][1] - got[-1][0] < 0.02
            await stream.aclose()

    run(main())


def test_a_sink_that_is_not_ready_gets_no_more(run: Any) -> None:
    async def main() -> None:
        got: list[bytes] = []

        def sink(at: float, data: bytes) -> bool:
            got.append(data)
            return len(got) % 2 == 0

        async with engine(answer(CHUNKED, *CHUNKS, END, pause=0.01)) as here, transport() as to:
            stream = await stream_of(here, to)
            calls = 0
            while not await stream.pour(sink):
                calls += 1
                seen = len(got)
                await asyncio.sleep(0.05)
                assert len(got) == seen
            assert got == PIECES
            assert calls == 3
            await stream.aclose()

    run(main())


def test_the_engine_is_held_back_while_the_sink_is_not_ready(run: Any) -> None:
    big = b"x" * 4_000_000

    async def main() -> None:
        taken = 0

        def sink(at: float, data: bytes) -> bool:
            nonlocal taken
            taken += len(data)
            return False

        parts = [CHUNKED, b"%x\r\n%b\r\n" % (len(big), big), END]
        async with engine(answer(*parts)) as here, transport() as to:
            stream = await stream_of(here, to)
            assert await stream.pour(sink) is False
            await asyncio.sleep(0.1)
            assert stream.paused
            while not await stream.pour(sink):
                pass
            assert taken == len(big)
            await stream.aclose()

    run(main())


@pytest.mark.parametrize("end", ["close", "reset"])
def test_a_cut_raises_after_its_bytes(run: Any, end: str) -> None:
    async def main() -> None:
        got: list[bytes] = []

        def sink(at: float, data: bytes) -> bool:
            got.append(data)
            return True

        handler = answer(CHUNKED, *CHUNKS, pause=0.01, after=end)
        async with engine(handler) as here, transport() as to:
            stream = await stream_of(here, to)
            with pytest.raises(httpx2.TransportError):
                await stream.pour(sink)
            assert got == PIECES
            await stream.aclose()

    run(main())


@pytest.mark.parametrize("wait", [0.0, 0.1])
def test_what_the_sink_raises_comes_back(run: Any, wait: float) -> None:
    async def main() -> None:
        def sink(at: float, data: bytes) -> bool:
            raise ValueError("full")

        async with engine(answer(CHUNKED, *CHUNKS, END, pause=0.03)) as here, transport() as to:
            stream = await stream_of(here, to)
            await asyncio.sleep(wait)
            with pytest.raises(ValueError, match=re.escape("full")):
                await stream.pour(sink)
            await stream.aclose()

    run(main())


def test_a_cancelled_pour_leaves_the_sink_alone(run: Any) -> None:
    async def main() -> None:
        got: list[bytes] = []

        def sink(at: float, data: bytes) -> bool:
            got.append(data)
            return True

        async with engine(answer(CHUNKED, *CHUNKS, END, pause=0.05)) as here, transport() as to:
            stream = await stream_of(here, to)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.08):
                    await stream.pour(sink)
            seen = len(got)
            await asyncio.sleep(0.1)
            assert len(got) == seen < len(PIECES)
            await stream.aclose()

    run(main())


def test_a_busy_engine_gets_one_large_read_in_each_turn_of_the_loop(run: Any) -> None:
    size = 16_000_000

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
            connection.sendall(bytes(size))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        large_reads_in_turn = [0]
        taken = 0

        def next_turn() -> None:
            large_reads_in_turn.append(0)
            if taken < size:
                loop.call_soon(next_turn)

        def sink(at: float, data: bytes) -> bool:
            nonlocal taken
            taken += len(data)
            large_reads_in_turn[-1] += len(data) > 60_000
            sleep(0.002)  # slower than the engine: there is always more to read
            return True

        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = Thread(target=serve, args=(listener,))
            thread.start()
            async with transport() as to:
                stream = await stream_of(Engine(listener.getsockname()[1]), to)
                loop.call_soon(next_turn)
                assert await stream.pour(sink) is True
                await stream.aclose()
            thread.join()
        assert taken == size
        assert sum(large_reads_in_turn) > 10
        assert max(large_reads_in_turn) <= 2

    run(main())
