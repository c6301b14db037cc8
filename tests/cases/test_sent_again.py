"""Which requests are sent a second time: those that met a connection that the engine had left."""

import time
from collections.abc import Callable

import pytest

from tests.conftest import QUIET, Rig
from tests.support.chat import CHAT, COMPLETIONS, body_of
from tests.support.client import JSON, RawClient, request
from tests.support.engine import Conversation, answer, json_answer, send

FINE = json_answer({"fine": True})

NewRig = Callable[..., Rig]


@pytest.fixture
def rig(quiet_rig: Rig) -> Rig:
    return quiet_rig


async def close_it(c: Conversation) -> None:
    c.close()


async def reset_it(c: Conversation) -> None:
    c.reset()


async def never(c: Conversation) -> None:
    await c.until_peer_leaves()


def ask(rig: Rig, method: str, path: str, *, streamed: bool = False) -> int:
    body = None if method in ("GET", "HEAD", "OPTIONS") else body_of(asked=True)
    with RawClient(rig.port) as client:
        if streamed and body is not None:
            headers = [JSON, ("Transfer-Encoding", "chunked")]
            client.send(
                request(method, path, headers), b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
            )
        else:
            client.request(method, path, [JSON], body)
        return client.read_response(to_head=method == "HEAD").status


AGAIN = [
    ("GET", "/v1/models/x"),
    ("HEAD", "/v1/models/x"),
    ("OPTIONS", CHAT),
    ("GET", CHAT),
    ("POST", CHAT),
    ("POST", COMPLETIONS),
    ("POST", "/v1/responses"),
    ("POST", "/v1/messages"),
    ("POST", "/prefix/v1/chat/completions"),
]
ONCE = [
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/files"),
    ("POST", "/v1/batches"),
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/responses/resp_1/cancel"),
    ("PUT", CHAT),
    ("PATCH", "/v1/files/x"),
    ("DELETE", "/v1/responses/x"),
    ("DELETE", CHAT),
    ("POST", "/"),
]


@pytest.mark.parametrize("dies", [close_it, reset_it], ids=["close", "reset"])
@pytest.mark.parametrize(("method", "path"), AGAIN)
def test_what_harms_nobody_is_sent_once_more(
    rig: Rig, method: str, path: str, dies: object
) -> None:
    fine = send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    used = rig.leave_idle(1)
    rig.engine.on(path, dies, fine)  # type: ignore[arg-type]
    assert ask(rig, method, path) == 200
    first, second = rig.engine.requests
    assert first.connection in used
    assert (first.head, first.body) == (second.head, second.body)
    assert second.connection > first.connection


@pytest.mark.parametrize("dies", [close_it, reset_it], ids=["close", "reset"])
@pytest.mark.parametrize(("method", "path"), ONCE)
def test_anything_else_is_sent_once(rig: Rig, method: str, path: str, dies: object) -> None:
    rig.leave_idle(3)
    rig.engine.on(path, dies, send(FINE))  # type: ignore[arg-type]
    assert ask(rig, method, path) == 502
    assert len(rig.engine.requests) == 1


@pytest.mark.parametrize("dies", [close_it, reset_it], ids=["close", "reset"])
@pytest.mark.parametrize("streamed", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("dead", [1, 5])
def test_however_many_idle_connections_are_dead_a_new_one_is_taken(
    rig: Rig, dead: int, dies: object, streamed: bool
) -> None:
    used = rig.leave_idle(dead)

    async def on_request(c: Conversation) -> None:
        if c.request.connection in used:
            await dies(c)  # type: ignore[operator]
        else:
            await c.send(FINE)

    rig.engine.on(CHAT, on_request)
    assert ask(rig, "POST", CHAT, streamed=streamed) == 200
    assert [r.connection in used for r in rig.engine.requests] == [True, False]


def test_the_first_byte_s_limit_sends_nothing_again(new_rig: NewRig) -> None:
    """The engine has the request, and works at it."""
    rig = new_rig(first_byte_timeout=0.3, **QUIET)
    rig.engine.on(CHAT, never)
    for reused in (False, True, True):
        if reused:
            rig.leave_idle(3)
        before = len(rig.engine.requests)
        assert ask(rig, "POST", CHAT) == 504
        time.sleep(0.1)
        assert len(rig.engine.requests) == before + 1
        rig.engine.requests[-1].wait_closed()


def test_interim_responses_do_not_move_the_first_byte_s_limit(new_rig: NewRig) -> None:
    rig = new_rig(first_byte_timeout=0.4, **QUIET)

    async def please_wait(c: Conversation) -> None:
        while not c.peer_gone:
            await c.send(b"HTTP/1.1 102 Processing\r\n\r\n")
            await c.pause(0.05)

    rig.engine.on(CHAT, please_wait)
    begun = time.monotonic()
    assert ask(rig, "POST", CHAT) == 504
    assert 0.3 < time.monotonic() - begun < 5
    assert len(rig.engine.requests) == 1


@pytest.mark.parametrize("sent", [b"H", b"HTTP/1.1 100 Continue\r\n\r\n", b"\r\n"], ids=repr)
def test_after_a_byte_of_a_response_nothing_is_sent_again(rig: Rig, sent: bytes) -> None:
    async def begins(c: Conversation) -> None:
        await c.send(sent)
        await c.pause(0.02)
        c.close()

    rig.leave_idle(2)
    rig.engine.on(CHAT, begins, send(FINE))
    assert ask(rig, "POST", CHAT) == 502
    assert len(rig.engine.requests) == 1


@pytest.mark.parametrize("response", [b"HTTP/1.1 000 X\r\n\r\n", b"nonsense\r\n\r\n"], ids=repr)
def test_what_is_no_response_sends_nothing_again(rig: Rig, response: bytes) -> None:
    rig.leave_idle(2)
    rig.engine.on(CHAT, send(response), send(FINE))
    assert ask(rig, "POST", CHAT) == 502
    assert len(rig.engine.requests) == 1


@pytest.mark.parametrize("path", [CHAT, "/v1/audio/transcriptions"])
def test_a_body_that_went_up_as_it_came_is_not_repeated(new_rig: NewRig, path: str) -> None:
    """Its first part is not here any more."""
    rig = new_rig(observed_body_bytes=2048, **QUIET)

    async def leaves(c: Conversation) -> None:
        await c.pause(0.05)
        c.close()

    rig.leave_idle(3)
    rig.engine.on(path, leaves, send(answer(b"second")), early=True)
    with rig.client(5) as client:
        client.request("POST", path, [JSON, ("Content-Length", "200000")])
        client.send(b"x" * 100_000)
        assert client.read_response().status == 502
    time.sleep(0.05)
    assert len(rig.engine.requests) == 1
