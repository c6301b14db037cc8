"""What is counted of the answers of a window."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokgauge.diagnosis.answers import Answers, Spread, merge
from tokgauge.dialects.request import read_request
from tokgauge.measure.record import Outcome
from tokgauge.measure.timeline import RequestTimeline

from tests.support.chat import body_of, whole_answer
from tests.support.engine import ROLE, chat_event

JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream"}


def whole(finish: str) -> bytes:
    message = {"role": "assistant", "content": "Hello"}
    return json.dumps(
        {
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 1},
        }
    ).encode()


def ended(
    answers: Answers, headers: dict[str, str], data: bytes, *,
    asked: bool = True, seconds: float = 3.0, outcome: Outcome = "ok",
) -> None:  # fmt: skip
    """One exchange whose answer comes at once, `seconds` after the request."""
    exchange = RequestTimeline(
        exchange_id="0", method="POST", route="chat_completions", opened_at=0.0,
        gap_bounds=(1.0,), observed_body_bytes=1_000_000,
    )  # fmt: skip
    body = body_of(stream=asked)
    exchange.request_received(0.0, read_request(body), body)
    exchange.request_sent(0.0)
    exchange.response_begins(200, headers)
    exchange.data(seconds, data)
    answers.add(exchange.end(seconds, outcome), streamed=exchange.stream)


def test_streamed_and_unstreamed_answers() -> None:
    answers = Answers()
    ended(answers, EVENTS, b"".join(whole_answer("a", "b")))
    ended(answers, JSON, whole("stop"), asked=False, seconds=12.66)
    ended(answers, JSON, whole("stop"), seconds=2.0)  # it was asked to stream, and did not
    ended(answers, JSON, whole("stop"), asked=False, seconds=30.0)
    assert answers.unstreamed_ratio == 0.75
    assert answers.waits.median() == pytest.approx(12.6)
    assert answers.truncated_ratio == 0.25


def test_what_showed_nothing_or_did_not_end_is_no_answer() -> None:
    answers = Answers()
    ended(answers, JSON, b"", asked=False, outcome="client_closed")
    ended(answers, EVENTS, ROLE, outcome="client_closed")
    assert answers.unstreamed_ratio is None
    assert answers.waits.median() is None
    ended(answers, EVENTS, ROLE + chat_event("a"), outcome="client_closed")
    assert answers.unstreamed_ratio == 0.0
    assert answers.truncated_ratio is None, "nobody knows how it would have ended"


def test_parts_add_up() -> None:
    first, second = Answers(), Answers()
    ended(first, JSON, whole("length"), asked=False, seconds=9.0)
    ended(second, JSON, whole("stop"), asked=False, seconds=1.0)
    ended(second, EVENTS, b"".join(whole_answer("a")))
    both = merge([first, second])
    assert both.unstreamed_ratio == pytest.approx(2 / 3)
    assert both.truncated_ratio == pytest.approx(2 / 3)
    assert both.waits.median() == pytest.approx(1.0)
    assert merge([]).unstreamed_ratio is None


@settings(deadline=None)
@given(st.lists(st.floats(0, 99), min_size=1))
def test_the_median_is_true_to_one_step(values: list[float]) -> None:
    spread = Spread(0.1, 100)
    for value in values:
        spread.add(value)
    median = spread.median()
    assert median is not None
    exact = sorted(values)[(len(values) - 1) // 2]
    assert median - 1e-9 <= exact < median + 0.1 + 1e-9


def test_the_room_does_not_grow_with_the_answers() -> None:
    spread = Spread(0.1, 100)
    for number in range(100_000):
        spread.add(number / 7)
    assert len(spread.counts) <= 1001
    assert spread.median() is None, "it lies beyond what is told apart"
