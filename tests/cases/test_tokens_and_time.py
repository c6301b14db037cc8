"""Cases 10-20: what counts as a token, when the first one came, and which rates are sayable."""

import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import Rig, start_proxy
from tests.support.chat import CHAT, COMPLETIONS, ask
from tests.support.client import Response, post
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

TTFT = "time_to_first_token_seconds"
FIRST_OUTPUT = "time_to_first_output_seconds"
TPOT = "time_per_output_token_seconds"
RATE = "decode_tokens_per_second"

STOP = chat_event({}, finish="stop")


def timed(*steps: float | bytes) -> Script:
    """An event stream from a timetable: numbers are pauses in seconds, bytes are events."""

    async def script(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        for step in steps:
            if isinstance(step, bytes):
                await c.chunk(step)
            else:
                await c.pause(step)
        await c.send(LAST_CHUNK)

    return script


def no_rate(gained: Scrape) -> bool:
    return not gained.count(RATE) and not gained.count(TPOT)


def tokens(gained: Scrape) -> tuple[float | None, float | None]:
    """Completion tokens (by usage, by counted events)."""
    name = "completion_tokens_total"
    return gained.total(name, source="usage"), gained.total(name, source="events")


def test_case_10_role_event_is_not_the_first_token(rig: Rig) -> None:
    rig.engine.on(CHAT, timed(0.01, ROLE, 0.49, chat_event("a"), 0.5, chat_event("b"), STOP, DONE))
    watch = rig.watch()
    ask(rig.port)
    gained = watch.after()
    assert gained.count(TTFT) == 1
    assert 0.48 < gained.mean(TTFT) < 0.95
    assert 0.48 < gained.mean("silent_wait_seconds", stream="true") < 0.95
    assert 0.98 < gained.mean("request_duration_seconds") < 3.0


def test_case_10_empty_text_without_role_is_a_token(rig: Rig) -> None:
    """vLLM sends it for a token that is only part of a character (case 62 has other engines)."""
    part = chat_event("").replace(b'"finish_reason":null', b'"finish_reason":null,"token_ids":null')
    rig.engine.on(CHAT, timed(ROLE, 0.2, part, 0.5, chat_event("é"), STOP, DONE))
    watch = rig.watch()
    ask(rig.port)
    gained = watch.after()
    assert 0.19 < gained.mean(TTFT) < 0.65
    assert tokens(gained) == (None, 2)


CALL = {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f", "arguments": ""}}]}
MORE = {"tool_calls": [{"index": 0, "function": {"arguments": '{"a'}}]}


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_case_11_reasoning_first(rig: Rig, field: str) -> None:
    rig.engine.on(
        CHAT,
        timed(ROLE, 0.2, chat_event({field: "hm"}), 0.6, chat_event("a"), STOP, DONE),
    )
    watch = rig.watch()
    ask(rig.port)
    gained = watch.after()
    assert 0.19 < gained.mean(TTFT) < 0.75
    assert 0.79 < gained.mean(FIRST_OUTPUT) < 3.0
    assert tokens(gained) == (None, 2)


def test_case_11_only_reasoning_has_no_first_output(rig: Rig) -> None:
    finish = chat_event({}, finish="length")
    rig.engine.on(CHAT, stream(ROLE, chat_event({"reasoning": "hm"}), finish, DONE))
    watch = rig.watch()
    ask(rig.port)
    gained = watch.after()
    assert gained.count(TTFT) == 1
    assert gained.count(FIRST_OUTPUT) == 0


@pytest.mark.parametrize(
    "deltas",
    [
        [CALL, MORE],
        [{"refusal": "I"}, {"refusal": " cannot"}],
        [{"function_call": {"name": "f", "arguments": ""}}, {"function_call": {"arguments": "{"}}],
        [{"audio": {"id": "a", "data": "AAAA"}}, {"audio": {"data": "BBBB"}}],
    ],
    ids=["tool_calls", "refusal", "function_call", "audio"],
)
def test_case_11_other_kinds_of_output(rig: Rig, deltas: list[dict[str, Any]]) -> None:
    first, second = map(chat_event, deltas)
    rig.engine.on(CHAT, timed(ROLE, 0.2, first, 0.5, second, STOP, DONE))
    watch = rig.watch()
    ask(rig.port)
    gained = watch.after()
    assert 0.19 < gained.mean(TTFT) < 0.65
    assert 0.19 < gained.mean(FIRST_OUTPUT) < 0.65
    assert tokens(gained) == (None, 2)


def test_case_12_growing_usage_is_never_summed(rig: Rig) -> None:
    def usage(n: int) -> dict[str, object]:
        return {"prompt_tokens": 9, "completion_tokens": n, "total_tokens": 9 + n}

    events = [
        chat_event({"role": "assistant", "content": ""}, usage=usage(0)),
        *(chat_event("x", usage=usage(n)) for n in range(1, 5)),
        chat_event({}, finish="stop", usage=usage(4)),
    ]
    rig.engine.on(CHAT, stream(*events, usage_event(4, 9), DONE), stream(*events, DONE))
    watch = rig.watch()
    for _ in range(2):
        ask(rig.port)
        gained = watch.after()
        assert tokens(gained) == (4, None)
        assert gained.total("prompt_tokens_total") == 9


def test_case_12_zero_stays_zero(new_rig: Callable[..., Rig]) -> None:
    rig = new_rig()
    rig.engine.on(CHAT, stream(ROLE, STOP, usage_event(0), DONE))
    watch = rig.watch()
    ask(rig.port)
    watch.after()
    assert tokens(rig.scrape()) == (0, None)


def test_case_12_usage_details(rig: Rig) -> None:
    usage = {
        "prompt_tokens": 50,
        "completion_tokens": 9,
        "total_tokens": 59,
        "prompt_tokens_details": {"cached_tokens": 32},
        "completion_tokens_details": {"reasoning_tokens": 6},
    }
    document = {**json.loads(usage_event(9)[6:]), "usage": usage}
    rig.engine.on(CHAT, stream(ROLE, chat_event("a"), STOP, event(document), DONE))
    watch = rig.watch()
    ask(rig.port)
    gained = watch.after()
    assert gained.total("cached_prompt_tokens_total") == 32
    assert gained.total("reasoning_tokens_total") == 6
    assert gained.total("prompt_tokens_total") == 50


def test_case_13_four_tokens_per_event(rig: Rig) -> None:
    steps: list[float | bytes] = [ROLE]
    for _ in range(100):
        steps += [chat_event("four"), 0.008]
    rig.engine.on(CHAT, timed(*steps, STOP, usage_event(400), DONE))
    watch = rig.watch()
    response = ask(rig.port)
    size = len(chat_event("four"))
    first, last = response.arrival(len(ROLE) + size), response.arrival(len(ROLE) + 100 * size)
    gained = watch.after()
    assert tokens(gained) == (400, None)
    assert gained.total("token_events_total") == 100
    assert gained.mean(TPOT) == pytest.approx((last - first) / 396, rel=0.25)
    assert gained.mean(RATE) == pytest.approx(396 / (last - first), rel=0.25)
    assert gained.mean("inter_chunk_latency_seconds") == pytest.approx(
        (last - first) / 99, rel=0.25
    )
    assert gained.count("inter_chunk_latency_seconds") == 99


def test_case_14_held_back_tokens_give_no_rate(rig: Rig) -> None:
    rig.engine.on(
        CHAT,
        timed(ROLE, 0.2, chat_event(CALL), 0.01, chat_event(MORE), STOP, usage_event(17), DONE),
    )
    watch = rig.watch()
    ask(rig.port)
    gained = watch.after()
    assert tokens(gained) == (17, None)
    # 17 tokens took 210 ms; the 10 ms between the two events say nothing about their speed.
    assert no_rate(gained) or gained.mean(RATE) < 100


def test_case_15_three_events_in_one_read(rig: Rig) -> None:
    for count in (3, 20):
        parts = [chat_event("x")] * count
        rig.engine.on(CHAT, stream(ROLE + b"".join(parts) + STOP + usage_event(count) + DONE))
        watch = rig.watch()
        ask(rig.port)
        gained = watch.after()
        assert tokens(gained) == (count, None)
        assert no_rate(gained)
        assert all(map(math.isfinite, rig.scrape().samples.values()))


def test_case_16_fewer_than_16_tokens_have_no_rate(rig: Rig) -> None:
    parts = [chat_event("x")] * 15
    rig.engine.on(CHAT, stream(ROLE, *parts, STOP, usage_event(15), DONE, gap=0.005))
    watch = rig.watch()
    ask(rig.port)
    assert watch.after().count(RATE) == 0


def test_case_16_sixteen_and_more_tokens_have_a_rate(rig: Rig) -> None:
    parts = [chat_event("x")] * 17
    rig.engine.on(CHAT, stream(ROLE, *parts, STOP, usage_event(17), DONE, gap=0.005))
    watch = rig.watch()
    ask(rig.port)
    assert watch.after().count(RATE) == 1


@pytest.mark.parametrize("fields", [{}, {"max_tokens": 1}], ids=["no_limit", "max_tokens_1"])
def test_case_16_one_token(rig: Rig, fields: dict[str, Any]) -> None:
    rig.engine.on(CHAT, stream(ROLE, chat_event("x", finish="length"), usage_event(1), DONE))
    watch = rig.watch()
    ask(rig.port, **fields)
    gained = watch.after()
    assert gained.outcomes == {"ok": 1}
    assert tokens(gained) == (1, None)
    assert gained.count(TTFT) == 1
    assert no_rate(gained)
    assert gained.count("inter_chunk_latency_seconds") == 0


def test_case_16_empty_answer(rig: Rig) -> None:
    rig.engine.on(
        CHAT,
        stream(ROLE, STOP, DONE),
        stream(DONE),
        send(json_answer({"choices": [], "usage": {"completion_tokens": 0, "prompt_tokens": 3}})),
    )
    watch = rig.watch()
    for streaming in (True, True, False):
        ask(rig.port, stream=streaming, asked=streaming)
        gained = watch.after()
        assert gained.outcomes == {"ok": 1}
        assert gained.count(TTFT) == 0
        assert no_rate(gained)
        assert tokens(gained) == (None, None)
    assert all(map(math.isfinite, rig.scrape().samples.values()))


def last_pair(response: Response, finishes: list[bytes]) -> float:
    """When the last tokens were here: all that stands before the finish events."""
    return response.arrival(response.body.index(finishes[0]))


def test_case_17_two_choices_interleaved(rig: Rig) -> None:
    steps: list[float | bytes] = [chat_event({"role": "assistant"}, index=i) for i in (0, 1)]
    for _ in range(30):
        steps += [chat_event("x", index=0), chat_event("y", index=1), 0.01]
    finishes = [chat_event({}, index=0, finish="stop"), chat_event({}, index=1, finish="length")]
    rig.engine.on(CHAT, timed(*steps, *finishes, usage_event(60), DONE))
    watch = rig.watch()
    response = ask(rig.port, n=2)
    duration = last_pair(response, finishes) - response.arrivals[0][0]
    gained = watch.after()
    assert tokens(gained) == (60, None)
    assert gained.count(TTFT) == 1
    assert gained.total("finish_reasons_total", reason="stop") == 1
    assert gained.total("finish_reasons_total", reason="length") == 1
    assert gained.total("truncations_total") == 1
    # Each of the two sequences went at 29 tokens in the whole time, not at 58.
    assert gained.mean(RATE) == pytest.approx(29 / duration, rel=0.25)


def completion_event(text: str, index: int, finish: str | None = None) -> bytes:
    choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
    return event({"id": "cmpl-1", "object": "text_completion", "choices": [choice]})


def test_case_17_two_prompts(rig: Rig) -> None:
    steps: list[float | bytes] = []
    for _ in range(30):
        steps += [completion_event("x", 0), completion_event("y", 1), 0.01]
    finishes = [completion_event("", i, "stop") for i in (0, 1)]
    rig.engine.on(COMPLETIONS, timed(*steps, *finishes, usage_event(60, 7), DONE))
    watch = rig.watch()
    body = {"model": "qwen", "prompt": ["a", "b"], "stream": True}
    response = post(rig.port, COMPLETIONS, {**body, "stream_options": {"include_usage": True}})
    duration = last_pair(response, finishes) - response.arrivals[0][0]
    gained = watch.after()
    assert tokens(gained) == (60, None)
    assert gained.total("finish_reasons_total", reason="stop") == 2
    assert gained.mean(RATE) == pytest.approx(29 / duration, rel=0.25)


def whole(content: str, completion: int, finish: str = "stop", n: int = 1) -> dict[str, Any]:
    message = {"role": "assistant", "content": content}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "qwen",
        "choices": [{"index": i, "message": message, "finish_reason": finish} for i in range(n)],
        "usage": {"prompt_tokens": 5, "completion_tokens": completion, "total_tokens": 99},
    }


def test_case_17_best_of_counts_what_the_engine_says(rig: Rig) -> None:
    rig.engine.on(COMPLETIONS, send(json_answer(whole("a", 36))))
    watch = rig.watch()
    body = {"model": "qwen", "prompt": "a", "best_of": 3, "max_tokens": 12}
    post(rig.port, COMPLETIONS, body)
    assert tokens(watch.after()) == (36, None)


def test_case_18_whole_answers(rig: Rig) -> None:
    async def slow(c: Conversation) -> None:
        await c.pause(0.3)
        await c.send(json_answer(whole("a", 12, "length", n=2)))

    rig.engine.on(CHAT, slow)
    watch = rig.watch()
    ask(rig.port, stream=False, asked=False, max_tokens=6, n=2)
    gained = watch.after()
    assert tokens(gained) == (12, None)
    assert gained.total("prompt_tokens_total") == 5
    assert gained.total("truncations_total", limit="request") == 2
    assert gained.count(TTFT) == 0
    assert 0.29 < gained.mean("silent_wait_seconds", stream="false") < 2.0


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_case_18_compressed_answer_is_measured(rig: Rig, encoding: str) -> None:
    plain = json.dumps(whole("a" * 5000, 8, "length")).encode()
    body = gzip.compress(plain) if encoding == "gzip" else zlib.compress(plain)
    rig.engine.on(CHAT, send(answer(body, extra=[("Content-Encoding", encoding)])))
    watch = rig.watch()
    response = ask(rig.port, stream=False, asked=False, max_tokens=8)
    assert response.body == body
    assert response.header("content-encoding") == encoding.encode()
    gained = watch.after()
    assert tokens(gained) == (8, None)
    assert gained.total("truncations_total") == 1


def test_case_18_ten_megabytes(rig: Rig) -> None:
    body = json.dumps(whole("x" * 10_000_000, 8)).encode()
    rig.engine.on(CHAT, send(answer(body)))
    watch = rig.watch()
    response = ask(rig.port, stream=False, asked=False)
    assert response.body == body
    gained = watch.after()
    assert gained.outcomes == {"ok": 1}
    assert tokens(gained)[0] in (8, None)


@pytest.mark.parametrize("streaming", [True, False])
def test_case_18_html_from_a_broken_middle_box(rig: Rig, streaming: bool) -> None:
    page = b"<html><body>Sign in to the network</body></html>"
    rig.engine.on(CHAT, send(answer(page, content_type="text/html")))
    watch = rig.watch()
    response = ask(rig.port, stream=streaming, asked=False)
    assert response.body == page
    assert response.status == 200
    gained = watch.after()
    assert tokens(gained) == (None, None)
    assert gained.count(TTFT) == 0
    assert gained.total("prompt_tokens_total") is None


@pytest.mark.parametrize(
    ("fields", "prompt", "completion", "limit"),
    [
        ({"max_tokens": 8}, 5, 8, "request"),
        ({"max_completion_tokens": 8}, 5, 8, "request"),
        ({"max_tokens": 900, "max_completion_tokens": 8}, 5, 8, "request"),
        ({}, 500, 12, "context"),
        ({"max_tokens": 900}, 500, 12, "context"),
        ({}, 5, 16, "unknown"),
        ({"max_tokens": None}, 5, 16, "unknown"),
    ],
    ids=["max_tokens", "max_completion_tokens", "both", "context", "beyond", "default", "null"],
)
@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
def test_case_19_what_cut_the_answer(
    limited_rig: Rig,
    fields: dict[str, Any],
    prompt: int,
    completion: int,
    limit: str,
    streaming: bool,
) -> None:
    rig = limited_rig
    if streaming:
        finish = chat_event("b", finish="length")
        script = stream(ROLE, chat_event("a"), finish, usage_event(completion, prompt), DONE)
    else:
        document = whole("ab", completion, "length")
        document["usage"]["prompt_tokens"] = prompt
        script = send(json_answer(document))
    rig.engine.on(CHAT, script)
    watch = rig.watch()
    ask(rig.port, stream=streaming, asked=streaming, **fields)
    gained = watch.after()
    assert gained.total("truncations_total", limit=limit) == 1
    assert gained.total("truncations_total") == 1
    assert gained.total("finish_reasons_total", reason="length") == 1


@pytest.fixture(scope="module")
def limited_rig() -> Iterator[Rig]:
    """An engine whose model list says `max_model_len` 512, and a proxy that has read it."""
    with ScriptedEngine() as engine:
        engine.max_model_len = 512
        with start_proxy(upstream=engine.url, models=(), poll_interval=0.2) as proxy:
            wait_until(lambda: bool(engine.background), what="the proxy reads the model list")
            engine.on(CHAT, stream(ROLE, chat_event("a"), STOP, DONE))
            rig = Rig(engine, proxy)

            def known() -> bool:
                watch = rig.watch()
                ask(rig.port)
                return watch.after().total("requests_total", model="qwen") == 1

            wait_until(known, what="the proxy knows the model")
            yield rig


def named(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\n".encode() + event({"type": kind, **fields})


def test_case_20_anthropic_stream(rig: Rig) -> None:
    usage = {"input_tokens": 9, "output_tokens": 1}
    delta = {"type": "text_delta", "text": "x"}
    texts = [named("content_block_delta", index=0, delta=delta)] * 3
    end = {"stop_reason": "max_tokens", "stop_sequence": None}
    rig.engine.on(
        "/v1/messages",
        timed(
            named("message_start", message={"id": "m", "model": "qwen", "usage": usage}),
            named("content_block_start", index=0, content_block={"type": "text", "text": ""}),
            named("ping"),
            0.3,
            texts[0],
            0.1,
            *texts[1:],
            named("content_block_stop", index=0),
            named("message_delta", delta=end, usage={"output_tokens": 7}),
            named("message_stop"),
        ),
    )
    watch = rig.watch()
    body = {"model": "qwen", "max_tokens": 7, "stream": True, "messages": []}
    post(rig.port, "/v1/messages", body)
    gained = watch.after()
    assert gained.outcomes == {"ok": 1}
    assert 0.29 < gained.mean(TTFT) < 2.0
    assert tokens(gained) == (7, None)
    assert gained.total("prompt_tokens_total") == 9
    assert gained.total("token_events_total") == 3
    assert gained.total("truncations_total", limit="request") == 1


def test_case_20_anthropic_thinking_and_tools(rig: Rig) -> None:
    thinking = {"type": "thinking_delta", "thinking": "hm"}
    tool = {"type": "input_json_delta", "partial_json": '{"a'}
    rig.engine.on(
        "/v1/messages",
        timed(
            named("message_start", message={"usage": {"input_tokens": 9, "output_tokens": 0}}),
            0.2,
            named("content_block_delta", index=0, delta=thinking),
            0.6,
            named("content_block_delta", index=1, delta=tool),
            named("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 5}),
            named("message_stop"),
        ),
    )
    watch = rig.watch()
    post(rig.port, "/v1/messages", {"model": "qwen", "stream": True, "messages": []})
    gained = watch.after()
    assert 0.19 < gained.mean(TTFT) < 0.75
    assert 0.79 < gained.mean(FIRST_OUTPUT) < 3.0
    assert tokens(gained) == (5, None)
    assert gained.total("truncations_total") is None


def test_case_20_anthropic_error_event(rig: Rig) -> None:
    error = {"type": "overloaded_error", "message": "Overloaded"}
    rig.engine.on(
        "/v1/messages",
        stream(
            named("message_start", message={"usage": {"input_tokens": 9, "output_tokens": 0}}),
            named("error", error=error),
        ),
    )
    watch = rig.watch()
    post(rig.port, "/v1/messages", {"model": "qwen", "stream": True, "messages": []})
    assert watch.after().outcomes == {"stream_error": 1}


@pytest.mark.parametrize("last", ["response.incomplete", "response.completed"])
def test_case_20_responses_stream(rig: Rig, last: str) -> None:
    usage = {
        "input_tokens": 9,
        "output_tokens": 6,
        "output_tokens_details": {"reasoning_tokens": 2},
        "input_tokens_details": {"cached_tokens": 4},
    }
    cut = {
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "usage": usage,
    }
    rig.engine.on(
        "/v1/responses",
        timed(
            named("response.created", response={"status": "in_progress", "usage": None}),
            named("response.output_item.added", item={"type": "reasoning"}),
            0.2,
            named("response.reasoning_text.delta", delta="hm"),
            0.6,
            named("response.output_text.delta", delta="a"),
            named("response.output_text.delta", delta="b"),
            named("response.output_text.done", text="ab"),
            named(last, response=cut),
        ),
    )
    watch = rig.watch()
    body = {"model": "qwen", "input": "Hi", "stream": True, "max_output_tokens": 6}
    post(rig.port, "/v1/responses", body)
    gained = watch.after()
    assert gained.outcomes == {"ok": 1}
    assert 0.19 < gained.mean(TTFT) < 0.75
    assert 0.79 < gained.mean(FIRST_OUTPUT) < 3.0
    assert tokens(gained) == (6, None)
    assert gained.total("token_events_total") == 3
    assert gained.total("prompt_tokens_total") == 9
    assert gained.total("cached_prompt_tokens_total") == 4
    assert gained.total("reasoning_tokens_total") == 2
    assert gained.total("truncations_total", limit="request") == 1


@pytest.mark.parametrize(
    "failure",
    [
        named("response.failed", response={"status": "failed", "error": {"message": "no"}}),
        named("error", message="no", code="server_error"),
    ],
    ids=["response.failed", "error"],
)
def test_case_20_responses_stream_that_fails(rig: Rig, failure: bytes) -> None:
    created = named("response.created", response={"status": "in_progress"})
    rig.engine.on("/v1/responses", stream(created, failure))
    watch = rig.watch()
    post(rig.port, "/v1/responses", {"model": "qwen", "input": "Hi", "stream": True})
    assert watch.after().outcomes == {"stream_error": 1}


def test_case_20_responses_stream_cut_before_its_end(rig: Rig) -> None:
    rig.engine.on(
        "/v1/responses",
        stream(
            named("response.created", response={"status": "in_progress"}),
            named("response.output_text.delta", delta="a"),
            end=False,
        ),
    )
    watch = rig.watch()
    response = post(rig.port, "/v1/responses", {"model": "qwen", "input": "Hi", "stream": True})
    assert not response.clean
    assert watch.after().outcomes == {"upstream_incomplete": 1}
