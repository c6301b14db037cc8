"""Requests and responses as they are on the wire."""

import asyncio
import socket
import ssl
from itertools import pairwise
from time import monotonic, sleep
from typing import Any

import pytest
import trustme
from tokgauge.http.client.failures import ConnectFailed, ConnectionClosed, ResponseInvalid

from tests.http.client.support import (
    CHUNKED_BODY,
    Recorder,
    answer,
    ask,
    engine,
    length,
    pool,
    upload,
)

OK = b"HTTP/1.1 200 OK\r\n"
EMPTY = OK + b"Content-Length: 0\r\n\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def test_head_is_sent_verbatim(run: Any) -> None:
    seen: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        seen.append(await reader.readexactly(4))
        writer.write(EMPTY)

    async def main() -> None:
        async with engine(handler) as here, pool(here) as to:
            headers = [(b"X-Odd", b"\xff 1"), (b"x-odd", b""), (b"Accept", b"*/*"), length(4)]
            got = await ask(to, "POST", b"/v1/%7e/../x?q=a%20b&&", headers, b"body")
            assert await got.whole() == b""
            assert got.heads == [(200, False)]

    run(main())
    assert seen == [
        b"POST /v1/%7e/../x?q=a%20b&& HTTP/1.1\r\nHost: engine\r\nX-Odd: \xff 1\r\nx-odd: \r\n"
        b"Accept: */*\r\nContent-Length: 4\r\n\r\n",
        b"body",
    ]


def test_response_head_is_kept_raw(run: Any) -> None:
    head = OK.replace(b"OK", b"Fine By Me") + b"X-A: 1\r\nx-a:  2 \r\nX-B:\r\nX-C: \xe4\r\n"

    async def main() -> None:
        async with engine(answer(head + b"Content-Length: 2\r\n\r\nhi")) as here, pool(here) as to:
            before = monotonic()
            got = await ask(to)
            assert await got.whole() == b"hi"
            assert got.headers == [
                (b"X-A", b"1"),
                (b"x-a", b"2 "),  # llhttp keeps the space before the line end
                (b"X-B", b""),
                (b"X-C", b"\xe4"),
                (b"Content-Length", b"2"),
            ]
            assert (got.reason, got.version) == (b"Fine By Me", b"HTTP/1.1")
            assert got.connection is not None
            assert got.connection.sent_at is not None
            assert before <= got.connection.sent_at <= got.arrivals[0] <= monotonic()
            assert got.connection.reused, "from now on"

    run(main())


@pytest.mark.parametrize(
    ("raw", "body", "kept"),
    [
        (OK + b"Content-Length: 5\r\n\r\nhello", b"hello", True),
        (CHUNKED + b"5\r\nhello\r\n0\r\n\r\n", b"hello", True),
        (CHUNKED + b"5;a=b\r\nhello\r\n1\r\n!\r\n0\r\nX-Trailer: 1\r\n\r\n", b"hello!", True),
        (OK + b"Transfer-Encoding: Chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", b"x", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", b"", True),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nA: b\r\n\r\n" + EMPTY, b"", True),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 50 + EMPTY, b"", True),
        (OK + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello", b"hello", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx", b"x", True),
        (OK + b"Content-Length: 5\r\n\r\nhello" + EMPTY, b"hello", False),
        (OK + b"Content-Length: 5\r\n\r\nhellojunk", b"hello", False),
        (CHUNKED + b"5\r\nhello\r\n0\r\n\r\njunk", b"hello", False),
    ],
)
@pytest.mark.parametrize("cut", ["whole", "bytes"])
def test_framing(run: Any, raw: bytes, body: bytes, kept: bool, cut: str) -> None:
    parts = [raw] if cut == "whole" else [raw[i : i + 1] for i in range(len(raw))]

    async def main() -> None:
        async with engine(answer(*parts)) as here, pool(here) as to:
            first = await ask(to)
            assert await first.whole() == body
            assert b"A" not in dict(first.headers)
            second = await ask(to)
            assert second.reused is kept
            assert await second.whole() == body

    run(main())


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        (OK + b"Content-Length: 5\r\n\r\n", True),
        (CHUNKED, True),
        (OK + b"\r\n", False),
        (OK + b"Content-Length: 5\r\n\r\nhello", False),
    ],
)
def test_head_has_no_body(run: Any, raw: bytes, kept: bool) -> None:
    async def main() -> None:
        async with engine(answer(raw)) as here, pool(here) as to:
            for reused in (False, kept):
                got = await ask(to, "HEAD")
                assert got.reused is reused
                assert await got.whole() == b""

    run(main())


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.0 200 OK\r\n\r\n",
        OK + b"Connection: close\r\n\r\n",
        OK + b"\r\n",
    ],
)
@pytest.mark.parametrize("end", ["close", "reset"])
def test_body_until_close(run: Any, head: bytes, end: str) -> None:
    async def main() -> None:
        parts = (head, b"one", b"two")
        async with engine(answer(*parts, pause=0.02, after=end)) as here, pool(here) as to:
            got = await ask(to)
            why = await got.end()
            assert got.reads == [b"one", b"two"]
            if end == "close":
                assert why is None
            else:
                assert isinstance(why, ConnectionClosed)
            assert to.stats.idle == 0

    run(main())


@pytest.mark.parametrize(
    "raw",
    [
        b"garbage\r\n\r\n",
        b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/0.9 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nabc",
        OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"X-Folded: a\r\n b\r\n\r\n",
        OK + b"X: " + b"a" * 70_000,
        OK + b"X: y\r\n" * 20_000 + b"\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 5_000,
    ],
)
def test_unacceptable_head(run: Any, raw: bytes) -> None:
    async def main() -> None:
        async with engine(answer(raw)) as here, pool(here) as to:
            got = await ask(to)
            assert isinstance(await got.end(), ResponseInvalid)
            assert (got.heads, got.reads) == ([], [])
            assert to.stats.active == to.stats.idle == 0

    run(main())


@pytest.mark.parametrize(
    "rest",
    [b"5\r\nhellX", b"zz\r\n", b"0\r\n" + b"T: " + b"t" * 70_000, b"5;" + b"e" * 70_000],
)
def test_fault_inside_body_comes_after_its_bytes(run: Any, rest: bytes) -> None:
    async def main() -> None:
        handler = answer(CHUNKED, b"5\r\nhello\r\n" + rest, rest)
        async with engine(handler) as here, pool(here) as to:
            got = await ask(to)
            assert isinstance(await got.end(), ResponseInvalid)
            assert got.body.startswith(b"hello")

    run(main())


@pytest.mark.parametrize(
    ("head", "rest"),
    [
        (CHUNKED, b"5\r\nhello\r\n"),
        (CHUNKED, b"9\r\nhello"),
        (CHUNKED, b"5\r\nhello\r\n0\r\n"),
        (OK + b"Content-Length: 9\r\n\r\n", b"hello"),
    ],
)
@pytest.mark.parametrize("end", ["close", "reset"])
def test_a_cut_is_never_a_clean_end(run: Any, head: bytes, rest: bytes, end: str) -> None:
    async def main() -> None:
        async with engine(answer(head, rest, pause=0.02, after=end)) as here, pool(here) as to:
            got = await ask(to)
            why = await got.end()
            assert isinstance(why, ConnectionClosed)
            assert not why.died_idle
            assert got.body == b"hello"

    run(main())


def test_each_read_comes_with_its_arrival(run: Any) -> None:
    """However busy whoever listens is."""
    events = [b"data: %d\n\n" % i for i in range(5)]
    chunks = [b"".join(b"1\r\n%c\r\n" % c for c in event) for event in events]

    async def main() -> None:
        handler = answer(CHUNKED, *chunks, b"0\r\n\r\n", pause=0.05)
        async with engine(handler) as here, pool(here) as to:
            got = Recorder()
            got.at_data = lambda: sleep(0.01)
            assert await (await ask(to, call=got)).whole() == b"".join(events)
            assert got.reads == events
            gaps = [b - a for a, b in pairwise(got.arrivals)]
            assert all(0.01 < gap < 2 for gap in gaps), gaps
            assert max(got.delays) < 0.02, "told within the read"

    run(main())


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("pause", [0.0, 0.01])
def test_streamed_request_body(run: Any, chunked: bool, pause: float) -> None:
    received: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if chunked:
            received.append(await reader.readuntil(b"0\r\n\r\n"))
        else:
            received.append(await reader.readexactly(10))
        writer.write(EMPTY)
        await reader.read()

    async def main() -> None:
        async with engine(handler) as here, pool(here) as to:
            headers = [CHUNKED_BODY if chunked else length(10)]
            got = await ask(to, "POST", b"/", headers, complete=False)
            assert got.connection is not None
            assert got.connection.sent_at is None
            await upload(got, [b"hello", b"world"], pause)
            assert got.connection.sent_at is not None
            assert await got.whole() == b""
            assert to.stats.idle == 1

    run(main())
    assert received == [b"5\r\nhello\r\n5\r\nworld\r\n0\r\n\r\n" if chunked else b"helloworld"]


def test_large_body_in_memory(run: Any) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(3_000_000) == b"x" * 3_000_000
        writer.write(EMPTY)
        await reader.read()

    async def main() -> None:
        async with engine(handler) as here, pool(here) as to:
            got = await ask(to, "POST", b"/", [length(3_000_000)], b"x" * 3_000_000)
            assert await got.whole() == b""
            assert to.stats.idle == 1

    run(main())


def test_an_engine_that_takes_no_more_is_told(run: Any) -> None:
    """And that it takes more, so that the client waits, not the proxy's memory."""
    taken = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        await reader.readuntil(b"\r\n\r\n")
        await may_read.wait()
        while taken < 20_000_000:
            taken += len(await reader.read(1 << 20))
        writer.write(EMPTY)
        await reader.read()

    async def main() -> None:
        async with engine(handler) as here, pool(here) as to:
            got = await ask(to, "POST", b"/", [length(20_000_000)], complete=False)
            sending = asyncio.create_task(upload(got, [b"x" * 100_000] * 200))
            await asyncio.sleep(0.2)
            assert got.is_full
            assert not sending.done()
            assert got.connection is not None
            assert got.connection.transport.get_write_buffer_size() < 500_000
            may_read.set()
            assert await got.whole() == b""
            assert await sending == 200
            assert to.stats.idle == 1

    may_read = asyncio.Event()
    run(main())
    assert taken == 20_000_000


@pytest.mark.parametrize("end", ["keep", "close"])
def test_early_refusal_stops_the_upload(run: Any, end: str) -> None:
    refusal = b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig"

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(refusal)
        await writer.drain()
        if end == "keep":
            await reader.readexactly(1 << 40)

    async def main() -> None:
        async with engine(handler) as here, pool(here) as to:
            got = await ask(to, "POST", b"/", [length(100_000_000)], complete=False)
            sent = await upload(got, [b"x" * 50_000] * 2_000)
            assert await got.whole() == b"big"
            assert got.heads[0][0] == 413
            assert sent < 2_000
            assert to.stats.idle == to.stats.active == 0

    run(main())


def test_response_is_not_lost_when_the_write_fails(run: Any) -> None:
    """The engine refuses and closes with unread data, so that the next write meets a reset."""

    def refuse(listener: socket.socket) -> None:
        served, _ = listener.accept()
        with served:
            served.recv(10)
            served.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            async with pool(listener.getsockname()[1]) as to:
                refusal = asyncio.get_running_loop().run_in_executor(None, refuse, listener)
                got = await ask(to, "POST", b"/", [length(2000)], b"x" * 1000, complete=False)
                assert got.connection is not None
                sleep(0.1)  # holds the loop: it must not see the response before it writes
                got.connection.send_body(b"x" * 1000)
                assert await got.whole() == b"big"
                assert got.heads[0][0] == 413
                await refusal

    run(main())


def test_upload_goes_on_while_a_success_is_received(run: Any) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED)
        for _ in range(3):
            data = await reader.readexactly(5)
            writer.write(b"5\r\n" + data + b"\r\n")
        writer.write(b"0\r\n\r\n")
        await reader.read()

    async def main() -> None:
        async with engine(handler) as here, pool(here) as to:
            got = await ask(to, "POST", b"/", [length(15)], complete=False)
            await upload(got, [b"aaaaa", b"bbbbb", b"ccccc"], gap=0.02)
            assert await got.whole() == b"aaaaabbbbbccccc"
            assert to.stats.idle == 1

    run(main())


@pytest.mark.parametrize("verified", [True, False])
def test_tls(run: Any, verified: bool) -> None:
    authority = trustme.CA()
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(served)
    served.set_alpn_protocols(["http/1.1"])
    names: list[str | None] = []
    served.sni_callback = lambda _object, name, _context: names.append(name)
    alpn: list[str | None] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        alpn.append(writer.get_extra_info("ssl_object").selected_alpn_protocol())
        await answer(CHUNKED, b"5\r\nhello\r\n", b"0\r\n\r\n", pause=0.01)(reader, writer)

    async def main() -> None:
        context = ssl.create_default_context()
        if verified:
            authority.configure_trust(context)
        async with engine(handler, tls=served) as here:
            for host in ("localhost", "127.0.0.1"):
                async with pool(here, host=host, secure=True, tls=context) as to:
                    if not verified:
                        with pytest.raises(ConnectFailed, match="CERTIFICATE_VERIFY_FAILED"):
                            await ask(to)
                        continue
                    for reused in (False, True):
                        got = await ask(to)
                        assert got.reused is reused
                        assert await got.whole() == b"hello"
            if verified:
                async with pool(here, secure=True, tls=context) as to:
                    (await ask(to)).leave()
                    assert await asyncio.wait_for(here.ended.get(), 5) in ("eof", "reset")

    run(main())
    assert names[0] == "localhost"
    if verified:
        assert set(alpn) == {"http/1.1"}
        assert None in names  # no SNI for an address


def test_ipv6_and_socket_options(run: Any) -> None:
    async def main() -> None:
        async with engine(answer(EMPTY), host="::1") as here, pool(here, host="::1") as to:
            got = await ask(to)
            await got.whole()
            assert got.connection is not None
            sock = got.connection.transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1

    run(main())
