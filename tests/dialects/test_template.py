"""A read recognised by its template means what the JSON decoder says it means, for any bytes."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokgauge.dialects import template
from tokgauge.dialects.answer import AnswerReader
from tokgauge.dialects.chat import ChatReader
from tokgauge.dialects.completions import CompletionsReader
from tokgauge.dialects.manners import Lesson, Manners
from tokgauge.dialects.request import RequestParams
from tokgauge.dialects.sse import EventReader
from tokgauge.dialects.usage_filter import UsageEventFilter
from tokgauge.http.client.parser import ResponseParser
from tokgauge.measure.timeline import RequestTimeline

pytestmark = pytest.mark.socketless

CAPTURES = Path(__file__).parents[1] / "captures"


def event(delta: dict[str, Any], **choice: Any) -> bytes:
    chunk = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "model": "qwen",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None} | choice],
    }
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


PLAIN = event({"content": " the"})
BEFORE, AFTER = PLAIN.split(b" the")


LESSON = Lesson()
LESSON.feed(event({"content": ""}, finish_reason="stop") + b"data: [DONE]\n\n")
_LEARNED = LESSON.manners("text/event-stream")
assert _LEARNED is not None
MANNERS: Manners = _LEARNED


def text_event(text: bytes) -> bytes:
    return BEFORE + text + AFTER


def begun(route: str, *, echo: bool = False) -> RequestTimeline:
    exchange = RequestTimeline(
        exchange_id="1", method="POST", route=route, opened_at=0.0,
        gap_bounds=(1.5, 2.5, 1000.0), observed_body_bytes=1000,
    )  # fmt: skip
    exchange.request_received(0.0, RequestParams(echo=echo), None)
    exchange.response_begins(200, {"content-type": "text/event-stream"})
    return exchange


def run(reads: list[bytes], *, learning: bool, echo: bool = False) -> dict[str, Any]:
    """What an exchange and the filter make of a stream; without learning, all is decoded."""
    exchange = begun("chat_completions", echo=echo)
    text = exchange.text
    assert text is not None
    hiding = UsageEventFilter(MANNERS, thorough=False)
    out: list[bytes] = []
    matched = 0
    for at, data in enumerate(reads):
        if not learning:
            text._template = text._learned = None
            text._learn_at = 1_000_000
        if hiding.between and exchange.token(float(at), data):
            matched += 1
            out.append(data)
        else:
            out.append(hiding.feed(data))
            exchange.data(float(at), data)
    assert learning or not matched
    text.count()
    reader, times, events = text.reader, text.times, text._events
    assert reader is not None
    assert events is not None
    return {
        **{name: getattr(reader, name) for name in AnswerReader.__slots__},
        "out": b"".join(out), "held": hiding.held, "gaps": times.take_gaps(),
        "arrivals": times.arrivals, "first": (times.first, times.first_output),
        "last": times.last, "overflows": events.overflows,
    }  # fmt: skip


def agree(reads: list[bytes], *, echo: bool = False) -> None:
    assert run(reads, learning=True, echo=echo) == run(reads, learning=False, echo=echo)


NASTY = [
    b"", b" the", b"\\", b"\\\\", b'\\"', b'"', b'\\"role\\":\\"assistant', b'","role":"assistant',
    b'"},"finish_reason":"stop"}]}\n\ndata: {"x":"', b"\n", b"\r", b"\n\n", b"\t", b"\x00", b"\x1f",
    b"\x7f", b"\\u0000", b"\\ud83d\\ude00", b"\\ud83d", b"\\u12", b"\\x", b"\\n", "日本".encode(),
    "\u2028".encode(), "😀".encode(), b"\xff", b"\xc3", b"\xc0\x80", b"\xed\xa0\x80",
    b"\xf5\x80\x80\x80",
    b"\xe2\x82", b'"usage"', b'\\"usage\\"',
    b'"},"finish_reason":null,"usage":{"completion_tokens":9},"x":{"y":"',
    b"x" * 5000,
]  # fmt: skip

EVENTS = [
    PLAIN,
    event({"role": "assistant", "content": ""}),
    event({"role": "assistant", "content": "Hi"}),
    event({"reasoning": "hm"}),
    event({"reasoning_content": "hm"}),
    event({"content": ""}, token_ids=None),
    event({"content": "x"}, index=1),
    event({"content": "x"}, logprobs={"content": [{"token": "x"}]}),
    event({"content": "x"}, finish_reason="length"),
    event({"content": "x", "tool_calls": [{"function": {"arguments": "{"}}]}),
    event({"tool_calls": [{"index": 0, "function": {"arguments": '{"content":"a"'}}]}),
    PLAIN[:-3] + b',"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n',
    PLAIN[:-3] + b',"usage":null}\n\n',
    PLAIN[:-3] + b',"error":{"content":"x"}}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n',
    b'data: {"content":"x"}\n\n',
    b"data: [DONE]\n\n",
    b": ping\n\n",
    b": ping\n",
    b"event: error\n",
    b"id: 7\n\n",
    b"data: not json\n\n",
    PLAIN.replace(b"\n", b"\r\n"),
    PLAIN[:-1],
    PLAIN[:-2],
    b"\n",
    b"\r",
    b"",
]

texts = st.one_of(
    st.sampled_from(NASTY),
    st.binary(max_size=8),
    st.text(max_size=8).map(lambda text: json.dumps(text)[1:-1].encode()),
    st.text(max_size=8).map(lambda text: json.dumps(text, ensure_ascii=False)[1:-1].encode()),
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    chunk = draw(st.sampled_from(EVENTS) | texts.map(text_event))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(chunk)))
        drop = draw(st.integers(0, 3))
        chunk = (
            chunk[:at] + draw(st.sampled_from(NASTY) | st.binary(max_size=2)) + chunk[at + drop :]
        )
    return chunk


reads = st.lists(
    st.sampled_from(EVENTS) | texts.map(text_event) | mutated(), min_size=1, max_size=12
)


@settings(max_examples=150, deadline=None)
@given(reads, st.booleans())
@example([PLAIN, *map(text_event, NASTY), PLAIN], False)
@example([PLAIN, PLAIN, b"event: error\n", PLAIN, PLAIN], False)
def test_fast_and_slow_agree(reads: list[bytes], echo: bool) -> None:
    agree([PLAIN, *reads, PLAIN, PLAIN], echo=echo)


@settings(max_examples=100, deadline=None)
@given(reads, st.data())
def test_fast_and_slow_agree_in_any_cutting(reads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join([PLAIN, PLAIN, *reads, PLAIN, PLAIN])
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
    ends = [len(PLAIN) * n for n in range(3)]
    bounds = sorted({*ends, *cuts, len(stream)})
    agree([stream[start:end] for start, end in pairwise(bounds)])


@pytest.mark.parametrize("make_reader", [ChatReader, CompletionsReader])
@given(texts)
@settings(max_examples=200, deadline=None)
@example(b'","role":"assistant')
def test_what_matches_is_one_token(make_reader: type[AnswerReader], text: bytes) -> None:
    key = b'"delta":{"content"' if make_reader is ChatReader else b'"text"'
    end = b"}" if make_reader is ChatReader else b""
    before = b'data: {"model":"m","choices":[{"index":0,' + key + b':"'
    after = b'"' + end + b',"finish_reason":null}]}\n\n'
    learned = template.learn(before + b"x" + after, make_reader)
    assert learned is not None
    chunk = before + text + after
    if learned.token(0.0, chunk):
        reader = make_reader()
        found = EventReader().feed(chunk)
        assert len(found) == 1
        assert reader.event(*found[0])
        assert reader.saw_one_plain_token


@pytest.mark.parametrize(
    "text", [b" the", b"\\n", b'\\"', "日".encode(), "😀".encode(), b"\\u00e9"]
)
def test_usual_texts_are_recognised(text: bytes) -> None:
    learned = template.learn(PLAIN, ChatReader)
    assert learned is not None
    assert learned.token(0.0, text_event(text))


TEACHES = [0, 2, 3, 4, 5, 7, 12, 22]


@pytest.mark.parametrize("number", range(len(EVENTS)))
def test_only_plain_tokens_teach(number: int) -> None:
    assert (template.learn(EVENTS[number], ChatReader) is not None) is (number in TEACHES)


@pytest.mark.parametrize(
    ("name", "route"),
    [
        ("vllm_ascii/chat_stream", "chat_completions"),
        ("vllm/chat_stream", "chat_completions"),
        ("vllm/comp_stream", "completions"),
    ],
)
def test_most_events_of_real_streams_are_recognised(name: str, route: str) -> None:
    response = ResponseParser(head_request=False, limit=65536)
    body = response.feed((CAPTURES / f"{name}.http").read_bytes())
    response.release()
    exchange = begun(route)
    events = re.findall(rb"data: [^\r\n]*(?:\n\n|\r\n\r\n)", body)
    recognised = 0
    for at, data in enumerate(events):
        if exchange.token(float(at), data):
            recognised += 1
        else:
            exchange.data(float(at), data)
    assert exchange.token_events > 4
    assert recognised >= exchange.token_events - 3


@pytest.mark.parametrize("looks", [1, 7, 10_000])
def test_all_are_counted_however_seldom_somebody_looks(looks: int) -> None:
    exchange = begun("chat_completions")
    at, times, gaps = 0.0, [], [0, 0, 0, 0]
    recognised = 0
    for number in range(5_000):
        at += (1.0, 2.0, 5.0, 2000.0)[number * number % 7 % 4]
        times.append(at)
        if exchange.token(at, text_event(b"x")):
            recognised += 1
        else:
            exchange.data(at, text_event(b"x"))
        if number % looks == looks - 1:
            assert exchange.token_events == number + 1
            assert exchange.progress().decode_span(at) == (times[0], at)
            gaps = [a + b for a, b in zip(gaps, exchange.take_gaps()[0] or [0] * 4, strict=True)]
    assert recognised > 4_900
    assert exchange.token_events == 5_000
    assert exchange.progress().is_stalled(at + 2, 1.0)
    assert not exchange.progress().is_stalled(at + 2, 3.0)
    gaps = [a + b for a, b in zip(gaps, exchange.take_gaps()[0] or [0] * 4, strict=True)]
    found = [b - a for a, b in pairwise(times)]
    assert gaps == [
        sum(gap <= 1.5 for gap in found),
        sum(1.5 < gap <= 2.5 for gap in found),
        sum(2.5 < gap <= 1000 for gap in found),
        sum(gap > 1000 for gap in found),
    ]
