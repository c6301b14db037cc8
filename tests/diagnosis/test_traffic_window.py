"""What a window of traffic remembers, and of which model."""

import pytest
from tokgauge.diagnosis.traffic_window import TrafficWindow
from tokgauge.dialects.request import RequestParams
from tokgauge.measure.record import Record
from tokgauge.measure.timeline import RequestTimeline

from tests.support.engine import chat_event, usage_event

pytestmark = pytest.mark.socketless


def ended_stream(events: int, tokens: int) -> Record:
    exchange = RequestTimeline(
        exchange_id="1", method="POST", route="chat_completions", opened_at=99.0,
        gap_bounds=(1.0,), observed_body_bytes=1000,
    )  # fmt: skip
    exchange.request_received(99.0, RequestParams(stream=True), None)
    exchange.response_begins(200, {"content-type": "text/event-stream"})
    for number in range(events):
        exchange.data(100.0 + number, chat_event("a"))
    exchange.data(100.0 + events, chat_event("", finish="stop") + usage_event(tokens))
    return exchange.end(100.0 + events, "ok")


def tokens_per_event(window: TrafficWindow, now: float) -> float | None:
    window.look(now, [], None, 0)
    seen = window.seen()
    assert seen is not None
    return seen.tokens_per_event


def test_tokens_per_event_are_those_of_the_model_that_runs() -> None:
    window = TrafficWindow(30.0, 0.0)
    assert tokens_per_event(window, 1.0) is None
    window.ended(ended_stream(20, 20))
    assert tokens_per_event(window, 2.0) == 1.0
    window.forget()
    assert tokens_per_event(window, 3.0) is None
    window.ended(ended_stream(10, 30))
    assert tokens_per_event(window, 4.0) == 3.0


def test_tokens_per_event_follow_an_engine_that_begins_to_speculate() -> None:
    window = TrafficWindow(30.0, 0.0)
    for _ in range(1_000):
        window.ended(ended_stream(20, 20))
    for _ in range(1_000):
        window.ended(ended_stream(20, 60))
    assert (tokens_per_event(window, 1.0) or 0) > 2.0
