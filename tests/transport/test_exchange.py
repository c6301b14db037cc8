"""Requests and responses as they are on the wire."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from itertools import pairwise
from time import monotonic, sleep
from typing import Any

import httpx2
import pytest
import trustme
from tokgauge.http.client import EngineTransport, Timeouts

from tests.transport.support import Engine, answer, collect, engine, transport

OK = b"HTTP/1.1 200 OK\r\n"
EMPTY = OK + b"Content-Length: 0\r\n\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


class Pieces(httpx2.AsyncByteStream):
    def __init__(self, *pieces: bytes, pause: float = 0.0) -> None:
        self.pieces = pieces
        self.pause = pause
        self.taken = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            await asyncio.sleep(self.pause)
            self.taken += 1
            yield piece


def test_head_is_sent_verbatim(run: Any) -> None:
    seen: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        seen.append(await reader.readexactly(4))
        writer.write(EMPTY)

    async def main() -> None:
        async with engine(handler) as here, transport() as to:
            request = here.request(
                "POST",
                "/other",
                target=b"/v1/%7e/../x?q=a%20b&&",
                headers=[(b"X-Odd", b"\xff 1"), (b"x-odd", b""), (b"Accept", b"*/*")],
                body=b"body",
            )
            response = await to.handle_async_request(request)
            assert response.status_code == 200
            assert await collect(response) == b""

    run(main())
    assert seen == [
        b"POST /v1/%7e/../x?q=a%20b&& HTTP/1.1\r\nHost: engine\r\nX-Odd: \xff 1\r\nx-odd: \r\n"
        b"Accept: */*\r\nContent-Length: 4\r\n\r\n",
        b"body",
    ]


@pytest.mark.parametrize(
    ("headers", "target", "body"),
    [
        ([(b"X", b"a\r\nB: c")], b"/", b""),
        ([(b"X", b"a\nB: c")], b"/", b""),
        ([], b"/ HTTP/1.1\r\nX: y", b""),
        ([], b"/a b", b""),
        ([(b"Content-Length", b"5"), (b"Content-Length", b"6")], b"/", b"hello"),
        ([(b"Content-Length", b"5"), (b"Transfer-Encoding", b"chunked")], b"/", b""),
        ([(b"Transfer-Encoding", b"gzip")], b"/", b""),
        ([(b"Content-Length", b"+5")], b"/", b""),
    ],
)
def test_ambiguous_request_is_never_sent(
    run: Any, headers: list[tuple[bytes, bytes]], target: bytes, body: bytes
) -> None:
    async def main() -> None:
        async with engine(answer(EMPTY)) as here, transport() as to:
            request = httpx2.Request(
                "POST",
                f"http://127.0.0.1:{here.port}/",
                headers=[(b"Host", b"x"), *headers],
                stream=httpx2.ByteStream(body),
                extensions={"target": target},
            )
            with pytest.raises(httpx2.LocalProtocolError):
                await to.handle_async_request(request)
            assert here.connections == 0

    run(main())


def test_response_head_is_kept_raw(run: Any) -> None:
    head = OK.replace(b"OK", b"Fine By Me") + b"X-A: 1\r\nx-a:  2 \r\nX-B:\r\nX-C: \xe4\r\n"

    async def main() -> None:
        async with engine(answer(head + b"Content-Length: 2\r\n\r\nhi")) as here, transport() as to:
            before = monotonic()
            response = await to.handle_async_request(here.request())
            extensions = response.extensions
            assert extensions["raw_headers"] == [
                (b"X-A", b"1"),
                (b"x-a", b"2 "),  # llhttp keeps the space before the line end
                (b"X-B", b""),
                (b"X-C", b"\xe4"),
                (b"Content-Length", b"2"),
            ]
            assert response.headers.raw == extensions["raw_headers"]
            assert extensions["reason_phrase"] == b"Fine By Me"
            assert extensions["http_version"] == b"HTTP/1.1"
            assert before <= extensions["sent_at"] <= extensions["headers_at"] <= monotonic()
            assert extensions["reused"] is False
            assert await collect(response) == b"hi"

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
        async with engine(answer(*parts)) as here, transport() as to:
            response = await to.handle_async_request(here.request())
            assert await collect(response) == body
            assert b"A" not in dict(response.extensions["raw_headers"])
            if kept or cut == "whole":
                assert to.stats().idle == int(kept)
            second = await to.handle_async_request(here.request())
            assert second.extensions["reused"] is kept
            assert await collect(second) == body

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
        async with engine(answer(raw)) as here, transport() as to:
            for reused in (False, kept):
                response = await to.handle_async_request(here.request("HEAD"))
                assert response.extensions["reused"] is reused
                assert await collect(response) == b""

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
        async with engine(answer(*parts, pause=0.02, after=end)) as here, transport() as to:
            response = await to.handle_async_request(here.request())
            stream = response.stream
            if end == "close":
                assert await collect(response) == b"onetwo"
            else:
                assert await anext(stream) == b"one"
                assert await anext(stream) == b"two"
                with pytest.raises(httpx2.ReadError):
                    await anext(stream)
                await stream.aclose()
            assert to.stats().idle == 0

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
        async with engine(answer(raw)) as here, transport() as to:
            with pytest.raises(httpx2.RemoteProtocolError) as caught:
                await to.handle_async_request(here.request())
            assert vars(caught.value)["response_bytes"] is True
            assert vars(caught.value)["reused"] is False
            assert to.stats().active == to.stats().idle == 0

    run(main())


async def drain(stream: Any, into: list[bytes]) -> None:
    async for piece in stream:
        into += [piece]


@pytest.mark.parametrize(
    "rest",
    [b"5\r\nhellX", b"zz\r\n", b"0\r\n" + b"T: " + b"t" * 70_000, b"5;" + b"e" * 70_000],
)
def test_fault_inside_body_comes_after_its_bytes(run: Any, rest: bytes) -> None:
    async def main() -> None:
        handler = answer(CHUNKED, b"5\r\nhello\r\n" + rest, rest)
        async with engine(handler) as here, transport() as to:
            response = await to.handle_async_request(here.request())
            got: list[bytes] = []
            with pytest.raises(httpx2.RemoteProtocolError):
                await drain(response.stream, got)
            assert got[0].startswith(b"hello")
            await response.stream.aclose()

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
        async with engine(answer(head, rest, pause=0.02, after=end)) as here, transport() as to:
            response = await to.handle_async_request(here.request())
            assert await anext(response.stream) == b"hello"
            kind = httpx2.ReadError if end == "reset" else httpx2.RemoteProtocolError
            with pytest.raises(kind) as caught:
                await anext(response.stream)
            assert vars(caught.value)["response_bytes"] is True
            with pytest.raises(kind):
                await anext(response.stream)
            await response.stream.aclose()
            await response.stream.aclose()
            with pytest.raises(kind):
                await anext(response.stream)

    run(main())


def test_each_read_is_one_piece_with_its_arrival(run: Any) -> None:
    """A slow consumer gets the pieces as they came, with the times when they came."""
    events = [b"data: %d\n\n" % i for i in range(5)]
    chunks = [b"".join(b"1\r\n%c\r\n" % c for c in event) for event in events]

    async def main() -> None:
        handler = answer(CHUNKED, *chunks, b"0\r\n\r\n", pause=0.05)
        async with engine(handler) as here, transport() as to:
            response = await to.handle_async_request(here.request())
            await asyncio.sleep(0.5)
            got, times = [], []
            async for piece in response.stream:
                got.append(piece)
                times.append(response.stream.arrived_at)
            assert got == events
            gaps = [b - a for a, b in pairwise(times)]
            # Taken together, the consumer's own gaps are far below a millisecond.
            assert 0.1 < sum(gaps) < 4, gaps
            assert times[-1] < monotonic() - 0.1
            await response.stream.aclose()

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
        async with engine(handler) as here, transport() as to:
            framing = (b"Transfer-Encoding", b"chunked") if chunked else (b"content-length", b"10")
            body = Pieces(b"hello", b"", b"world", pause=pause)
            request = here.request("POST", headers=[framing], body=body)
            response = await to.handle_async_request(request)
            assert await collect(response) == b""
            assert response.extensions["sent_at"] <= response.extensions["headers_at"]
            assert to.stats().idle == 1

    run(main())
    assert received == [b"5\r\nhello\r\n5\r\nworld\r\n0\r\n\r\n" if chunked else b"helloworld"]


def test_large_body_in_memory(run: Any) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(3_000_000) == b"x" * 3_000_000
        writer.write(EMPTY)
        await reader.read()

    async def main() -> None:
        async with engine(handler) as here, transport() as to:
            response = await to.handle_async_request(here.request("POST", body=b"x" * 3_000_000))
            assert await collect(response) == b""
            assert to.stats().idle == 1

    run(main())


@pytest.mark.parametrize("pieces", [(b"hello",), (b"hello", b"worlds")])
def test_body_that_contradicts_its_length(run: Any, pieces: tuple[bytes, ...]) -> None:
    async def main() -> None:
        async with engine(answer(b"")) as here, transport() as to:
            request = here.request(
                "POST", headers=[(b"Content-Length", b"10")], body=Pieces(*pieces)
            )
            with pytest.raises(httpx2.LocalProtocolError):
                await to.handle_async_request(request)
            assert to.stats().active == 0

    run(main())


def test_error_of_the_request_stream_passes(run: Any) -> None:
    class Gone(Exception):
        pass

    class Broken(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"x"
            raise Gone

    async def main() -> None:
        async with engine(answer(b"")) as here, transport() as to:
            request = here.request("POST", headers=[(b"Content-Length", b"9")], body=Broken())
            with pytest.raises(Gone):
                await to.handle_async_request(request)
            assert await asyncio.wait_for(here.ended.get(), 5) in ("eof", "reset")

    run(main())


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
        async with engine(handler) as here, transport() as to:
            body = Pieces(*[b"x" * 50_000] * 2_000)
            request = here.request("POST", headers=[(b"Content-Length", b"100000000")], body=body)
            response = await to.handle_async_request(request)
            assert response.status_code == 413
            assert await collect(response) == b"big"
            taken = body.taken
            assert taken < 2_000
            await asyncio.sleep(0.05)
            assert body.taken == taken
            assert to.stats().idle == to.stats().active == 0

    run(main())


def test_answer_is_not_lost_when_the_write_fails(run: Any) -> None:
    """The engine refuses and closes with unread data, so that the next write meets a reset."""

    def refuse(listener: socket.socket) -> None:
        served, _ = listener.accept()
        with served:
            served.recv(10)
            served.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")

    class Blocking(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"x" * 1000
            sleep(0.1)  # holds the loop: it must not see the answer before it writes
            yield b"x" * 1000

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            async with transport() as to:
                refusal = asyncio.get_running_loop().run_in_executor(None, refuse, listener)
                request = Engine(listener.getsockname()[1]).request(
                    "POST", headers=[(b"Content-Length", b"2000")], body=Blocking()
                )
                response = await to.handle_async_request(request)
                assert response.status_code == 413
                assert await collect(response) == b"big"
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
        async with engine(handler) as here, transport() as to:
            body = Pieces(b"aaaaa", b"bbbbb", b"ccccc", pause=0.02)
            request = here.request("POST", headers=[(b"Content-Length", b"15")], body=body)
            response = await to.handle_async_request(request)
            assert response.extensions["sent_at"] is None
            assert await collect(response) == b"aaaaabbbbbccccc"
            assert response.stream.sent_at is not None
            assert to.stats().idle == 1

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
        async with engine(handler, tls=served) as here, transport(ssl_context=context) as to:
            for host, reused in (("localhost", False), ("localhost", True), ("127.0.0.1", False)):
                request = here.request(scheme="https", host=host)
                if not verified:
                    with pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                        await to.handle_async_request(request)
                    continue
                response = await to.handle_async_request(request)
                assert response.extensions["reused"] is reused
                assert await collect(response) == b"hello"
            if verified:
                response = await to.handle_async_request(here.request(scheme="https"))
                await response.stream.aclose()
                assert await asyncio.wait_for(here.ended.get(), 5) in ("eof", "reset")

    run(main())
    assert names[0] == "localhost"
    if verified:
        assert set(alpn) == {"http/1.1"}
        assert None in names  # no SNI for an address


def test_ipv6_and_nodelay(run: Any) -> None:
    async def main() -> None:
        async with engine(answer(EMPTY), host="::1") as here, transport() as to:
            response = await to.handle_async_request(here.request(host="[::1]"))
            await collect(response)
            (connection,) = to._idle[("http", "::1", here.port)]
            sock = connection.transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1

    run(main())


def test_works_under_the_client(run: Any) -> None:
    async def main() -> None:
        async with engine(answer(OK + b'Content-Length: 7\r\n\r\n{"a":1}')) as here:
            to = EngineTransport(timeouts=Timeouts(connect=1))
            async with httpx2.AsyncClient(transport=to) as client:
                response = await client.get(f"http://127.0.0.1:{here.port}/")
                assert response.json() == {"a": 1}

    run(main())
