"""tokgauge.asgi:app under hypercorn and uvicorn, by itself and mounted in a FastAPI application."""

import json
import signal
import time
from collections.abc import Iterator

import httpx2
import openai
import pytest

from tests.asgi.servers import PLAIN, Server, running
from tests.support.chat import CHAT, body_of, whole_answer
from tests.support.client import JSON, RawClient, fetch, post
from tests.support.engine import (
    EVENT_STREAM,
    LAST_CHUNK,
    Conversation,
    Script,
    ScriptedEngine,
    answer,
    json_answer,
    stream,
)
from tests.support.metrics import Scrape, parse, wait_until

pytestmark = pytest.mark.timeout(240)

MOUNTED = "tests.asgi.applications:mounted"
LIMITS = {"TOKGAUGE_MODELS": "qwen", "TOKGAUGE_MAX_BODY_BYTES": "1000000"}
EVENTS = whole_answer("a", "b", "c")


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine(["qwen"]) as engine:
        yield engine


@pytest.fixture(
    scope="module",
    params=[
        ("hypercorn", MOUNTED), ("uvicorn h11", MOUNTED), ("uvicorn httptools", PLAIN),
    ],
    ids=lambda param: " ".join(param),
)  # fmt: skip
def server(request: pytest.FixtureRequest, engine: ScriptedEngine) -> Iterator[Server]:
    name, application = request.param
    prefix = "/llm" if application == MOUNTED else ""
    with running(name, application, engine.url, prefix, **LIMITS) as server:
        yield server


def outcomes(server: Server) -> Scrape:
    page = fetch(server.port, "GET", f"{server.prefix}/tokgauge/metrics", timeout=60)
    assert page.status == 200, page.body
    return parse(page.body.decode())


def test_a_stream_comes_as_the_engine_sends_it_and_is_counted(
    server: Server, engine: ScriptedEngine
) -> None:
    before = outcomes(server)
    engine.on(CHAT, stream(*EVENTS))
    response = post(server.port, server.prefix + CHAT, body_of(asked=True))
    assert (response.status, bytes(response.body)) == (200, b"".join(EVENTS))
    assert response.clean
    assert response.values("x-accel-buffering") == [b"no"]
    gained = outcomes(server).since(before)
    assert gained.outcomes == {"ok": 1}
    assert gained.total("completion_tokens_total", model="qwen", source="usage") == 3
    assert gained.count("time_to_first_token_seconds", model="qwen") == 1
    assert fetch(server.port, "GET", f"{server.prefix}/tokgauge/readyz").status == 200


def test_a_real_client_streams(server: Server, engine: ScriptedEngine) -> None:
    engine.on(CHAT, stream(*EVENTS))
    client = openai.OpenAI(
        base_url=f"http://127.0.0.1:{server.port}{server.prefix}/v1", api_key="sk-x"
    )
    with client:
        chunks = client.chat.completions.create(
            model="qwen", messages=[{"role": "user", "content": "Hi"}], stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "abc"
    assert engine.requests[-1].header("authorization") == b"Bearer sk-x"


def test_path_and_query_go_up_as_they_came(server: Server, engine: ScriptedEngine) -> None:
    target = "/v1/files/a%2Fb/caf%C3%A9/./x?y=%20+&&z"
    engine.on(target.split("?")[0], answering({"ok": True}))
    assert fetch(server.port, "GET", server.prefix + target).status == 200
    assert engine.requests[-1].target == target


def test_a_client_that_leaves_ends_its_request_at_the_engine(
    server: Server, engine: ScriptedEngine
) -> None:
    before = outcomes(server)

    async def endless(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        await c.chunk(EVENTS[0])
        await c.until_peer_leaves()

    engine.on(CHAT, endless)
    with RawClient(server.port) as client:
        client.request("POST", server.prefix + CHAT, [JSON], body_of())
        client.read_body(client.read_head(), at_least=len(EVENTS[0]))
    engine.requests[-1].wait_closed()
    wait_until(lambda: outcomes(server).since(before).outcomes == {"client_closed": 1})


@pytest.mark.parametrize("framing", ["chunked", "length"])
def test_a_cut_response_is_no_whole_one(
    server: Server, engine: ScriptedEngine, framing: str
) -> None:
    before = outcomes(server)

    async def breaks_off(c: Conversation) -> None:
        if framing == "chunked":
            await c.send(EVENT_STREAM)
            await c.chunk(EVENTS[0])
        else:
            head = answer(b"x" * 1000, content_type="text/plain")
            await c.send(head[:-500])
        await c.pause(0.05)
        c.close()

    engine.on(CHAT, breaks_off)
    response = post(server.port, server.prefix + CHAT, body_of())
    assert response.framing == framing
    assert not response.clean
    assert bytes(response.body) == (EVENTS[0] if framing == "chunked" else b"x" * 500)
    wait_until(lambda: outcomes(server).since(before).outcomes == {"upstream_incomplete": 1})


def test_a_slow_client_makes_the_engine_wait(server: Server, engine: ScriptedEngine) -> None:
    pieces = 1000
    sent: list[int] = []

    async def much(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        for _ in range(pieces):
            await c.chunk(b"x" * 65536)
            sent.append(65536)
        await c.send(LAST_CHUNK)

    engine.on(CHAT, much)
    with RawClient(server.port, receive_buffer=4096) as slow:
        slow.request("POST", server.prefix + CHAT, [JSON], body_of())
        response = slow.read_head()
        before = -1
        while before != len(sent):  # until buffers are full
            before = len(sent)
            time.sleep(0.5)
        assert len(sent) < pieces // 2
        slow.read_body(response)
        assert response.clean
        assert len(response.body) == pieces * 65536


def test_a_body_that_is_too_large_is_refused(server: Server) -> None:
    with RawClient(server.port) as client:
        head = b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\n"
        client.send(head % (server.prefix + CHAT).encode(), b"x" * 10)
        response = client.read_response()
    assert response.status == 413
    assert json.loads(response.body)["error"]["code"] == "request_too_large"


def test_a_websocket_is_refused(server: Server, engine: ScriptedEngine) -> None:
    engine.forget()
    headers = [
        ("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ]  # fmt: skip
    assert fetch(server.port, "GET", f"{server.prefix}/v1/realtime", headers).status == 403
    assert engine.requests == []


def test_the_host_keeps_its_own_routes(server: Server) -> None:
    if server.prefix:
        response = fetch(server.port, "GET", "/own")
        assert json.loads(response.body) == {"answered by": "the host"}
        assert fetch(server.port, "GET", "/v1/models").status == 404


def test_an_analyst_that_dies_is_started_again(server: Server, engine: ScriptedEngine) -> None:
    outcomes(server)
    analyst = server.analyst()
    assert analyst is not None
    analyst.kill()
    engine.on(CHAT, stream(*EVENTS))
    assert post(server.port, server.prefix + CHAT, body_of()).clean
    wait_until(lambda: server.analyst() not in (None, analyst), 15)
    assert outcomes(server).names


@pytest.mark.parametrize("name", ["hypercorn", "uvicorn h11"])
def test_wrong_settings_end_the_start_with_their_reason(name: str) -> None:
    with running(name, PLAIN, "ftp://engine") as server:
        server.popen.wait(20)
        wait_until(lambda: "accepted: an address such as http://127.0.0.1:8000" in server.text)


def test_a_mount_without_the_lifespan_says_what_is_missing(engine: ScriptedEngine) -> None:
    with running("uvicorn h11", "tests.asgi.applications:forgotten", engine.url) as server:
        assert fetch(server.port, "GET", "/llm/v1/models", timeout=60).status == 500
        wait_until(lambda: "FastAPI(lifespan=tokgauge.asgi.lifespan)" in server.text)


def test_http2_bodies_of_unsaid_length_go_up_in_chunks_and_the_end_leaves_nobody_behind(
    engine: ScriptedEngine,
) -> None:
    engine.on("/v1/audio", answering({"ok": True}))
    with running("hypercorn", PLAIN, engine.url) as server:
        outcomes(server)
        url = f"http://127.0.0.1:{server.port}/v1/audio"
        with httpx2.Client(http1=False, http2=True, timeout=20) as client:
            sent = client.post(url, content=iter([b"abc", b"def"]))
            assert (sent.http_version, sent.status_code) == ("HTTP/2", 200)
            assert bytes(engine.requests[-1].body) == b"abcdef"
            assert engine.requests[-1].values("transfer-encoding") == [b"chunked"]
            assert client.get(url).status_code == 200
            assert engine.requests[-1].values("transfer-encoding") == []
        analyst = server.analyst()
        assert analyst is not None
        server.popen.send_signal(signal.SIGTERM)
        server.popen.wait(20)
        assert not analyst.is_running()
        assert "Traceback" not in server.text


def test_a_server_that_is_killed_takes_the_analyst_with_it(engine: ScriptedEngine) -> None:
    with running("uvicorn h11", PLAIN, engine.url) as server:
        outcomes(server)
        analyst = server.analyst()
        assert analyst is not None
        server.popen.kill()
        wait_until(lambda: not analyst.is_running(), 15, "the analyst has ended")


def answering(document: object) -> Script:
    async def script(c: Conversation) -> None:
        await c.send(json_answer(document))

    return script
