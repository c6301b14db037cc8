"""What measuring costs for one event, without sockets: `python -m bench.per_event`.

Feeds the taps of 64 exchanges in turn with vLLM-shaped events, one a chunk, as the relay
does, and sets beside it what msgspec alone needs to decode such an event.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
from tokgauge.diagnosis.live import LiveMeter
from tokgauge.diagnosis.traffic import Traffic
from tokgauge.export.prometheus import Metrics
from tokgauge.measure.record import Frame, Record, Summary
from tokgauge.measure.tap import Tap
from tokgauge.measure.taps import Taps
from tokgauge.settings import Settings

from bench.engine import EVENT, EVENT_BYTES, MODEL

_STREAMS = 64
_ROUNDS = 250
"""Events of each stream; fifty of them pass in a second."""
_EVENTS = _STREAMS * _ROUNDS
_REPEATS = 9
_INTERVAL = 0.02
REFERENCE_BYTES = 250
"""Size of the event whose decoding by msgspec is the yardstick."""

_TOKENS = tuple(
    json.dumps(text, ensure_ascii=False)[1:-1].encode()
    for text in (
        " the", " memory", ",", " bandwidth", "\n\n", " of", " a", " GPU", " isn't", ".",
        ' "fast"', " \N{EN DASH}", " 42", "ing", " \N{LATIN SMALL LETTER E WITH ACUTE}", " x",
    )
)  # fmt: skip
"""What events say, in turn: words, marks, escapes, characters of several bytes."""

_HEADERS = {"content-type": "text/event-stream; charset=utf-8"}
_PATH = b"/v1/chat/completions"
_LAST = (
    b'data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":'
    b'[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
)


class _Delta(msgspec.Struct):
    role: Any = None
    content: Any = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    finish_reason: Any = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Any = None
    model: Any = None


def _time(prepare: Callable[[], Callable[[], None]]) -> float:
    """Median microseconds for one event of a function that does `_EVENTS` of them."""
    times = []
    for _ in range(_REPEATS):
        work = prepare()
        start = time.thread_time()  # what others do on this core does not count
        work()
        times.append((time.thread_time() - start) / _EVENTS * 1e6)
    return statistics.median(times)


def _decoding(size: int) -> float:
    """Microseconds in which msgspec decodes the JSON of an event of `size` bytes."""
    data = (EVENT % 123456789)[len(b"data: ") : -2]
    data = data.replace(b"123456789", b"123456789" + b"x" * (size - EVENT_BYTES))
    decode = msgspec.json.Decoder(_Chunk).decode

    def work() -> None:
        for _ in range(_EVENTS):
            decode(data)

    return _time(lambda: work)


class _Rig:
    """The measuring side as relay and analyst put it together, without the socket between them."""

    def __init__(self) -> None:
        settings = Settings(upstream="http://127.0.0.1:1")
        self._frames: list[bytes] = []
        self._decode = msgspec.msgpack.Decoder(Frame).decode
        self._taps = Taps(
            gap_bounds=settings.duration_buckets,
            observed_body_bytes=settings.observed_body_bytes, inject_usage=True,
            send=self._frames.append,
        )  # fmt: skip
        self._metrics = Metrics(settings.duration_buckets)
        self._traffic = Traffic()
        self._traffic.came(self)
        self._meter = LiveMeter(
            lambda *_: MODEL, self._metrics.add_token_events, settings.rate_window,
            settings.stall_after,
        )  # fmt: skip
        self._teach()

    def _teach(self) -> None:
        """Show how streams end, so that usage is asked for from now on."""
        tap = self.begin(asks_for_usage=None)
        for event in (EVENT % 0, _LAST, b"data: [DONE]\n\n"):
            tap.data(time.monotonic(), event)
            if tap.is_behind:
                tap.catch_up()
        tap.end("ok")
        self._frames.clear()

    def begin(self, *, asks_for_usage: bool | None) -> Tap:
        """A stream whose head has come. Without a wish of the client's own usage is asked for.
        None: the first one, which is left as it is.
        """
        tap = self._taps.open("POST", _PATH, time.monotonic())
        options = b',"stream_options":{"include_usage":true}' if asks_for_usage else b""
        body = b'{"model":"%s","stream":true%s,"messages":[]}' % (MODEL.encode(), options)
        tap.enter()
        changed = tap.request_received(time.monotonic(), body, None)
        tap.request_sent(time.monotonic())
        if changed is not None:
            tap.judge_head(200, _HEADERS)
            tap.judge_first(EVENT % 0)
        tap.hides(200, _HEADERS)
        tap.response_begins(200, _HEADERS)
        if asks_for_usage is not None and (changed is None) is not asks_for_usage:
            raise RuntimeError("usage is not asked for as this comparison assumes")
        return tap

    def tick(self) -> None:
        """The analyst asks what runs, and takes in what it is told."""
        self._frames.append(
            self._taps.summary(0, draining=False, up=True, up_at=0.0, lost=0, error="")
        )
        self.take_in()

    def take_in(self) -> None:
        """The analyst's side of all that has been sent."""
        for frame in self._frames:
            told = self._decode(frame)
            if isinstance(told, Record):
                if told.token_events != _ROUNDS:
                    raise RuntimeError(f"{told.token_events} of {_ROUNDS} events were measured")
                for record in self._traffic.ended(self, told):
                    self._metrics.record(record, MODEL)
                    self._meter.ended(record, MODEL, time.monotonic())
            elif isinstance(told, Summary):
                for gained in told.gained:
                    self._metrics.add_gaps(MODEL, gained.gaps, gained.total)
                self._traffic.told(self, told.at, told.running)
                self._meter.look(self._traffic.running, told.at)
                if told.failures:
                    raise RuntimeError(f"measuring failed: {told.failures}")
        self._frames.clear()


def _events() -> list[bytes]:
    return [(EVENT % 0).replace(b"000000000", _TOKENS[at % len(_TOKENS)]) for at in range(_ROUNDS)]


def _with_logprobs() -> list[bytes]:
    """Events that differ in more than their text."""
    return [
        event.replace(
            b'"logprobs":null',
            b'"logprobs":{"content":[{"token":"a","logprob":-%d.%06d,"bytes":[97],'
            b'"top_logprobs":[]}]}' % (at % 7, at * 7919 % 1_000_000),
        )
        for at, event in enumerate(_events())
    ]


def _measuring(chunks: list[bytes], *, asks_for_usage: bool) -> float:
    """Microseconds for all of it: splitting, JSON, timeline, what runs and what has
    ended as frames, and the analyst's side of them, once for every second of the streams."""
    rig = _Rig()

    def prepare() -> Callable[[], None]:
        taps = [rig.begin(asks_for_usage=asks_for_usage) for _ in range(_STREAMS)]
        start = time.monotonic()

        def work() -> None:
            at = start
            for index, data in enumerate(chunks):
                at += _INTERVAL
                for tap in taps:
                    tap.data(at, data)
                    if tap.is_behind:
                        tap.catch_up()
                if not index % 50:
                    rig.tick()
            for tap in taps:
                tap.end("client_closed", 0.001)
            rig.take_in()

        return work

    return _time(prepare)


def measure() -> dict[str, float]:
    """Microseconds for one event, by what is done with it."""
    gc.collect()
    gc.disable()
    try:
        return {
            "msgspec_event_us": _decoding(EVENT_BYTES),
            "msgspec_reference_us": _decoding(REFERENCE_BYTES),
            "measuring_us": _measuring(_events(), asks_for_usage=True),
            "measuring_and_hiding_us": _measuring(_events(), asks_for_usage=False),
            "measuring_logprobs_us": _measuring(_with_logprobs(), asks_for_usage=True),
        }
    finally:
        gc.enable()


if __name__ == "__main__":
    json.dump({key: round(value, 3) for key, value in measure().items()}, sys.stdout, indent=2)
    print()
