"""Law one in time: no event waits inside the proxy, seen from inside and from outside."""

import statistics
import time
from collections.abc import Callable

import pytest

from tests.conftest import Rig
from tests.support.chat import CHAT, ask, body_of
from tests.support.client import JSON
from tests.support.engine import (
    DONE,
    EVENT_STREAM,
    LAST_CHUNK,
    ROLE,
    Conversation,
    chat_event,
    usage_event,
)
from tests.support.metrics import wait_until

pytestmark = pytest.mark.timed

STREAMS = 300
LIMIT = 0.25
"""Generous: what is looked for are stalls, as by a lost wake-up or a held-back write, whose length
is that of a timer; a busy machine holds up for tens of milliseconds."""

A = chat_event("a")
END = chat_event("", finish="stop")


@pytest.mark.parametrize("asked", [True, False], ids=["asked", "unasked"])
def test_no_event_of_many_streams_is_handed_over_late(
    new_rig: Callable[..., Rig], asked: bool
) -> None:
    rig = new_rig()
    rig.teach()
    sent: list[tuple[int, float]] = []  # how many bytes of body were on their way, and when
    shown = [ROLE, A, A, A, END]

    async def script(c: Conversation) -> None:
        sent.clear()
        await c.send(EVENT_STREAM)
        size = 0
        for piece in shown:
            size += len(piece)
            sent.append((size, time.monotonic()))
            await c.chunk(piece)
            await c.pause(0.003)
        sent.append((size + len(DONE), time.monotonic()))
        await c.chunk(usage_event(3), DONE)
        await c.send(LAST_CHUNK)

    rig.engine.on(CHAT, script)
    ask(rig.port, asked=asked)
    before = rig.scrape()
    late: list[tuple[int, int, float]] = []
    delays: list[float] = []
    with rig.client(10) as client:
        for number in range(STREAMS):
            client.request("POST", CHAT, [JSON], body_of(asked=asked))
            response = client.read_response()
            assert response.clean
            if asked:
                assert response.body == b"".join(shown) + usage_event(3) + DONE
                sent[-1] = (len(response.body), sent[-1][1])
            else:
                assert response.body == b"".join(shown) + DONE
            assert len(sent) == len(shown) + 1
            for place, (size, at) in enumerate(sent):
                delay = response.arrival(size) - at
                delays.append(delay)
                if delay > LIMIT:
                    late.append((number, place, delay))
    assert late == []
    assert statistics.median(delays) < LIMIT / 10

    wait_until(lambda: rig.scrape().since(before).count("proxy_overhead_seconds") >= STREAMS)
    gained = rig.scrape().since(before)
    assert gained.outcomes == {"ok": STREAMS}
    assert gained.count("proxy_overhead_seconds") == STREAMS
    # An exchange's overhead is the sum over its events: for each of them it is even less.
    within = gained.total("proxy_overhead_seconds_bucket", le=str(LIMIT))
    assert within == STREAMS
