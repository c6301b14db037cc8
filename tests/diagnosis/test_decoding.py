"""When the engine decoded, as the streams show it."""

import pytest
from tokgauge.diagnosis.decoding import DecodingWatch, merge
from tokgauge.dialects.request import RequestParams
from tokgauge.measure.timeline import RequestTimeline

from tests.support.engine import ROLE, chat_event

pytestmark = pytest.mark.socketless

CALL = chat_event({"tool_calls": [{"index": 0, "function": {"arguments": "1"}}]})


def streamed(event: bytes, every: float) -> RequestTimeline:
    """A running stream of 21 such events since 100.0, read up to 100.0 + 20 x `every`."""
    exchange = RequestTimeline(
        exchange_id="1", method="POST", route="chat_completions", opened_at=99.0,
        gap_bounds=(1.0,), observed_body_bytes=1000,
    )  # fmt: skip
    exchange.request_received(99.0, RequestParams(stream=True), None)
    exchange.request_sent(99.0)
    exchange.response_begins(200, {"content-type": "text/event-stream"})
    exchange.data(100.0, ROLE)
    for number in range(21):
        exchange.data(100.0 + number * every, event)
    return exchange


def test_events_of_tool_calls_are_no_steps() -> None:
    """A parser holds their tokens back: the engine makes more steps than there are events."""
    plain, calling = streamed(chat_event("a"), 0.1), streamed(CALL, 0.2)
    seen = DecodingWatch(100.0).look(102.0, [plain.progress(), calling.progress()])
    assert seen.sequence_events / seen.event_seconds == pytest.approx(10)
    assert seen.sequence_seconds == pytest.approx(4), "they are decoded all the same"
    assert seen.uncounted_seconds == pytest.approx(2)
    assert DecodingWatch(100.0).look(102.0, [calling.progress()]).event_seconds == 0


def test_whole_answers_are_decoded_and_not_counted() -> None:
    exchange = RequestTimeline(
        exchange_id="1", method="POST", route="chat_completions", opened_at=99.0,
        gap_bounds=(1.0,), observed_body_bytes=1000,
    )  # fmt: skip
    exchange.request_received(99.0, RequestParams(), None)
    exchange.request_sent(100.0)
    seen = DecodingWatch(99.0).look(102.0, [exchange.progress()])
    assert (seen.busy_seconds, seen.uncounted_seconds) == (2, 2)
    assert merge([seen, seen]).uncounted_seconds == 4


def test_who_still_waits_at_the_end_is_told_with_since_when() -> None:
    exchange = RequestTimeline(
        exchange_id="1", method="POST", route="chat_completions", opened_at=99.0,
        gap_bounds=(1.0,), observed_body_bytes=1000,
    )  # fmt: skip
    exchange.request_received(99.0, RequestParams(stream=True), None)
    exchange.request_sent(99.0)
    watch = DecodingWatch(100.0)
    waiting = watch.look(102.0, [exchange.progress()])
    later = watch.look(104.0, [])
    assert waiting.open_wait_seconds == 3
    assert merge([waiting, later]).open_wait_seconds == 0
    assert merge([later, waiting]).open_wait_seconds == 3
