"""An engine connection lives on only after exactly the declared request, and exactly one response.

Whatever a caller does: what it cannot do is leave a connection that waits for the rest of a body,
or has more than it, to whoever asks next.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from tokgauge.http.client import EngineTransport
from tokgauge.http.client.request import request_head

from tests.transport.support import Engine, collect, engine, transport
from tests.transport.test_listener import Recorder

EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
HOST = (b"Host", b"engine")


class Wire:
    """An engine that answers each head, at once and whatever follows, and keeps what it got."""

    def __init__(self, response: bytes = EMPTY) -> None:
        self.response = response
        self.got: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got = bytearray()
        self.got.append(b"")
        number = len(self.got) - 1
        answered = 0
        while data := await reader.read(65536):
            got += data
            self.got[number] = bytes(got)
            for _ in range(got.count(b"\r\n\r\n") - answered):
                writer.write(self.response)
                answered += 1


async def pieces(*parts: bytes, gap: float = 0.0) -> AsyncIterator[bytes]:
    for part in parts:
        await asyncio.sleep(gap)
        yield part


class Stream(httpx2.AsyncByteStream):
    def __init__(self, *parts: bytes, gap: float = 0.0) -> None:
        self._parts = parts
        self._gap = gap

    def __aiter__(self) -> AsyncIterator[bytes]:
        return pieces(*self._parts, gap=self._gap)


def length(number: int) -> tuple[bytes, bytes]:
    return (b"Content-Length", b"%d" % number)


async def begin(
    here: Engine, to: EngineTransport, way: str, headers: list[tuple[bytes, bytes]],
    body: bytes | httpx2.AsyncByteStream,
) -> Recorder:  # fmt: skip
    """One exchange; `at_once` finds an idle connection."""
    origin = ("http", "127.0.0.1", here.port)
    got = Recorder()
    if way == "at_once":
        assert isinstance(body, bytes)
        stream = to.exchange_at_once(origin, "POST", b"/", headers, body, got)
        assert stream is not None
    else:
        await to.exchange(origin, "POST", b"/", headers, body, got, fresh=way == "fresh")
    return got


async def warm(here: Engine, to: EngineTransport) -> None:
    await collect(await to.handle_async_request(here.request()))
    assert to.stats().idle == 1


@pytest.mark.parametrize("way", ["at_once", "reused", "fresh"])
@pytest.mark.parametrize(
    ("declared", "body"),
    [
        (5, b""),
        (5, b"hell"),
        (5, b"hello!"),
        (0, b"hello"),
        (None, b"hello"),
        (100_000, b"x" * 99_999),
    ],
    ids=["nothing", "less", "more", "none_declared", "no_length", "large"],
)
def test_a_body_that_is_not_the_declared_one_is_never_sent(
    run: Any, way: str, declared: int | None, body: bytes
) -> None:
    async def main() -> None:
        wire = Wire()
        async with engine(wire) as here, transport() as to:
            await warm(here, to)
            headers = [HOST] if declared is None else [HOST, length(declared)]
            with pytest.raises(httpx2.LocalProtocolError):
                await begin(here, to, way, headers, body)
            assert to.stats().active == 0
            await asyncio.sleep(0.02)
            assert not any(b"POST" in got for got in wire.got)
            await collect(await to.handle_async_request(here.request()))

    run(main())


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ([length(10)], Stream(b"hello")),
        ([length(10)], Stream(b"hello", b"worlds")),
        ([length(3)], Stream(b"hello")),
        ([], Stream(b"hello")),
        ([length(10)], Stream(b"hello", gap=0.03)),
        ([length(10)], Stream(b"hello", b"worl", gap=0.03)),
    ],
    ids=["less", "more", "more_at_once", "no_length", "less_later", "less_much_later"],
)
def test_a_stream_that_is_not_the_declared_body_costs_its_connection(
    run: Any, headers: list[tuple[bytes, bytes]], body: Stream
) -> None:
    """The engine answers before that is seen, or after it: the connection is closed in both."""

    async def main() -> None:
        wire = Wire()
        async with engine(wire) as here, transport() as to:
            got = await begin(here, to, "fresh", [HOST, *headers], body)
            await got.until_ended()
            stats = to.stats()
            assert (stats.active, stats.idle) == (0, 0)
            assert await asyncio.wait_for(here.ended.get(), 5) in ("eof", "reset", "done")
            (sent,) = wire.got
            assert len(sent.partition(b"\r\n\r\n")[2]) <= 10

    run(main())


@pytest.mark.parametrize("status", [b"200 OK", b"404 Not Found"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("when", ["never", "later"])
def test_a_response_before_the_whole_request_costs_the_connection(
    run: Any, status: bytes, framing: str, when: str
) -> None:
    """Else the engine would take the next request for the rest of this one's body."""

    async def main() -> None:
        wire = Wire(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\nok")
        async with engine(wire) as here, transport() as to:
            headers = [length(10) if framing == "length" else (b"Transfer-Encoding", b"chunked")]
            body = Stream(b"hello", b"world", gap=30 if when == "never" else 0.1)
            got = await begin(here, to, "fresh", [HOST, *headers], body)
            assert await got.until_ended() is None
            assert got.body == b"ok"
            stats = to.stats()
            assert (stats.active, stats.idle) == (0, 0)
            assert await asyncio.wait_for(here.ended.get(), 5) in ("eof", "reset", "done")
            wire.response = EMPTY
            response = await to.handle_async_request(here.request(path="/next"))
            assert response.extensions["reused"] is False
            await collect(response)
            assert wire.got[1].startswith(b"GET /next ")
            await asyncio.sleep(0.15)
            assert b"0\r\n\r\n" not in wire.got[0].partition(b"\r\n\r\n")[2]

    run(main())


def test_what_a_response_still_needs_of_the_request_goes_up(run: Any) -> None:
    """A response that begins early and ends after the request: nothing is amiss."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            assert await reader.readuntil(b"0\r\n\r\n") == b"5\r\nhello\r\n0\r\n\r\n"
            writer.write(b"2\r\nok\r\n0\r\n\r\n")

    async def main() -> None:
        async with engine(handler) as here, transport() as to:
            headers = [HOST, (b"Transfer-Encoding", b"chunked")]
            for _ in range(2):
                got = await begin(here, to, "any", headers, Stream(b"hello", gap=0.05))
                assert await got.until_ended() is None
                assert got.body == b"ok"
                assert to.stats().idle == 1
            assert here.connections == 1

    run(main())


@pytest.mark.parametrize(
    "headers",
    [
        [(b"Upgrade", b"h2c"), (b"Connection", b"Upgrade")],
        [length(5), length(5)],
        [length(5), length(6)],
        [(b"Content-Length", b"5, 5")],
        [(b"Content-Length", b"0x5")],
        [(b"Content-Length", b"")],
        [(b"Content-Length", b"1" * 19)],
        [(b"Content-Length", b"0" * 5000 + b"5")],
        [length(5), (b"Transfer-Encoding", b"chunked")],
        [(b"Transfer-Encoding", b"gzip, chunked")],
        [(b"Transfer-Encoding", b"chunked"), (b"Transfer-Encoding", b"chunked")],
        [(b"Transfer-Encoding", b"chunked, identity")],
        [(b"Transfer-Encoding", b"\x0bchunked")],
        [(b"Content-Length ", b"5")],
        [(b"A:B", b"5")],
        [(b"", b"5")],
        [(b"A", b"b\0c")],
        [(b"A", b"b\rc")],
        [(b"A", b"b\n c")],
        [(b"A\r\nB", b"c")],
    ],
    ids=str,
)
def test_a_head_that_can_be_read_in_two_ways_is_none(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(httpx2.LocalProtocolError):
        request_head("POST", b"/", [HOST, *headers])


@pytest.mark.parametrize(
    ("method", "target"),
    [("CONNECT", b"a:1"), ("GET", b"/a b"), ("GET", b"/\r\nA: b"), ("GET", b"/\0")],
)
def test_a_request_line_that_can_be_read_in_two_ways_is_none(method: str, target: bytes) -> None:
    with pytest.raises(httpx2.LocalProtocolError):
        request_head(method, target, [HOST])


def test_blanks_around_a_length_are_legal() -> None:
    head = request_head("POST", b"/", [HOST, (b"Content-Length", b" 5\t")])
    assert (head.length, head.chunked) == (5, False)
