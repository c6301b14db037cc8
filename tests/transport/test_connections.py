"""The life of connections: reuse, loss, time limits, cancellation, memory."""

import asyncio
import contextlib
import socket
import ssl
import tracemalloc
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any

import httpx2
import pytest
import trustme
from tokgauge.http.client import EngineTransport, Timeouts, died_idle

from tests.transport.support import Engine, Handler, answer, collect, engine, reset, transport

OK = b"HTTP/1.1 200 OK\r\n"
EMPTY = OK + b"Content-Length: 0\r\n\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


async def until(condition: Any, seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def test_last_used_is_first_reused(run: Any) -> None:
    async def main() -> None:
        async with engine(answer(EMPTY)) as here, transport() as to:
            both = [await to.handle_async_request(here.request("HEAD")) for _ in range(2)]
            assert to.stats().idle == 1  # a complete response has already given it back
            for response in both:
                await response.stream.aclose()
            slow = await asyncio.gather(
                *(to.handle_async_request(here.request()) for _ in range(3))
            )
            assert [r.extensions["reused"] for r in slow] == [True, False, False]
            for response in slow:
                await collect(response)
            await until(lambda: to.stats().idle == 3)
            newest = list(to._idle[("http", "127.0.0.1", here.port)])[-1]
            await collect(await to.handle_async_request(here.request()))
            assert list(to._idle[("http", "127.0.0.1", here.port)])[-1] is newest
            stats = to.stats()
            assert (stats.opened_total, stats.reused_total) == (3, 3)

    run(main())


def test_idle_connections_are_bounded_and_expire(run: Any) -> None:
    async def main() -> None:
        options = {"max_idle_connections": 2, "idle_expiry": 0.2}
        async with engine(answer(EMPTY)) as here, transport(**options) as to:
            many = await asyncio.gather(
                *(to.handle_async_request(here.request()) for _ in range(5))
            )
            for response in many:
                await collect(response)
            assert to.stats().idle == 2
            for _ in range(3):
                assert await asyncio.wait_for(here.ended.get(), 5) in ("eof", "reset")
            await asyncio.sleep(0.25)
            response = await to.handle_async_request(here.request())
            assert response.extensions["reused"] is False
            await until(lambda: to.stats().idle == 0)

    run(main())


@pytest.mark.parametrize("last", ["eof", "data", "reset"])
def test_idle_connection_that_moves_is_dropped(run: Any, last: str) -> None:
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
        async with engine(handler) as here, transport() as to:
            await collect(await to.handle_async_request(here.request()))
            assert to.stats().idle == 1
            await until(lambda: to.stats().idle == 0)
            response = await to.handle_async_request(here.request())
            assert response.extensions["reused"] is False

    run(main())


def test_fin_that_the_loop_has_not_read_is_seen(run: Any) -> None:
    """The engine closes while the loop is busy; the next request must not go there."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            here = Engine(listener.getsockname()[1])
            async with transport() as to:
                asking = asyncio.create_task(to.handle_async_request(here.request()))
                served, _ = await asyncio.to_thread(listener.accept)
                served.sendall(EMPTY)
                await collect(await asking)
                assert to.stats().idle == 1
                served.close()  # no await between here and the next request
                asking = asyncio.create_task(to.handle_async_request(here.request()))
                served, _ = await asyncio.to_thread(listener.accept)
                served.sendall(EMPTY)
                assert (await asking).extensions["reused"] is False
                served.close()

    run(main())


@pytest.mark.parametrize("partial", [b"", b"HTT"])
@pytest.mark.parametrize("reused", [True, False])
@pytest.mark.parametrize("how", ["close", "reset"])
def test_error_says_whether_a_retry_is_safe(
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
        async with engine(handler) as here, transport() as to:
            if reused:
                await collect(await to.handle_async_request(here.request()))
            kind = httpx2.ReadError if how == "reset" else httpx2.RemoteProtocolError
            with pytest.raises(kind) as caught:
                await to.handle_async_request(here.request())
            facts = vars(caught.value)
            assert facts["reused"] is reused
            assert facts["response_bytes"] is bool(partial)
            assert died_idle(caught.value) is (reused and not partial)

    run(main())


@pytest.mark.parametrize("greeting", [b"", b"SSH-2.0-x\r\n"])
def test_engine_that_does_not_wait_for_a_request(run: Any, greeting: bytes) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)

    async def main() -> None:
        async with engine(handler) as here, transport() as to:
            for _ in range(20):
                with pytest.raises(httpx2.TransportError):
                    await to.handle_async_request(here.request())
            assert to.stats().active == to.stats().idle == 0

    run(main())


def test_unreachable(run: Any) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        here = Engine(port)
        async with transport() as to:
            with pytest.raises(httpx2.ConnectError):
                await to.handle_async_request(here.request())
            with pytest.raises(httpx2.ConnectError):
                await to.handle_async_request(here.request(host="localhost"))
            with pytest.raises(httpx2.ConnectError):
                await to.handle_async_request(here.request(host="a" * 70 + ".invalid"))
            assert to.stats().active == 0

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
            async with transport(timeouts=Timeouts(connect=0.1)) as to:
                with pytest.raises(httpx2.ConnectTimeout):
                    await to.handle_async_request(Engine(port).request())

    run(main())


def test_tls_handshake_time_limit(run: Any) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1 << 20)

    async def main() -> None:
        async with engine(silent) as here, transport(timeouts=Timeouts(connect=0.1)) as to:
            with pytest.raises(httpx2.ConnectTimeout):
                await to.handle_async_request(here.request(scheme="https"))
            assert await asyncio.wait_for(here.ended.get(), 5) in ("eof", "reset")

    run(main())


def test_first_byte_time_limit(run: Any) -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"

    async def main() -> None:
        timeouts = Timeouts(first_byte=0.2)
        async with engine(answer(b"", interim)) as here, transport(timeouts=timeouts) as to:
            before = monotonic()
            with pytest.raises(httpx2.ReadTimeout):
                await to.handle_async_request(here.request())
            assert 0.2 <= monotonic() - before < 2
            assert await asyncio.wait_for(here.ended.get(), 5) in ("eof", "reset")

    run(main())


@pytest.mark.parametrize("started", [OK, CHUNKED, CHUNKED + b"1\r\nx"])
def test_silence_inside_a_response(run: Any, started: bytes) -> None:
    async def main() -> None:
        timeouts = Timeouts(stream_idle=0.2)
        async with engine(answer(started)) as here, transport(timeouts=timeouts) as to:
            with pytest.raises(httpx2.ReadTimeout):
                await collect(await to.handle_async_request(here.request()))
            assert to.stats().active == 0

    run(main())


def test_a_lively_stream_outlives_the_limit(run: Any) -> None:
    async def main() -> None:
        timeouts = Timeouts(stream_idle=0.3)
        handler = answer(CHUNKED, *[b"1\r\nx\r\n"] * 8, b"0\r\n\r\n", pause=0.1)
        async with engine(handler) as here, transport(timeouts=timeouts) as to:
            assert await collect(await to.handle_async_request(here.request())) == b"x" * 8

    run(main())


def test_write_time_limit(run: Any) -> None:
    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()
        await asyncio.sleep(30)

    async def main() -> None:
        async with engine(deaf) as here, transport(timeouts=Timeouts(write=0.2)) as to:
            with pytest.raises(httpx2.WriteTimeout):
                await to.handle_async_request(here.request("POST", body=b"x" * 20_000_000))

    run(main())


class Trickle(httpx2.AsyncByteStream):
    """A request body that stops in the middle."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.finalised = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            yield b"x"
            self.begun.set()
            await asyncio.sleep(30)
        finally:
            self.finalised = True


@pytest.mark.parametrize("stage", ["connect", "tls", "upload", "head", "body", "wait"])
def test_cancellation_closes_at_once(run: Any, stage: str) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if stage != "tls":
            await reader.readuntil(b"\r\n\r\n")
            if stage in ("body", "wait"):
                writer.write(CHUNKED)
            if stage == "body":
                writer.write(b"1\r\nx\r\n")
        await reader.readexactly(1 << 20)

    async def exchange(to: EngineTransport, request: httpx2.Request) -> None:
        response = await to.handle_async_request(request)
        try:
            async for _ in response.stream:
                await asyncio.sleep(30 if stage == "body" else 0)
        finally:
            await response.stream.aclose()

    async def main() -> None:
        body = Trickle()
        async with engine(handler) as here, transport() as to:
            with deaf_port() if stage == "connect" else contextlib.nullcontext(here.port) as port:
                here.port = port
                request = here.request(scheme="https" if stage == "tls" else "http")
                if stage == "upload":
                    request = here.request("POST", headers=[(b"Content-Length", b"9")], body=body)
                task = asyncio.create_task(exchange(to, request))
                await asyncio.sleep(0.1)
                assert to.stats().active == (0 if stage in ("connect", "tls") else 1)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert to.stats().active == 0
                if stage != "connect":
                    assert await asyncio.wait_for(here.ended.get(), 2) in ("eof", "reset")
                if stage == "upload":
                    await until(lambda: body.finalised)

    run(main())


def test_cancellation_at_any_turn_of_the_loop(run: Any) -> None:
    async def exchange(to: EngineTransport, request: httpx2.Request) -> None:
        assert await collect(await to.handle_async_request(request)) == b"xy"

    async def main() -> None:
        handler = answer(CHUNKED, b"1\r\nx\r\n", b"1\r\ny\r\n0\r\n\r\n")
        async with engine(handler) as here, transport() as to:
            for turns in range(120):
                host = "127.0.0.1" if turns % 2 else "localhost"
                task = asyncio.create_task(exchange(to, here.request(host=host)))
                for _ in range(turns // 4):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled() or task.exception() is None
                assert to.stats().active == 0

    run(main())


def test_closing_the_stream_early_reaches_the_engine(run: Any) -> None:
    async def main() -> None:
        handler = answer(CHUNKED, *[b"1\r\nx\r\n"] * 1_000, pause=0.01)
        async with engine(handler) as here, transport() as to:
            response = await to.handle_async_request(here.request())
            await anext(response.stream)
            await response.stream.aclose()
            await response.stream.aclose()
            with pytest.raises(httpx2.StreamClosed):
                await anext(response.stream)
            assert await asyncio.wait_for(here.ended.get(), 1) in ("eof", "reset")
            assert to.stats().active == to.stats().idle == 0

    run(main())


def test_closing_the_transport_ends_exchanges(run: Any) -> None:
    async def main() -> None:
        async with engine(answer(CHUNKED)) as here, transport() as to:
            response = await to.handle_async_request(here.request())
            reading = asyncio.create_task(anext(response.stream))
            await asyncio.sleep(0)
            await to.aclose()
            with pytest.raises(httpx2.ReadError):
                await reading
            await response.stream.aclose()
            with pytest.raises(RuntimeError):
                await to.handle_async_request(here.request())

    run(main())


def test_tls_connections_close_with_the_transport(run: Any) -> None:
    authority = trustme.CA()
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(served)

    async def main() -> None:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        async with engine(answer(EMPTY), tls=served) as here:
            async with transport(ssl_context=context) as to:
                await collect(await to.handle_async_request(here.request(scheme="https")))
                assert to.stats().idle == 1
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
        async with engine(stream_of(size)) as here, transport() as to:
            tracemalloc.start()
            try:
                response = await to.handle_async_request(here.request())
                await asyncio.sleep(0.3)
                got = 0
                async for piece in response.stream:
                    got += len(piece)
                    if got < 1_000_000:
                        await asyncio.sleep(0.01)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            await response.stream.aclose()
            assert got == size
            assert peak < 4_000_000
            assert to.stats().idle == 1

    run(main())


def test_pause_does_not_count_as_silence(run: Any) -> None:
    async def main() -> None:
        timeouts = Timeouts(stream_idle=0.2)
        async with engine(stream_of(10_000_000)) as here, transport(timeouts=timeouts) as to:
            response = await to.handle_async_request(here.request())
            await asyncio.sleep(0.6)
            assert len(await collect(response)) == 10_000_000

    run(main())


def test_many_tiny_reads_are_bounded_too(run: Any) -> None:
    sent = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        writer.write(CHUNKED)
        for _ in range(2_000):
            writer.write(b"1\r\nx\r\n")
            sent += 1
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")
        await reader.read()

    async def main() -> None:
        async with engine(handler) as here, transport() as to:
            response = await to.handle_async_request(here.request())
            await until(lambda: sent == 2_000)
            assert 0 < response.stream._queued < 70_000
            assert await collect(response) == b"x" * 2_000

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

    async def one(to: EngineTransport, here: Engine, i: int) -> None:
        response = await to.handle_async_request(here.request(path=f"/{i}"))
        expected = b"".join(b"data: /%d %d\n\n" % (i, n) for n in range(20))
        assert await collect(response) == expected

    async def main() -> None:
        async with engine(handler) as here, transport() as to:
            await asyncio.gather(*(one(to, here, i) for i in range(300)))
            stats = to.stats()
            assert stats.active == 0
            assert stats.opened_total + stats.reused_total == 300

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
@pytest.mark.parametrize("upload", [False, True], ids=["whole", "upload"])
@pytest.mark.parametrize("state", STATES)
def test_an_engine_that_dies_in_any_state_leaves_nothing(
    run: Any, state: str, upload: bool, dies: str
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

    async def exchange(to: EngineTransport, request: httpx2.Request) -> None:
        with contextlib.suppress(httpx2.TransportError):
            await collect(await to.handle_async_request(request))

    async def main() -> None:
        async with engine(handler) as here, transport(idle_expiry=0.1) as to:
            bodies = [Trickle() for _ in range(4)]
            headers = [(b"Content-Length", b"9")]
            requests = [
                here.request("POST", headers=headers, body=body) if upload else here.request()
                for body in bodies
            ]
            here_before = asyncio.all_tasks()
            tasks = [asyncio.create_task(exchange(to, request)) for request in requests]
            if dies == "stays":
                await asyncio.sleep(0.1)
                for task in tasks:
                    task.cancel()
            await asyncio.wait(tasks, timeout=5)
            assert all(task.done() for task in tasks)
            await until(lambda: (to.stats().active, to.stats().idle) == (0, 0))
            if upload:
                await until(lambda: all(b.finalised or not b.begun.is_set() for b in bodies))
            for _ in tasks:
                assert await asyncio.wait_for(here.ended.get(), 5) in ("eof", "reset", "done")
            await until(lambda: not asyncio.all_tasks() - here_before)

    run(main())
