"""Engines that answer oddly, wrongly or with malice: what the client gets, and who comes next."""

import contextlib
from collections.abc import Iterator
from itertools import count

import pytest

from tests.conftest import Rig
from tests.support.chat import CHAT
from tests.support.client import RawClient, Response
from tests.support.engine import Conversation, Script, answer
from tests.support.odd_responses import CASES, Odd

ODD = "/v1/odd"
NEXT = "/v1/next"
numbers = count()


@pytest.fixture
def rig(quiet_rig: Rig) -> Rig:
    return quiet_rig


async def echo(c: Conversation) -> None:
    await c.send(answer(c.request.target.encode(), content_type="text/plain"))


def script_of(case: Odd, *, apart: bool) -> Script:
    async def script(c: Conversation) -> None:
        pieces = case.pieces if apart else (b"".join(case.pieces),)
        for number, piece in enumerate(pieces):
            if number:
                await c.pause(0.01)
            if c.peer_gone:
                return
            await c.send(piece)
        if case.then == "stay":
            return
        await c.pause(0.02)
        c.close() if case.then == "close" else c.reset()

    return script


def ask_next(client: RawClient) -> None:
    """A request of its own gets its own answer, and nothing besides."""
    target = f"{NEXT}?{next(numbers)}"
    response = client.request("GET", target).read_response()
    assert response.status_line == b"HTTP/1.1 200 OK"
    assert (bytes(response.body), response.clean) == (target.encode(), True)
    assert response.interim == []
    assert client._buffer == b""


def check_result(case: Odd, response: Response) -> None:
    assert response.status == case.status
    assert response.clean == case.whole
    assert b"EVIL" not in response.head + bytes(response.body) + response.trailers
    if case.status == 502:
        document = response.json()
        assert isinstance(document, dict)
        error = document["error"]
        assert set(error) == {"message", "type", "code", "param"}
        assert error["type"] == "upstream_error"
        assert error["code"] in ("upstream_closed", "upstream_malformed")
    else:
        assert response.body == case.body


def ways() -> Iterator[object]:
    for case in CASES:
        yield pytest.param(case, True, False, id=case.name)
        if len(case.pieces) > 1 or case.then != "stay":
            yield pytest.param(case, False, True, id=f"{case.name}, apart, on a new connection")


@pytest.mark.parametrize(("case", "reused", "apart"), [*ways()])
def test_an_odd_response_harms_its_own_client_at_most(
    rig: Rig, case: Odd, reused: bool, apart: bool
) -> None:
    rig.engine.on(NEXT, echo)
    rig.engine.on(ODD, script_of(case, apart=apart))
    if reused:
        with rig.client() as client:
            ask_next(client)
    else:
        rig.engine.drop_connections()
    with rig.client(5) as client:
        response = client.request(case.method, ODD).read_response(to_head=case.method == "HEAD")
        check_result(case, response)
        received = rig.engine.requests[-1]
        if not case.again:
            received.wait_closed()
        if response.clean:
            ask_next(client)  # the client's own connection is as good as before
        else:
            assert client.at_end()
    with rig.client(5) as other, rig.client(5) as another:
        ask_next(other)
        ask_next(another)
        ask_next(other)
    following = {r.connection for r in rig.engine.requests if r.at > received.at}
    assert (received.connection in following) == case.again
    sent_twice = reused and case.then != "stay" and not case.pieces
    asked = [r for r in rig.engine.requests if r.target == ODD]
    assert len(asked) == (2 if sent_twice else 1)


EARLY = {
    "length": b"HTTP/1.1 %b\r\nContent-Length: 5\r\n\r\nhello",
    "chunks": b"HTTP/1.1 %b\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "close": b"HTTP/1.1 %b\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
}


@pytest.mark.parametrize("goes_on", [True, False], ids=["sends_on", "stops"])
@pytest.mark.parametrize("framed", ["length", "chunked"])
@pytest.mark.parametrize("status", [b"200 OK", b"307 There", b"404 No", b"413 Too Large"])
@pytest.mark.parametrize("early", EARLY)
def test_a_response_before_the_request_s_end_costs_its_connection(
    rig: Rig, early: str, status: bytes, framed: str, goes_on: bool
) -> None:
    """The engine, which has not read the body, would take the next request for its rest."""

    async def script(c: Conversation) -> None:
        await c.send(EARLY[early] % status)
        await c.until_peer_leaves()

    hidden = b"GET /v1/hidden HTTP/1.1\r\nHost: a\r\n\r\n"
    rig.engine.on(NEXT, echo)
    rig.engine.on(ODD, script, early=True)
    rig.engine.on("/v1/hidden", echo)
    with rig.client() as client:
        ask_next(client)
    chunk = b"%x\r\n%b\r\n" % (len(hidden), hidden)
    headers = [("Content-Length", str(2 * len(hidden)))]
    if framed == "chunked":
        headers = [("Transfer-Encoding", "chunked")]
    with rig.client(5) as client:
        client.request("POST", ODD, headers)
        client.send(chunk if framed == "chunked" else hidden)
        response = client.read_response()
        assert response.status == int(status[:3])
        assert (bytes(response.body), response.clean) == (b"hello", True)
        rig.engine.requests[-1].wait_closed()
        with rig.client(5) as other:
            ask_next(other)
        if goes_on:
            with contextlib.suppress(ConnectionError):
                client.send(chunk + b"0\r\n\r\n" if framed == "chunked" else hidden)
    with rig.client(5) as other:
        ask_next(other)
    assert not [r for r in rig.engine.requests if r.target == "/v1/hidden"]


UNREAD = [
    ("POST", CHAT, "200 OK", True),
    ("POST", "/v1/embeddings", "200 OK", True),
    ("POST", CHAT, "400 Bad Request", False),
    ("POST", CHAT, "307 Temporary Redirect", False),
    ("POST", CHAT, "503 Service Unavailable", False),
    ("GET", CHAT, "200 OK", False),
    ("POST", "/v1/files", "200 OK", False),
    ("POST", "/v1/models", "200 OK", False),
    ("POST", "/health", "404 Not Found", False),
    ("PUT", ODD, "204 No Content", False),
    ("DELETE", ODD, "200 OK", False),
]


@pytest.mark.parametrize("framed", ["length", "chunked"])
@pytest.mark.parametrize(("method", "path", "status", "again"), UNREAD)
def test_a_body_that_the_engine_may_not_have_read_costs_its_connection(
    rig: Rig, method: str, path: str, status: str, again: bool, framed: str
) -> None:
    """An engine that leaves it lying takes it for a request: the next one gets its response."""

    async def script(c: Conversation) -> None:
        await c.send(
            answer(b"hello", status) if "204" not in status else b"HTTP/1.1 204 No\r\n\r\n"
        )
        if not again:
            await c.until_peer_leaves()

    hidden = b"GET /v1/hidden HTTP/1.1\r\nHost: a\r\n\r\n"
    rig.engine.on(NEXT, echo)
    rig.engine.on(path, script, early=not again)
    headers = [("Transfer-Encoding", "chunked")] if framed == "chunked" else []
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(hidden), hidden) if headers else hidden
    with rig.client() as client:
        ask_next(client)
    with rig.client(5) as client:
        response = client.request(method, path, headers, body).read_response()
        assert response.status_line.split()[1] == status[:3].encode()
        (_, received) = rig.engine.requests
        if not again:
            received.wait_closed()
        ask_next(client)
    assert (rig.engine.requests[-1].connection == received.connection) == again
