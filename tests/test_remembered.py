"""Heads that a running proxy remembers: the bytes on both sides are those of one that does not."""

import contextlib
import re
import time
from collections.abc import Iterator

import pytest

from proxy.client_request import ClientRequest, SeenHead, SeenHeads
from tests.conftest import MODELS, Rig, start_proxy
from tests.support.chat import CHAT, body_of, whole_answer
from tests.support.client import JSON, RawClient, request
from tests.support.engine import (
    LAST_CHUNK,
    Conversation,
    Script,
    ScriptedEngine,
    answer,
    send,
)

LAST = b"GET /v1/last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


class NoHeads(SeenHeads):
    def find(self, data: bytes) -> SeenHead | None:
        return None

    def keep(self, data: bytes, request: ClientRequest) -> SeenHead | None:
        return None


@pytest.fixture(scope="module")
def rigs() -> Iterator[tuple[Rig, Rig]]:
    """A proxy that remembers heads and one that does not, each with an engine of its own."""
    with ScriptedEngine(MODELS) as first, ScriptedEngine(MODELS) as second:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("proxy.app.SeenHeads", NoHeads)
            forgets = start_proxy(upstream=second.url)
            forgets.__enter__()
        try:
            with start_proxy(upstream=first.url) as remembers:
                yield Rig(first, remembers), Rig(second, forgets)
        finally:
            forgets.__exit__(None, None, None)


async def echo(c: Conversation) -> None:
    """Answer with the request as it came."""
    await c.send(answer(c.request.head + bytes(c.request.body), content_type="text/plain"))


def everything(client: RawClient) -> bytes:
    """All bytes until the proxy closes; ids and the engine's port are taken out."""
    while client._more():
        pass
    got = re.sub(rb"(?m)^x-tokgauge-id: \w+\r\n", b"", bytes(client._buffer))
    return re.sub(rb"127.0.0.1:\d+", b"", got)


def talk(rig: Rig, connections: list[list[bytes]], gap: float) -> list[bytes]:
    heard = []
    for pieces in connections:
        with rig.client(5) as client:
            with contextlib.suppress(ConnectionError):  # refused before the end
                client.send(*pieces, gap=gap)
            heard.append(everything(client))
    return heard


def both_alike(
    rigs: tuple[Rig, Rig], connections: list[list[bytes]], scripts: dict[str, list[Script]],
    gap: float = 0.01,
) -> list[bytes]:  # fmt: skip
    """Talk to both proxies; clients and engines must get the same. Returns what clients got."""
    heard, engines = [], []
    for rig in rigs:
        rig.engine.forget()
        for path, path_scripts in scripts.items():
            rig.engine.on(path, *path_scripts)
        rig.engine.on("/v1/last", echo)
        heard.append(talk(rig, connections, gap))
        engines.append([(bytes(r.head), bytes(r.body)) for r in rig.engine.requests])
    assert heard[0] == heard[1]
    assert engines[0] == engines[1]
    return heard[0]


def post(body: bytes, length: bytes | None = None, *more: str, key: str = "sk-1") -> bytes:
    headers = [JSON, ("Authorization", f"Bearer {key}"), *(("X-M", m) for m in more)]
    plain = request("POST", "/v1/x", [*headers, ("Content-Length", str(len(body)))], body)
    if length is None:
        return plain
    return plain.replace(b"Length: %d" % len(body), b"Length: " + length)


def with_line(request: bytes, line: bytes) -> bytes:
    return request.replace(b"\r\n\r\n", b"\r\n" + line + b"\r\n\r\n", 1)


ECHO = {"/v1/x": [echo], CHAT: [echo]}
SMUGGLED = b"GET /v1/x?smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
REQUESTS: dict[str, list[bytes]] = {
    "usual": [post(b"hello"), post(b"hello, you"), post(b""), post(SMUGGLED)],
    "leading_zeros_first": [post(b"hello", b"005"), post(b"hello" + SMUGGLED), post(b"hello")],
    "leading_zeros_later": [post(b"hello"), post(b"hello" + SMUGGLED, b"0046"), post(b"hello")],
    "surplus": [post(b"hello"), post(b"hello" + SMUGGLED, b"5"), post(b"hello")],
    "surplus_of_a_post": [post(b"hello"), post(b"hello") + post(b"more"), post(b"hello")],
    "keys": [post(b"a", key="sk-1"), post(b"b", key="sk-2"), post(b"c", key="sk-1")],
    "chat": [
        request("POST", CHAT, [JSON], body_of(max_tokens=n, asked=a))
        for n in (1, 10, 100) for a in (True, False)
    ],
    "expect": [post(b"hello"), with_line(post(b"hello"), b"Expect: 100-continue")],
    "length_in_the_body": [post(b"\r\nContent-Length: 3\r\n\r\nabc"), post(b"hello")],
    "malformed_after": [post(b"hello"), post(b"hello") + b"\0\0\r\n\r\n"],
    "short": [post(b"hello"), post(b"hello")[:-2], b"lo", post(b"hello")],
    "upper": [post(b"hello").replace(b"Content-L", b"CONTENT-L"), post(b"hello!")],
    "two_lengths": [post(b"hello"), with_line(post(b"hello"), b"Content-Length: 5")],
    "get": [request("GET", "/v1/x?a=%b%", []), request("HEAD", "/v1/x", []),
            request("GET", "/v1/x?a=%b%", [])],
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_requests_reach_the_engine_as_if_nothing_were_remembered(
    rigs: tuple[Rig, Rig], name: str
) -> None:
    requests = REQUESTS[name]
    repeated = [one for one in requests for _ in range(2)]
    connections = [
        [*requests, LAST],
        [*repeated, LAST],
        *[[one + LAST] for one in requests],
        [b"".join([*requests, LAST])],
        [post(b"before") + requests[0], *requests[1:], LAST],
    ]
    scripts = ECHO
    if name == "get":  # no body may follow an answer to HEAD
        scripts = {"/v1/x": [send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")]}
    both_alike(rigs, connections, scripts)


def test_a_length_with_zeros_never_frames_the_request_of_another_client(
    rigs: tuple[Rig, Rig],
) -> None:
    rig, _ = rigs
    rig.engine.forget()
    rig.engine.on("/v1/x", echo)
    key = "sk-zeros"
    for raw in (post(b"hello", b"005", key=key), post(b"hello" + SMUGGLED, key=key)) * 2:
        with rig.client(5) as client:
            client.send(raw)
            client.read_response()
    assert [bytes(r.body) for r in rig.engine.requests] == [b"hello", b"hello" + SMUGGLED] * 2


def test_more_clients_than_are_remembered_keep_their_keys_apart(rigs: tuple[Rig, Rig]) -> None:
    rig, _ = rigs
    rig.engine.forget()
    rig.engine.on("/v1/x", echo)
    with rig.client(5) as kept:
        for number in [*range(300), *range(300)]:
            kept.send(post(b"body %d" % number, key=f"sk-{number}"))
            got = kept.read_response().body
            assert b"Bearer sk-%d\r\n" % number in got
            assert got.endswith(b"\r\n\r\nbody %d" % number)


DATE = b"Mon, 30 Nov 2026 12:00:00 GMT"


def one(body: bytes, *lines: bytes, reason: bytes = b"OK") -> bytes:
    head = [b"HTTP/1.1 200 " + reason, *lines, b"content-length: %d" % len(body)]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def dated(body: bytes, second: int, *lines: bytes) -> bytes:
    return one(body, b"date: " + DATE.replace(b":00 ", b":%02d " % second), *lines)


EVENTS = whole_answer("a", "b")


def test_answers_to_head_and_to_http_1_0_are_not_those_to_others(rigs: tuple[Rig, Rig]) -> None:
    rig, _ = rigs
    rig.engine.forget()
    events_of = b"".join(EVENTS)

    async def script(c: Conversation) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
        head += b"transfer-encoding: chunked\r\n\r\n"
        if c.request.method == "HEAD":
            await c.send(head)
        else:
            await c.send(head, b"%x\r\n%b\r\n" % (len(events_of), events_of), LAST_CHUNK)

    rig.engine.on("/v1/x", script)
    for _ in range(2):
        with rig.client(5) as client:
            for method in ("GET", "HEAD", "GET"):
                client.send(request(method, "/v1/x"))
                response = client.read_response(to_head=method == "HEAD")
                assert response.clean
                assert response.body == (b"" if method == "HEAD" else events_of)
        with rig.client(5) as client:
            client.send(request("GET", "/v1/x", version="HTTP/1.0"))
            response = client.read_response()
            assert response.framing == "close"
            assert response.body == events_of


def test_each_client_gets_its_own_cookie(rigs: tuple[Rig, Rig]) -> None:
    rig, _ = rigs
    rig.engine.forget()

    async def script(c: Conversation) -> None:
        key = c.request.header("authorization") or b""
        await c.send(dated(key, int(time.time()) % 60, b"set-cookie: key=" + key))

    rig.engine.on("/v1/x", script)
    with rig.client(5) as first, rig.client(5) as second:
        for number in range(60):
            keys = (f"first-{number % 3}", f"second-{number % 5}")
            for client, key in zip((first, second), keys, strict=True):
                client.send(post(b"{}", key=key))
            for client, key in zip((first, second), keys, strict=True):
                response = client.read_response()
                assert response.values("set-cookie") == [f"key=Bearer {key}".encode()]
                assert response.body == f"Bearer {key}".encode()
