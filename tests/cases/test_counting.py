"""Cases 51, 54, 55 and 58-62: what answers say of tokens, ends and models, and how they can lie."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import Rig
from tests.support.chat import CHAT, COMPLETIONS, ask, body_of
from tests.support.client import JSON, post
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
from tests.support.metrics import Scrape, wait_until

MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
TTFT = "time_to_first_token_seconds"
FIRST_OUTPUT = "time_to_first_output_seconds"

A, B, STOP = chat_event("a"), chat_event("b"), chat_event({}, finish="stop")


def named(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\n".encode() + event({"type": kind, **fields})


def text_delta(text: str = "x") -> bytes:
    return named("content_block_delta", index=0, delta={"type": "text_delta", "text": text})


def message_start(**usage: Any) -> bytes:
    return named("message_start", message={"id": "m", "model": "qwen", "usage": usage})


def message_delta(reason: str = "end_turn", **usage: Any) -> bytes:
    return named("message_delta", delta={"stop_reason": reason}, usage=usage)


def response_end(**members: Any) -> bytes:
    return named("response.completed", response={"status": "completed", "model": "qwen", **members})


def completion_event(text: str, finish: str | None = None, **members: Any) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, **members}
    return event(
        {"id": "cmpl-1", "object": "text_completion", "model": "qwen", "choices": [choice]}
    )


def with_members(data: bytes, *place: str | int, **members: Any) -> bytes:
    """An event with other members at a place in its document."""
    document = json.loads(data.split(b"data: ")[1])
    inner = document
    for key in place:
        inner = inner[key]
    inner.update(members)
    return event(document)


def tokens(gained: Scrape) -> tuple[float | None, float | None]:
    """Completion tokens (by usage, by counted events)."""
    name = "completion_tokens_total"
    return gained.total(name, source="usage"), gained.total(name, source="events")


def reasons(gained: Scrape) -> dict[str, float]:
    name = "finish_reasons_total"
    return {
        labels["reason"]: gained.total(name, reason=labels["reason"]) or 0.0
        for labels in gained.labels(name)
    }


# 51: a client that has got all of it


WHOLE = {
    CHAT: [ROLE, A, B, STOP, usage_event(2), DONE],
    COMPLETIONS: [completion_event("a"), completion_event("b", "stop"), usage_event(2), DONE],
    MESSAGES: [
        message_start(input_tokens=5, output_tokens=0),
        text_delta(),
        text_delta(),
        message_delta(output_tokens=2),
        named("message_stop"),
    ],
    RESPONSES: [
        named("response.output_text.delta", delta="a"),
        named("response.output_text.delta", delta="b"),
        response_end(usage={"input_tokens": 5, "output_tokens": 2}),
    ],
}


def held_open(*events: bytes) -> Script:
    """All of the events, and then nothing, not even the end of the response."""

    async def script(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        await c.chunk(*events)
        await c.until_peer_leaves()

    return script


def leave_after(rig: Rig, path: str, events: list[bytes], *, reset: bool) -> None:
    rig.engine.on(path, held_open(*events))
    with rig.client() as client:
        client.request("POST", path, [JSON], body_of(asked=path in (CHAT, COMPLETIONS)))
        response = client.read_head()
        client.read_body(response, at_least=sum(map(len, events)))
        if reset:
            client.reset()


@pytest.mark.parametrize("reset", [False, True], ids=["close", "reset"])
@pytest.mark.parametrize("path", WHOLE)
def test_case_51_a_client_that_leaves_after_the_last_event(
    rig: Rig, path: str, reset: bool
) -> None:
    watch = rig.watch()
    leave_after(rig, path, WHOLE[path], reset=reset)
    gained = watch.after()
    assert gained.outcomes == {"ok": 1}
    assert tokens(gained) == (2, None)


@pytest.mark.parametrize("path", WHOLE)
def test_case_51_a_client_that_leaves_before_the_last_event(rig: Rig, path: str) -> None:
    watch = rig.watch()
    leave_after(rig, path, WHOLE[path][:-1], reset=False)
    assert watch.after().outcomes == {"client_closed": 1}


def test_case_51_an_error_stays_one(rig: Rig) -> None:
    error = event({"error": {"message": "out of memory"}})
    watch = rig.watch()
    leave_after(rig, CHAT, [ROLE, A, error, DONE], reset=False)
    assert watch.after().outcomes == {"stream_error": 1}


# 54: an empty finish reason


@pytest.mark.parametrize("events", [[ROLE, A, B], [A, B]], ids=["role", "no_role"])
def test_case_54_an_empty_finish_reason_is_none(rig: Rig, events: list[bytes]) -> None:
    events = [with_members(e, "choices", 0, finish_reason="") for e in events]
    rig.engine.on(CHAT, stream(*events, STOP, usage_event(2), DONE), stream(*events))
    watch = rig.watch()
    ask(rig.port)
    gained = watch.after()
    assert reasons(gained) == {"stop": 1}
    assert gained.total("token_events_total") == 2
    ask(rig.port)
    gained = watch.after()
    assert reasons(gained) == {}
    assert gained.outcomes == {"upstream_incomplete": 1}


def test_case_54_in_the_other_dialects(rig: Rig) -> None:
    rig.engine.on(COMPLETIONS, stream(completion_event("a", ""), completion_event("b", "length")))
    rig.engine.on(
        MESSAGES,
        stream(
            named("message_start", message={"stop_reason": "", "usage": {"input_tokens": 5}}),
            text_delta(),
            message_delta("max_tokens", output_tokens=1),
            named("message_stop"),
        ),
    )
    rig.engine.on(
        RESPONSES, stream(WHOLE[RESPONSES][0], response_end(incomplete_details={"reason": ""}))
    )
    watch = rig.watch()
    for path, reason in ((COMPLETIONS, "length"), (MESSAGES, "length"), (RESPONSES, "stop")):
        ask(rig.port, path=path)
        assert reasons(watch.after()) == {reason: 1}, path


def test_case_54_not_streamed(rig: Rig) -> None:
    choices = [{"index": 0, "message": {"content": "a"}, "finish_reason": ""}]
    rig.engine.on(CHAT, send(json_answer({"choices": choices})))
    watch = rig.watch()
    ask(rig.port, stream=False, asked=False)
    assert reasons(watch.after()) == {}


# 55: cached prompt tokens of messages


@pytest.mark.parametrize(
    ("start", "end", "prompt", "cached"),
    [
        ({"input_tokens": 9}, {}, 9, None),
        ({"input_tokens": 9, "cache_read_input_tokens": 30}, {}, 39, 30),
        (
            {
                "input_tokens": 9,
                "cache_read_input_tokens": 30,
                "cache_creation_input_tokens": 100,
            },
            {},
            139,
            30,
        ),
        (
            {"input_tokens": 9, "cache_read_input_tokens": 0, "cache_creation_input_tokens": None},
            {},
            9,
            None,
        ),
        ({"input_tokens": 11}, {"input_tokens": 3, "cache_read_input_tokens": 8}, 11, 8),
        ({"input_tokens": 3, "cache_read_input_tokens": 8}, {"input_tokens": 3}, 11, 8),
        ({"input_tokens": 9, "cache_read_input_tokens": "30"}, {}, None, None),
        ({"cache_read_input_tokens": 30}, {}, None, 30),
    ],
)
@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
def test_case_55_the_prompt_of_messages_includes_what_a_cache_gave(
    rig: Rig,
    start: dict[str, Any],
    end: dict[str, Any],
    prompt: float | None,
    cached: float | None,
    streaming: bool,
) -> None:
    if streaming:
        rig.engine.on(
            MESSAGES,
            stream(
                message_start(**start, output_tokens=1),
                text_delta(),
                message_delta(**end, output_tokens=7),
                named("message_stop"),
            ),
        )
    else:
        usage = {**start, **end, "output_tokens": 7}
        message = {"type": "message", "model": "qwen", "stop_reason": "end_turn", "usage": usage}
        rig.engine.on(MESSAGES, send(json_answer(message)))
    watch = rig.watch()
    post(rig.port, MESSAGES, {"model": "qwen", "stream": streaming, "messages": []})
    gained = watch.after()
    assert gained.total("prompt_tokens_total") == prompt
    assert gained.total("cached_prompt_tokens_total") == cached
    assert tokens(gained) == (7, None)


def test_case_55_other_dialects_count_cached_tokens_in_the_prompt(rig: Rig) -> None:
    usage = {"input_tokens": 50, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 32}}
    rig.engine.on(RESPONSES, stream(*WHOLE[RESPONSES][:2], response_end(usage=usage)))
    watch = rig.watch()
    ask(rig.port, path=RESPONSES)
    gained = watch.after()
    assert gained.total("prompt_tokens_total") == 50
    assert gained.total("cached_prompt_tokens_total") == 32


# 58: names


def models(*cards: dict[str, Any]) -> Script:
    return send(json_answer({"object": "list", "data": list(cards)}))


@pytest.mark.parametrize(
    ("asked", "answered", "label"),
    [
        ("gpt-4", "qwen", "qwen"),
        ("gemma", "qwen", "gemma"),
        ("gpt-4", "gpt-4-0613", "other"),
        (None, "qwen", "qwen"),
        ("gpt-4", "", "other"),
        ("gpt-4", None, "other"),
        ("gpt-4", 5, "other"),
    ],
)
@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
def test_case_58_the_listed_name_counts(
    rig: Rig, asked: str | None, answered: Any, label: str, streaming: bool
) -> None:
    events = [with_members(e, model=answered) for e in (ROLE, A, STOP, usage_event(1))]
    whole = {
        "model": answered,
        "choices": [{"index": 0, "finish_reason": "stop"}],
        "usage": {"completion_tokens": 1},
    }
    rig.engine.on(CHAT, stream(*events, DONE) if streaming else send(json_answer(whole)))
    watch = rig.watch()
    ask(rig.port, model=asked, stream=streaming, asked=streaming)
    gained = watch.after()
    assert {found["model"] for found in gained.labels("requests_total")} == {label}
    assert gained.total("completion_tokens_total", model=label) == 1
    if streaming:
        assert gained.total("token_events_total", model=label) == 1


# 59: odd side fields


ODD_MEMBERS: list[tuple[tuple[str | int, ...], dict[str, Any]]] = [
    ((), {"error": ""}),
    ((), {"error": []}),
    ((), {"error": {}}),
    ((), {"error": False}),
    ((), {"model": 5}),
    ((), {"object": []}),
    ((), {"id": {}, "created": "now", "system_fingerprint": 7}),
    (("choices", 0), {"index": None}),
    (("choices", 0), {"index": "0"}),
    (("choices", 0), {"index": []}),
    (("choices", 0), {"logprobs": "", "stop_reason": []}),
    (("choices", 0), {"finish_reason": []}),
    (("choices", 0), {"finish_reason": 0}),
    (("choices", 0), {"token_ids": "no"}),
    (("choices", 0, "delta"), {"role": ""}),
    (("choices", 0, "delta"), {"tool_calls": {}}),
    (("choices", 0, "delta"), {"tool_calls": "", "function_call": "", "refusal": False}),
    (("choices", 0, "delta"), {"reasoning": [], "audio": ""}),
]

ODD_USAGES: list[dict[str, Any]] = [
    {"prompt_tokens_details": []},
    {"prompt_tokens_details": ""},
    {"prompt_tokens_details": 0, "completion_tokens_details": "none"},
    {"completion_tokens_details": {"reasoning_tokens": "none"}},
    {"completion_tokens_details": [1]},
    {"input_tokens_details": False, "output_tokens_details": []},
    {"total_tokens": "7", "queue_time": None},
]


def check_plain(gained: Scrape, source: str = "usage") -> None:
    """What an answer of two tokens gives."""
    assert gained.outcomes == {"ok": 1}
    assert gained.total("token_events_total") == 2
    assert gained.total("completion_tokens_total", source=source) == 2
    assert gained.total("requests_total", model="qwen") == 1
    assert reasons(gained) == {"stop": 1}
    assert gained.count("inter_chunk_latency_seconds") == 1
    assert gained.total("unparsed_responses_total") is None
    assert gained.total("measurement_errors_total") is None


@pytest.mark.parametrize(("place", "members"), ODD_MEMBERS, ids=str)
def test_case_59_an_odd_member_costs_itself_only(
    rig: Rig, place: tuple[str | int, ...], members: dict[str, Any]
) -> None:
    odd = [with_members(e, *place, **members) for e in (A, B)]
    rig.engine.on(CHAT, stream(ROLE, *odd, STOP, usage_event(2), DONE))
    watch = rig.watch()
    ask(rig.port)
    check_plain(watch.after())


@pytest.mark.parametrize("usage", ["", [], 0, False, "none", [{}], None, {}, {"total_tokens": 1}])
def test_case_59_odd_usage_on_every_event(rig: Rig, usage: Any) -> None:
    events = [with_members(e, usage=usage) for e in (ROLE, A, B, STOP)]
    rig.engine.on(
        CHAT,
        stream(*events, usage_event(2), DONE),
        stream(*events, DONE),
        stream(*events, usage_event(2), with_members(usage_event(2), usage=usage), DONE),
    )
    watch = rig.watch()
    for source in ("usage", "events", "usage"):
        ask(rig.port)
        check_plain(watch.after(), source)


@pytest.mark.parametrize("odd", ODD_USAGES, ids=str)
@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
def test_case_59_odd_details_of_usage(rig: Rig, odd: dict[str, Any], streaming: bool) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, **odd}
    whole = {
        "object": "chat.completion",
        "model": "qwen",
        "choices": [{"index": 0, "message": {"content": "ab"}, "finish_reason": "stop"}],
        "usage": usage,
    }
    last = with_members(usage_event(2), usage=usage)
    rig.engine.on(
        CHAT, stream(ROLE, A, B, STOP, last, DONE) if streaming else send(json_answer(whole))
    )
    watch = rig.watch()
    ask(rig.port, stream=streaming, asked=streaming)
    gained = watch.after()
    assert tokens(gained) == (2, None)
    assert gained.total("prompt_tokens_total") == 5
    assert reasons(gained) == {"stop": 1}
    assert gained.total("unparsed_responses_total") is None


@pytest.mark.parametrize("choices", ["", 7, [None], [[]], [None, "x"]], ids=str)
def test_case_59_odd_choices_cost_no_usage(rig: Rig, choices: Any) -> None:
    """But what they may have said is lost, and that is counted."""
    odd = with_members(usage_event(2), choices=choices)
    rig.engine.on(CHAT, stream(ROLE, A, B, STOP, odd, DONE))
    watch = rig.watch()
    ask(rig.port)
    gained = watch.after()
    assert tokens(gained) == (2, None)
    assert gained.total("unparsed_responses_total", reason="json") == 1


@pytest.mark.parametrize("delta", [[], "", 0, None, {}, [1]], ids=str)
def test_case_59_a_finish_with_an_odd_delta(rig: Rig, delta: Any) -> None:
    finish = with_members(STOP, "choices", 0, delta=delta)
    rig.engine.on(CHAT, stream(ROLE, A, B, finish, usage_event(2), DONE))
    watch = rig.watch()
    ask(rig.port)
    check_plain(watch.after())


def test_case_59_choices_without_an_index(rig: Rig) -> None:
    """Then their place is their index."""
    choices = [{"index": None, "message": {"content": "a"}, "finish_reason": "stop"}] * 2
    usage = {"completion_tokens": 2, "prompt_tokens": 5}
    rig.engine.on(CHAT, send(json_answer({"model": "qwen", "choices": choices, "usage": usage})))
    watch = rig.watch()
    ask(rig.port, stream=False, asked=False, n=2)
    assert reasons(watch.after()) == {"stop": 2}


@pytest.mark.parametrize(
    "odd",
    [
        {"usage": ""},
        {"usage": []},
        {"content_block": "", "message": []},
        {"index": None},
        {"error": ""},
    ],
    ids=str,
)
def test_case_59_odd_members_of_messages(rig: Rig, odd: dict[str, Any]) -> None:
    delta = named("content_block_delta", delta={"type": "text_delta", "text": "x"}, **odd)
    block = named("content_block_start", content_block=odd, index=None)
    rig.engine.on(
        MESSAGES,
        stream(
            message_start(input_tokens=5, output_tokens=0),
            block,
            delta,
            delta,
            message_delta(output_tokens=2),
            named("message_stop"),
        ),
    )
    watch = rig.watch()
    ask(rig.port, path=MESSAGES)
    check_plain(watch.after())


@pytest.mark.parametrize(
    "odd",
    [
        {"error": ""},
        {"error": {}},
        {"incomplete_details": []},
        {"incomplete_details": ""},
        {"incomplete_details": {"reason": None}},
        {
            "output": "",
            "usage": {"input_tokens": 5, "output_tokens": 2, "input_tokens_details": []},
        },
    ],
    ids=str,
)
@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
def test_case_59_odd_members_of_responses(rig: Rig, odd: dict[str, Any], streaming: bool) -> None:
    usage = {"input_tokens": 5, "output_tokens": 2}
    if streaming:
        created = named("response.created", response=[])
        events = [created, *WHOLE[RESPONSES][:2], response_end(**{"usage": usage, **odd})]
        rig.engine.on(RESPONSES, stream(*events))
    else:
        whole = {"status": "completed", "model": "qwen", "usage": usage, **odd}
        rig.engine.on(RESPONSES, send(json_answer(whole)))
    watch = rig.watch()
    ask(rig.port, path=RESPONSES, stream=streaming)
    gained = watch.after()
    assert gained.outcomes == {"ok": 1}
    assert tokens(gained) == (2, None)
    assert reasons(gained) == {"stop": 1}


# 60: counts that the stream contradicts


def usage(completion: int | None, prompt: int | None = 5) -> dict[str, Any]:
    told = {"prompt_tokens": prompt, "completion_tokens": completion}
    return {name: value for name, value in told.items() if value is not None}


def with_usage(data: bytes, completion: int | None) -> bytes:
    return with_members(data, usage=usage(completion))


CALL = chat_event({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f"}}]})

CONTRADICTED = {
    "once, at the start": [with_usage(ROLE, 0), A, A, A, STOP, DONE],
    "once, with the first token": [ROLE, with_usage(A, 1), A, A, STOP, DONE],
    "an event of its own, first": [usage_event(0), ROLE, A, A, A, STOP, DONE],
    "a guess, ahead": [with_usage(ROLE, 512), A, A, A, STOP, DONE],
    "continuous, ends early": [ROLE, with_usage(A, 1), with_usage(A, 2), A, STOP, DONE],
    "at the end, too few": [ROLE, A, A, A, STOP, usage_event(2), DONE],
    "at the end, none": [ROLE, A, A, A, STOP, usage_event(0), DONE],
}


@pytest.mark.parametrize("events", CONTRADICTED.values(), ids=CONTRADICTED)
def test_case_60_events_count_where_they_contradict_usage(rig: Rig, events: list[bytes]) -> None:
    rig.engine.on(CHAT, stream(*events))
    watch = rig.watch()
    ask(rig.port)
    gained = watch.after()
    assert gained.outcomes == {"ok": 1}
    assert tokens(gained) == (None, 3)
    assert gained.total("prompt_tokens_total") == 5, "that count does not grow"
    assert gained.total("unparsed_responses_total", reason="usage") == 1
    assert gained.total("unparsed_responses_total") == 1


CONFIRMED = {
    "more tokens than events": ([ROLE, A, A, STOP, usage_event(9), DONE], 9),
    "continuous, several an event": ([ROLE, with_usage(A, 4), with_usage(A, 8), STOP, DONE], 8),
    "prompt first, completion last": (
        [with_members(ROLE, usage=usage(None)), A, A, STOP,
         with_members(usage_event(0), usage=usage(2, None)), DONE], 2,
    ),
    "an empty one after the last": (
        [ROLE, with_usage(A, 1), with_usage(A, 2), STOP,
         with_members(usage_event(0), usage={"total_tokens": 7}), DONE], 2,
    ),
    "an answer without a token": ([ROLE, STOP, usage_event(0), DONE], 0),
    "two events for a call of one token": ([ROLE, CALL, CALL, STOP, usage_event(1), DONE], 1),
    "two sequences": (
        [chat_event("x", index=i % 2) for i in range(6)] + [STOP, usage_event(6), DONE], 6,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("events", "count"), CONFIRMED.values(), ids=CONFIRMED)
def test_case_60_usage_that_nothing_contradicts(rig: Rig, events: list[bytes], count: int) -> None:
    rig.engine.on(CHAT, stream(*events))
    watch = rig.watch()
    ask(rig.port)
    gained = watch.after()
    assert tokens(gained) == (count or None, None)
    assert gained.total("prompt_tokens_total") == 5
    assert gained.total("unparsed_responses_total") is None


def test_case_60_in_messages(rig: Rig) -> None:
    """`message_start` tells a first count; where none follows, it is not that of the answer."""
    start = message_start(input_tokens=9, output_tokens=1)
    end = named("message_delta", delta={"stop_reason": "end_turn"})
    rig.engine.on(MESSAGES, stream(start, *[text_delta()] * 4, end, named("message_stop")))
    watch = rig.watch()
    ask(rig.port, path=MESSAGES)
    gained = watch.after()
    assert tokens(gained) == (None, 4)
    assert gained.total("prompt_tokens_total") == 9
    assert gained.total("unparsed_responses_total", reason="usage") == 1


def test_case_60_a_stream_that_is_left_early_is_no_contradiction(rig: Rig) -> None:
    watch = rig.watch()
    start = message_start(input_tokens=9, output_tokens=1)
    leave_after(rig, MESSAGES, [start, *[text_delta()] * 4], reset=False)
    gained = watch.after()
    assert tokens(gained) == (None, 4)
    assert gained.total("unparsed_responses_total") is None


# 61: reasoning as content parts


def thinking(*texts: str) -> dict[str, Any]:
    parts = [{"type": "text", "text": text} for text in texts]
    return {"content": [{"type": "thinking", "thinking": parts}]}


def timed(first: bytes, then: bytes) -> Script:
    """The two events, 0.2 s and 0.8 s after the role."""

    async def script(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        await c.chunk(ROLE)
        await c.pause(0.2)
        await c.chunk(first)
        await c.pause(0.6)
        await c.chunk(then, STOP, DONE)
        await c.send(LAST_CHUNK)

    return script


@pytest.mark.parametrize(
    "delta",
    [
        thinking("hm"),
        {"content": [{"type": "thinking", "thinking": "hm"}]},
        {"content": [{"type": "reasoning", "text": "hm"}]},
        {"content": [{"type": "reasoning", "reasoning": "hm"}]},
        {**thinking("hm"), "role": "assistant"},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "then", ["a", {"content": [{"type": "text", "text": "a"}]}], ids=["text", "part"]
)
def test_case_61_reasoning_parts_are_no_output(rig: Rig, delta: dict[str, Any], then: Any) -> None:
    rig.engine.on(CHAT, timed(chat_event(delta), chat_event(then)))
    watch = rig.watch()
    ask(rig.port)
    gained = watch.after()
    assert 0.19 < gained.mean(TTFT) < 0.75
    assert 0.79 < gained.mean(FIRST_OUTPUT) < 3.0
    assert tokens(gained) == (None, 2)


@pytest.mark.parametrize(
    "content",
    [
        [],
        [{}],
        [None],
        [{"type": "thinking", "thinking": []}],
        [{"type": "thinking"}],
        [{"type": "text", "text": ""}],
        [7, [[]], {"type": []}],
    ],
    ids=str,
)
def test_case_61_parts_without_content_are_no_token(rig: Rig, content: list[Any]) -> None:
    rig.engine.on(CHAT, stream(ROLE, chat_event({"content": content}), A, STOP, DONE))
    watch = rig.watch()
    ask(rig.port)
    assert tokens(watch.after()) == (None, 1)


def test_case_61_both_kinds_in_one_event(rig: Rig) -> None:
    both = [*thinking("hm")["content"], {"type": "text", "text": "a"}]
    rig.engine.on(CHAT, stream(ROLE, chat_event({"content": both}), STOP, DONE))
    watch = rig.watch()
    ask(rig.port)
    gained = watch.after()
    assert gained.count(TTFT) == gained.count(FIRST_OUTPUT) == 1


# 62: empty texts


def alive(delta: dict[str, Any], **choice: Any) -> bytes:
    return with_members(chat_event(delta), "choices", 0, **choice)


EMPTY = {
    "content": alive({"content": ""}),
    "sglang": alive(
        {"role": None, "content": "", "reasoning_content": None, "tool_calls": None},
        matched_stop=None,
    ),
    "reasoning": alive({"reasoning_content": ""}),
    "finish": alive({"content": ""}, finish_reason="stop", matched_stop=2),
}


@pytest.mark.parametrize("empty", EMPTY.values(), ids=EMPTY)
def test_case_62_an_empty_text_of_an_unknown_engine_is_no_token(rig: Rig, empty: bytes) -> None:
    rig.engine.on(CHAT, timed(empty, A))
    watch = rig.watch()
    ask(rig.port)
    gained = watch.after()
    assert gained.mean(TTFT) > 0.79
    assert tokens(gained) == (None, 1)


def test_case_62_in_completions(rig: Rig) -> None:
    plain, vllm = completion_event(""), completion_event("", stop_reason=None)
    for empty, count in ((plain, 1), (vllm, 2)):
        last = completion_event("", "stop")
        rig.engine.on(COMPLETIONS, stream(empty, completion_event("a"), last, DONE))
        watch = rig.watch()
        ask(rig.port, path=COMPLETIONS)
        assert tokens(watch.after()) == (None, count)


@pytest.mark.parametrize("key", ["token_ids", "stop_reason"])
def test_case_62_an_empty_text_of_vllm_is_a_token(rig: Rig, key: str) -> None:
    rig.engine.on(CHAT, timed(alive({"content": ""}, **{key: None}), A))
    watch = rig.watch()
    ask(rig.port)
    gained = watch.after()
    assert 0.19 < gained.mean(TTFT) < 0.75
    assert tokens(gained) == (None, 2)


@pytest.mark.parametrize(
    ("card", "page", "count"),
    [
        ({"owned_by": "vllm"}, "", 2),
        ({"owned_by": "sglang"}, "", 1),
        ({"owned_by": "organization"}, "vllm:num_requests_running 0.0\n", 2),
        ({"owned_by": "organization"}, "sglang:num_running_reqs 0.0\n", 1),
        ({}, "", 1),
    ],
    ids=["owner_vllm", "owner_sglang", "page_vllm", "page_sglang", "unknown"],
)
def test_case_62_what_the_engine_tells_decides_where_its_events_do_not(
    new_rig: Callable[..., Rig], card: dict[str, Any], page: str, count: int
) -> None:
    with ScriptedEngine() as engine:
        engine.on("/v1/models", models({"id": "qwen", **card}))
        engine.on("/metrics", send(answer(page.encode(), content_type="text/plain")))
        rig = new_rig(engine, engine_metrics_interval=0.1)
        wait_until(lambda: sum(r.target == "/metrics" for r in engine.requests) >= 2)
        engine.on(CHAT, stream(ROLE, chat_event(""), A, STOP, DONE))
        watch = rig.watch()
        ask(rig.port)
        assert tokens(watch.after()) == (None, count)


# Answers that are none


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES, RESPONSES])
@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"", "application/json"),
        (b"", ""),
        (b"", "text/html"),
        (b" \n", "application/json; charset=utf-8"),
        (b'{"choices":[{"index":0,"mess', "application/json"),
        (b'{"choices":[{"index":0,"mess', "text/plain"),
        (b"Internal error", "application/json"),
        (b"null", "application/json"),
        (b"[]", "application/problem+json"),
        (b"", "text/event-stream"),
    ],
)
def test_a_200_without_a_whole_answer_is_not_ok(
    rig: Rig, body: bytes, content_type: str, path: str, streaming: bool
) -> None:
    reply = answer(body, content_type=content_type)
    if not content_type:
        reply = reply.replace(b"content-type: \r\n", b"")
    rig.engine.on(path, send(reply))
    watch = rig.watch()
    response = ask(rig.port, path=path, stream=streaming, asked=False)
    assert response.body == body
    gained = watch.after()
    assert gained.outcomes == {"upstream_incomplete": 1}
    assert tokens(gained) == (None, None)
    assert gained.count("silent_wait_seconds") == 0


def test_other_routes_may_answer_with_nothing(rig: Rig) -> None:
    rig.engine.on("/v1/load_lora_adapter", send(answer(b"", content_type="application/json")))
    rig.engine.on("/v1/embeddings", send(answer(b"{", content_type="application/json")))
    watch = rig.watch()
    for path in ("/v1/load_lora_adapter", "/v1/embeddings"):
        post(rig.port, path, {})
        assert watch.after().outcomes == {"ok": 1}


# 44: the same bytes under other headers


TYPES = [
    b"content-type: text/event-stream\r\n",
    b"Content-Type: TEXT/Event-Stream;charset=UTF-8\r\n",
    b"content-type: text/plain; charset=utf-8\r\n",
    b"content-type: application/octet-stream\r\n",
    b"content-type: application/json\r\n",
    b"content-type: application/x-ndjson\r\n",
    b"content-type:\r\n",
    b"",
]


@pytest.mark.parametrize("first", [b"", b": ping\n\n", b"\n", b"\xef\xbb\xbf", b"retry: 5\n\n"])
@pytest.mark.parametrize("header", TYPES, ids=str)
def test_case_44_a_stream_is_known_by_its_bytes(rig: Rig, header: bytes, first: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\n" + header + b"transfer-encoding: chunked\r\n\r\n"
    events = [first + ROLE, A, B, STOP, usage_event(2), DONE]

    async def script(c: Conversation) -> None:
        await c.send(head)
        await c.chunk(*events)
        await c.send(LAST_CHUNK)

    async def bytewise(c: Conversation) -> None:
        await c.send(head)
        data = b"".join(events)
        await c.chunk(*(data[i : i + 1] for i in range(len(data))))
        await c.send(LAST_CHUNK)

    rig.engine.on(CHAT, script, bytewise)
    watch = rig.watch()
    for _ in range(2):
        assert ask(rig.port).body == b"".join(events)
        gained = watch.after()
        check_plain(gained)
        assert gained.count(TTFT) == gained.count(FIRST_OUTPUT) == 1
        assert gained.count("silent_wait_seconds", stream="true") == 1


@pytest.mark.parametrize("path", [COMPLETIONS, MESSAGES, RESPONSES])
def test_case_44_in_the_other_dialects(rig: Rig, path: str) -> None:
    data = b"".join(WHOLE[path])
    rig.engine.on(path, send(answer(data, content_type="text/plain")))
    watch = rig.watch()
    ask(rig.port, path=path)
    gained = watch.after()
    assert gained.outcomes == {"ok": 1}
    assert tokens(gained) == (2, None)
    assert gained.count(TTFT) == 1


@pytest.mark.parametrize(
    "content_type",
    ["Application/JSON; charset=utf-8", "application/problem+json", "text/plain", "text/json", ""],
)
def test_case_44_a_whole_answer_is_known_by_its_bytes(rig: Rig, content_type: str) -> None:
    whole = {
        "model": "qwen",
        "choices": [{"index": 0, "message": {"content": "ab"}, "finish_reason": "length"}],
        "usage": usage(2),
    }
    for start in (b"", b"\n  ", b"\xef\xbb\xbf"):
        body = start + json.dumps(whole).encode()
        rig.engine.on(CHAT, send(answer(body, content_type=content_type)))
        watch = rig.watch()
        assert ask(rig.port, stream=False, asked=False).body == body
        gained = watch.after()
        assert gained.outcomes == {"ok": 1}
        assert tokens(gained) == (2, None)
        assert reasons(gained) == {"length": 1}


# Tool calls: tokens without an event of their own


def call(arguments: str) -> bytes:
    part = {"index": 0, "function": {"arguments": arguments}}
    return chat_event({"tool_calls": [part]})


@pytest.mark.parametrize(
    ("count", "rate"),
    [(80, 0), (31, 1), (30, 1), (None, 0)],
    ids=["held_back", "nearly_one_each", "one_each", "unknown"],
)
def test_calls_have_a_rate_only_where_each_token_had_its_event(
    rig: Rig, count: int | None, rate: int
) -> None:
    end = [usage_event(count)] if count is not None else []
    finish = chat_event({}, finish="tool_calls")
    rig.engine.on(CHAT, stream(ROLE, CALL, *[call("1")] * 29, finish, *end, DONE, gap=0.003))
    watch = rig.watch()
    ask(rig.port)
    gained = watch.after()
    assert gained.count("decode_tokens_per_second") == rate
    assert gained.count("time_per_output_token_seconds") == rate
    assert gained.count(TTFT) == gained.count(FIRST_OUTPUT) == 1
    assert reasons(gained) == {"tool_calls": 1}


def test_an_answer_whose_tokens_were_all_held_back_has_no_count(rig: Rig) -> None:
    """As vLLM does with `tool_choice: required` and few tokens; 0 would be a guess."""
    rig.engine.on(CHAT, stream(ROLE, chat_event({}, finish="length"), DONE))
    watch = rig.watch()
    ask(rig.port)
    gained = watch.after()
    assert gained.outcomes == {"ok": 1}
    assert not gained.labels("completion_tokens_total")
    assert gained.count(TTFT) == 0
    assert gained.total("truncations_total", limit="unknown") == 1
