"""What the analyst makes of several relays, whatever the order in which they tell."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from time import monotonic
from typing import Any, cast

import msgspec
import pytest
from tokgauge.measure.record import Message, Report
from tokgauge.measure.tap import Tap
from tokgauge.measure.taps import Taps
from tokgauge.relay.outlet import frames
from tokgauge.serve.analyst import Analyst
from tokgauge.settings import Settings

TOKEN = b'data: {"model":"m","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
STOP = b'data: {"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'


class Relay:
    """A relay without traffic: what it measures and tells, at the analyst's own end of the line."""

    def __init__(self, analyst: Analyst) -> None:
        self.hangs = False
        self.taps = Taps(
            gap_bounds=(0.1,), observed_body_bytes=1 << 20, inject_usage=False, send=self._send
        )
        self._asked = bytearray()
        self._link = analyst._intake.link()
        self._link.connection_made(cast(asyncio.Transport, self))

    def _send(self, frame: bytes) -> None:
        self._link.data_received(len(frame).to_bytes(4, "little") + frame)

    def write(self, data: bytes) -> None:
        """What the analyst sends."""
        self._asked += data
        if self.hangs:
            return
        for frame in frames(self._asked):
            message = msgspec.msgpack.decode(frame, type=Message)
            if isinstance(message, Report):
                at = monotonic()
                self._send(
                    self.taps.summary(
                        message.number, draining=False, up=True, up_at=at, lost=0, error=""
                    )
                )

    def stream(self, events: int) -> Tap:
        """A stream that runs, with so many tokens so far."""
        tap = self.taps.open("POST", b"/v1/chat/completions", monotonic())
        tap.enter()
        body = json.dumps({"model": "m", "stream": True, "messages": []}).encode()
        tap.request_received(monotonic(), body, None)
        tap.request_sent(monotonic())
        tap.response_begins(200, {"content-type": "text/event-stream"})
        for _ in range(events):
            self.read(tap, TOKEN)
        return tap

    def read(self, tap: Tap, event: bytes) -> None:
        tap.data(monotonic(), event)
        if tap.is_behind:
            tap.catch_up()


@pytest.fixture
def analyst() -> Iterator[Analyst]:
    settings: dict[str, Any] = {"upstream": "http://127.0.0.1:9", "models": ("m",), "nvml": False}
    with socket.socket(socket.AF_UNIX) as records:
        yield Analyst(Settings(**settings, workers=2), records)


def test_tokens_of_a_stream_that_has_ended_are_counted_once(analyst: Analyst) -> None:
    """Its record waits for the other relay, which hangs, and the figures go on meanwhile."""

    def counted(name: str, **labels: str) -> float:
        return analyst.metrics.registry.get_sample_value(f"tokgauge_{name}", labels) or 0.0

    async def story() -> None:
        one, other = Relay(analyst), Relay(analyst)
        stream = one.stream(100)
        await analyst.refresh()
        assert counted("token_events_total", model="m") == 100
        one.read(stream, STOP + b"data: [DONE]\n\n")
        stream.end("ok")
        assert counted("time_to_first_token_seconds_count", model="m") == 0
        other.hangs = True
        await analyst.refresh()
        other.hangs = False
        await analyst.refresh()
        assert counted("time_to_first_token_seconds_count", model="m") == 1
        assert counted("token_events_total", model="m") == 100

    asyncio.run(story())
