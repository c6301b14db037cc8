"""Requests that find an idle connection to the engine: their ends, refusals and faults."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from tests.conftest import Rig
from tests.support.chat import CHAT, COMPLETIONS, ask, body_of, whole_answer
from tests.support.client import JSON, RawClient, fetch, request
from tests.support.engine import (
    DONE,
    EVENT_STREAM,
    LAST_CHUNK,
    ROLE,
    Conversation,
    answer,
    chat_event,
    json_answer,
    send,
    stream,
)
from tests.support.metrics import scrape, wait_until
from tests.support.process import serving

A = chat_event("a")
STOP = chat_event("", finish="stop")
EVENTS = whole_answer("a", "b")
SOON = 0.5  # 100 ms is what is promised; the rest is for a busy machine


def warm(rig: Rig, count: int = 1) -> None:
    """Leave idle connections at the engine, and forget how they came about."""
    watch = rig.watch()
    rig.leave_idle(count)
    watch.after(count)


def in_flight(port: int) -> float:
    return scrape(port).total("requests_in_flight") or 0.0


async def never(c: Conversation) -> None:
    await c.until_peer_leaves()


async def three(c: Conversation) -> None:
    await c.send(EVENT_STREAM)
    await c.chunk(ROLE, A, A, A)
    await c.until_peer_leaves()


def begin(rig: Rig, script: Any, *, asked: bool = True, **fields: Any) -> RawClient:
    rig.engine.on(CHAT, script)
    client = rig.client()
    client.request("POST", CHAT, [JSON], body_of(asked=asked, **fields))
    return client


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("asked", [True, False], ids=["asked", "unasked"])
@pytest.mark.parametrize("when", ["before_head", "mid_stream", "in_the_head"])
def test_client_leaves(rig: Rig, when: str, asked: bool, how: str) -> None:
    async def half_head(c: Conversation) -> None:
        await c.send(EVENT_STREAM[:30])
        await c.until_peer_leaves()

    script = {"before_head": never, "mid_stream": three, "in_the_head": half_head}[when]
    warm(rig)
    watch = rig.watch()
    client = begin(rig, script, asked=asked)
    (received,) = rig.engine.wait_requests(1)
    received.wait_complete()
    if when == "mid_stream":
        client.read_body(client.read_head(), at_least=len(ROLE + A * 3))
    else:
        time.sleep(0.05)
    assert in_flight(rig.port) == 1
    left = time.monotonic()
    client.reset() if how == "reset" else client.close()
    assert received.wait_closed() - left < SOON
    gained = watch.after()
    assert gained.outcomes == {"client_closed": 1}
    assert gained.total("token_events_total") == (3 if when == "mid_stream" else None)
    assert in_flight(rig.port) == 0


def test_client_leaves_with_a_pipelined_request_pending(rig: Rig) -> None:
    warm(rig, 2)
    watch = rig.watch()
    client = begin(rig, three)
    client.read_body(client.read_head(), at_least=len(ROLE + A * 3))
    client.request("POST", CHAT, [JSON], body_of())
    time.sleep(0.1)
    left = time.monotonic()
    client.close()
    (received,) = rig.engine.requests
    assert received.wait_closed() - left < SOON
    assert watch.after().outcomes == {"client_closed": 1}
    time.sleep(0.1)
    assert len(rig.engine.requests) == 1, "the pending one is not carried out"
    assert in_flight(rig.port) == 0


def test_pipelined_requests_are_answered_in_order(rig: Rig) -> None:
    warm(rig, 3)
    watch = rig.watch()
    rig.engine.on(CHAT, stream(*EVENTS, gap=0.02))
    rig.engine.on("/v1/embeddings", send(json_answer({"data": []})))
    chat = request("POST", CHAT, [JSON], body_of(asked=True))
    embed = request("POST", "/v1/embeddings", [JSON], b'{"input":"x"}')
    with rig.client(5) as client:
        client.send(embed).read_response()  # known from now on, and the first of its connection
        client.send(chat).read_response()
        client.send(chat, embed + chat, embed, gap=0.01)
        got = [client.read_response() for _ in range(4)]
    assert [bytes(g.body) for g in got] == [b"".join(EVENTS), b'{"data": []}'] * 2
    assert all(g.clean for g in got)
    assert [r.target for r in rig.engine.requests[2:]] == [CHAT, "/v1/embeddings"] * 2
    assert watch.after(6).outcomes == {"ok": 6}


def test_malformed_bytes_after_a_complete_request(rig: Rig) -> None:
    """The request gets its answer; then the connection ends."""
    warm(rig, 2)
    watch = rig.watch()
    rig.engine.on(CHAT, stream(*EVENTS, gap=0.03))
    good = request("POST", CHAT, [JSON], body_of(asked=True))
    with rig.client(5) as client:
        client.send(good)
        response = client.read_head()
        client.send(b"\x00\x01 nonsense\r\n\r\n")
        assert client.read_body(response).clean
        assert response.body == b"".join(EVENTS)
        assert client.at_end()
    with rig.client(5) as client:
        client.send(good + b"\x00\x01 nonsense\r\n\r\n")
        assert client.read_response().body == b"".join(EVENTS)
        assert client.at_end()
    assert watch.after(2).outcomes == {"ok": 2}
    assert len(rig.engine.requests) == 2


def test_slow_client_before_a_flood(new_rig: Callable[..., Rig]) -> None:
    rig = new_rig()
    piece = chat_event("x" * 30_000)
    count = 2000
    written = 0

    async def flood(c: Conversation) -> None:
        nonlocal written
        await c.send(EVENT_STREAM)
        for _ in range(count):
            await c.chunk(piece)
            written += 1
        await c.send(LAST_CHUNK)

    rig.engine.on(COMPLETIONS, stream(*EVENTS, gap=0.01))
    ask(rig.port, path=COMPLETIONS)
    warm(rig, 2)
    process = psutil.Process(os.getpid())
    before = process.memory_info().rss
    rig.engine.on(CHAT, flood)
    with rig.client(receive_buffer=4096) as slow:
        slow.request("POST", CHAT, [JSON], body_of(asked=True))
        for _ in range(10):
            started = time.monotonic()
            assert ask(rig.port, path=COMPLETIONS).body == b"".join(EVENTS)
            assert time.monotonic() - started < 2.0
        assert written * len(piece) < 25_000_000, "the engine was not made to wait"
        assert process.memory_info().rss - before < 20_000_000
        response = slow.read_response()
    assert response.clean
    assert response.body == piece * count


def test_slow_client_before_single_tokens(new_rig: Callable[..., Rig]) -> None:
    rig = new_rig()
    piece = chat_event("x" * 800)
    most = 20_000
    written = 0
    enough = threading.Event()

    async def tokens(c: Conversation) -> None:
        nonlocal written
        await c.send(EVENT_STREAM)
        while written < most and not enough.is_set():
            await c.chunk(piece)
            written += 1
            await c.pause(0.0005)
        await c.send(LAST_CHUNK)

    warm(rig)
    rig.engine.on(CHAT, tokens)
    with rig.client(receive_buffer=4096) as slow:
        slow.request("POST", CHAT, [JSON], body_of(asked=True))
        before = -1
        while written != before and written < most:
            before = written
            time.sleep(1)
        assert 100 < written < most, "the engine was not made to wait"
        enough.set()
        response = slow.read_response()
    assert response.clean
    assert response.body == piece * written


def test_a_client_that_pipelines_and_does_not_read_is_made_to_wait(rig: Rig) -> None:
    body = b"x" * 30_000
    warm(rig)
    rig.engine.on("/v1/x", send(answer(body)))
    asked = 400
    before = psutil.Process().memory_info().rss
    with rig.client(receive_buffer=4096) as client:
        question = request("GET", "/v1/x")
        client.send(question).read_response()
        client.send(*[question] * asked)
        time.sleep(1)
        assert len(rig.engine.requests) < asked / 2
        assert psutil.Process().memory_info().rss - before < 10_000_000
        for _ in range(asked):
            response = client.read_response()
            assert response.clean
            assert response.body == body
        client.send(question)
        assert client.read_response().body == body
    assert len(rig.engine.requests) == asked + 2
    wait_until(lambda: in_flight(rig.port) == 0)


def test_malformed_bytes_after_answers_that_are_not_read(rig: Rig) -> None:
    """All whole requests are answered; then the connection ends."""
    body = b"x" * 300_000
    warm(rig)
    rig.engine.on("/v1/x", send(answer(body)))
    with rig.client(receive_buffer=4096) as client:
        question = request("GET", "/v1/x")
        client.send(
            *[question] * 20, b"POST /v1/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked"
        )
        client.send(b"\r\n\r\nzz\r\n")
        time.sleep(0.3)
        for _ in range(20):
            assert client.read_response().body == body
        assert client.at_end()
    wait_until(lambda: in_flight(rig.port) == 0)


async def reset_it(c: Conversation) -> None:
    c.reset()


async def close_it(c: Conversation) -> None:
    c.close()


@pytest.mark.parametrize("dies", [close_it, reset_it])
@pytest.mark.parametrize("asked", [True, False], ids=["asked", "unasked"])
def test_engine_that_has_left_is_asked_once_more(rig: Rig, dies: Any, asked: bool) -> None:
    warm(rig)
    watch = rig.watch()
    rig.engine.on(CHAT, dies, stream(*EVENTS))
    response = ask(rig.port, asked=asked)
    assert response.clean
    assert response.body.startswith(ROLE + A)
    assert watch.after().outcomes == {"ok": 1}
    first, second = rig.engine.requests
    assert (first.head, first.body) == (second.head, second.body)
    assert in_flight(rig.port) == 0


@pytest.mark.parametrize("dies", [close_it, reset_it])
def test_engine_that_leaves_twice_is_not_asked_a_third_time(rig: Rig, dies: Any) -> None:
    warm(rig, 3)  # so that the second try reuses a connection, too
    watch = rig.watch()
    rig.engine.on(CHAT, dies)
    response = ask(rig.port)
    assert response.status == 502
    assert len(rig.engine.requests) == 2
    assert sum(watch.after().outcomes.values()) == 1
    assert in_flight(rig.port) == 0


REFUSAL = json_answer(
    {"error": {"message": "extra fields not permitted: stream_options"}}, "400 Bad Request"
)


@pytest.mark.parametrize("apart", [False, True], ids=["one_read", "two_reads"])
def test_engine_that_refuses_what_was_added_gets_the_clients_own(
    new_rig: Callable[..., Rig], apart: bool
) -> None:
    rig = new_rig()
    rig.teach()
    warm(rig)
    head, _, body = REFUSAL.partition(b"\r\n\r\n")

    async def refuse(c: Conversation) -> None:
        await c.send(head + b"\r\n\r\n")
        if apart:
            await c.pause(0.05)
        await c.send(body)

    rig.engine.on(CHAT, refuse, stream(*EVENTS[:3], DONE))
    watch = rig.watch()
    response = ask(rig.port, asked=False)
    assert response.clean
    assert response.body == b"".join([*EVENTS[:3], DONE])
    first, second = rig.engine.requests
    assert b"stream_options" in first.body
    assert bytes(second.body) == body_of(asked=False)
    assert watch.after().outcomes == {"ok": 1}
    assert in_flight(rig.port) == 0


def test_a_refusal_of_the_clients_own_request_passes(rig: Rig) -> None:
    refusal = json_answer({"error": {"message": "no such model"}}, "400 Bad Request")
    rig.teach()
    warm(rig)
    rig.engine.on(CHAT, send(refusal))
    watch = rig.watch()
    response = ask(rig.port, asked=False)
    assert response.status == 400
    assert response.body == refusal.partition(b"\r\n\r\n")[2]
    assert watch.after().outcomes == {"upstream_error": 1}
    assert len(rig.engine.requests) == 2


@pytest.mark.parametrize("end", ["close", "reset", "bad_chunk"])
def test_engine_that_breaks_off_ends_the_answer_uncleanly(rig: Rig, end: str) -> None:
    async def script(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        await c.chunk(ROLE, A, A)
        await c.pause(0.05)
        if end == "bad_chunk":
            await c.send(b"zz\r\n")
            await c.until_peer_leaves()
        elif end == "reset":
            c.reset()
        else:
            c.close()

    warm(rig)
    watch = rig.watch()
    with begin(rig, script) as client:
        response = client.read_response()
    assert not response.clean
    assert response.body == ROLE + A * 2
    gained = watch.after()
    assert gained.outcomes == {"upstream_incomplete": 1}
    assert in_flight(rig.port) == 0


def test_max_in_flight(new_rig: Callable[..., Rig]) -> None:
    rig = new_rig(max_in_flight=2)
    warm(rig, 2)
    watch = rig.watch()
    running = [begin(rig, three) for _ in range(2)]
    for client in running:
        client.read_body(client.read_head(), at_least=len(ROLE))
    with rig.client() as third:
        third.request("POST", CHAT, [JSON], body_of(asked=True))
        response = third.read_response()
        assert response.status == 503
        assert watch.after().outcomes == {"rejected": 1}
        running[0].close()
        assert watch.after().outcomes == {"client_closed": 1}
        rig.engine.on(CHAT, stream(*EVENTS))
        third.request("POST", CHAT, [JSON], body_of(asked=True))
        assert third.read_response().body == b"".join(EVENTS)
    assert watch.after().outcomes == {"ok": 1}
    running[1].close()
    assert watch.after().outcomes == {"client_closed": 1}
    assert in_flight(rig.port) == 0
    assert len(rig.engine.requests) == 3


@pytest.mark.timeout(240)
def test_the_drain_limit_cuts_a_stream_that_was_begun_at_once(rig: Rig, tmp_path: Any) -> None:
    log = tmp_path / "log"

    async def endless(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        for _ in range(1000):
            await c.chunk(A)
            await c.pause(0.02)

    rig.engine.on(CHAT, stream(*EVENTS), endless)
    options = ["--request-log", str(log), "--drain-delay", "0", "--drain-timeout", "1"]
    with serving(rig.engine.url, *options) as process:
        with RawClient(process.port) as client:
            client.request("POST", CHAT, [JSON], body_of(asked=True))
            assert client.read_response().clean
            client.request("POST", CHAT, [JSON], body_of(asked=True))
            response = client.read_head()
            client.read_body(response, at_least=len(A))
            process.signal(signal.SIGTERM)
            at = time.monotonic()
            client.read_body(response)
        assert not response.clean
        assert 0.5 < time.monotonic() - at < 10
        assert process.ended() in (0, -signal.SIGTERM)
        assert "Traceback" not in process.text
    first, second = (json.loads(line) for line in log.read_text().splitlines())
    assert first["outcome"] == "ok"
    assert second["outcome"] == "proxy_shutdown"


def test_a_kept_connection_serves_the_own_pages_in_between(rig: Rig) -> None:
    """Those are not carried at once, though their heads look as simple."""
    warm(rig)
    rig.engine.on(CHAT, stream(*EVENTS))
    with rig.client() as client:
        for _ in range(3):
            client.request("POST", CHAT, [JSON], body_of(asked=True))
            assert client.read_response().body == b"".join(EVENTS)
            client.request("GET", "/tokgauge/healthz")
            assert client.read_response().status == 200
    assert fetch(rig.port, "GET", "/tokgauge/readyz").status == 200
