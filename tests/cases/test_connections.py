"""Cases 25-33: clients that leave, engines that fail, slow readers, and HTTP's corners."""

import asyncio
import gzip
import json
import os
import random
import re
import socket
import threading
import time
import zlib
from collections.abc import Callable

import psutil
import pytest

from tests.conftest import Rig
from tests.support.chat import CHAT, ask, body_of, whole_answer
from tests.support.client import JSON, RawClient, UncleanEnd, fetch, post, request
from tests.support.engine import (
    DONE,
    EVENT_STREAM,
    LAST_CHUNK,
    ROLE,
    Conversation,
    ScriptedEngine,
    answer,
    chat_event,
    json_answer,
    send,
    stream,
)
from tests.support.metrics import scrape, wait_until

A = chat_event("a")
STOP = chat_event("", finish="stop")
# 100 ms is what is promised; the rest is for a busy machine.
SOON = 0.5


def in_flight(port: int) -> float:
    return scrape(port).total("requests_in_flight") or 0.0


async def endless(c: Conversation) -> None:
    """Tokens for ever (20 s at most)."""
    await c.send(EVENT_STREAM)
    await c.chunk(ROLE)
    for _ in range(2000):
        await c.chunk(A)
        await c.pause(0.01)


async def never(c: Conversation) -> None:
    """No answer at all."""
    await c.until_peer_leaves()


def left_by(c: RawClient, how: str) -> float:
    if how == "reset":
        c.reset()
    else:
        c.close()
    return time.monotonic()


LEAVING = pytest.mark.parametrize("how", ["close", "reset"])


@LEAVING
def test_case_25_client_leaves_while_a_refusal_is_looked_at(rig: Rig, how: str) -> None:
    """The proxy reads a 400 before it passes it on, to see whether its own wish was refused."""

    async def half_a_refusal(c: Conversation) -> None:
        await c.send(b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n")
        await c.send(b"content-length: 500\r\n\r\n{")
        await c.until_peer_leaves()

    rig.engine.on(CHAT, half_a_refusal)
    watch = rig.watch()
    client = rig.client()
    client.request("POST", CHAT, [JSON], body_of(asked=False))
    (received,) = rig.engine.wait_requests(1)
    time.sleep(0.2)
    left = left_by(client, how)
    assert received.wait_closed() - left < SOON
    assert watch.after().outcomes == {"client_closed": 1}


@LEAVING
@pytest.mark.parametrize("asked", [True, False], ids=["asked", "unasked"])
def test_case_25_client_leaves_after_three_events(rig: Rig, how: str, asked: bool) -> None:
    async def three(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        await c.chunk(ROLE, A, A, A)
        await c.until_peer_leaves()

    rig.engine.on(CHAT, three)
    watch = rig.watch()
    client = rig.client()
    client.request("POST", CHAT, [JSON], body_of(asked=asked))
    client.read_body(client.read_head(), at_least=len(ROLE + A * 3))
    left = left_by(client, how)
    assert rig.engine.requests[0].wait_closed() - left < SOON
    gained = watch.after()
    assert gained.outcomes == {"client_closed": 1}
    assert gained.total("completion_tokens_total", source="events") == 3
    assert gained.total("token_events_total") == 3
    assert gained.count("time_to_first_token_seconds") == 1
    assert in_flight(rig.port) == 0


@LEAVING
def test_case_25_client_leaves_while_tokens_flow(rig: Rig, how: str) -> None:
    rig.engine.on(CHAT, endless)
    watch = rig.watch()
    client = rig.client()
    client.request("POST", CHAT, [JSON], body_of())
    client.read_body(client.read_head(), at_least=len(ROLE + A * 10))
    left = left_by(client, how)
    assert rig.engine.requests[0].wait_closed() - left < SOON
    assert watch.after().outcomes == {"client_closed": 1}


@LEAVING
@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
def test_case_25_client_leaves_before_headers(rig: Rig, how: str, streaming: bool) -> None:
    rig.engine.on(CHAT, never)
    watch = rig.watch()
    client = rig.client()
    client.request("POST", CHAT, [JSON], body_of(stream=streaming))
    (received,) = rig.engine.wait_requests(1)
    received.wait_complete()
    time.sleep(0.05)
    left = left_by(client, how)
    assert received.wait_closed() - left < SOON
    gained = watch.after()
    assert gained.outcomes == {"client_closed": 1}
    assert gained.total("completion_tokens_total") is None
    assert in_flight(rig.port) == 0


@LEAVING
def test_case_25_client_leaves_while_it_uploads(rig: Rig, how: str) -> None:
    rig.engine.on("/v1/audio/transcriptions", never)
    watch = rig.watch()
    client = rig.client()
    client.request("POST", "/v1/audio/transcriptions", [("Content-Length", "100000000")])
    client.send(b"x" * 1_000_000)
    time.sleep(0.1)
    left_by(client, how)
    gained = watch.after()
    assert gained.outcomes == {"client_closed": 1}
    assert in_flight(rig.port) == 0
    for received in rig.engine.requests:
        received.wait_closed()
        assert received.complete_at is None, "a half upload was dressed up as a whole one"


def test_case_25_half_closed_client_still_gets_its_answer_or_is_gone(rig: Rig) -> None:
    """A client that only shuts its sending side may count as gone; it must not hang."""
    rig.engine.on(CHAT, stream(*whole_answer("a", "b"), gap=0.02))
    watch = rig.watch()
    with rig.client(5) as client:
        client.request("POST", CHAT, [JSON], body_of())
        client.shutdown_write()
        try:
            response = client.read_response()
        except UncleanEnd:
            response = None
    (outcome,) = watch.after().outcomes
    assert outcome in {"ok", "client_closed"}
    if outcome == "ok":
        assert response is not None
        assert response.clean


def open_sockets() -> int:
    return int(psutil.Process(os.getpid()).num_fds())


def test_case_26_cancelled_streams_and_errors_leave_nothing_behind(
    new_rig: Callable[..., Rig],
) -> None:
    rig = new_rig()
    rig.engine.on(CHAT, endless)
    rig.engine.on("/v1/completions", send(json_answer({"error": {}}, "400 Bad Request")))
    ask(rig.port, path="/v1/completions")
    before = open_sockets()
    threads = threading.active_count()
    watch = rig.watch()
    chance = random.Random(26)

    async def cancelled() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        writer.write(request("POST", CHAT, [JSON], body_of()))
        try:
            async with asyncio.timeout(chance.uniform(0.0, 0.4)):
                while await reader.read(65536):
                    pass
        except TimeoutError:
            pass
        writer.transport.abort()

    async def failed() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        close = [JSON, ("Connection", "close")]
        writer.write(request("POST", "/v1/completions", close, body_of()))
        assert b" 400 " in await reader.read(20)
        await reader.read()
        writer.transport.abort()

    async def everything() -> None:
        for _ in range(10):
            jobs = [cancelled() for _ in range(50)] + [failed() for _ in range(20)]
            await asyncio.gather(*jobs)

    asyncio.run(everything())
    # A client that left before its request was read is no exchange; the failed ones all are.
    wait_until(lambda: in_flight(rig.port) == 0, 10, "no exchange stays in flight")
    gained = rig.scrape().since(watch.before)
    assert gained.outcomes["upstream_error"] == 200
    assert 100 < gained.outcomes["client_closed"] <= 500
    assert set(gained.outcomes) == {"upstream_error", "client_closed"}
    wait_until(
        lambda: (
            not any(c.current and c.current.target == CHAT for c in rig.engine.open_connections)
        ),
        5,
        "every cancelled stream is closed at the engine",
    )
    rig.engine.drop_connections()
    wait_until(lambda: open_sockets() <= before + 8, 5, "file descriptors are given back")
    assert threading.active_count() <= threads + 8
    rig.engine.on(CHAT, stream(*whole_answer("a", "b")))
    assert ask(rig.port).clean


def test_case_27_idle_connection_closed_as_a_request_goes_out(
    new_rig: Callable[..., Rig],
) -> None:
    """The engine closes the reused connection on the request: one retry, the client sees none."""
    rig = new_rig()

    async def close_on_request(c: Conversation) -> None:
        c.close()

    rig.engine.on(CHAT, stream(ROLE, A, STOP, DONE), close_on_request, stream(ROLE, A, STOP, DONE))
    watch = rig.watch()
    for _ in range(2):
        response = ask(rig.port)
        assert response.status == 200
        assert response.body == ROLE + A + STOP + DONE
    assert watch.after(2).outcomes == {"ok": 2}
    first, second, third = rig.engine.requests
    assert first.connection == second.connection
    assert third.connection != second.connection
    assert second.body == third.body


def test_case_27_idle_connections_that_the_engine_dropped(new_rig: Callable[..., Rig]) -> None:
    rig = new_rig()
    rig.engine.on(CHAT, stream(ROLE, A, STOP, DONE))
    for _ in range(10):
        assert ask(rig.port).status == 200
        rig.engine.drop_connections()


def test_case_27_never_more_than_one_retry(new_rig: Callable[..., Rig]) -> None:
    rig = new_rig()

    async def reset(c: Conversation) -> None:
        c.reset()

    rig.engine.on(CHAT, stream(ROLE, A, STOP, DONE), reset)
    assert ask(rig.port).status == 200
    watch = rig.watch()
    response = ask(rig.port)
    assert response.status == 502
    check_envelope(response.json())
    assert 2 <= len(rig.engine.requests) <= 3
    (outcome,) = watch.after().outcomes
    assert outcome in {"upstream_unreachable", "upstream_incomplete"}


def test_case_27_no_retry_on_a_fresh_connection(new_rig: Callable[..., Rig]) -> None:
    rig = new_rig()

    async def close(c: Conversation) -> None:
        c.close()

    rig.engine.on(CHAT, close)
    # The proxy's own look at the model list has left a connection that would be reused.
    wait_until(lambda: bool(rig.engine.background), what="the model list was read")
    rig.engine.drop_connections()
    response = ask(rig.port)
    assert response.status == 502
    check_envelope(response.json())
    # It may be tried first on a connection of such a look: that one, or one of a second look.
    used = {look.connection for look in rig.engine.background}
    fresh = [request for request in rig.engine.requests if request.connection not in used]
    assert fresh == rig.engine.requests[-1:]
    assert len(rig.engine.requests) - len(fresh) <= 1


def test_case_27_no_retry_after_a_response_byte(new_rig: Callable[..., Rig]) -> None:
    rig = new_rig()

    async def half_head(c: Conversation) -> None:
        await c.send(b"HTTP/1.1 200 OK\r\ncontent-ty")
        await c.pause(0.05)
        c.close()

    rig.engine.on(CHAT, stream(ROLE, A, STOP, DONE), half_head)
    assert ask(rig.port).status == 200
    response = ask(rig.port)
    assert response.status == 502
    assert len(rig.engine.requests) == 2


def check_envelope(document: object) -> None:
    assert isinstance(document, dict)
    error = document["error"]
    assert {"message", "type", "code", "param"} <= set(error)
    assert len(error["message"]) > 20, "says what happened and what to do"


def test_case_28_engine_down_then_up_then_restarted(new_rig: Callable[..., Rig]) -> None:
    engine = ScriptedEngine()
    engine.start()
    engine.stop()
    rig = new_rig(engine)
    watch = rig.watch()
    for _ in range(2):
        response = ask(rig.port)
        assert response.status == 502
        assert response.header("content-type") == b"application/json"
        check_envelope(response.json())
    assert watch.after(2).outcomes == {"upstream_unreachable": 2}
    for _ in range(2):
        engine.start()
        try:
            engine.on(CHAT, stream(ROLE, A, STOP, DONE))
            assert ask(rig.port).body == ROLE + A + STOP + DONE
        finally:
            engine.stop()
        assert ask(rig.port).status == 502
    assert watch.after(4).outcomes == {"ok": 2, "upstream_unreachable": 2}


def test_case_28_engine_stops_in_mid_stream(new_rig: Callable[..., Rig]) -> None:
    rig = new_rig()
    rig.engine.on(CHAT, endless)
    watch = rig.watch()
    with rig.client() as client:
        client.request("POST", CHAT, [JSON], body_of())
        response = client.read_head()
        client.read_body(response, at_least=len(ROLE + A * 3))
        rig.engine.stop()
        client.read_body(response)
        assert not response.clean
    gained = watch.after()
    assert gained.outcomes == {"upstream_incomplete": 1}
    assert (gained.total("completion_tokens_total", source="events") or 0) >= 3


def test_case_28_engine_that_accepts_and_never_answers(new_rig: Callable[..., Rig]) -> None:
    rig = new_rig(first_byte_timeout=0.4)
    rig.engine.on(CHAT, never)
    watch = rig.watch()
    started = time.monotonic()
    response = ask(rig.port)
    assert response.status == 504
    assert 0.35 < time.monotonic() - started < 5.0
    check_envelope(response.json())
    rig.engine.requests[0].wait_closed()
    assert watch.after().outcomes == {"timeout": 1}


def test_case_28_no_limit_before_the_first_byte_by_default(new_rig: Callable[..., Rig]) -> None:
    """A long prefill is legal: the idle limit begins with the answer."""
    rig = new_rig(stream_idle_timeout=0.3)

    async def late(c: Conversation) -> None:
        await c.pause(1.0)
        await stream(ROLE, A, STOP, DONE)(c)

    rig.engine.on(CHAT, late)
    assert ask(rig.port).clean


def test_case_28_stream_that_goes_silent_is_cut(new_rig: Callable[..., Rig]) -> None:
    rig = new_rig(stream_idle_timeout=2.0, stall_after=0.2)
    rig.engine.on(CHAT, silent_after_two)
    watch = rig.watch()
    with rig.client() as client:
        client.request("POST", CHAT, [JSON], body_of())
        response = client.read_head()
        client.read_body(response, at_least=len(ROLE + A * 2))
        started = time.monotonic()
        wait_until(lambda: rig.scrape().total("streams_stalled") == 1, 1.8, "shown as stalled")
        client.read_body(response)
    assert not response.clean
    assert 1.5 < response.end_at - started < 6.0
    rig.engine.requests[0].wait_closed()
    gained = watch.after()
    assert gained.outcomes == {"upstream_stalled": 1}
    assert gained.total("completion_tokens_total", source="events") == 2
    wait_until(lambda: not rig.scrape().total("streams_stalled"), what="no longer shown")


async def silent_after_two(c: Conversation) -> None:
    await c.send(EVENT_STREAM)
    await c.chunk(ROLE, A, A)
    await c.until_peer_leaves()


def test_case_28_engine_answers_before_the_body_is_read(rig: Rig) -> None:
    too_large = answer(b'{"error":{"message":"too large"}}', "413 Payload Too Large")

    async def refuse(c: Conversation) -> None:
        await c.send(too_large)
        await c.pause(0.2)
        c.close()

    rig.engine.on("/v1/audio/transcriptions", refuse, early=True)
    watch = rig.watch()
    with rig.client() as client:
        client.request("POST", "/v1/audio/transcriptions", [("Content-Length", "50000000")])
        client.send(b"x" * 100_000)
        response = client.read_response()
    assert response.status == 413
    assert response.body == b'{"error":{"message":"too large"}}'
    assert watch.after().outcomes == {"upstream_error": 1}


def test_case_28_engine_that_speaks_no_http(rig: Rig) -> None:
    async def ssh(c: Conversation) -> None:
        await c.send(b"SSH-2.0-OpenSSH_9.6\r\n")
        await c.pause(0.1)
        c.close()

    rig.engine.on(CHAT, ssh)
    response = ask(rig.port)
    assert response.status == 502
    check_envelope(response.json())


def test_case_29_slow_client(new_rig: Callable[..., Rig]) -> None:
    rig = new_rig()
    piece = chat_event("x" * 65000)
    written = 0

    async def flood(c: Conversation) -> None:
        nonlocal written
        await c.send(EVENT_STREAM)
        for _ in range(1600):  # 100 MB
            await c.chunk(piece)
            written += len(piece)

    rig.engine.on(CHAT, flood)
    rig.engine.on("/v1/completions", stream(*whole_answer("a", "b"), gap=0.02))
    process = psutil.Process(os.getpid())
    with rig.client(receive_buffer=4096) as slow:
        before = process.memory_info().rss
        slow.request("POST", CHAT, [JSON], body_of())
        response = slow.read_head()
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            # Others are not held up.
            started = time.monotonic()
            assert ask(rig.port, path="/v1/completions").clean
            assert time.monotonic() - started < 3.0
            slow.read_body(response, at_least=len(response.body) + 1)
        grown = process.memory_info().rss - before
        assert written < 30_000_000, "the engine was not made to wait"
        assert grown < 40_000_000, f"memory grew by {grown} bytes"
    rig.engine.requests[0].wait_closed(5)


def test_case_30_many_streams_at_once(new_rig: Callable[..., Rig]) -> None:
    rig = new_rig()
    count = 300
    go = threading.Event()

    async def wait_for_all(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        await c.chunk(ROLE)
        await c.until(go)
        await c.chunk(A, STOP, DONE)
        await c.send(LAST_CHUNK)

    rig.engine.on(CHAT, wait_for_all)
    watch = rig.watch()
    clients = [rig.client(30) for _ in range(count)]
    try:
        for client in clients:
            client.request("POST", CHAT, [JSON], body_of(asked=True))
        rig.engine.wait_requests(count, 20)
        assert in_flight(rig.port) == count
        started = time.monotonic()
        assert fetch(rig.port, "GET", "/tokgauge/readyz").status == 200
        assert fetch(rig.port, "GET", "/tokgauge/healthz").status == 200
        assert time.monotonic() - started < 3.0
        go.set()
        for client in clients:
            response = client.read_response()
            assert response.clean
            assert response.body == ROLE + A + STOP + DONE
    finally:
        go.set()
        for client in clients:
            client.close()
    assert watch.after(count, 10).outcomes == {"ok": count}
    assert in_flight(rig.port) == 0


def test_case_30_more_than_a_thousand_connections(new_rig: Callable[..., Rig]) -> None:
    rig = new_rig()
    rig.engine.on(CHAT, stream(*whole_answer("a", "b")))
    idle: list[socket.socket] = []
    try:
        idle.extend(socket.create_connection(("127.0.0.1", rig.port), 10) for _ in range(1100))
        started = time.monotonic()
        assert fetch(rig.port, "GET", "/tokgauge/readyz").status == 200
        assert ask(rig.port).clean
        assert time.monotonic() - started < 5.0
    finally:
        for connection in idle:
            connection.close()


def test_case_31_expect_100_continue(rig: Rig) -> None:
    rig.engine.on(CHAT, stream(*whole_answer("a", "b")))
    body = body_of(asked=True)
    with rig.client(5) as client:
        length = ("Content-Length", str(len(body)))
        client.request("POST", CHAT, [JSON, ("Expect", "100-continue"), length])
        interim = client._head()
        assert interim.startswith(b"HTTP/1.1 100 ")
        response = client.send(body).read_response()
    assert response.clean
    assert rig.engine.requests[0].body == body


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
def test_case_31_http_1_0_client(rig: Rig, streaming: bool) -> None:
    """No chunks for it: the body ends with the connection, or has a length."""
    events = whole_answer("a", "b")
    rig.engine.on(CHAT, stream(*events) if streaming else send(json_answer({"a": 1})))
    with rig.client(5) as client:
        client.send(
            request("POST", CHAT, [JSON], body_of(asked=True, stream=streaming), version="HTTP/1.0")
        )
        response = client.read_head()
        if response.header("transfer-encoding") is None:
            assert client.read_body(response).body == (
                b"".join(events) if streaming else b'{"a": 1}'
            )
        else:
            # vLLM's own server does the same to such clients, so it is the engine's bytes.
            assert client.read_body(response).clean
        assert client.at_end()


def test_case_31_chunked_upload(rig: Rig) -> None:
    rig.engine.on("/v1/audio/transcriptions", send(json_answer({"text": "hi"})))
    with rig.client(5) as client:
        client.request("POST", "/v1/audio/transcriptions", [("Transfer-Encoding", "chunked")])
        for part in (b"a" * 10, b"b" * 70000, b"c"):
            client.send(b"%x;ext=1\r\n" % len(part) + part + b"\r\n")
            time.sleep(0.02)
        response = client.send(b"0\r\n\r\n").read_response()
    assert response.json() == {"text": "hi"}
    assert rig.engine.requests[0].body == b"a" * 10 + b"b" * 70000 + b"c"


def test_case_31_upload_is_passed_on_while_it_comes(rig: Rig) -> None:
    """A body that is not JSON is never collected first."""
    seen = threading.Event()

    async def early(c: Conversation) -> None:
        seen.set()
        if await c.read_body():
            await c.send(json_answer({"text": "hi"}))

    rig.engine.on("/v1/audio/transcriptions", early, early=True)
    with rig.client(5) as client:
        headers = [("Content-Type", "multipart/form-data; boundary=x"), ("Content-Length", "20000")]
        client.request("POST", "/v1/audio/transcriptions", headers)
        client.send(b"x" * 10000)
        assert seen.wait(2), "the upload was held back until it was complete"
        assert client.send(b"y" * 10000).read_response().status == 200
    assert rig.engine.requests[0].body == b"x" * 10000 + b"y" * 10000


def test_case_31_head(rig: Rig) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 451\r\n\r\n"
    rig.engine.on("/v1/models", send(head))
    with rig.client(5) as client:
        for _ in range(2):
            response = client.request("HEAD", "/v1/models").read_response(to_head=True)
            assert response.status == 200
            assert response.values("content-length") == [b"451"]
    assert [r.method for r in rig.engine.requests] == ["HEAD", "HEAD"]


def test_case_31_options_of_a_browser(rig: Rig) -> None:
    allow = [("Access-Control-Allow-Origin", "*"), ("access-control-allow-headers", "x, y")]
    rig.engine.on(CHAT, send(answer(b"OK", content_type="text/plain", extra=allow)))
    asked = [("Origin", "http://a.test"), ("Access-Control-Request-Method", "POST")]
    response = fetch(rig.port, "OPTIONS", CHAT, asked)
    assert response.body == b"OK"
    assert response.values("access-control-allow-origin") == [b"*"]
    assert response.values("access-control-allow-headers") == [b"x, y"]
    received = rig.engine.requests[0]
    assert received.header("origin") == b"http://a.test"
    assert received.header("access-control-request-method") == b"POST"


def test_case_31_connection_close_of_the_client(rig: Rig) -> None:
    rig.engine.on(CHAT, stream(*whole_answer("a", "b")))
    with rig.client(5) as client:
        client.request("POST", CHAT, [JSON, ("Connection", "close")], body_of(asked=True))
        response = client.read_response()
        assert response.clean
        assert client.at_end(5)
    received = rig.engine.requests[0]
    assert received.header("connection") in (None, b"keep-alive")


def test_case_31_connection_close_of_the_engine(rig: Rig) -> None:
    async def closing(c: Conversation) -> None:
        await c.send(EVENT_STREAM.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        await c.chunk(ROLE, A, STOP, DONE)
        await c.send(LAST_CHUNK)
        c.close()

    rig.engine.on(CHAT, closing)
    with rig.client(5) as client:
        for _ in range(3):
            response = client.request("POST", CHAT, [JSON], body_of()).read_response()
            assert response.clean
            assert response.body == ROLE + A + STOP + DONE
            assert response.header("connection") in (None, b"keep-alive")


def test_case_31_hop_by_hop_headers_are_dropped_and_the_rest_is_kept(rig: Rig) -> None:
    rig.engine.on(
        CHAT,
        send(
            b"HTTP/1.1 200 OK\r\nX-B: 2\r\nx-a: 1\r\nX-B: 3\r\n"
            b"set-cookie: a=1\r\nSet-Cookie: b=2\r\n"
            b"Connection: keep-alive, X-Hop\r\nX-Hop: gone\r\nKeep-Alive: timeout=5\r\n"
            b"x-odd: \xe9 caf\xc3\xa9\r\nX-Empty:\r\ncontent-length: 2\r\n\r\n{}"
        ),
    )
    sent = [
        ("X-Z", "1"),
        ("authorization", "Bearer sk-secret"),
        ("X-Z", "2"),
        ("Connection", "keep-alive, X-Drop"),
        ("X-Drop", "gone"),
        ("Keep-Alive", "300"),
        ("TE", "trailers"),
        ("X-Request-Id", "mine-1"),
        ("User-Agent", "test/1"),
        ("X-Empty", ""),
    ]
    response = fetch(rig.port, "POST", CHAT, sent, b'{"model":"qwen"}')
    kept = [(n.lower(), v) for n, v in response.headers if n.lower() != b"x-tokgauge-id"]
    assert kept == [
        (b"x-b", b"2"),
        (b"x-a", b"1"),
        (b"x-b", b"3"),
        (b"set-cookie", b"a=1"),
        (b"set-cookie", b"b=2"),
        (b"x-odd", b"\xe9 caf\xc3\xa9"),
        (b"x-empty", b""),
        (b"content-length", b"2"),
    ]
    assert len(response.values("x-tokgauge-id")) == 1
    received = [(n.lower(), v) for n, v in rig.engine.requests[0].headers]
    assert [pair for pair in received if pair[0] not in (b"host", b"connection")] == [
        (b"x-z", b"1"),
        (b"authorization", b"Bearer sk-secret"),
        (b"x-z", b"2"),
        (b"x-request-id", b"mine-1"),
        (b"user-agent", b"test/1"),
        (b"x-empty", b""),
        (b"content-length", b"16"),
    ]


def test_case_31_event_streams_say_no_buffering(rig: Rig) -> None:
    said = EVENT_STREAM.replace(b"\r\n\r\n", b"\r\nX-Accel-Buffering: yes\r\n\r\n")

    async def own(c: Conversation) -> None:
        await c.send(said)
        await c.chunk(DONE)
        await c.send(LAST_CHUNK)

    rig.engine.on(CHAT, stream(*whole_answer("a", "b")), own)
    assert ask(rig.port).values("x-accel-buffering") == [b"no"]
    assert ask(rig.port).values("x-accel-buffering") == [b"yes"]


def test_case_31_pipelining(rig: Rig) -> None:
    rig.engine.on(CHAT, stream(*whole_answer("a", "b"), gap=0.02))
    rig.engine.on("/v1/embeddings", send(json_answer({"data": []})))
    with rig.client(5) as client:
        chat = request("POST", CHAT, [JSON], body_of(asked=True))
        embed = request("POST", "/v1/embeddings", [JSON], b'{"input":"x"}')
        client.send(chat + embed + chat)
        first, second, third = (client.read_response() for _ in range(3))
    assert first.body == third.body == b"".join(whole_answer("a", "b"))
    assert second.json() == {"data": []}
    assert [r.target for r in rig.engine.requests] == [CHAT, "/v1/embeddings", CHAT]


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
def test_case_31_answers_without_body(rig: Rig, status: str) -> None:
    rig.engine.on("/v1/files", send(f'HTTP/1.1 {status}\r\netag: "x"\r\n\r\n'.encode()))
    rig.engine.on("/v1/next", send(json_answer({"a": 1})))
    with rig.client(5) as client:
        response = client.request("GET", "/v1/files").read_response()
        assert response.status_line == f"HTTP/1.1 {status}".encode()
        assert response.values("transfer-encoding") == []
        assert client.request("GET", "/v1/next").read_response().json() == {"a": 1}


def test_case_31_interim_answers_of_the_engine(rig: Rig) -> None:
    rig.engine.on(
        CHAT,
        send(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n",
            json_answer({"a": 1}),
        ),
    )
    response = ask(rig.port, stream=False)
    assert response.status == 200
    assert response.json() == {"a": 1}


def test_case_31_trailers(rig: Rig) -> None:
    async def with_trailer(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        await c.chunk(ROLE, A, STOP, DONE)
        await c.send(b"0\r\nx-checksum: 7\r\n\r\n")

    rig.engine.on(CHAT, with_trailer)
    for _ in range(2):
        response = ask(rig.port)
        assert response.clean
        assert response.body == ROLE + A + STOP + DONE


def test_case_31_status_and_reason_pass(rig: Rig) -> None:
    rig.engine.on("/v1/x", send(b"HTTP/1.1 418 Short And Stout\r\ncontent-length: 0\r\n\r\n"))
    assert fetch(rig.port, "GET", "/v1/x").status == 418


@pytest.mark.parametrize(
    "target",
    [
        "/v1/models/a%2Fb?x=%20&y=a+b&&z",
        "/v1/a//b/./c/../d",
        "/v1/%e4%b8%ad",
        "/v1/x?",
        "/v1/x;p=1",
        "/v1/x%00y",
        "/v1/%2e%2e/secret",
    ],
)
def test_case_31_targets_pass_raw(rig: Rig, target: str) -> None:
    rig.engine.on(target.split("?")[0], send(json_answer({})))
    assert fetch(rig.port, "GET", target).status == 200
    assert rig.engine.requests[0].target == target


@pytest.mark.parametrize(
    "target", ["http://elsewhere.test/v1/models", "http://127.0.0.1:1/v1/models"]
)
def test_case_31_an_absolute_target_chooses_no_other_engine(rig: Rig, target: str) -> None:
    rig.engine.on("/v1/models", send(json_answer({"own": True})))
    rig.engine.on(target, send(json_answer({"own": True})))
    response = fetch(rig.port, "GET", target, [])
    assert response.status in (200, 400, 404)
    if response.status == 200:
        assert response.json() == {"own": True}


LENGTHS = [
    ("both", [("Content-Length", "5"), ("Transfer-Encoding", "chunked")], b"0\r\n\r\n"),
    ("both_reversed", [("Transfer-Encoding", "chunked"), ("Content-Length", "5")], b"0\r\n\r\n"),
    ("two_lengths", [("Content-Length", "5"), ("Content-Length", "6")], b"hello!"),
    ("list_of_lengths", [("Content-Length", "5, 6")], b"hello!"),
    ("plus", [("Content-Length", "+5")], b"hello"),
    ("negative", [("Content-Length", "-5")], b"hello"),
    ("hex", [("Content-Length", "0x5")], b"hello"),
    ("empty", [("Content-Length", "")], b"hello"),
    (
        "te_twice",
        [("Transfer-Encoding", "chunked"), ("Transfer-Encoding", "identity")],
        b"0\r\n\r\n",
    ),
    ("te_odd", [("Transfer-Encoding", "xchunked")], b"0\r\n\r\n"),
    ("te_not_last", [("Transfer-Encoding", "chunked, identity")], b"0\r\n\r\n"),
    ("te_vertical_tab", [("Transfer-Encoding", "\x0bchunked")], b"0\r\n\r\n"),
    ("space_before_colon", [("Content-Length ", "5")], b"hello"),
    ("bare_cr", [("X-A", "a\rContent-Length: 7")], b""),
    ("nul", [("X-A", "a\x00b")], b""),
    ("folded", [("X-A", "a\r\n b")], b""),
]


@pytest.mark.parametrize(("name", "headers", "body"), LENGTHS, ids=[n for n, _, _ in LENGTHS])
def test_case_32_two_readings_are_refused(
    rig: Rig, name: str, headers: list[tuple[str, str]], body: bytes
) -> None:
    """Refused, or passed with one framing and one meaning; never a second request inside."""
    smuggled = b"GET /v1/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    rig.engine.on("/v1/x", send(json_answer({"a": 1})))
    rig.engine.on("/v1/smuggled", send(json_answer({"smuggled": 1})))
    framed = [*headers]
    if not {n.strip().lower() for n, _ in headers} & {"content-length", "transfer-encoding"}:
        framed.append(("Content-Length", str(len(body))))
    with rig.client(2) as client:
        # The head alone must be enough to refuse it: the engine is not to see even that.
        client.send(request("POST", "/v1/x", framed, None), body, gap=0.05)
        response = client.read_response()
    if name == "folded":
        assert response.status in (200, 400)
    else:
        assert response.status == 400
        assert rig.engine.requests == []
    assert smuggled not in b"".join(bytes(r.body) for r in rig.engine.requests)
    for received in rig.engine.requests:
        assert b"\r\n " not in received.head, "a folded line was passed on"


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/x HTTP/1.1\nHost: a\nX-A: 1\n\n",
        b"GET /v1/x HTTP/1.1\r\nHost: a\nX-A: 1\r\n\r\n",
        b"GET  /v1/x HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /v1/x\r\n\r\n",
        b"GET /v1/x HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
        b"G\x00T /v1/x HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 tls to a plain port\r\n\r\n",
    ],
    ids=["bare_lf", "one_bare_lf", "two_spaces", "http_0_9", "no_colon", "nul", "tls"],
)
def test_case_32_malformed_heads(rig: Rig, head: bytes) -> None:
    """Refused, or read in one way: then what goes on to the engine is well-formed."""
    rig.engine.on("/v1/x", send(json_answer({"a": 1})))
    with rig.client(2) as client:
        client.send(head)
        response = client.read_response()
    assert response.status in (200, 400)
    assert len(rig.engine.requests) == (response.status == 200)
    for received in rig.engine.requests:
        assert not re.search(rb"(?<!\r)\n|\r(?!\n)", received.head)
        assert re.fullmatch(r"GET /v1/x HTTP/1\.1", received.request_line)


def test_case_32_host_twice_or_missing(rig: Rig) -> None:
    rig.engine.on("/v1/x", send(json_answer({"a": 1})))
    with rig.client(2) as client:
        client.send(b"GET /v1/x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
        assert client.read_response().status == 400
    assert rig.engine.requests == []


@pytest.mark.parametrize(
    "headers",
    [[("X-Long", "a" * 100_000)], [(f"X-{n}", "a" * 90) for n in range(1000)]],
    ids=["one", "many"],
)
def test_case_32_hundred_kilobytes_of_headers(rig: Rig, headers: list[tuple[str, str]]) -> None:
    rig.engine.on("/v1/x", send(json_answer({"a": 1})))
    watch_out = request("GET", "/v1/x", headers)
    with rig.client(5) as client:
        try:
            client.send(watch_out)
            response = client.read_response()
        except ConnectionError:
            pytest.fail("closed without the answer that says why")
    assert response.status == 431
    check_envelope(response.json())
    assert rig.engine.requests == []


def test_case_32_endless_head_is_cut_short(rig: Rig) -> None:
    with rig.client(5) as client:
        client.send(b"GET /v1/x HTTP/1.1\r\nHost: a\r\nX-A: ")
        with pytest.raises(ConnectionError):  # noqa: PT012  the loop is what meets the end
            for _ in range(400):
                client.send(b"a" * 65536)
                time.sleep(0.001)


def test_case_32_body_limit(new_rig: Callable[..., Rig]) -> None:
    rig = new_rig(max_body_bytes=1000)
    rig.engine.on(CHAT, send(json_answer({"a": 1})))
    watch = rig.watch()
    response = post(rig.port, CHAT, b"x" * 1001)
    assert response.status == 413
    check_envelope(response.json())
    assert rig.engine.requests == []
    assert watch.after().outcomes == {"rejected": 1}
    with rig.client(5) as client:
        client.request("POST", CHAT, [JSON, ("Transfer-Encoding", "chunked")])
        client.send(b"400\r\n" + b"x" * 1024 + b"\r\n0\r\n\r\n")
        assert client.read_response().status == 413
    assert post(rig.port, CHAT, b"x" * 1000).status == 200


def test_case_32_answers_with_two_readings_are_not_passed(rig: Rig) -> None:
    rig.engine.on(
        CHAT,
        send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}x"),
    )
    response = ask(rig.port, stream=False)
    assert response.status == 502
    assert len(response.values("content-length")) <= 1


def brotli_of(data: bytes) -> bytes:
    brotli = pytest.importorskip("brotli")
    return bytes(brotli.compress(data))


def zstd_of(data: bytes) -> bytes:
    zstandard = pytest.importorskip("zstandard")
    return bytes(zstandard.compress(data))


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "br": brotli_of,
    "zstd": zstd_of,
}


@pytest.mark.parametrize("coding", ENCODERS)
def test_case_33_compressed_answers_pass_as_they_are(rig: Rig, coding: str) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 8, "total_tokens": 13}
    plain = json.dumps({"choices": [], "usage": usage, "pad": "x" * 2000}).encode()
    body = ENCODERS[coding](plain)
    rig.engine.on(CHAT, send(answer(body, extra=[("Content-Encoding", coding)])))
    watch = rig.watch()
    accept = ("Accept-Encoding", f"{coding};q=1.0, *;q=0")
    response = fetch(rig.port, "POST", CHAT, [JSON, accept], body_of(stream=False))
    assert response.body == body
    assert response.values("content-encoding") == [coding.encode()]
    assert rig.engine.requests[0].values("accept-encoding") == [accept[1].encode()]
    assert watch.after().total("completion_tokens_total") == 8


def test_case_33_nothing_is_said_about_encodings_unasked(rig: Rig) -> None:
    rig.engine.on(CHAT, stream(*whole_answer("a", "b")))
    ask(rig.port)
    names = {name.lower() for name, _ in rig.engine.requests[0].headers}
    assert names <= {b"host", b"content-type", b"content-length", b"connection"}


@pytest.mark.parametrize("asked", [True, False], ids=["asked", "unasked"])
def test_case_33_compressed_event_stream(new_rig: Callable[..., Rig], asked: bool) -> None:
    rig = new_rig()  # the proxy may remember that this engine compresses
    events = b"".join(whole_answer("a", "b"))
    body = gzip.compress(events)
    head = EVENT_STREAM.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")

    async def script(c: Conversation) -> None:
        await c.send(head)
        await c.chunk(body[:30], body[30:])
        await c.send(LAST_CHUNK)

    rig.engine.on(CHAT, script)
    watch = rig.watch()
    response = ask(rig.port, asked=asked)
    assert response.clean
    assert response.values("content-encoding") == [b"gzip"]
    if asked:
        assert response.body == body
    else:  # hiding inside a compressed stream is not asked for, but then it must stay readable
        assert gzip.decompress(bytes(response.body)).endswith(DONE)
    gained = watch.after()
    assert gained.outcomes == {"ok": 1}
    assert gained.total("completion_tokens_total", source="usage") in (2, None)


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "snappy"])
def test_case_33_undecodable_answers_pass_unmeasured(rig: Rig, coding: str) -> None:
    body = b"\x1f\x8b\x08\x00 this is no compressed data " * 20
    rig.engine.on(CHAT, send(answer(body, extra=[("Content-Encoding", coding)])))
    watch = rig.watch()
    response = ask(rig.port, stream=False)
    assert response.body == body
    gained = watch.after()
    assert gained.outcomes == {"ok": 1}
    assert gained.total("completion_tokens_total") is None


def test_case_33_a_decompression_bomb_does_no_harm(rig: Rig) -> None:
    pack = zlib.compressobj(9, wbits=31)
    body = b"".join(pack.compress(b" " * 1_000_000) for _ in range(200)) + pack.flush()
    rig.engine.on(CHAT, send(answer(body, extra=[("Content-Encoding", "gzip")])))
    process = psutil.Process(os.getpid())
    before = process.memory_info().rss
    response = ask(rig.port, stream=False)
    assert response.body == body
    assert process.memory_info().rss - before < 100_000_000
