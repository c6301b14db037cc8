"""Request heads that have been seen: read as if each came for the first time, and few are kept."""

import asyncio
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from proxy.client_request import REQUEST, ClientRequest, SeenHead, SeenHeads
from proxy.engine import EngineFacts
from proxy.protocol import Client, ProxyProtocol
from proxy.settings import Settings
from proxy.transport.request import request_head
from proxy.upstream import Upstream


class NothingSeen(SeenHeads):
    """Remembers nothing."""

    def find(self, data: bytes) -> SeenHead | None:
        return None

    def keep(self, data: bytes, request: ClientRequest) -> SeenHead | None:
        return None


class Wire:
    """In the place of the transport: what would be written to the engine."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def exchange_at_once(
        self, origin: object, method: str, target: bytes, headers: list[tuple[bytes, bytes]],
        body: bytes, listener: object,
    ) -> None:  # fmt: skip
        self.sent.append(request_head(method, target, headers).block + body)


class Echo:
    """An application that sends every request to a `Wire` and answers with what went there."""

    def __init__(self, heads: SeenHeads) -> None:
        self.heads = heads
        self.at_once = 0
        self.wire = Wire()
        self._upstream = Upstream(
            Settings(upstream="http://engine:1/base", port=0), EngineFacts(("qwen",))
        )
        self._upstream.transport = self.wire  # type: ignore[assignment]

    def carry_at_once(self, client: Client, server: object) -> bool:
        request = client.request
        if not request.simple:
            return False
        body = client.whole_body()
        assert body is not None
        self.at_once += 1
        answer = self._sent(request, body)
        length = (b"content-length", b"%d" % len(answer))
        client.begin(200, [length], body_follows=True)
        client.write(answer)
        client.finish()
        client.end()
        return True

    def _sent(self, request: ClientRequest, body: bytes) -> bytes:
        changed = b"[" + body + b"]" if body.startswith(b"{") else None
        try:
            self._upstream.exchange_at_once(
                request, body if changed is None else changed, None,  # type: ignore[arg-type]
                identity=changed is not None,
            )  # fmt: skip
        except Exception as error:
            return repr(error).encode()
        return self.wire.sent[-1]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request: ClientRequest = scope["extensions"][REQUEST]
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            if not message["more_body"]:
                break
        answer = self._sent(request, body) if request.simple else repr(request.headers).encode()
        self.wire.sent.append(b"by task: " + answer)
        length = (b"content-length", b"%d" % len(answer))
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": answer})


class Socket(asyncio.Transport):
    """The client's end: what the proxy writes, and whether it closes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def write(self, data: bytes) -> None:  # type: ignore[override]
        if not self.closed:
            self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


class Server:
    """An `Echo` and its connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop, heads: SeenHeads) -> None:
        self.app = Echo(heads)
        self._loop = loop
        self._state = ServerState()
        self._config = uvicorn.Config(
            self.app, http=ProxyProtocol, interface="asgi3", proxy_headers=False, ws="none",
            log_config=None, access_log=False, lifespan="off",
        )  # fmt: skip

    def feed(self, pieces: list[bytes]) -> tuple[bytes, bool]:
        """One connection that gets these reads: what it answers, and whether it is closed then."""

        async def turns() -> None:
            for _ in range(8):
                await asyncio.sleep(0)

        protocol = ProxyProtocol(self._config, self._state, {}, self._loop)
        socket = Socket()
        protocol.connection_made(socket)
        for piece in pieces:
            if socket.closed:
                break
            protocol.data_received(piece)
            self._loop.run_until_complete(turns())
        closed = socket.closed
        protocol.connection_lost(None)
        self._loop.run_until_complete(turns())
        return socket.written, closed


def both_alike(loop: asyncio.AbstractEventLoop, connections: list[list[bytes]]) -> Echo:
    """Feed a server that remembers and one that does not; all must be the same."""
    remembers = Server(loop, SeenHeads())
    forgets = Server(loop, NothingSeen())
    for pieces in connections:
        assert remembers.feed(pieces) == forgets.feed(pieces)
    got, wanted = (
        [re.sub(b"^by task: ", b"", sent) for sent in server.app.wire.sent]
        for server in (remembers, forgets)
    )
    assert got == wanted
    return remembers.app


def chat(body: bytes, length: bytes | None = None, *lines: bytes, name: bytes = b"Content-Length",
         key: bytes = b"sk-1") -> bytes:  # fmt: skip
    """A request with a body; the headers before it, the length, and one after it."""
    said = b"%d" % len(body) if length is None else length
    head = [
        b"POST /v1/x HTTP/1.1", b"Host: a", b"Authorization: Bearer " + key, *lines,
        name + b": " + said, b"X-Last: 1",
    ]  # fmt: skip
    return b"\r\n".join(head) + b"\r\n\r\n" + body


GET = b"GET /v1/x?a=1 HTTP/1.1\r\nHost: a\r\n\r\n"


def test_a_head_that_has_been_seen_is_not_parsed_again(loop: asyncio.AbstractEventLoop) -> None:
    server = Server(loop, SeenHeads())
    parsed: list[ClientRequest] = []

    class Watched(SeenHeads):
        def keep(self, data: bytes, request: ClientRequest) -> SeenHead | None:
            parsed.append(request)
            return super().keep(data, request)

    server.app.heads = Watched()
    bodies = [b"", b"x", b"{}", b"x" * 1000, b"\r\n\r\n", chat(b"inner"), b"\0" * 30]
    for body in bodies:  # on new connections
        server.feed([chat(body)])
    server.feed([chat(body) for body in bodies])  # on a kept one
    assert len(parsed) == 1
    assert server.app.at_once == 2 * len(bodies)
    sent = server.app.wire.sent
    assert sent[: len(bodies)] == sent[len(bodies) :]
    for body, request in zip(bodies, sent, strict=False):
        onward = b"[{}]" if body == b"{}" else body
        assert request == (
            b"POST /base/v1/x HTTP/1.1\r\nhost: a\r\nauthorization: Bearer sk-1\r\n"
            b"content-length: %d\r\nx-last: 1\r\n\r\n%b" % (len(onward), onward)
        )


@pytest.mark.parametrize("first", [b"5", b"05", b"0005", b"+5", b" 5", b"5 ", b"0x5", b"", b"5,5",
                                   b"00000000005", b"000000000005", b"\t5", b"5\x0b"])  # fmt: skip
@pytest.mark.parametrize("body", [b"hello", b"{abc}"])
def test_one_odd_length_does_not_spoil_the_next(
    loop: asyncio.AbstractEventLoop, first: bytes, body: bytes
) -> None:
    """In whatever form a length comes, each request gets the one framing that is its own."""
    odd = chat(body, first)
    longer = chat(body + b" and more")
    app = both_alike(loop, [[odd], [odd], [longer], [odd], [longer, longer], [chat(b"")], [GET]])
    for request in app.wire.sent:
        head, _, sent = request.removeprefix(b"by task: ").partition(b"\r\n\r\n")
        for value in re.findall(rb"content-length: *(\d+)", head):
            assert int(value) == len(sent), request


HEADS = {
    "lower": chat(b"hello", name=b"content-length"),
    "upper": chat(b"hello", name=b"CONTENT-LENGTH"),
    "odd_case": chat(b"hello", name=b"Content-length"),
    "no_space": chat(b"hello").replace(b"Length: ", b"Length:"),
    "two_spaces": chat(b"hello").replace(b"Length: ", b"Length:  "),
    "tab": chat(b"hello").replace(b"Length: ", b"Length:\t"),
    "trailing_space": chat(b"hello", b"5 "),
    "twice_same": chat(b"hello", b"5", b"Content-Length: 5"),
    "twice_other": chat(b"hello", b"5", b"content-length: 6"),
    "twice_other_first": chat(b"hello", b"6", b"content-length: 5"),
    "twice_odd_case": chat(b"hello", b"5", b"CONTENT-LENGTH: 5"),
    "in_another_value": chat(b"hello", b"5", b"X-A: Content-Length: 7"),
    "looks_like": chat(b"hello", b"5", b"X-Content-Length: 7"),
    "missing": chat(b"").replace(b"Content-Length: 0\r\n", b""),
    "missing_but_body": chat(b"hello").replace(b"Content-Length: 5\r\n", b""),
    "long_digits": chat(b"hello", b"0000000000000000005"),
    "huge": chat(b"hello", b"99999999999999999999999"),
    "nine_digits": chat(b"hello", b"000000005"),
    "ten_digits": chat(b"hello", b"0000000005"),
    "all_lf": chat(b"hello").replace(b"\r\n", b"\n"),
    "one_lf": chat(b"hello").replace(b"Host: a\r\n", b"Host: a\n"),
    "lf_after_length": chat(b"hello").replace(b"Length: 5\r\n", b"Length: 5\n"),
    "lf_at_end": chat(b"").replace(b"\r\n\r\n", b"\r\n\n"),
    "bare_cr": chat(b"hello", b"5\rX: 1"),
    "folded": chat(b"hello", b"5\r\n 6"),
    "leading_crlf": b"\r\n" + chat(b"hello"),
    "leading_empty_lines": b"\r\n\r\n" + chat(b"hello"),
    "head_in_body": chat(chat(b"inner")),
    "empty_line_in_body": chat(b"\r\n\r\n"),
    "length_in_body": chat(b"a\r\nContent-Length: 3\r\n\r\nabc"),
    "expect": chat(b"hello", b"5", b"Expect: 100-continue"),
    "expect_other": chat(b"hello", b"5", b"Expect: 200-ok"),
    "close": chat(b"hello", b"5", b"Connection: close"),
    "close_and_named": chat(b"hello", b"5", b"Connection: X-Hop, close", b"X-Hop: 1"),
    "keep_alive": chat(b"hello", b"5", b"Connection: keep-alive"),
    "named": chat(b"hello", b"5", b"Connection: keep-alive, X-Hop", b"X-Hop: gone"),
    "names_the_length": chat(b"hello", b"5", b"Connection: content-length, X-Last, host"),
    "te": chat(b"hello", b"5", b"TE: trailers", b"Keep-Alive: 300"),
    "chunked": chat(b"5\r\nhello\r\n0\r\n\r\n", b"chunked", name=b"Transfer-Encoding"),
    "both_framings": chat(b"0\r\n\r\n", b"5", b"Transfer-Encoding: chunked"),
    "te_identity": chat(b"hello", b"5", b"Transfer-Encoding: identity"),
    "http_1_0": chat(b"hello").replace(b"1.1", b"1.0"),
    "http_1_0_kept": chat(b"hello", b"5", b"Connection: keep-alive").replace(b"1.1", b"1.0"),
    "http_1_2": chat(b"hello").replace(b"1.1", b"1.2"),
    "head_method": chat(b"").replace(b"POST", b"HEAD"),
    "get": GET,
    "get_with_body": chat(b"hello").replace(b"POST", b"GET"),
    "delete": GET.replace(b"GET", b"DELETE"),
    "connect": GET.replace(b"GET /v1/x?a=1", b"CONNECT a:1"),
    "upgrade": chat(b"hello", b"5", b"Connection: Upgrade", b"Upgrade: websocket"),
    "h2c": GET.replace(b"\r\n\r\n", b"\r\nUpgrade: h2c\r\n\r\n"),
    "no_host": GET.replace(b"Host: a\r\n", b"X: a\r\n"),
    "two_hosts": GET.replace(b"Host: a\r\n", b"Host: a\r\nHost: b\r\n"),
    "absolute": GET.replace(b"/v1/x", b"http://b/v1/x"),
    "encoding": chat(b"hello", b"5", b"Content-Encoding: gzip"),
    "percent": GET.replace(b"a=1", b"a=%d%b%%"),
    "percent_in_value": chat(b"hello", b"5", b"X-Percent: %b %d 100%"),
    "long_head": chat(b"hello", b"5", b"X-Long: " + b"a" * 4200),
    "just_long_enough": chat(b"hello", b"5", b"X-Long: " + b"a" * 3900),
    "surplus_byte": chat(b"hello") + b"x",
    "surplus_line_end": chat(b"hello") + b"\r\n",
    "two_in_one": chat(b"hello") + chat(b"again!"),
    "three_in_one": chat(b"hello") + GET + chat(b"again!"),
    "smuggled": chat(b"hello") + GET,
    "smuggled_by_length": chat(b"hello" + GET, b"5"),
    "short_body": chat(b"hel", b"5"),
    "malformed_after": chat(b"hello") + b"\x00\x01 nonsense\r\n\r\n",
    "nul": chat(b"hello", b"5", b"X-A: \0"),
    "high_bytes": chat(b"hello", b"5", b"X-A: \xff\xfe"),
    "method_of_another_case": chat(b"hello").replace(b"POST", b"post"),
}


@pytest.mark.parametrize("name", HEADS)
def test_each_head_is_read_as_if_it_came_for_the_first_time(
    loop: asyncio.AbstractEventLoop, name: str
) -> None:
    head = HEADS[name]
    usual = chat(b"usual body")
    at = head.find(b"\r\n\r\n") + 4
    both_alike(
        loop,
        [
            [usual], [head], [head], [usual, head, usual], [usual], [head, head], [head + usual],
            [head[:at], head[at:] + usual, usual], [usual + head], [head[:10], head[10:], usual],
        ],
    )  # fmt: skip


SECOND = chat(b"hello", key=b"sk-2")


def test_keys_in_the_same_place_are_never_mixed_up(loop: asyncio.AbstractEventLoop) -> None:
    server = Server(loop, SeenHeads())
    for number in range(200):
        key = b"sk-%d" % (number % 7)
        server.feed([chat(b"body %d" % number, key=key)] * 2 + [SECOND])
        first, again, other = server.app.wire.sent[-3:]
        assert first == again
        assert b"authorization: Bearer %b\r\n" % key in first
        assert b"authorization: Bearer sk-2\r\n" in other


def test_few_heads_are_kept(loop: asyncio.AbstractEventLoop) -> None:
    heads = SeenHeads()
    server = Server(loop, heads)
    for number in range(1000):
        server.feed([chat(b"hello", key=b"sk-%d" % number)])
    assert len(heads._seen) == 256
    for number in (0, 999, 0, 500):  # forgotten, kept, kept, forgotten
        server.feed([chat(b"hello!", key=b"sk-%d" % number)])
        assert b"Bearer sk-%d\r\n" % number in server.app.wire.sent[-1]
        assert server.app.wire.sent[-1].endswith(b"\r\n\r\nhello!")
    assert len(heads._seen) <= 256


def test_long_heads_and_bodies_are_not_kept(loop: asyncio.AbstractEventLoop) -> None:
    heads = SeenHeads()
    server = Server(loop, heads)
    for number in range(300):
        server.feed([chat(b"x" * 60_000, key=b"k%d" % number)])
        server.feed([chat(b"x", b"1", b"X-Long: " + b"a" * 50_000, key=b"k%d" % number)])
    kept = sum(len(before) + len(after) for before, after in heads._seen)
    assert kept < 256 * 4200
    assert all(len(before) < 4100 for before, _ in heads._seen)


lines = st.sampled_from([
    b"X-A: 1", b"X-A: 2", b"Connection: keep-alive", b"Connection: close", b"Connection: X-A",
    b"Expect: 100-continue", b"Content-Length: 5", b"content-length: 7",
    b"Transfer-Encoding: chunked", b"TE: trailers", b"Host: b",
    b"X-%b: %b", b"Content-Encoding: gzip", b"Upgrade: x",
])  # fmt: skip
requests = st.builds(
    lambda body, length, more, name, key, http, end: chat(
        body, length, *more, name=name, key=key
    ).replace(b"HTTP/1.1", http, 1).replace(b"\r\n", end),
    body=st.sampled_from([b"", b"hello", b"{1234}", b"x" * 7, b"a\r\n\r\nb", GET, b"0\r\n\r\n"]),
    length=st.sampled_from([None] * 8 + [b"5", b"05", b"5 ", b"7", b"000", b"1234567890"]),
    more=st.lists(lines, max_size=2),
    name=st.sampled_from([b"Content-Length"] * 4 + [b"content-length", b"CONTENT-LENGTH"]),
    key=st.sampled_from([b"sk-1", b"sk-2"]),
    http=st.sampled_from([b"HTTP/1.1"] * 8 + [b"HTTP/1.0"]),
    end=st.sampled_from([b"\r\n"] * 12 + [b"\n"]),
)  # fmt: skip
anything = requests | st.sampled_from([GET, chat(b"hello"), chat(b"hello, you"), SECOND, b"\r\n"])


@st.composite
def connections(draw: st.DrawFn) -> list[list[bytes]]:
    """Connections of several requests each, in any cutting: whole requests, parts, or several."""
    made = []
    for _ in range(draw(st.integers(1, 4))):
        whole = draw(st.lists(anything, min_size=1, max_size=5))
        if draw(st.booleans()):
            made.append(whole)
            continue
        data = b"".join(whole)
        places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=5)))
        ends = [0, *places, len(data)]
        made.append([data[a:b] for a, b in pairwise(ends) if a < b])
    return made


@settings(deadline=None, max_examples=400)
@given(made=connections())
def test_any_requests_in_any_cutting_are_read_as_if_nothing_were_remembered(
    made: list[list[bytes]], loop: asyncio.AbstractEventLoop
) -> None:
    both_alike(loop, made)
