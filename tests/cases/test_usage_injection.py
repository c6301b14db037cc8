"""Cases 21-24: asking the engine for usage on the client's behalf, without the client noticing."""

import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import Rig
from tests.support.chat import CHAT, COMPLETIONS, ask, body_of, chat_request, whole_answer
from tests.support.client import JSON, Response, fetch, post
from tests.support.engine import (
    DONE,
    ROLE,
    answer,
    chat_event,
    event,
    send,
    stream,
    usage_event,
)

A = chat_event("a")
STOP = chat_event("", finish="stop")

PING = b": ping\n\n"
WANT = b'"stream":true,"messages":[]'


def exchange(rig: Rig, body: bytes, path: str = CHAT, *headers: tuple[str, str]) -> bytes:
    """Send the body through the proxy and return what the engine got."""
    rig.engine.on(path, stream(ROLE, A, STOP, DONE))
    response = fetch(rig.port, "POST", path, [JSON, *headers], body)
    assert response.body == ROLE + A + STOP + DONE
    (request,) = rig.engine.requests
    assert request.values("content-length") == [str(len(request.body)).encode()]
    assert request.header("transfer-encoding") is None
    return bytes(request.body)


def untouched_but(changed: bytes, original: bytes) -> tuple[bytes, bytes]:
    """The one place at which two texts differ: (what it was, what it is)."""
    start = 0
    while start < min(len(changed), len(original)) and changed[start] == original[start]:
        start += 1
    end = 0
    while (
        end < min(len(changed), len(original)) - start and changed[-1 - end] == original[-1 - end]
    ):
        end += 1
    return original[start : len(original) - end], changed[start : len(changed) - end]


CHANGED = {
    "no_options": b"{" + WANT + b"}",
    "empty_options": b'{"stream_options":{},' + WANT + b"}",
    "null_options": b'{"stream_options":null,' + WANT + b"}",
    "false": b'{"stream_options":{"include_usage":false},' + WANT + b"}",
    "null": b'{"stream_options":{"include_usage":null},' + WANT + b"}",
    "odd_spaces": b'  {  "stream" :\n true ,\t"messages" : [ ] }\r\n  ',
    "trailing_spaces": b"{" + WANT + b"}  \n\n",
    "unknown_option": b'{"stream_options":{"x":[1,{}]},' + WANT + b"}",
    "number_forms": b"{" + WANT + b',"temperature":1.0e-0,"seed":123456789012345678901234567890}',
    "escapes": b"{" + WANT + b',"user":"\\u00e9\\/\\"{\\\\","x":"stream_options"}',
    "nested_look_alike": b'{"metadata":{"stream":false,"stream_options":{"include_usage":true}},'
    + WANT
    + b"}",
    "options_last": b"{" + WANT + b',"stream_options":{ }}',
}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("name", CHANGED)
def test_case_21_streams_without_a_wish_are_asked_for(rig: Rig, name: str, path: str) -> None:
    original = CHANGED[name]
    exchange(rig, original, path)  # the first stream of its kind teaches
    rig.engine.forget()
    received = exchange(rig, original, path)
    document = json.loads(received)
    assert document["stream_options"]["include_usage"] is True
    wished = json.loads(original)
    kept = {**(wished.get("stream_options") or {}), "include_usage": True}
    assert document == {**wished, "stream_options": kept}
    was, now = untouched_but(received, original)
    assert len(was) <= len(b'{"include_usage":false}'), f"more than the wish changed: {was!r}"
    assert len(now) <= len(b'"stream_options":{"include_usage":true},') + 2


UNCHANGED = {
    "true": b'{"stream_options":{"include_usage":true},' + WANT + b"}",
    "continuous": b'{"stream_options":{"include_usage":true,"continuous_usage_stats":true},'
    + WANT
    + b"}",
    "not_streamed": b'{"stream":false,"messages":[]}',
    "stream_missing": b'{"messages":[]}',
    "stream_null": b'{"stream":null}',
    "stream_text": b'{"stream":"true"}',
    "stream_one": b'{"stream":1}',
    "invalid": b'{"stream":true,"messages":[}',
    "invalid_utf8": b'{"stream":true,"user":"\xff"}',
    "cut": b'{"stream":true',
    "two_documents": b'{"stream":true}{"stream":true}',
    "array": b'[{"stream":true}]',
    "text": b'"stream"',
    "empty": b"",
    "options_text": b'{"stream_options":"yes",' + WANT + b"}",
    "options_list": b'{"stream_options":[],' + WANT + b"}",
    "wish_text": b'{"stream_options":{"include_usage":"false"},' + WANT + b"}",
    "wish_empty_text": b'{"stream_options":{"include_usage":""},' + WANT + b"}",
    "wish_zero": b'{"stream_options":{"include_usage":0},' + WANT + b"}",
    "wish_one": b'{"stream_options":{"include_usage":1},' + WANT + b"}",
    "wish_list": b'{"stream_options":{"include_usage":[]},' + WANT + b"}",
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_case_21_the_rest_passes_bit_for_bit(rig: Rig, name: str) -> None:
    rig.teach()
    for _ in range(2):
        rig.engine.forget()
        assert exchange(rig, UNCHANGED[name]) == UNCHANGED[name]


EITHER = {
    "duplicate_stream": b'{"stream":false,"messages":[],"stream":true}',
    "duplicate_stream_false": b'{"stream":true,"messages":[],"stream":false}',
    "duplicate_options": b'{"stream_options":{"include_usage":true},"stream_options":null,'
    + WANT
    + b"}",
    "bom": b"\xef\xbb\xbf{" + WANT + b"}",
}


@pytest.mark.parametrize("name", EITHER)
def test_case_21_doubtful_bodies_keep_their_meaning(rig: Rig, name: str) -> None:
    """Leaving it is right, and so is asking, if it reads as the engine (last key wins) does."""
    original = EITHER[name]
    rig.teach()
    received = exchange(rig, original)
    if received != original:
        wished = json.loads(original.decode("utf-8-sig"))
        assert wished["stream"] is True, "asked on an answer that is not streamed"
        document = json.loads(received.decode("utf-8-sig"))
        assert document == {**wished, "stream_options": {"include_usage": True}}


def test_case_21_eight_megabytes(rig: Rig) -> None:
    rig.teach()
    image = b"data:image/png;base64," + b"iVBORw0K" * 2**20
    original = b'{"stream":true,"messages":[{"content":"' + image + b'"}]}'
    received = exchange(rig, original)
    if received != original:
        assert len(received) == len(original) + len(b'"stream_options":{"include_usage":true},')
        assert json.loads(received)["stream_options"] == {"include_usage": True}
        assert image in received


def test_case_21_gzip_body(rig: Rig) -> None:
    rig.teach()
    body = gzip.compress(b"{" + WANT + b"}")
    assert exchange(rig, body, CHAT, ("Content-Encoding", "gzip")) == body


@pytest.mark.parametrize(
    "path", ["/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/audio/speech", "/v1/other"]
)
def test_case_21_other_routes_are_never_changed(rig: Rig, path: str) -> None:
    body = b"{" + WANT + b"}"
    for _ in range(2):
        rig.engine.forget()
        assert exchange(rig, body, path) == body


def test_case_21_continuous_stats_alone_stay_without_effect(rig: Rig) -> None:
    """The engine ignores them without `include_usage`; asking for it must not wake them up."""
    original = b'{"stream_options":{"continuous_usage_stats":true},' + WANT + b"}"
    exchange(rig, original)
    rig.engine.forget()
    options = json.loads(exchange(rig, original))["stream_options"]
    assert not (options.get("include_usage") and options.get("continuous_usage_stats"))


def test_case_21_can_be_switched_off(new_rig: Callable[..., Rig]) -> None:
    rig = new_rig(inject_usage=False)
    rig.teach()
    body = b"{" + WANT + b"}"
    assert exchange(rig, body) == body
    events = whole_answer("a", "b")
    rig.engine.on(CHAT, stream(*events))
    assert ask(rig.port, asked=False).body == b"".join(events)


def test_case_21_chunked_upload(rig: Rig) -> None:
    rig.teach()
    rig.engine.on(CHAT, stream(*whole_answer("a", "b")))
    body = b"{" + WANT + b"}"
    chunked = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    with rig.client() as client:
        client.request("POST", CHAT, [JSON, ("Transfer-Encoding", "chunked")]).send(chunked)
        response = client.read_response()
    assert response.body == b"".join(whole_answer("a", "b", usage=False))
    assert json.loads(rig.engine.requests[0].body)["stream_options"] == {"include_usage": True}


USAGE = json.loads(usage_event(2)[6:])["usage"]


@pytest.mark.parametrize(
    "kept",
    [
        chat_event("b", usage=USAGE),
        chat_event("", finish="stop", usage=USAGE),
        event({"choices": [], "prompt_filter_results": []}),
        event({"choices": [], "usage": None}),
        b": comment choices [] usage\n\n",
    ],
    ids=["text", "finish", "filter", "null_usage", "comment"],
)
def test_case_23_only_the_usage_event_is_hidden(rig: Rig, kept: bytes) -> None:
    rig.teach()
    rig.engine.on(CHAT, stream(ROLE, A, kept, STOP, usage_event(2), DONE))
    response = ask(rig.port, asked=False)
    assert response.body == ROLE + A + kept + STOP + DONE


@pytest.mark.parametrize(
    ("payloads", "expected"),
    [
        ([ROLE + A + STOP + usage_event(1) + DONE], ROLE + A + STOP + DONE),
        ([ROLE, A, STOP, usage_event(1) + DONE], ROLE + A + STOP + DONE),
        ([ROLE, A, STOP + usage_event(1), DONE], ROLE + A + STOP + DONE),
        ([ROLE, A, STOP, usage_event(1) + PING + DONE], ROLE + A + STOP + PING + DONE),
        ([ROLE, A, STOP, usage_event(1)], ROLE + A + STOP),
        ([ROLE, A, STOP, usage_event(1)[:-1]], None),
        ([usage_event(1), ROLE, A, STOP, DONE], ROLE + A + STOP + DONE),
    ],
    ids=["one_read", "with_done", "with_finish", "comment", "no_done", "no_blank_line", "first"],
)
def test_case_23_together_with_other_events(
    rig: Rig, payloads: list[bytes], expected: bytes | None
) -> None:
    rig.teach()
    rig.engine.on(CHAT, stream(*payloads))
    watch = rig.watch()
    response = ask(rig.port, asked=False)
    if expected is not None:
        assert response.body == expected
    assert response.clean
    assert b'"choices":[]' not in response.body or expected is None
    gained = watch.after()
    if payloads[-1].endswith(b"\n\n"):
        # A count that comes before the tokens is not that of the answer (case 60).
        source = "events" if payloads[0] == usage_event(1) else "usage"
        assert gained.total("completion_tokens_total", source=source) == 1


def test_case_23_hiding_in_an_answer_with_a_content_length(rig: Rig) -> None:
    """Some engines send a short stream as one body: then the length must fit what is left."""
    rig.teach()
    body = b"".join(whole_answer("a", "b"))
    rig.engine.on(CHAT, send(answer(body, content_type="text/event-stream")))
    response = ask(rig.port, asked=False)
    assert response.clean
    assert response.body == b"".join(whole_answer("a", "b", usage=False))


def test_case_23_an_error_after_injection_passes(rig: Rig) -> None:
    rig.teach()
    error = b'{"error": {"message": "context length", "code": 400},   "choices":[]}'
    rig.engine.on(CHAT, send(answer(error, "400 Bad Request")))
    response = ask(rig.port, asked=False)
    assert response.status == 400
    assert response.body == error


def seen_choices(response: Response) -> list[Any]:
    lines = [line for line in bytes(response.body).split(b"\n") if line.startswith(b"data: {")]
    return [json.loads(line[6:])["choices"] for line in lines]


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    points=st.lists(st.integers(0, 2000), max_size=20),
    asked=st.booleans(),
    options=st.sampled_from([{}, {"stream_options": None}, {"stream_options": {}}]),
)
def test_case_24_no_empty_choices_unasked(
    rig: Rig, points: list[int], asked: bool, options: dict[str, Any]
) -> None:
    data = b"".join(whole_answer("a", "b", "c"))
    places = sorted({p % len(data) for p in points} - {0})
    pieces = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
    rig.engine.forget()
    for form in ({}, *([options] if options else ())):
        rig.teach(**form)
    rig.engine.on(CHAT, stream(*pieces))
    response = post(rig.port, CHAT, {**chat_request(asked=asked), **({} if asked else options)})
    assert ([] in seen_choices(response)) is asked
    assert len(seen_choices(response)) == 4 + asked


def test_case_24_answers_to_clients_that_were_spared_the_event_end_at_once(rig: Rig) -> None:
    """The hidden event is the last before [DONE]; hiding it must not keep [DONE] waiting."""
    rig.teach()
    rig.engine.on(CHAT, stream(ROLE, A, STOP, usage_event(1), DONE))
    with rig.client(5) as client:
        for _ in range(3):
            response = client.request("POST", CHAT, [JSON], body_of()).read_response()
            assert response.clean
            assert response.body == ROLE + A + STOP + DONE
