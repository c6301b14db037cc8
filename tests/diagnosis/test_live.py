"""The rate of the moment: tokens ÷ time, from the start on."""

import random
import time
from collections.abc import Callable

import pytest
from tokgauge.diagnosis.rate_window import RateWindow

from tests.conftest import Rig
from tests.support.chat import CHAT, ask, body_of
from tests.support.client import JSON, request
from tests.support.engine import (
    DONE,
    EVENT_STREAM,
    LAST_CHUNK,
    ROLE,
    Conversation,
    chat_event,
    json_answer,
    stream,
    usage_event,
)

RATE = "output_tokens_per_second"
A = chat_event("a")
STOP = chat_event({}, finish="stop")


@pytest.mark.parametrize("length", [3.0, 15.0, 60.0])
@pytest.mark.parametrize("seed", range(20))
def test_a_steady_rate_is_told_from_the_second_second_on(length: float, seed: int) -> None:
    """Wherever in a second it begins, and whenever somebody looks."""
    draw = random.Random(seed)
    begin = now = 1000 + draw.random()
    window = RateWindow(length)
    while now < begin + 2.5 * length:
        last, now = now, now + draw.uniform(0.2, 1.0)
        window.add(last, now, 40 * (now - last))
        if now - begin >= 1.1:
            assert window.rate(now) == pytest.approx(40, rel=0.01)
    # It has ended: what was counted leaves the window as time passes.
    for after in (0.3 * length, 0.9 * length):
        assert window.rate(now + after) == pytest.approx(40 * (1 - after / length), abs=0.4)
    assert window.rate(now + 1.02 * length) == 0


def test_a_correction_counts_where_the_tokens_were() -> None:
    window = RateWindow(10)
    for second in range(8):
        window.add(100 + second, 101 + second, 10)
    window.add(100, 108, 80)  # events carried two tokens each, as it turned out
    assert window.rate(108) == pytest.approx(20)
    assert window.rate(112) == pytest.approx(20 * 6 / 10)


@pytest.mark.timed
def test_the_rate_of_running_streams(new_rig: Callable[..., Rig]) -> None:
    """Two streams of 100 tokens a second each, looked at from the second second on."""
    rig = new_rig(rate_window=2)

    async def tokens(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        await c.chunk(ROLE)
        start = time.monotonic()
        for number in range(400):
            await c.pause(max(0.0, start + number * 0.01 - time.monotonic()))
            await c.chunk(A)
        await c.chunk(STOP, DONE)
        await c.send(LAST_CHUNK)

    rig.engine.on(CHAT, tokens)
    body = body_of(asked=True)
    with rig.client() as one, rig.client() as two:
        for client in (one, two):
            client.send(request("POST", CHAT, [JSON], body))
        rig.engine.wait_requests(2)
        time.sleep(1.2)
        for _ in range(6):
            time.sleep(0.35)
            told = rig.scrape().total(RATE, model="qwen")
            assert told is not None
            assert told == pytest.approx(200, rel=0.1)


def test_an_ended_answer_counts_as_its_usage_says(new_rig: Callable[..., Rig]) -> None:
    """Two tokens an event, a call whose tokens were held back, and an answer in one piece."""
    rig = new_rig()
    whole = {
        "model": "qwen",
        "choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 300},
    }

    async def slow(c: Conversation) -> None:
        await c.pause(0.5)
        await c.send(json_answer(whole))

    rig.engine.on(
        CHAT,
        stream(ROLE, *[A] * 50, STOP, usage_event(100), DONE, gap=0.01),
        stream(ROLE, chat_event({}, finish="length"), usage_event(6), DONE, gap=0.2),
        slow,
    )
    watch = rig.watch()
    start = time.monotonic()
    for streaming in (True, True, False):
        ask(rig.port, stream=streaming, asked=streaming)
    watch.after(3)
    told = rig.scrape().total(RATE, model="qwen")
    seconds = time.monotonic() - start
    assert told is not None
    assert told == pytest.approx(406 / seconds, rel=0.1)
