"""An engine connection lives on only after exactly the declared request, and exactly one response.

Whatever a caller does: what it cannot do is leave a connection that waits for the rest of a body,
or has more than it, to whoever asks next.
"""

import asyncio
from typing import Any

import pytest
from tokgauge.http.client.failures import RequestInvalid
from tokgauge.http.client.pool import Pool
from tokgauge.http.client.request_head import request_head

from tests.http.client.support import (
    CHUNKED_BODY,
    HOST,
    Engine,
    Recorder,
    ask,
    engine,
    length,
    pool,
    upload,
)

EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


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


async def left_alone(to: Pool, here: Engine) -> None:
    """No connection is kept, and the engine sees that."""
    assert (to.stats.active, to.stats.idle) == (0, 0)
    assert await asyncio.wait_for(here.ended.get(), 5) in ("eof", "reset", "done")


WAYS = pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "reused"])


@WAYS
@pytest.mark.parametrize(
    ("declared", "body"),
    [(5, b""), (5, b"hell"), (5, b"hello!"), (0, b"hello"), (None, b"hello"),
     (100_000, b"x" * 99_999)],
    ids=["nothing", "less", "more", "none_declared", "no_length", "large"],
)  # fmt: skip
def test_a_body_that_is_not_the_declared_one_costs_its_connection(
    run: Any, fresh: bool, declared: int | None, body: bytes
) -> None:
    """No other request is ever read as the rest of it, and no byte beyond it is sent."""

    async def main() -> None:
        wire = Wire()
        async with engine(wire) as here, pool(here) as to:
            await (await ask(to)).whole()
            headers = [] if declared is None else [length(declared)]
            got = Recorder()
            with pytest.raises(ValueError, match="than declared"):
                await ask(to, "POST", b"/", headers, body, fresh=fresh, call=got)
            assert to.stats.active == 0
            assert got.connection is not None
            assert got.connection.closed
            await asyncio.sleep(0.02)
            for sent in wire.got:
                assert len(sent.partition(b"POST")[2].partition(b"\r\n\r\n")[2]) <= (declared or 0)
            assert got.ends == [], "its caller knows already"
            again = await ask(to, target=b"/next")
            assert await again.whole() == b""

    run(main())


@pytest.mark.parametrize("gap", [0.0, 0.03])
@pytest.mark.parametrize(
    ("headers", "pieces"),
    [
        ([length(10)], [b"hello"]),
        ([length(10)], [b"hello", b"worl"]),
        ([length(10)], [b"hello", b"worlds"]),
        ([length(3)], [b"hello"]),
        ([], [b"hello"]),
    ],
    ids=["less", "less_in_two", "more", "more_at_once", "no_length"],
)
def test_pieces_that_are_not_the_declared_body_cost_their_connection(
    run: Any, headers: list[tuple[bytes, bytes]], pieces: list[bytes], gap: float
) -> None:
    """The engine answers before that is seen, or after it: the connection is closed in both."""

    async def main() -> None:
        wire = Wire()
        async with engine(wire) as here, pool(here) as to:
            got = await ask(to, "POST", b"/", headers, complete=False)
            if gap:
                await got.whole()  # the response was first: the rest is not sent
                await upload(got, pieces)
            else:
                with pytest.raises(ValueError, match="than declared"):
                    await upload(got, pieces)
            await left_alone(to, here)
            for sent in wire.got:
                assert len(sent.partition(b"\r\n\r\n")[2]) <= 10

    run(main())


@pytest.mark.parametrize("status", [b"200 OK", b"404 Not Found"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_response_before_the_whole_request_costs_the_connection(
    run: Any, status: bytes, framing: str, goes_on: bool
) -> None:
    """Else the engine would take the next request for the rest of this one's body."""

    async def main() -> None:
        wire = Wire(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\nok")
        async with engine(wire) as here, pool(here) as to:
            headers = [length(10) if framing == "length" else CHUNKED_BODY]
            got = await ask(to, "POST", b"/", headers, complete=False)
            assert await got.whole() == b"ok"
            await left_alone(to, here)
            wire.response = EMPTY
            following = await ask(to, target=b"/next")
            assert not following.reused
            if goes_on:
                assert got.connection is not None
                got.connection.send_body(b"helloworld")
                got.connection.end_body()
            await following.whole()
            assert wire.got[1].startswith(b"GET /next ")
            assert wire.got[0].partition(b"\r\n\r\n")[2] == b""

    run(main())


@pytest.mark.parametrize(
    ("status", "reads_body", "body", "kept"),
    [
        (b"200 OK", True, b"hello", True),
        (b"200 OK", False, b"hello", False),
        (b"200 OK", False, b"", True),
        (b"400 Bad Request", True, b"hello", False),
        (b"302 Found", True, b"hello", False),
        (b"400 Bad Request", True, b"", True),
    ],
)
def test_a_body_that_may_lie_unread_costs_the_connection(
    run: Any, status: bytes, reads_body: bool, body: bytes, kept: bool
) -> None:
    """An engine that has not read it would take it for the next request."""

    async def main() -> None:
        wire = Wire(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\nok")
        async with engine(wire) as here, pool(here) as to:
            headers = [length(len(body))] if body else []
            got = await ask(to, "POST", b"/", headers, body, reads_body=reads_body)
            assert await got.whole() == b"ok"
            assert to.stats.idle == int(kept)

    run(main())


def test_a_request_that_asks_for_it_closes_its_connection(run: Any) -> None:
    async def main() -> None:
        async with engine(Wire()) as here, pool(here) as to:
            await (await ask(to, headers=[(b"Connection", b"X, Close")])).whole()
            await left_alone(to, here)

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
        async with engine(handler) as here, pool(here) as to:
            for _ in range(2):
                got = await ask(to, "POST", b"/", [CHUNKED_BODY], complete=False)
                await upload(got, [b"hello"], gap=0.05)
                assert await got.whole() == b"ok"
                assert to.stats.idle == 1
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
    with pytest.raises(RequestInvalid):
        request_head("POST", b"/", [HOST, *headers])


@pytest.mark.parametrize(
    ("method", "target"),
    [("CONNECT", b"a:1"), ("GET", b"/a b"), ("GET", b"/\r\nA: b"), ("GET", b"/\0")],
)
def test_a_request_line_that_can_be_read_in_two_ways_is_none(method: str, target: bytes) -> None:
    with pytest.raises(RequestInvalid):
        request_head(method, target, [HOST])


def test_blanks_around_a_length_are_legal() -> None:
    head = request_head("POST", b"/", [HOST, (b"Content-Length", b" 5\t")])
    assert head.length == 5


def test_a_request_without_host_is_none() -> None:
    with pytest.raises(RequestInvalid):
        request_head("GET", b"/", [(b"Accept", b"*/*")])


@pytest.mark.parametrize(
    ("headers", "length", "close"),
    [([], 0, False), ([CHUNKED_BODY], None, False), ([(b"connection", b"a, CLOSE")], 0, True)],
)
def test_what_a_head_says(
    headers: list[tuple[bytes, bytes]], length: int | None, close: bool
) -> None:
    head = request_head("PUT", b"/", [HOST, *headers])
    assert head[0] == "PUT"
    assert head[2:] == (length, close)
