"""What a caller is told: within the read, in order, with back-pressure, one end, its own errors."""

import asyncio
import socket
from itertools import count
from threading import Thread
from time import sleep
from typing import Any

import pytest
from tokgauge.http.client.failures import ConnectionClosed, EngineFailure
from tokgauge.http.client.pool import Pool

from tests.http.client.support import (
    Handler,
    Recorder,
    answer,
    ask,
    engine,
    pool,
    reset,
    until,
)

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECES = [b"%d\n\n" % number for number in range(6)]
CHUNKS = [b"3\r\n%b\r\n" % piece for piece in PIECES]
END = b"0\r\n\r\n"
WARM = b"/warm"
WARM_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
WAYS = pytest.mark.parametrize("reused", [False, True], ids=["fresh", "reused"])


def warmed(handler: Handler) -> Handler:
    """The same engine, but a request for /warm is answered at once."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"GET " + WARM):
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


async def start(to: Pool, reused: bool, call: Recorder) -> Recorder:
    """Send a request on a new connection, or on one that has served another."""
    if reused:
        await (await ask(to, target=WARM)).whole()
    await ask(to, call=call, fresh=not reused)
    assert call.reused is reused
    return call


@WAYS
def test_every_read_is_told_when_it_comes(run: Any, reused: bool) -> None:
    async def main() -> None:
        handler = warmed(answer(CHUNKED, *CHUNKS, END, pause=0.03))
        async with engine(handler) as here, pool(here) as to:
            got = await start(to, reused, Recorder())
            assert await got.whole() == b"".join(PIECES)
            assert got.heads == [(200, False)]
            assert got.reads == PIECES
            assert got.raws[1:] == CHUNKS[1:], "a chunk can go on with its framing"
            assert max(got.delays) < 0.02
            assert to.stats.idle == 1, "a complete response gives its connection back"

    run(main())


@WAYS
@pytest.mark.parametrize("cut", ["one_write", "head_apart"])
def test_the_head_says_whether_body_came_with_it(run: Any, reused: bool, cut: str) -> None:
    async def main() -> None:
        whole = b"HTTP/1.1 201 Made\r\nContent-Length: 5\r\n\r\n"
        parts = [whole + b"hello"] if cut == "one_write" else [whole, b"hello"]
        async with engine(warmed(answer(*parts, pause=0.03))) as here, pool(here) as to:
            got = await start(to, reused, Recorder())
            assert await got.whole() == b"hello"
            assert got.heads == [(201, cut == "one_write")]
            assert got.reads == [b"hello"]

    run(main())


def test_a_response_without_body_is_only_a_head_and_an_end(run: Any) -> None:
    async def main() -> None:
        parts = [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"]
        async with engine(answer(*parts)) as here, pool(here) as to:
            for _ in range(3):
                got = await ask(to)
                await got.whole()
                assert (got.heads, got.reads) == ([(200, False)], [])
            assert here.connections == 1

    run(main())


@WAYS
@pytest.mark.parametrize("body_follows", [True, False])
def test_what_comes_while_the_engine_is_paused_waits(
    run: Any, reused: bool, body_follows: bool
) -> None:
    """But for what came with the read in which it was paused."""

    async def main() -> None:
        parts = [CHUNKED + CHUNKS[0], *CHUNKS[1:]] if body_follows else [CHUNKED, *CHUNKS]
        handler = warmed(answer(*parts, END, pause=0.01))
        async with engine(handler) as here, pool(here) as to:
            got = Recorder()
            got.at_head = got.at_data = lambda: got.pause()
            await start(to, reused, got)
            await asyncio.sleep(0.1)
            assert got.heads == [(200, body_follows)]
            assert got.reads == PIECES[: int(body_follows)]
            for _ in range(20):
                before = len(got.reads)
                got.resume()
                await asyncio.sleep(0.03)
                if got.ends:
                    break
                assert len(got.reads) == before + 1
            assert await got.whole() == b"".join(PIECES)
            assert to.stats.idle == 1

    run(main())


def test_a_connection_that_ended_paused_reads_on_for_the_next(run: Any) -> None:
    async def main() -> None:
        async with engine(answer(WARM_ANSWER)) as here, pool(here) as to:
            got = Recorder()
            got.at_data = lambda: got.pause()
            await ask(to, call=got)
            assert await got.whole() == b"ok"
            again = await ask(to)
            assert again.reused
            assert await again.whole() == b"ok"

    run(main())


@WAYS
def test_the_engine_is_held_back_while_it_is_paused(run: Any, reused: bool) -> None:
    big = b"x" * 8_000_000

    async def main() -> None:
        parts = [CHUNKED, b"%x\r\n%b\r\n" % (len(big), big), END]
        async with engine(warmed(answer(*parts))) as here, pool(here) as to:
            got = Recorder()
            got.at_data = lambda: got.pause()
            await start(to, reused, got)
            await until(lambda: got.reads)
            await asyncio.sleep(0.1)
            assert len(got.reads) == 1
            assert len(got.body) < 1_000_000
            got.at_data = lambda: None
            got.resume()
            assert await got.whole() == big

    run(main())


@WAYS
@pytest.mark.parametrize("end", ["close", "reset"])
def test_a_cut_comes_after_its_bytes_and_once(run: Any, reused: bool, end: str) -> None:
    async def main() -> None:
        handler = warmed(answer(CHUNKED, *CHUNKS, pause=0.01, after=end))
        async with engine(handler) as here, pool(here) as to:
            got = await start(to, reused, Recorder())
            assert isinstance(await got.end(), ConnectionClosed)
            assert got.reads == PIECES

    run(main())


@pytest.mark.parametrize("end", ["close", "reset"])
def test_a_cut_of_a_paused_engine_loses_nothing_that_had_come(run: Any, end: str) -> None:
    async def main() -> None:
        handler = answer(CHUNKED, *CHUNKS, pause=0.01, after=end)
        async with engine(handler) as here, pool(here) as to:
            got = Recorder()
            got.at_data = lambda: got.pause()
            await ask(to, call=got)
            await asyncio.sleep(0.2)
            if end == "close":
                assert (got.reads, got.ends) == (PIECES[:1], [])
            while not got.ends:
                got.resume()
                await asyncio.sleep(0.02)
            assert isinstance(await got.end(), ConnectionClosed)
            assert b"".join(PIECES).startswith(got.body)
            if end == "close":
                assert got.body == b"".join(PIECES)

    run(main())


@WAYS
@pytest.mark.parametrize("how", ["close", "reset", "garbage", "half_head"])
def test_no_response_at_all_is_only_an_end(run: Any, reused: bool, how: str) -> None:
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
        async with engine(warmed(handler)) as here, pool(here) as to:
            got = await start(to, reused, Recorder())
            assert isinstance(await got.end(), EngineFailure)
            assert (got.heads, got.reads) == ([], [])
            assert to.stats.active == 0

    run(main())


@WAYS
@pytest.mark.parametrize("where", ["head", "first", "third", "after_resume"])
def test_what_a_caller_raises_ends_its_own_exchange_only(
    run: Any, reused: bool, where: str
) -> None:
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
        async with engine(warmed(handler)) as here, pool(here) as to:
            other = await ask(to)
            await until(lambda: other.heads)
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
                got.at_data = fail_at_third
            elif where == "first":
                got.at_data = fail
            else:
                got.at_data = lambda: got.pause()
            await start(to, reused, got)
            if where == "after_resume":
                await asyncio.sleep(0.15)
                got.at_data = fail
                got.resume()
            assert await got.end() is wrong
            assert other.ends == []
            left = await asyncio.wait_for(here.ended.get(), 1)
            assert left in ("eof", "reset"), "its connection is closed"
            released.set()
            assert await other.whole() == b"".join(PIECES)

    run(main())


@pytest.mark.parametrize("parts", [[WARM_ANSWER], [b"HTTP/1.1 200 OK\r\n\r\nok"], [b"x"]])
def test_what_a_caller_raises_at_the_end_is_told_to_it(run: Any, parts: list[bytes]) -> None:
    class Failing(Recorder):
        def response_end(self) -> None:
            raise ValueError("end")

        def failed(self, failure: EngineFailure) -> None:
            raise ValueError("end")

    async def main() -> None:
        async with engine(answer(*parts, after="close")) as here, pool(here) as to:
            got = await ask(to, call=Failing())
            assert isinstance(await got.end(), ValueError)
            assert to.stats.active == 0

    run(main())


@WAYS
@pytest.mark.parametrize("inside", ["head", "data", "outside", "paused"])
def test_after_a_close_nothing_comes(run: Any, reused: bool, inside: str) -> None:
    async def main() -> None:
        handler = warmed(answer(CHUNKED + CHUNKS[0], *CHUNKS[1:], END, pause=0.02))
        async with engine(handler) as here, pool(here) as to:
            got = Recorder()

            def leave_twice() -> None:
                got.leave()
                got.leave()

            if inside == "head":
                got.at_head = leave_twice
            elif inside == "data":
                got.at_data = leave_twice
            elif inside == "paused":
                got.at_data = lambda: got.pause()
            await start(to, reused, got)
            await until(lambda: got.heads)
            if inside == "paused":
                await asyncio.sleep(0.05)
            if inside in ("outside", "paused"):
                got.leave()
            seen = len(got.reads)
            assert await asyncio.wait_for(here.ended.get(), 1) in ("eof", "reset")
            await asyncio.sleep(0.1)
            got.resume()
            got.leave()
            assert len(got.reads) == seen <= 1
            assert got.ends == []
            assert (to.stats.active, to.stats.idle) == (0, 0)

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

        got.at_data = note
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = Thread(target=serve, args=(listener,))
            thread.start()
            async with pool(listener.getsockname()[1]) as to:
                loop.call_soon(next_turn)
                await ask(to, call=got)
                await got.whole()
            thread.join()
        assert len(got.body) == size
        assert sum(large_reads_in_turn) > 10
        assert max(large_reads_in_turn) <= 2

    run(main())
