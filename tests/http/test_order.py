"""What the proxy says by itself comes in its turn: never into an answer, never before another."""

import threading
import time
from collections.abc import Callable

import pytest

from tests.conftest import Rig
from tests.http.support import GET, PATH, chunked, echoed, read_all
from tests.support.chat import CHAT, body_of, whole_answer
from tests.support.client import JSON, fetch, request
from tests.support.engine import (
    EVENT_STREAM,
    LAST_CHUNK,
    ROLE,
    Conversation,
    answer,
    chat_event,
    send,
)
from tests.support.metrics import wait_until

EVENTS = whole_answer("a", "b")
A = chat_event("a")
CHUNKED = b"POST /v1/echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"

# What is wrong, the pieces in which it comes, and the status of the answer if there is one.
WRONG: dict[str, tuple[list[bytes], int]] = {
    "head_too_large": (
        [b"GET /v1/echo HTTP/1.1\r\nHost: a\r\n", *[b"X-A: " + b"a" * 30_000 + b"\r\n"] * 4], 431,
    ),
    "head_too_large_at_once": ([request("GET", PATH, [("X-A", "a" * 100_000)])], 431),
    "no_head": ([b"\x00\x01 nonsense\r\n\r\n"], 400),
    "bad_header": ([b"GET /v1/echo HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n"], 400),
    "http_2": ([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], 505),
    "two_hosts": ([b"GET /v1/echo HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"], 400),
    "two_lengths": ([request("POST", PATH, [("Content-Length", "1")] * 2), b"x"], 400),
    "bad_chunk": ([CHUNKED, b"3\r\nabc\r\n", b"zz\r\n"], 400),
    "bad_chunk_at_once": ([CHUNKED + b"3\r\nabcdef\r\n"], 400),
    "endless_trailers": ([CHUNKED, b"0\r\n", *[b"X-A: " + b"a" * 30_000 + b"\r\n"] * 4], 431),
}  # fmt: skip


@pytest.mark.parametrize("ahead", [1, 3])
@pytest.mark.parametrize("wrong", WRONG)
def test_the_running_answer_ends_whole(rig: Rig, wrong: str, ahead: int) -> None:
    go_on = threading.Event()

    async def in_two_halves(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        await c.chunk(ROLE)
        await c.until(go_on)
        await c.chunk(*EVENTS[1:])
        await c.send(LAST_CHUNK)

    echoed(rig)
    rig.engine.on(CHAT, in_two_halves)
    pieces, status = WRONG[wrong]
    with rig.client(5) as client:
        question = request("POST", CHAT, [JSON], body_of(asked=True))
        client.send(question)
        first = client.read_head()
        client.read_body(first, at_least=len(ROLE))
        client.send(GET * (ahead - 1), *pieces, gap=0.02)
        time.sleep(0.05)
        go_on.set()
        client.read_body(first)
        assert first.clean
        assert first.body == b"".join(EVENTS)
        rest = read_all(client)
        assert client._eof
    for response in rest[: ahead - 1]:
        assert response.clean
        assert response.body == b"GET /v1/echo?next HTTP/1.1\n"
    refusals = rest[ahead - 1 :]  # or the connection ends without a word
    assert [r.status for r in refusals] in ([], [status])
    assert len(rig.engine.requests) in (ahead, ahead + 1)  # a part of a body may have gone up


@pytest.mark.parametrize("ahead", [1, 2, 12])
@pytest.mark.parametrize("wrong", WRONG)
def test_all_in_one_packet(rig: Rig, wrong: str, ahead: int) -> None:
    echoed(rig)
    pieces, status = WRONG[wrong]
    with rig.client(5) as client:
        client.send(GET * ahead + b"".join(pieces) + GET)
        responses = read_all(client)
    for response in responses[:ahead]:
        assert response.clean
        assert response.body == b"GET /v1/echo?next HTTP/1.1\n"
    assert [r.status for r in responses[ahead:]] in ([], [status])


@pytest.mark.parametrize("wrong", WRONG)
def test_alone_it_is_refused_in_whole_and_counted(rig: Rig, wrong: str) -> None:
    echoed(rig)
    pieces, status = WRONG[wrong]
    watch = rig.watch()
    with rig.client(5) as client:
        client.send(*pieces, gap=0.02)
        response = client.read_response()
        assert response.status == status
        assert response.clean
        error = response.json()
        assert isinstance(error, dict)
        assert set(error["error"]) == {"message", "type", "param", "code"}
        assert response.values("connection") == [b"close"]
        assert client.at_end()
    gained = watch.after()
    assert gained.outcomes == {"rejected": 1}
    (labels,) = gained.labels("requests_total")
    assert labels["code"] == str(status)
    assert labels["model"] == "other"
    assert labels["route"] == "other"


def test_a_refusal_waits_for_an_answer_that_is_cut(rig: Rig) -> None:
    async def cut(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        await c.chunk(ROLE)
        await c.pause(0.1)
        c.close()

    rig.engine.on(CHAT, cut)
    with rig.client(5) as client:
        client.send(request("POST", CHAT, [JSON], body_of(asked=True)))
        client.send(request("GET", PATH, [("X-A", "a" * 100_000)]))
        response = client.read_response()
        assert not response.clean
        assert response.body == ROLE
        assert client._eof


def test_bad_chunk_while_the_engine_already_answers(rig: Rig) -> None:
    """The engine never gets the whole request: its answer is cut, not continued by another."""

    async def early(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        await c.chunk(ROLE)
        await c.until_peer_leaves()

    rig.engine.on(PATH, early, early=True)
    watch = rig.watch()
    with rig.client(5) as client:
        client.send(CHUNKED + b"3\r\nabc\r\n")
        response = client.read_head()
        client.read_body(response, at_least=len(ROLE))
        client.send(b"zz\r\n")
        client.read_body(response)
        assert not response.clean
        assert response.body == ROLE
        assert client._eof
    rig.engine.requests[0].wait_closed()
    assert watch.after().outcomes == {"rejected": 1}


def test_bad_chunk_while_an_error_comes_from_the_engine(rig: Rig) -> None:
    """It reads no more of the request: what it says about that goes on, whatever follows."""
    go_on = threading.Event()

    async def refuse(c: Conversation) -> None:
        await c.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 10\r\n\r\n01234")
        await c.until(go_on)
        await c.send(b"56789")

    rig.engine.on(PATH, refuse, early=True)
    with rig.client(5) as client:
        client.send(CHUNKED + b"3\r\nabc\r\n")
        response = client.read_head()
        client.read_body(response, at_least=5)
        client.send(b"zz\r\n")
        time.sleep(0.05)
        go_on.set()
        client.read_body(response)
        assert response.clean
        assert response.body == b"0123456789"
        assert client.at_end()


def test_a_refusal_is_read_although_the_client_still_sends(rig: Rig) -> None:
    """A connection closed at once would be reset, and the answer lost with it."""
    with rig.client(5) as client:
        client.send(b"GET /v1/echo HTTP/1.1\r\nHost: a\r\nX-A: ")
        for _ in range(10):
            client.send(b"a" * 65536)
            time.sleep(0.005)
        assert client.read_response().status == 431
        assert client.at_end()


def test_a_request_behind_an_answer_is_not_in_flight_beside_it(
    new_rig: Callable[..., Rig],
) -> None:
    rig = echoed(new_rig(max_in_flight=1, max_body_bytes=100))
    too_large = request("POST", PATH, [], b"x" * 101)
    with rig.client(5) as client:
        for _ in range(10):
            client.send(GET + too_large + GET + GET + too_large)
            statuses = [client.read_response().status for _ in range(5)]
            assert statuses == [200, 413, 200, 200, 413]


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings", "/v1/files"])
@pytest.mark.parametrize("size", [5, 300_000])
@pytest.mark.parametrize("coding", ["length", "chunked"])
@pytest.mark.parametrize("warm", [False, True], ids=["fresh", "reused"])
def test_a_client_that_leaves_is_seen_whatever_it_sent(
    rig: Rig, warm: bool, coding: str, size: int, path: str
) -> None:
    """Also one whose body came while the connection to the engine was made."""

    async def never(c: Conversation) -> None:
        await c.until_peer_leaves()

    def dropped() -> bool:
        rig.engine.drop_connections()  # again: one may be accepted after the others were dropped
        return not rig.engine.open_connections

    wait_until(dropped)
    if warm:
        rig.engine.on("/v1/warm", send(answer(b"ok")))
        assert fetch(rig.port, "GET", "/v1/warm").status == 200
        rig.engine.requests.clear()
    rig.engine.on(path, never)
    body = b"x" * size
    with rig.client() as client:
        if coding == "chunked":
            client.send(CHUNKED.replace(PATH.encode(), path.encode()) + chunked(body))
        else:
            client.send(request("POST", path, [], body))
        (received,) = rig.engine.wait_requests(1)
        received.wait_complete()
        left = time.monotonic()
    assert received.wait_closed() - left < 2
    wait_until(lambda: not rig.scrape().total("requests_in_flight"))
