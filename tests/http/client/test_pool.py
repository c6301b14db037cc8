"""The life of connections: reuse, loss, time limits, giving up, memory."""

import asyncio
import contextlib
import socket
import ssl
import tracemalloc
from time import monotonic
from typing import Any

import pytest
import trustme
from tokgauge.http.client.failures import (
    ConnectFailed,
    ConnectionClosed,
    ConnectTimedOut,
    EngineFailure,
    FirstByteTimedOut,
    StreamTimedOut,
)
from tokgauge.http.client.limits import Limits
from tokgauge.http.client.pool import Address, Pool

from tests.http.client.support import (
    Handler,
    Recorder,
    answer,
    ask,
    connect,
    engine,
    length,
    pool,
    reset,
    until,
    upload,
)

OK = b"HTTP/1.1 200 OK\r\n"
EMPTY = OK + b"Content-Length: 0\r\n\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def test_last_used_is_first_reused(run: Any) -> None:
    async def main() -> None:
        async with engine(answer(EMPTY)) as here, pool(here) as to:
            for reused in (False, True):
                got = await ask(to, "HEAD")
                await got.whole()
                assert got.reused is reused
                assert to.stats.idle == 1
            several = await asyncio.gather(*(ask(to) for _ in range(3)))
            assert [got.reused for got in several] == [True, False, False]
            for got in several:
                await got.whole()
            assert to.stats.idle == 3
            last = [await ask(to) for _ in range(3)][-1]  # the one that was idle for longest
            await asyncio.gather(*(got.whole() for got in [last]))
            again = await ask(to)
            assert again.connection is last.connection
            await again.whole()
            assert here.connections == 3

    run(main())


def test_without_an_idle_connection_nothing_happens(run: Any) -> None:
    async def main() -> None:
        async with engine(answer(EMPTY)) as here, pool(here) as to:
            assert to.take() is None
            await asyncio.sleep(0.03)
            assert here.connections == 0

    run(main())


def test_idle_connections_are_bounded_and_expire(run: Any) -> None:
    async def main() -> None:
        async with (
            engine(answer(EMPTY)) as here,
            pool(here, max_idle=2, idle_expiry=0.2) as to,
        ):
            for got in await asyncio.gather(*(ask(to) for _ in range(5))):
                await got.whole()
            assert to.stats.idle == 2
            for _ in range(3):
                assert await asyncio.wait_for(here.ended.get(), 5) in ("eof", "reset")
            await asyncio.sleep(0.25)
            again = await ask(to)
            assert not again.reused
            await again.whole()
            await until(lambda: to.stats.idle == 0)

    run(main())


@pytest.mark.parametrize("last", ["eof", "data", "reset"])
def test_idle_connection_that_moves_is_dropped(run: Any, last: str) -> None:
    left: list[str] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(EMPTY)
        await asyncio.sleep(0.1)
        if last == "data":
            writer.write(EMPTY)
            await reader.read()
        elif last == "reset":
            reset(writer)

    async def main() -> None:
        async with (
            engine(handler) as here,
            pool(here, on_left=lambda: left.append("left")) as to,
        ):
            await (await ask(to)).whole()
            assert to.stats.idle == 1
            await until(lambda: to.stats.idle == 0)
            assert left == ["left"]
            again = await ask(to)
            assert not again.reused
            await again.whole()

    run(main())


@pytest.mark.parametrize("how", ["expires", "pool_closes", "answered_close"])
def test_what_the_pool_closes_itself_is_no_leaving(run: Any, how: str) -> None:
    left: list[str] = []

    async def main() -> None:
        raw = OK + b"Connection: close\r\nContent-Length: 0\r\n\r\n"
        async with engine(answer(raw if how == "answered_close" else EMPTY)) as here:
            expiry = 0.1 if how == "expires" else 4.0
            async with pool(here, on_left=lambda: left.append("left"), idle_expiry=expiry) as to:
                await (await ask(to)).whole()
                if how != "pool_closes":
                    await until(lambda: to.stats.idle == 0)

    run(main())
    assert left == []


def test_fin_that_the_loop_has_not_read_is_seen(run: Any) -> None:
    """The engine closes while the loop is busy; the next request must not go there."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            async with pool(listener.getsockname()[1]) as to:
                got = await ask(to)
                served, _ = await asyncio.to_thread(listener.accept)
                served.sendall(EMPTY)
                await got.whole()
                assert to.stats.idle == 1
                served.close()  # no await between here and the next request
                asking = asyncio.create_task(ask(to))
                served, _ = await asyncio.to_thread(listener.accept)
                got = await asking
                assert not got.reused
                served.sendall(EMPTY)
                await got.whole()
                served.close()

    run(main())


@pytest.mark.parametrize("partial", [b"", b"HTT"])
@pytest.mark.parametrize("reused", [True, False])
@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_failure_says_whether_the_engine_had_left(
    run: Any, partial: bytes, reused: bool, how: str
) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if reused:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(EMPTY)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(partial)
        await asyncio.sleep(0.02)
        if how == "reset":
            reset(writer)

    async def main() -> None:
        async with engine(handler) as here, pool(here) as to:
            if reused:
                await (await ask(to)).whole()
            got = await ask(to)
            assert got.reused is reused
            why = await got.end()
            assert isinstance(why, ConnectionClosed)
            assert why.died_idle is (reused and not partial)

    run(main())


@pytest.mark.parametrize("greeting", [b"", b"SSH-2.0-x\r\n"])
def test_engine_that_does_not_wait_for_a_request(run: Any, greeting: bytes) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)

    async def main() -> None:
        async with engine(handler) as here, pool(here) as to:
            for _ in range(20):
                try:
                    got = await ask(to)
                except ConnectFailed:
                    continue
                assert isinstance(await got.end(), EngineFailure)
            assert to.stats.active == to.stats.idle == 0

    run(main())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "a" * 70 + ".invalid"])
def test_unreachable(run: Any, host: str) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        async with pool(port, host=host) as to:
            with pytest.raises(ConnectFailed):
                await ask(to)
            assert to.stats.active == 0

    run(main())


def test_a_unix_socket(run: Any, tmp_path: Any) -> None:
    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            await answer(EMPTY)(reader, writer)
        writer.close()

    async def main() -> None:
        path = str(tmp_path / "socket")
        server = await asyncio.start_unix_server(served, path)
        to = Pool(Address(path=path), Limits())
        assert str(to.address) == path
        for reused in (False, True):
            got = await ask(to)
            assert got.reused is reused
            assert await got.whole() == b""
        await to.close()
        server.close()
        await asyncio.sleep(0.02)

    run(main())


@contextlib.contextmanager
def deaf_port() -> Any:
    """A port whose accept queue is full: a further handshake never completes."""
    with socket.socket() as listener, contextlib.ExitStack() as queued:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = queued.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def test_connect_time_limit(run: Any) -> None:
    async def main() -> None:
        with deaf_port() as port:
            async with pool(port, Limits(connect=0.1)) as to:
                with pytest.raises(ConnectTimedOut):
                    await ask(to)

    run(main())


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readexactly(1 << 20)


def test_tls_handshake_time_limit(run: Any) -> None:
    async def main() -> None:
        async with engine(silent) as here, pool(here, Limits(connect=0.1), secure=True) as to:
            with pytest.raises(ConnectTimedOut):
                await ask(to)
            assert await asyncio.wait_for(here.ended.get(), 5) in ("eof", "reset")

    run(main())


def test_first_byte_time_limit(run: Any) -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"

    async def main() -> None:
        async with (
            engine(answer(b"", interim)) as here,
            pool(here, Limits(first_byte=0.2)) as to,
        ):
            before = monotonic()
            got = await ask(to)
            assert isinstance(await got.end(), FirstByteTimedOut)
            assert 0.2 <= monotonic() - before < 2
            assert await asyncio.wait_for(here.ended.get(), 5) in ("eof", "reset")

    run(main())


def test_the_wait_for_the_first_byte_begins_when_the_request_is_there(run: Any) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(6)
        writer.write(EMPTY)
        await reader.read()

    async def main() -> None:
        async with engine(handler) as here, pool(here, Limits(first_byte=0.25)) as to:
            got = await ask(to, "POST", b"/", [length(6)], complete=False)
            await upload(got, [b"x"] * 6, gap=0.1)
            assert await got.whole() == b""

    run(main())


@pytest.mark.parametrize("started", [OK, CHUNKED, CHUNKED + b"1\r\nx"])
def test_silence_inside_a_response(run: Any, started: bytes) -> None:
    async def main() -> None:
        async with (
            engine(answer(started)) as here,
            pool(here, Limits(stream_idle=0.2)) as to,
        ):
            got = await ask(to)
            assert isinstance(await got.end(), StreamTimedOut)
            assert to.stats.active == 0

    run(main())


def test_a_lively_stream_outlives_the_limit(run: Any) -> None:
    async def main() -> None:
        handler = answer(CHUNKED, *[b"1\r\nx\r\n"] * 8, b"0\r\n\r\n", pause=0.1)
        async with engine(handler) as here, pool(here, Limits(stream_idle=0.3)) as to:
            assert await (await ask(to)).whole() == b"x" * 8

    run(main())


@pytest.mark.parametrize("stage", ["connect", "tls", "upload", "head", "body", "paused"])
def test_giving_up_closes_at_once(run: Any, stage: str) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if stage != "tls":
            await reader.readuntil(b"\r\n\r\n")
            if stage in ("body", "paused"):
                writer.write(CHUNKED + b"1\r\nx\r\n")
        await reader.readexactly(1 << 20)

    async def main() -> None:
        async with engine(handler) as here, contextlib.AsyncExitStack() as stack:
            port = stack.enter_context(deaf_port()) if stage == "connect" else here.port
            to = await stack.enter_async_context(pool(port, secure=stage == "tls"))
            if stage in ("connect", "tls"):
                connecting = asyncio.create_task(connect(to))
                await asyncio.sleep(0.1)
                assert to.stats.active == 0
                connecting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await connecting
            else:
                headers = [length(9)] if stage == "upload" else []
                got = await ask(to, headers=headers, complete=stage != "upload")
                if stage in ("body", "paused"):
                    await until(lambda: got.reads)
                if stage == "paused":
                    got.pause()
                await asyncio.sleep(0.05)
                assert to.stats.active == 1
                got.leave()
                assert got.ends == []
            assert to.stats.active == to.stats.idle == 0
            if stage != "connect":
                assert await asyncio.wait_for(here.ended.get(), 2) in ("eof", "reset")

    run(main())


def test_giving_up_at_any_turn_of_the_loop(run: Any) -> None:
    async def exchange(to: Pool, call: Recorder) -> None:
        try:
            assert await (await ask(to, call=call)).whole() == b"xy"
        finally:
            if call.connection is not None and not call.ends:
                call.leave()

    async def main() -> None:
        handler = answer(CHUNKED, b"1\r\nx\r\n", b"1\r\ny\r\n0\r\n\r\n")
        async with engine(handler) as here, pool(here) as one, pool(here, host="localhost") as two:
            for turns in range(120):
                to = one if turns % 2 else two
                task = asyncio.create_task(exchange(to, Recorder()))
                for _ in range(turns // 4):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled() or task.exception() is None
                assert to.stats.active == 0

    run(main())


@pytest.mark.parametrize("when", ["before", "while_connecting", "running", "paused", "idle"])
def test_closing_the_pool_ends_everything_once(run: Any, when: str) -> None:
    async def main() -> None:
        script = answer(EMPTY if when == "idle" else CHUNKED)
        async with engine(script) as here, pool(here) as to:
            if when == "while_connecting":
                connecting = asyncio.create_task(ask(to))
                await asyncio.sleep(0)
                await to.close()
                connecting.cancel()
                with pytest.raises((asyncio.CancelledError, ConnectFailed)):
                    await connecting
            elif when != "before":
                got = await ask(to)
                await until(lambda: got.heads)
                if when == "paused":
                    got.pause()
                await to.close()
                why = await got.end()
                if when == "idle":
                    assert why is None
                else:
                    assert isinstance(why, ConnectionClosed)
                    assert not why.died_idle
            await to.close()
            assert to.take() is None
            with pytest.raises(ConnectFailed, match="shuts down"):
                await ask(to)

    run(main())


def test_tls_connections_close_with_the_pool(run: Any) -> None:
    authority = trustme.CA()
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(served)

    async def main() -> None:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        async with engine(answer(EMPTY), tls=served) as here:
            async with pool(here, secure=True, tls=context) as to:
                await (await ask(to)).whole()
                assert to.stats.idle == 1
            assert await asyncio.wait_for(here.ended.get(), 2) in ("eof", "reset")

    run(main())


def stream_of(size: int) -> Handler:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"Content-Length: %d\r\n\r\n" % size)
        piece = b"x" * 100_000
        for _ in range(size // len(piece)):
            writer.write(piece)
            await writer.drain()
        await reader.read()

    return handler


def test_slow_reader_keeps_memory_bounded(run: Any) -> None:
    size = 100_000_000

    async def main() -> None:
        loop = asyncio.get_running_loop()
        got = Recorder()

        def slowly() -> None:
            got.count += len(got.reads.pop())  # type: ignore[attr-defined]
            got.raws.clear()
            if got.count < 1_000_000:  # type: ignore[attr-defined]
                got.pause()
                loop.call_later(0.01, got.resume)

        got.count = 0  # type: ignore[attr-defined]
        got.at_data = slowly
        async with engine(stream_of(size)) as here, pool(here) as to:
            tracemalloc.start()
            try:
                await ask(to, call=got)
                await got.whole()
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert got.count == size  # type: ignore[attr-defined]
            assert peak < 4_000_000
            assert to.stats.idle == 1

    run(main())


def test_pause_does_not_count_as_silence(run: Any) -> None:
    async def main() -> None:
        async with (
            engine(stream_of(10_000_000)) as here,
            pool(here, Limits(stream_idle=0.2)) as to,
        ):
            got = await ask(to)
            got.pause()
            await asyncio.sleep(0.6)
            got.resume()
            assert len(await got.whole()) == 10_000_000

    run(main())


def test_many_streams_at_once(run: Any) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        name = head.split()[1]
        writer.write(CHUNKED)
        for i in range(20):
            event = b"data: %b %d\n\n" % (name, i)
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await asyncio.sleep(0.01)
        writer.write(b"0\r\n\r\n")
        await reader.read()

    async def one(to: Pool, i: int) -> None:
        got = await ask(to, target=b"/%d" % i)
        assert await got.whole() == b"".join(b"data: /%d %d\n\n" % (i, n) for n in range(20))

    async def main() -> None:
        async with engine(handler) as here, pool(here) as to:
            await asyncio.gather(*(one(to, i) for i in range(300)))
            assert to.stats.active == 0

    run(main())


STATES = {
    "idle": EMPTY,
    "no_answer": b"",
    "interim": b"HTTP/1.1 100 Continue\r\n\r\n",
    "half_head": OK + b"Content-Le",
    "head": OK + b"Content-Length: 9\r\n\r\n",
    "length": OK + b"Content-Length: 9\r\n\r\nhello",
    "chunk": CHUNKED + b"9\r\nhello",
    "between_chunks": CHUNKED + b"5\r\nhello\r\n",
    "trailers": CHUNKED + b"5\r\nhello\r\n0\r\nA: b\r\n",
    "to_the_end": OK + b"\r\nhello",
    "surplus": EMPTY + EMPTY,
    "refused": b"HTTP/1.1 000 X\r\n\r\n",
    "error": b"HTTP/1.1 500 X\r\nContent-Length: 9\r\n\r\n",
}


@pytest.mark.parametrize("dies", ["close", "reset", "stays"])
@pytest.mark.parametrize("uploads", [False, True], ids=["whole", "upload"])
@pytest.mark.parametrize("state", STATES)
def test_an_engine_that_dies_in_any_state_leaves_nothing(
    run: Any, state: str, uploads: bool, dies: str
) -> None:
    """No connection, no task, no descriptor (the fixture counts those), whoever waits for it."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(STATES[state])
        await asyncio.sleep(0.05)
        if dies == "reset":
            reset(writer)
        elif dies == "stays":
            await reader.readexactly(1 << 20)

    async def main() -> None:
        async with engine(handler) as here, pool(here, idle_expiry=0.1) as to:
            before = asyncio.all_tasks()
            headers = [length(9)] if uploads else []
            calls = [
                await ask(to, "POST", b"/", headers, complete=not uploads, fresh=True)
                for _ in range(4)
            ]
            if uploads:
                for call in calls:
                    assert call.connection is not None
                    call.connection.send_body(b"x")
            if dies == "stays":
                await asyncio.sleep(0.1)
                for call in calls:
                    if not call.ends:
                        call.leave()
            else:
                for call in calls:
                    await call.end()
            await until(lambda: (to.stats.active, to.stats.idle) == (0, 0))
            for _ in calls:
                assert await asyncio.wait_for(here.ended.get(), 5) in ("eof", "reset", "done")
            await until(lambda: not asyncio.all_tasks() - before)

    run(main())
