"""Cases 1-9: event streams in every shape and cutting."""

import json
import os
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import Rig
from tests.support.chat import CHAT, ask, body_of, whole_answer
from tests.support.client import JSON, post
from tests.support.engine import (
    DONE,
    EVENT_STREAM,
    LAST_CHUNK,
    ROLE,
    Conversation,
    Script,
    answer,
    chat_event,
    event,
    send,
    stream,
    usage_event,
)

properties = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

FINISH = chat_event("", finish="length")


def with_line_end(events: list[bytes], line_end: bytes, space: bool = True) -> list[bytes]:
    events = [e.replace(b"\n", line_end) for e in events]
    return events if space else [e.replace(b"data: ", b"data:") for e in events]


def cut(data: bytes, points: list[int]) -> list[bytes]:
    """Cut at the given points (any numbers; taken modulo the length)."""
    places = sorted({p % len(data) for p in points} - {0})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


@pytest.mark.parametrize("asked", [True, False], ids=["asked", "unasked"])
@pytest.mark.parametrize("space", [True, False], ids=["space", "no_space"])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_case_01_line_ends(rig: Rig, line_end: bytes, space: bool, asked: bool) -> None:
    events = with_line_end(whole_answer("a", "b", "c"), line_end, space)
    rig.teach(*events[:-2], events[-1])
    rig.engine.on(CHAT, stream(*events))
    watch = rig.watch()
    response = ask(rig.port, asked=asked)
    usage = events[-2]
    assert response.body == b"".join(e for e in events if asked or e != usage)
    gained = watch.after()
    assert gained.outcomes == {"ok": 1}
    assert gained.total("completion_tokens_total", source="usage") == 3
    assert gained.total("token_events_total") == 3
    assert gained.count("inter_chunk_latency_seconds") == 2


def test_case_01_crlf_cut_between_two_reads(rig: Rig) -> None:
    events = with_line_end(whole_answer("a", "b"), b"\r\n")

    async def script(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        pieces = b"".join(events).replace(b"\r\n", b"\r\0\n").split(b"\0")
        for piece in pieces:
            await c.chunk(piece)
            await c.pause(0.01)
        await c.send(LAST_CHUNK)

    rig.engine.on(CHAT, script)
    watch = rig.watch()
    assert ask(rig.port).body == b"".join(events)
    gained = watch.after()
    assert gained.total("token_events_total") == 2
    assert gained.total("completion_tokens_total", source="usage") == 2
    assert gained.total("measurement_errors_total") is None


def test_case_01_first_token_when_its_event_is_complete(rig: Rig) -> None:
    token = chat_event("hello")

    async def script(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        await c.chunk(ROLE, token[:60])
        await c.pause(0.4)
        await c.chunk(token[60:], FINISH, DONE)
        await c.send(LAST_CHUNK)

    rig.engine.on(CHAT, script)
    watch = rig.watch()
    ask(rig.port)
    assert 0.39 < watch.after().mean("time_to_first_token_seconds") < 3.0


@properties
@given(
    points=st.lists(st.integers(0, 5000), max_size=40),
    line_end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    asked=st.booleans(),
    texts=st.lists(st.text(max_size=5), min_size=1, max_size=6),
)
def test_case_02_any_cutting(
    rig: Rig, points: list[int], line_end: bytes, asked: bool, texts: list[str]
) -> None:
    rig.engine.forget()
    document = [json.loads(e[6:]) for e in whole_answer(*texts)[:-1]]
    for choice in (choice for d in document for choice in d["choices"]):
        choice["token_ids"] = None  # as in vLLM, whose empty texts are tokens
    events = [
        b"data: " + json.dumps(d, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n\n"
        for d in document
    ]
    events = with_line_end([*events, DONE], line_end)
    data = b"".join(events)
    rig.teach()

    async def script(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        await c.chunk(*cut(data, points))
        await c.send(LAST_CHUNK)

    rig.engine.on(CHAT, script)
    watch = rig.watch()
    response = ask(rig.port, asked=asked)
    assert response.body == (data if asked else b"".join([*events[:-2], events[-1]]))
    assert response.clean
    gained = watch.after()
    assert gained.outcomes == {"ok": 1}
    assert gained.total("completion_tokens_total", source="usage") == len(texts)
    # An empty text on the finish event may or may not be a token (see expected.json).
    assert (gained.total("token_events_total") or 0) in {
        len(texts),
        len(texts) - (texts[-1] == ""),
    }
    assert gained.total("measurement_errors_total") is None


def test_case_02_three_byte_character_cut_between_two_reads(rig: Rig) -> None:
    token = chat_event("@").replace(b"@", "日".encode())
    middle = token.index("日".encode())
    for at in (middle + 1, middle + 2):

        async def script(c: Conversation, at: int = at) -> None:
            await c.send(EVENT_STREAM)
            await c.chunk(ROLE, token[:at])
            await c.pause(0.05)
            await c.chunk(token[at:], FINISH, usage_event(2), DONE)
            await c.send(LAST_CHUNK)

        rig.engine.on(CHAT, script)
        watch = rig.watch()
        assert token in ask(rig.port).body
        gained = watch.after()
        assert gained.outcomes == {"ok": 1}
        assert gained.total("completion_tokens_total", source="usage") == 2
        assert gained.total("measurement_errors_total") is None


def test_case_02_twenty_events_in_one_read(rig: Rig) -> None:
    events = whole_answer(*["x"] * 20)
    rig.engine.on(CHAT, stream(b"".join(events)))
    watch = rig.watch()
    assert ask(rig.port).body == b"".join(events)
    gained = watch.after()
    assert gained.total("token_events_total") == 20
    assert gained.total("completion_tokens_total", source="usage") == 20


@pytest.mark.parametrize("asked", [True, False], ids=["asked", "unasked"])
def test_case_03_comments_pass_at_once_and_are_no_events(rig: Rig, asked: bool) -> None:
    ping = b": ping\n\n"
    sent: list[float] = []

    async def script(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        for _ in range(2):
            sent.append(time.monotonic())
            await c.chunk(ping)
            await c.pause(0.6)
        await c.chunk(ROLE, chat_event("a"))
        await c.pause(0.1)
        sent.append(time.monotonic())
        await c.chunk(ping)
        await c.pause(0.6)
        await c.chunk(chat_event("b", finish="stop"), DONE)
        await c.send(LAST_CHUNK)

    rig.engine.on(CHAT, script)
    watch = rig.watch()
    response = ask(rig.port, asked=asked)
    expected = ping * 2 + ROLE + chat_event("a") + ping + chat_event("b", finish="stop") + DONE
    assert response.body == expected
    offsets = [len(ping), 2 * len(ping), expected.rindex(ping) + len(ping)]
    for at, offset in zip(sent, offsets, strict=True):
        assert response.arrival(offset) - at < 0.4, "a comment was held back"
    gained = watch.after()
    assert gained.mean("time_to_first_token_seconds") > 1.15
    assert gained.total("token_events_total") == 2
    assert gained.count("inter_chunk_latency_seconds") == 1


def test_case_04_several_data_lines_make_one_event(rig: Rig) -> None:
    token = chat_event("a").replace(b',"choices":', b',\ndata: "choices":')
    assert token.count(b"data: ") == 2
    rig.engine.on(CHAT, stream(ROLE, token, token, FINISH, usage_event(3), DONE))
    watch = rig.watch()
    assert ask(rig.port).body == ROLE + token * 2 + FINISH + usage_event(3) + DONE
    gained = watch.after()
    assert gained.outcomes == {"ok": 1}
    assert gained.total("token_events_total") in (2, 3)
    assert gained.total("completion_tokens_total", source="usage") == 3


def test_case_04_other_fields_and_events_without_data(rig: Rig) -> None:
    events = [
        b"retry: 1000\n\n",
        b"event: message\nid: 7\n" + ROLE,
        b"event: nothing\n\n",
        b"id\n\n",
        b"data\n\n",
        b"data:\n\n",
        b"\n\n",
        b"x-unknown: 1\n" + chat_event("a"),
        chat_event("b")[:-1] + b"id: 9\n\n",
        chat_event("c", finish="stop"),
        DONE,
    ]
    rig.engine.on(CHAT, stream(*events))
    watch = rig.watch()
    assert ask(rig.port).body == b"".join(events)
    gained = watch.after()
    assert gained.outcomes == {"ok": 1}
    assert gained.total("token_events_total") == 3
    assert gained.total("finish_reasons_total", reason="stop") == 1


def test_case_04_no_blank_line_at_the_end(rig: Rig) -> None:
    events = [ROLE, chat_event("a"), chat_event("b", finish="stop"), b"data: [DONE]"]
    rig.engine.on(CHAT, stream(*events))
    watch = rig.watch()
    response = ask(rig.port)
    assert response.body == b"".join(events)
    assert response.clean
    gained = watch.after()
    assert gained.outcomes == {"ok": 1}
    assert gained.total("token_events_total") == 2


@pytest.mark.parametrize("asked", [True, False], ids=["asked", "unasked"])
def test_case_05_endless_line(rig: Rig, asked: bool) -> None:
    piece = b"x" * 65536
    count = 64 * 16  # 64 MiB

    async def script(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        await c.chunk(ROLE, b"data: ")
        for _ in range(count):
            await c.chunk(piece)
        await c.chunk(b"\n\n", DONE)
        await c.send(LAST_CHUNK)

    rig.engine.on(CHAT, script)
    watch = rig.watch()
    process = psutil.Process(os.getpid())
    with rig.client(30) as client:
        client.request("POST", CHAT, [JSON], body_of(asked=asked))
        response = client.read_head()
        before = process.memory_info().rss
        peak = received = 0
        ended = False
        while not ended:
            client.read_body(response, at_least=1)
            ended = response.clean
            received += len(response.body)
            response.body.clear()
            response.chunks.clear()
            response.arrivals.clear()
            peak = max(peak, process.memory_info().rss)
    assert received == len(ROLE) + 6 + count * len(piece) + 2 + len(DONE)
    assert peak - before < 32 * 2**20, "memory grew with the line"
    gained = watch.after()
    assert gained.total("unparsed_responses_total") == 1, "giving up must show in a counter"
    # On this exchange only:
    rig.engine.on(CHAT, stream(*whole_answer("a", "b")))
    ask(rig.port)
    assert watch.after().total("completion_tokens_total", source="usage") == 2


@pytest.mark.parametrize("asked", [True, False], ids=["asked", "unasked"])
def test_case_06_events_leave_when_they_come(rig: Rig, asked: bool) -> None:
    tokens = [chat_event(f"token {number}") for number in range(8)]
    sent: list[float] = []

    async def script(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        await c.chunk(ROLE)
        for token in tokens:
            await c.pause(0.1)
            sent.append(time.monotonic())
            await c.chunk(token)
        await c.chunk(FINISH, DONE)
        await c.send(LAST_CHUNK)

    rig.engine.on(CHAT, script)
    response = ask(rig.port, asked=asked)
    arrived = []
    offset = len(ROLE)
    for token in tokens:
        offset += len(token)
        arrived.append(response.arrival(offset))
    delays = [b - a for a, b in zip(sent, arrived, strict=True)]
    # An event that waits for the next one, or for a full buffer, is late by 0.1 s and more.
    assert sorted(delays)[len(delays) // 2] < 0.05, f"events are held back: {delays}"
    direct = (sent[-1] - sent[0]) / 7
    assert (arrived[-1] - arrived[0]) / 7 > direct - 0.02


def cut_inside_a_chunk(*payloads: bytes) -> Script:
    async def script(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        await c.chunk(*payloads)
        token = chat_event("cut")
        await c.send(b"%x\r\n" % len(token) + token[:40])
        c.close()

    return script


def reset_after(*payloads: bytes) -> Script:
    async def script(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        await c.chunk(*payloads)
        await c.pause(0.05)
        c.reset()

    return script


A, B, STOP = chat_event("a"), chat_event("b"), chat_event({}, finish="stop")


@pytest.mark.parametrize(
    ("script", "outcome", "clean"),
    [
        pytest.param(stream(ROLE, A, B, STOP), "ok", True, id="finish_without_done"),
        pytest.param(stream(ROLE, A, B, DONE), "ok", True, id="done_without_finish"),
        pytest.param(stream(ROLE, A, B, STOP, DONE), "ok", True, id="both"),
        pytest.param(stream(ROLE, A, B), "upstream_incomplete", None, id="neither"),
        pytest.param(stream(ROLE, A, B, end=False), "upstream_incomplete", False, id="cut"),
        pytest.param(
            cut_inside_a_chunk(ROLE, A, B), "upstream_incomplete", False, id="cut_inside_a_chunk"
        ),
        pytest.param(reset_after(ROLE, A, B), "upstream_incomplete", False, id="reset"),
    ],
)
@pytest.mark.parametrize("asked", [True, False], ids=["asked", "unasked"])
def test_case_07_ends(
    rig: Rig, script: Script, outcome: str, clean: bool | None, asked: bool
) -> None:
    rig.engine.on(CHAT, script)
    watch = rig.watch()
    response = ask(rig.port, asked=asked)
    assert response.body.startswith(ROLE + A + B)
    if clean is not None:
        assert response.clean is clean
    gained = watch.after()
    assert gained.outcomes == {outcome: 1}
    assert gained.total("completion_tokens_total", source="events") == 2


def test_case_07_json_answer_cut_short(rig: Rig) -> None:
    async def script(c: Conversation) -> None:
        await c.send(answer(b"x" * 100)[:-60])
        c.close()

    rig.engine.on(CHAT, script)
    watch = rig.watch()
    response = ask(rig.port, stream=False)
    assert response.body == b"x" * 40
    assert not response.clean
    assert watch.after().outcomes == {"upstream_incomplete": 1}


def test_case_07_answer_that_ends_by_close_and_is_reset(rig: Rig) -> None:
    async def script(c: Conversation) -> None:
        await c.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + ROLE + A)
        await c.pause(0.05)
        c.reset()

    rig.engine.on(CHAT, script)
    watch = rig.watch()
    response = ask(rig.port)
    assert response.body == ROLE + A
    assert not response.clean
    assert watch.after().outcomes == {"upstream_incomplete": 1}


ERROR = {"message": "out of memory", "type": "InternalServerError", "code": 500}


@pytest.mark.parametrize(
    "error",
    [
        event({"error": ERROR}),
        event({"object": "error", **ERROR}),
        b"event: error\n" + event({"message": "out of memory"}),
        b"event: error\n" + event({"error": "out of memory"}),
    ],
    ids=["error_key", "object_error", "event_error", "event_error_text"],
)
@pytest.mark.parametrize("done", [True, False], ids=["done", "no_done"])
def test_case_08_error_event_in_a_200(rig: Rig, error: bytes, done: bool) -> None:
    events = [ROLE, A, error, *([DONE] if done else [])]
    rig.engine.on(CHAT, stream(*events))
    watch = rig.watch()
    response = ask(rig.port)
    assert response.status == 200
    assert response.body == b"".join(events)
    gained = watch.after()
    assert gained.outcomes == {"stream_error": 1}
    assert gained.total("requests_total", outcome="stream_error", code="200") == 1


ODD_EVENTS = [
    b"{",
    b"[]",
    b"[1,2]",
    b"0",
    b"null",
    b"true",
    b'"text"',
    b"\xff\xfe",
    b"\x00",
    b"[" * 5000 + b"]" * 5000,
    b'{"a":' * 3000 + b"1" + b"}" * 3000,
    b'{"choices":[{"index":%s,"delta":{"content":"x"}}]}' % (b"9" * 400),
    b'{"usage":{"completion_tokens":1e400,"prompt_tokens":-5}}',
    b'{"usage":{"completion_tokens":"7"}}',
    b'{"usage":{"completion_tokens":99999999999999999999999999}}',
    b'{"usage":[]}',
    b'{"choices":null}',
    b'{"choices":[]}',
    b'{"choices":{}}',
    b'{"choices":[null]}',
    b'{"choices":[{}]}',
    b'{"choices":[{"delta":null}]}',
    b'{"choices":[{"delta":[]}]}',
    b'{"choices":[{"delta":{"content":7}}]}',
    b'{"choices":[{"delta":{"tool_calls":null,"content":null}}]}',
    b'{"choices":[{"index":null,"delta":{"content":"x"},"finish_reason":7}]}',
    b'{"choices":[{"index":-1,"delta":{"content":"x"},"finish_reason":""}]}',
    b'{"choices":[],"choices":[{"delta":{"content":"x"}}],"usage":null,"usage":{}}',
    b'{"object":7,"type":[],"error":null}',
    b'{"a":NaN,"b":Infinity}',
    b'{"a":"\\ud800"}',
]


@pytest.mark.parametrize("asked", [True, False], ids=["asked", "unasked"])
@pytest.mark.parametrize("data", ODD_EVENTS, ids=range(len(ODD_EVENTS)))
def test_case_09_odd_events_pass(rig: Rig, data: bytes, asked: bool) -> None:
    odd = b"data: " + data + b"\n\n"
    rig.engine.on(CHAT, stream(ROLE, A, odd, B, odd, STOP, DONE))
    watch = rig.watch()
    response = ask(rig.port, asked=asked)
    assert response.body == ROLE + A + odd + B + odd + STOP + DONE
    assert response.clean
    assert watch.after().outcomes == {"ok": 1}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "delta", "usage", "content", "index", "error", "type"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
KEYS = ["choices", "usage", "id", "model", "object", "type", "error", "response", "message"]


def is_usage_event(document: Any) -> bool:
    return (
        isinstance(document, dict) and document.get("choices") == [] and bool(document.get("usage"))
    )


@properties
@given(
    events=st.lists(
        json_values
        | st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, json_values)).map(
            lambda change: {**json.loads(A[6:]), **change}
        )
        | json_values.map(lambda delta: json.loads(chat_event(delta)[6:])),
        min_size=1,
        max_size=5,
    ),
    path=st.sampled_from([CHAT, "/v1/completions", "/v1/responses", "/v1/messages"]),
)
def test_case_09_any_json_passes(rig: Rig, events: list[Any], path: str) -> None:
    events = [e for e in events if not is_usage_event(e)]
    rig.engine.forget()
    data = [ROLE, *map(event, events), STOP, DONE]
    rig.engine.on(path, stream(*data))
    watch = rig.watch()
    response = ask(rig.port, path=path, asked=False)
    assert response.body == b"".join(data)
    assert response.clean
    watch.after()


@properties
@given(body=st.binary(max_size=300) | json_values.map(lambda v: json.dumps(v).encode()))
def test_case_09_any_json_as_a_whole_answer_passes(rig: Rig, body: bytes) -> None:
    rig.engine.forget()
    rig.engine.on(CHAT, send(answer(body)))
    watch = rig.watch()
    response = ask(rig.port, stream=False)
    assert response.body == body
    assert response.clean
    watch.after()


@properties
@given(body=st.binary(max_size=300) | json_values.map(lambda v: json.dumps(v).encode()))
def test_case_09_any_request_body_passes(rig: Rig, body: bytes) -> None:
    rig.engine.forget()
    rig.engine.on(CHAT, send(answer(b'{"error":{"message":"no"}}', "400 Bad Request")))
    watch = rig.watch()
    assert post(rig.port, CHAT, body).status == 400
    assert watch.after().outcomes == {"upstream_error": 1}
    assert [bytes(r.body) for r in rig.engine.requests] == [body]


def test_case_09_measuring_errors_never_reach_the_traffic(
    new_rig: Callable[..., Rig],
) -> None:
    """All odd events in one stream, for a proxy that saw nothing else."""
    fresh = new_rig()
    odd = [b"data: " + data + b"\n\n" for data in ODD_EVENTS]
    fresh.engine.on(CHAT, stream(ROLE, *odd, STOP, DONE))
    response = ask(fresh.port)
    assert response.body == b"".join([ROLE, *odd, STOP, DONE])
    assert response.clean
