"""Cases 22 and 43-47: usage injection is earned. What direct gives, the proxy gives.

Each engine here answers a request with the wish for usage in one way and one without it in another.
Several clients that have no wish ask one after the other, and each must get what the engine itself
gives such a client, byte for byte.
"""

import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conftest import QUIET, Rig
from tests.support.chat import CHAT, COMPLETIONS, body_of
from tests.support.client import JSON, Response, fetch, post
from tests.support.engine import (
    DONE,
    EVENT_STREAM,
    LAST_CHUNK,
    ROLE,
    Conversation,
    Script,
    ScriptedEngine,
    answer,
    chat_event,
    event,
    json_answer,
    send,
    stream,
    usage_event,
)
from tests.support.metrics import wait_until
from tests.test_captures import Capture

A = chat_event("a")
STOP = chat_event("", finish="stop")
USAGE = usage_event(1)
WISH = b'"include_usage":true'


def with_members(data: bytes, members: dict[str, Any], spaced: bool = False) -> bytes:
    document = {**json.loads(data[6:]), **members}
    separators = (", ", ": ") if spaced else (",", ":")
    return b"data: " + json.dumps(document, separators=separators).encode() + b"\n\n"


def by_wish(plain: Script, wished: Script) -> Script:
    async def script(c: Conversation) -> None:
        await (wished if WISH in bytes(c.request.body).replace(b" ", b"") else plain)(c)

    return script


def stream_as(head: bytes, *payloads: bytes) -> Script:
    async def script(c: Conversation) -> None:
        await c.send(head)
        await c.chunk(*payloads)
        await c.send(LAST_CHUNK)

    return script


async def closes(c: Conversation) -> None:
    c.close()


async def begins_and_closes(c: Conversation) -> None:
    await c.send(EVENT_STREAM)
    c.close()


def states(rig: Rig, route: str = "chat_completions") -> list[str]:
    """The states that hold by the metric: each has a sample, one is 1."""
    scrape = rig.scrape()
    found = [labels["state"] for labels in scrape.labels("usage_injection")
             if labels["route"] == route]  # fmt: skip
    assert len(found) == 7
    return [
        state for state in found
        if scrape.total("usage_injection", route=route, state=state) == 1
    ]  # fmt: skip


def wished(rig: Rig) -> list[bool]:
    return [WISH in bytes(request.body).replace(b" ", b"") for request in rig.engine.requests]


def same(through: Response, direct: Response) -> None:
    assert through.status_line == direct.status_line
    assert bytes(through.body) == bytes(direct.body)
    assert through.clean == direct.clean
    assert through.header("content-type") == direct.header("content-type")


def several_as_direct(rig: Rig, script: Script, path: str, body: bytes, times: int = 4) -> None:
    """Ask direct once and several times through the proxy, and compare each."""
    rig.engine.on(path, script)
    direct = fetch(rig.engine.port, "POST", path, [JSON], body)
    rig.engine.requests.clear()
    for _ in range(times):
        same(fetch(rig.port, "POST", path, [JSON], body), direct)


@dataclass
class Pair:
    """An engine's streams without and with the wish, and what the proxy should make of it."""

    plain: Script
    wished: Script
    state: str
    wishes: list[bool]
    """Which of the requests of four clients had the wish, repeated ones included."""
    path: str = CHAT
    fields: dict[str, Any] | None = None


ON = [False, True, True, True]
NEVER = [False] * 4
ONCE = [False, True, False, False, False]
"""The second client's request with the wish is followed by the same without it."""
TRIED = [False, True, False, False]

FINGERPRINT = {"system_fingerprint": "vllm-0.32.0-cb5eb299"}
TIMINGS = {"timings": {"prompt_n": 5, "predicted_ms": 12.25, "nested": ["x", {"y": 1}]}}


def moved(members: dict[str, Any], state: str = "on", *, spaced: bool = False, **more: Any) -> Pair:
    """An engine whose last event carries these members, its usage event with the wish."""

    def plain(data: bytes) -> bytes:
        return with_members(data, {}, spaced)

    return Pair(
        stream(plain(ROLE), plain(A), with_members(STOP, members, spaced), DONE),
        stream(plain(ROLE), plain(A), plain(STOP), with_members(USAGE, members, spaced), DONE),
        state, ON, **more,
    )  # fmt: skip


def in_the_middle(data: bytes) -> bytes:
    document = json.loads(data[6:])
    return event({"id": document.pop("id"), **FINGERPRINT, **document})


def headed(*headers: bytes) -> bytes:
    return b"\r\n".join([b"HTTP/1.1 200 OK", *headers, b"transfer-encoding: chunked", b"", b""])


def usual(head: bytes, state: str = "on", **more: Any) -> Pair:
    return Pair(
        stream_as(head, ROLE, A, STOP, DONE), stream_as(head, ROLE, A, STOP, USAGE, DONE),
        state, ON, **more,
    )  # fmt: skip


def hidden_as(data: bytes, done: bool = True) -> Pair:
    end = [DONE] if done else []
    return Pair(stream(ROLE, A, STOP, *end), stream(ROLE, A, STOP, data, *end), "on", ON)


def refused(script: Script, state: str = "off_refused") -> Pair:
    return Pair(stream(ROLE, A, STOP, DONE), script, state, ONCE)


NUMBERS = json.loads(USAGE[6:])["usage"]
NULLS = [with_members(data, {"usage": None}) for data in (ROLE, A, STOP)]
TWO = [chat_event({"role": "assistant", "content": ""}, index=index) for index in (0, 1)]
FINISHES = [chat_event("x", index=index, finish="length") for index in (0, 1)]
STAMPED = [with_members(data, FINGERPRINT) for data in FINISHES]
STAMPED_USAGE = with_members(USAGE, FINGERPRINT)
FORCED = [with_members(data, {"usage": NUMBERS}) for data in (ROLE, *[A] * 20, STOP)]
ERROR = b'data: {"error":{"message":"Extra inputs are not permitted","code":400}}\n\n'

PAIRS = {
    "nothing_moves": usual(EVENT_STREAM),
    "fingerprint": moved(FINGERPRINT),
    "timings": moved(TIMINGS),
    "both": moved({**TIMINGS, **FINGERPRINT}),
    "spaced": moved(FINGERPRINT, spaced=True),
    "completions": moved(FINGERPRINT, path=COMPLETIONS),
    "in_the_middle": Pair(
        stream(ROLE, A, in_the_middle(STOP), DONE),
        stream(ROLE, A, STOP, in_the_middle(USAGE), DONE), "on", ON,
    ),
    "everywhere": Pair(
        stream(*map(in_the_middle, (ROLE, A)), with_members(in_the_middle(STOP), TIMINGS), DONE),
        stream(
            *map(in_the_middle, (ROLE, A, STOP)), with_members(in_the_middle(USAGE), TIMINGS), DONE
        ), "on", ON,
    ),
    "one_read": Pair(
        stream(ROLE + A + with_members(STOP, FINGERPRINT) + DONE),
        stream(ROLE + A + STOP + STAMPED_USAGE + DONE), "on", ON,
    ),
    "ping_between": Pair(
        stream(ROLE, A, with_members(STOP, FINGERPRINT), b": ping\n\n", DONE),
        stream(ROLE, A, STOP, b": ping\n\n", STAMPED_USAGE, DONE), "on", ON,
    ),
    "crlf": Pair(
        stream(*(data.replace(b"\n", b"\r\n")
                 for data in (ROLE, A, with_members(STOP, FINGERPRINT), DONE))),
        stream(*(data.replace(b"\n", b"\r\n") for data in (ROLE, A, STOP, STAMPED_USAGE, DONE))),
        "on", ON,
    ),
    "cr": Pair(
        stream(*(data.replace(b"\n", b"\r")
                 for data in (ROLE, A, with_members(STOP, FINGERPRINT), DONE))),
        stream(*(data.replace(b"\n", b"\r") for data in (ROLE, A, STOP, STAMPED_USAGE, DONE))),
        "on", ON,
    ),
    "two_choices": Pair(
        stream(*TWO, A, STAMPED[0], A, STAMPED[1], DONE),
        stream(*TWO, A, FINISHES[0], A, FINISHES[1], STAMPED_USAGE, DONE), "on", ON,
        fields={"n": 2},
    ),
    "two_choices_last_only": Pair(
        stream(*TWO, FINISHES[0], A, STAMPED[1], DONE),
        stream(*TWO, FINISHES[0], A, FINISHES[1], STAMPED_USAGE, DONE), "on", ON, fields={"n": 2},
    ),
    "no_choices": hidden_as(event({"usage": NUMBERS})),
    "null_choices": hidden_as(event({"choices": None, "usage": NUMBERS})),
    "spaced_choices": hidden_as(b'data: {"choices": [ ], "usage": {"completion_tokens": 1}}\n\n'),
    "no_done": hidden_as(USAGE, done=False),
    "text_plain": usual(headed(b"content-type: text/plain")),
    "text_plain_no_choices": Pair(
        stream_as(headed(b"content-type: text/plain"), ROLE, A, STOP, DONE),
        stream_as(
            headed(b"content-type: text/plain"), ROLE, A, STOP, event({"usage": NUMBERS}), DONE
        ), "on", ON,
    ),
    "no_content_type": usual(headed(b"server: x")),
    "upper_case_type": usual(headed(b"Content-Type: Text/Event-Stream")),
    "forced": Pair(
        stream(*FORCED, USAGE, DONE), stream(*FORCED, USAGE, DONE), "off_unneeded", NEVER
    ),
    "forced_at_the_end": Pair(
        stream(ROLE, A, STOP, USAGE, DONE), stream(ROLE, A, STOP, USAGE, DONE), "off_unneeded",
        NEVER,
    ),
    "forced_without_choices": Pair(
        stream(ROLE, A, STOP, event({"usage": NUMBERS}), DONE),
        stream(ROLE, A, STOP, event({"usage": NUMBERS}), DONE), "off_unneeded", NEVER,
    ),
    "forced_on_the_finish": Pair(
        stream(ROLE, A, with_members(STOP, {"usage": NUMBERS}), DONE),
        stream(ROLE, A, STOP, USAGE, DONE), "off_unneeded", NEVER,
    ),
    "ignores": Pair(
        stream(ROLE, A, STOP, DONE), stream(ROLE, A, STOP, DONE), "off_ignored", TRIED
    ),
    "null_on_every_event": refused(stream(*NULLS, USAGE, DONE), "off_differs"),
    "another_type": refused(stream_as(headed(b"content-type: text/plain"), ROLE, STOP),
                            "off_differs"),
    "not_streamed": refused(send(json_answer({"choices": []})), "off_differs"),
    "extra_inputs": refused(
        send(json_answer({"message": "Extra inputs are not permitted"}, "400 Bad Request"))
    ),
    "names_it": refused(
        send(json_answer({"error": "unknown field stream_options"}, "400 Bad Request"))
    ),
    "422": refused(send(answer(b"no", "422 Unprocessable Entity", "text/plain"))),
    "404": refused(send(answer(b"", "404 Not Found"))),
    "500": refused(send(answer(b"x" * 200_000, "500 Internal Server Error", "text/html"))),
    "503": refused(send(answer(b"", "503 Service Unavailable"))),
    "403": refused(send(answer(b"blocked", "403 Forbidden", "text/html"))),
    "204": refused(send(b"HTTP/1.1 204 No Content\r\n\r\n"), "off_differs"),
    "redirect": refused(send(b"HTTP/1.1 307 x\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n"),
                        "off_differs"),
    "closed": refused(closes),
    "closed_after_the_head": refused(begins_and_closes),
    "empty": refused(stream()),
    "empty_with_length": refused(
        send(answer(b"", content_type="text/event-stream; charset=utf-8"))
    ),
    "only_done": refused(stream(DONE)),
    "error_event": refused(stream(ERROR, DONE)),
    "named_error_event": refused(stream(b'event: error\ndata: {"detail":"no"}\n\n')),
    "garbage": refused(send(b"\x00\x01garbage\r\n\r\n")),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_clients_without_a_wish_get_what_direct_gives(rig: Rig, name: str) -> None:
    pair = PAIRS[name]
    body = body_of(**(pair.fields or {}))
    several_as_direct(rig, by_wish(pair.plain, pair.wished), pair.path, body)
    assert wished(rig) == pair.wishes
    route = "completions" if pair.path == COMPLETIONS else "chat_completions"
    assert states(rig, route) == [pair.state]
    other = "chat_completions" if pair.path == COMPLETIONS else "completions"
    assert states(rig, other) == ["learning"]


CAPTURES = {
    "vllm/chat_stream": CHAT, "vllm_ascii/chat_stream": CHAT, "vllm/comp_stream": COMPLETIONS,
    "vllm_ascii/comp_stream": COMPLETIONS,
}  # fmt: skip


def of_the_same_answer(blocks: list[bytes], other: Capture) -> list[bytes]:
    """Blocks of one capture with the id and the time of another one's."""
    for member in (rb'"id":"[^"]+"', rb'"created":\d+'):
        (value,) = set(re.findall(member, other.body))
        blocks = [re.sub(member, value, block) for block in blocks]
    return blocks


@pytest.mark.parametrize("name", CAPTURES)
def test_vllm_as_captured(rig: Rig, name: str) -> None:
    """A client without the wish gets the stream that vLLM sent to one without it."""
    plain, asked = Capture.load(name), Capture.load(f"{name}_usage")
    script = by_wish(
        send(*plain.blocks), send(plain.blocks[0], *of_the_same_answer(asked.blocks[1:], plain))
    )
    watch = rig.watch()
    several_as_direct(rig, script, CAPTURES[name], body_of())
    assert wished(rig) == ON
    found = re.search(rb'"completion_tokens":(\d+)', asked.body)
    assert found is not None
    gained = watch.after(4)
    assert gained.total("completion_tokens_total", source="usage") == 3 * int(found[1])
    assert gained.total("completion_tokens_total", source="events") is not None


def test_options_without_the_wish_are_one_for_vllm(rig: Rig) -> None:
    """vLLM takes `{}` for a wish: such a client sees the event, and others still do not."""
    rig.teach()
    several_as_direct(
        rig, stream(ROLE, A, STOP, USAGE, DONE), CHAT, body_of(stream_options={"x": 1})
    )
    assert wished(rig) == NEVER
    assert states(rig) == ["on"]
    pair = PAIRS["nothing_moves"]
    several_as_direct(rig, by_wish(pair.plain, pair.wished), CHAT, body_of())
    assert wished(rig) == [True] * 4


@pytest.mark.parametrize(
    "error",
    [
        json_answer({"error": {"message": "max_tokens must be at least 1"}}, "400 Bad Request"),
        answer(b"x" * 300_000, "500 Internal Server Error", "text/html"),
        answer(b"", "404 Not Found"),
        answer(b"{}", "200 OK"),
    ],
    ids=["400", "large_500", "empty_404", "json_200"],
)
def test_an_error_of_both_teaches_nothing(rig: Rig, error: bytes) -> None:
    rig.teach()
    several_as_direct(rig, send(error), CHAT, body_of(), times=2)
    assert wished(rig) == [True, False] * 2
    assert states(rig) == ["on"]


def test_another_error_of_the_clients_own_request_is_what_it_gets(rig: Rig) -> None:
    rig.teach()
    script = by_wish(
        send(answer(b"no model", "404 Not Found")), send(answer(b"no", "400 Bad Request"))
    )
    several_as_direct(rig, script, CHAT, body_of(), times=2)
    assert states(rig) == ["on"]


def test_an_error_event_of_both_teaches_nothing(rig: Rig) -> None:
    rig.teach()
    several_as_direct(rig, stream(ERROR, DONE), CHAT, body_of(), times=2)
    assert states(rig) == ["on"]


@pytest.mark.parametrize(
    "status", ["429 Too Many Requests", "503 Service Unavailable", "401 Unauthorized"]
)
def test_an_engine_that_serves_changed_requests_is_not_asked_twice_when_overloaded(
    rig: Rig, status: str
) -> None:
    prove(rig)
    several_as_direct(rig, send(answer(b"later", status)), CHAT, body_of(), times=2)
    assert wished(rig) == [True, True]


def prove(rig: Rig) -> None:
    """Let a changed request have the stream that it should."""
    pair = PAIRS["nothing_moves"]
    several_as_direct(rig, by_wish(pair.plain, pair.wished), CHAT, body_of(), times=2)
    rig.engine.forget()


def test_one_failure_does_not_outweigh_what_was_proven(rig: Rig) -> None:
    """A single error may be anything; the client has its stream, and two in a row are believed."""
    prove(rig)
    plain, error = PAIRS["nothing_moves"].plain, send(answer(b"oops", "500 Internal Server Error"))
    several_as_direct(rig, by_wish(plain, error), CHAT, body_of(), times=1)
    assert states(rig) == ["on"]
    several_as_direct(rig, by_wish(plain, error), CHAT, body_of(), times=2)
    assert wished(rig) == [True, False, False]
    assert states(rig) == ["off_refused"]


def test_a_refusal_of_the_clients_own_wish_passes(rig: Rig) -> None:
    rig.teach()
    refusal = json_answer({"error": {"message": "unknown field stream_options"}}, "400 Bad Request")
    several_as_direct(rig, send(refusal), CHAT, body_of(asked=True), times=2)
    assert len(rig.engine.requests) == 2


LATE = {
    "vanished": (
        [ROLE, A, with_members(STOP, TIMINGS), DONE], [ROLE, A, STOP, USAGE, DONE],
        ROLE + A + STOP + DONE, "timings",
    ),
    "other_spacing": (
        [ROLE, A, with_members(STOP, FINGERPRINT), DONE],
        [ROLE, A, with_members(STOP, {}, spaced=True), STAMPED_USAGE, DONE],
        ROLE + A + with_members(STOP, {}, spaced=True) + DONE, "system_fingerprint",
    ),
    "a_member_more": (
        [ROLE, A, STOP, DONE], [ROLE, with_members(A, {"x": 1}), STOP, USAGE, DONE],
        ROLE + with_members(A, {"x": 1}) + STOP + DONE, "other members",
    ),
    "not_done": (
        [ROLE, A, STOP, DONE], [ROLE, A, STOP, USAGE], ROLE + A + STOP, "[DONE]",
    ),
    "twice": (
        [ROLE, A, STOP, DONE], [ROLE, A, STOP, USAGE, USAGE, DONE], ROLE + A + STOP + DONE, "once",
    ),
    "early": (
        [ROLE, A, STOP, DONE], [ROLE, A, USAGE, STOP, DONE], ROLE + A + STOP + DONE, "at the end",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LATE)
def test_what_differs_when_bytes_have_gone_out_is_not_done_again(rig: Rig, name: str) -> None:
    plain, with_wish, seen, why = LATE[name]
    rig.engine.on(CHAT, by_wish(stream(*plain), stream(*with_wish)))
    bodies = [bytes(post(rig.port, CHAT, body_of()).body) for _ in range(3)]
    assert bodies == [b"".join(plain), seen, b"".join(plain)]
    assert wished(rig) == TRIED[:3]
    assert states(rig) == ["off_differs"]
    live = json.loads(fetch(rig.port, "GET", "/tokgauge/live").body)
    told = live["usage_injection"]["chat_completions"]
    assert told["state"] == "off_differs"
    assert why in told["why"]


def test_a_stream_of_one_token_teaches_too(rig: Rig) -> None:
    """It shows no event between first and last, and in vLLM those have fewer members than both."""
    first, last = with_members(ROLE, {"prompt_token_ids": None}), with_members(STOP, FINGERPRINT)
    taught = stream(first, last, DONE)
    plain, with_wish = [first, A, last, DONE], [first, A, STOP, STAMPED_USAGE, DONE]
    rig.engine.on(CHAT, taught, by_wish(stream(*plain), stream(*with_wish)))
    bodies = [bytes(post(rig.port, CHAT, body_of()).body) for _ in range(3)]
    assert bodies == [first + last + DONE, b"".join(plain), b"".join(plain)]
    assert wished(rig) == [False, True, True]
    assert states(rig) == ["on"]


def test_tokens_of_a_choice_do_not_wait_when_another_has_finished(rig: Rig) -> None:
    first = [chat_event("a", index=i) for i in (0, 1)] + [chat_event("", index=0, finish="stop")]
    token, last = chat_event("b", index=1), chat_event("", index=1, finish="stop")
    seen = threading.Event()

    async def engine(c: Conversation) -> None:
        wished = WISH in bytes(c.request.body)
        await c.send(EVENT_STREAM)
        await c.chunk(*first, token)
        await c.until(seen)
        ending = [last, STAMPED_USAGE] if wished else [with_members(last, FINGERPRINT)]
        await c.chunk(*ending, DONE)
        await c.send(LAST_CHUNK)

    rig.engine.on(CHAT, engine)
    for _ in range(3):
        seen.clear()
        with rig.client() as client:
            client.request("POST", CHAT, [JSON], body_of(n=2))
            begun = client.read_head()
            response = client.read_body(begun, at_least=len(b"".join([*first, token])))
            waited = response.arrivals[-1][0] - begun.head_at
            seen.set()
            client.read_body(response)
        assert response.body == b"".join([*first, token, with_members(last, FINGERPRINT), DONE])
        assert waited < 0.7, "an event is let go after a second"
    assert states(rig) == ["on"]


def test_a_first_event_that_differs_because_of_the_request_is_learned(rig: Rig) -> None:
    rig.teach()
    first = with_members(ROLE, {"prompt_token_ids": [1]})
    script = by_wish(
        stream(first, A, STOP, DONE), stream(first, A, STOP, USAGE, DONE)
    )  # fmt: skip
    several_as_direct(rig, script, CHAT, body_of(return_token_ids=True), times=3)
    assert wished(rig) == [True, False, True, True]
    assert states(rig) == ["on"]


def test_a_stream_that_breaks_off_under_the_wish(rig: Rig) -> None:
    rig.engine.on(
        CHAT, by_wish(stream(ROLE, A, STOP, DONE), stream(ROLE, A, end=False))
    )  # fmt: skip
    for clean in (True, False, True):
        assert post(rig.port, CHAT, body_of()).clean is clean
    assert states(rig) == ["off_differs"]


def test_compressed_streams_are_left_alone(rig: Rig) -> None:
    """The client's Accept-Encoding goes up as it is, whether usage is asked for or not."""
    rig.teach()
    head = headed(b"content-type: text/event-stream", b"content-encoding: gzip")
    rig.engine.on(CHAT, stream_as(head, b"\x1f\x8b", b"rest"))
    headers = [JSON, ("Accept-Encoding", "gzip, br")]
    for _ in range(2):
        response = fetch(rig.port, "POST", CHAT, headers, body_of())
        assert bytes(response.body) == b"\x1f\x8brest"
        assert response.header("content-encoding") == b"gzip"
    assert {request.header("accept-encoding") for request in rig.engine.requests} == {b"gzip, br"}
    assert states(rig) == ["off_differs"]


# What begins it anew


def lost_connection(rig: Rig) -> None:
    rig.engine.on(CHAT, stream(ROLE, A, end=False))
    assert not post(rig.port, CHAT, body_of(asked=True)).clean
    rig.engine.forget()


def connect_error(rig: Rig) -> None:
    rig.engine.stop()
    assert post(rig.port, CHAT, body_of()).status == 502
    rig.engine.start()


@pytest.mark.parametrize("lose", [lost_connection, connect_error])
@pytest.mark.parametrize("state", ["on", "off_refused", "off_unneeded"])
def test_a_lost_engine_is_learned_anew(
    new_rig: Callable[..., Rig], state: str, lose: Callable[[Rig], None]
) -> None:
    names = {"on": "fingerprint", "off_refused": "404", "off_unneeded": "forced"}
    rig = new_rig(**QUIET)
    pair = PAIRS[names[state]]
    several_as_direct(rig, by_wish(pair.plain, pair.wished), CHAT, body_of(), times=2)
    assert states(rig) == [state]
    lose(rig)
    assert states(rig) == ["learning"]
    pair = PAIRS["timings"]
    several_as_direct(rig, by_wish(pair.plain, pair.wished), CHAT, body_of())
    assert wished(rig) == ON


def test_another_start_time_of_the_process_begins_it_anew(new_rig: Callable[..., Rig]) -> None:
    """Another engine may stand there before anything was lost."""
    page = "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds %r\n"
    engine = ScriptedEngine()
    engine.on("/metrics", send(answer((page % 1e9).encode(), content_type="text/plain")))
    with engine:
        rig = new_rig(engine, engine_metrics_interval=0.05, poll_interval=3600)
        prove_on = PAIRS["nothing_moves"]
        engine.on(CHAT, by_wish(prove_on.plain, prove_on.wished))
        before = len(engine.requests)
        engine.wait_requests(before + 3)  # the page has been read more than once
        post(rig.port, CHAT, body_of())
        assert states(rig) == ["on"]
        engine.on("/metrics", send(answer((page % 1.5e9).encode(), content_type="text/plain")))
        wait_until(lambda: states(rig) == ["learning"], what="the state begins anew")


# Many at once


def test_those_that_come_before_one_has_ended_all_teach(rig: Rig) -> None:
    """None is changed until one has ended well, and then all are."""
    gate = threading.Event()
    pair = PAIRS["fingerprint"]

    async def slow(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        await c.chunk(ROLE)
        await c.until(gate)
        await c.chunk(A, with_members(STOP, FINGERPRINT), DONE)
        await c.send(LAST_CHUNK)

    rig.engine.on(CHAT, by_wish(slow, pair.wished))
    answers: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: answers.append(bytes(post(rig.port, CHAT, body_of()).body)))
        for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    rig.engine.wait_requests(12)
    assert wished(rig) == [False] * 12
    gate.set()
    for thread in threads:
        thread.join(10)
    direct = ROLE + A + with_members(STOP, FINGERPRINT) + DONE
    assert answers == [direct] * 12
    assert bytes(post(rig.port, CHAT, body_of()).body) == direct
    assert wished(rig)[12:] == [True]


@pytest.mark.parametrize("other", ["ends_otherwise", "tells_usage"])
def test_teachers_that_contradict_each_other(rig: Rig, other: str) -> None:
    """Two models of one engine: what only one of them does is not expected of both."""
    gate = threading.Event()
    last = STAMPED_USAGE if other == "tells_usage" else with_members(STOP, TIMINGS)

    async def slow(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        await c.chunk(ROLE)
        await c.until(gate)
        await c.chunk(STOP, last, DONE)
        await c.send(LAST_CHUNK)

    rig.engine.on(CHAT, slow, stream(ROLE, STOP, DONE))
    thread = threading.Thread(target=lambda: post(rig.port, CHAT, body_of()))
    thread.start()
    rig.engine.wait_requests(1)
    assert post(rig.port, CHAT, body_of()).clean
    assert states(rig) == ["on"]
    gate.set()
    thread.join(10)
    rig.engine.forget()
    rig.engine.on(CHAT, stream(ROLE, STOP, last, DONE))
    for _ in range(2):
        assert bytes(post(rig.port, CHAT, body_of()).body) == ROLE + STOP + last + DONE
    assert wished(rig) == [False] * 2


# When it goes out


def test_the_last_event_is_not_held_for_ever(rig: Rig) -> None:
    """An engine that goes silent before the usage event: the client has the last event all the
    same, if without what would have come with the other one."""
    pair = PAIRS["fingerprint"]
    silent = threading.Event()

    async def stalls(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        await c.chunk(ROLE, A, STOP)
        await c.until(silent)
        await c.chunk(STAMPED_USAGE, DONE)
        await c.send(LAST_CHUNK)

    several_as_direct(rig, by_wish(pair.plain, pair.wished), CHAT, body_of(), times=2)
    rig.engine.on(CHAT, by_wish(pair.plain, stalls))
    with rig.client(5) as client:
        response = client.request("POST", CHAT, [JSON], body_of()).read_head()
        client.read_body(response, at_least=len(ROLE + A + STOP))
        assert response.body == ROLE + A + STOP
        silent.set()
        client.read_body(response)
        assert response.body == ROLE + A + STOP + DONE
    assert states(rig) == ["off_differs"]


@pytest.mark.parametrize("proven", [True, False])
def test_the_head_goes_at_once(rig: Rig, proven: bool) -> None:
    gate = threading.Event()

    async def waits(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        await c.until(gate)
        await c.chunk(ROLE, A, STOP, USAGE, DONE)
        await c.send(LAST_CHUNK)

    rig.teach()
    if proven:
        prove(rig)
    rig.engine.on(CHAT, waits)
    with rig.client(5) as client:
        response = client.request("POST", CHAT, [JSON], body_of()).read_head()
        assert response.status == 200
        gate.set()
        client.read_body(response)
        assert response.body == ROLE + A + STOP + DONE


def test_a_head_that_has_gone_out_for_another_answer(rig: Rig) -> None:
    """A stream that begins with an error, and an error for the client's own request: it has a head
    already, and what it gets must not look like success."""
    rig.teach()
    head_is_there = threading.Event()

    async def error_event(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        await c.until(head_is_there)
        await c.chunk(ERROR)

    rig.engine.on(CHAT, by_wish(send(answer(b"{}", "400 Bad Request")), error_event))
    watch = rig.watch()
    with rig.client(5) as client:
        response = client.request("POST", CHAT, [JSON], body_of()).read_head()
        head_is_there.set()
        client.read_body(response)
    assert not response.clean
    assert not response.body
    assert watch.after().outcomes == {"upstream_incomplete": 1}
    assert rig.scrape().total("measurement_errors_total") is None
