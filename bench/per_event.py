"""What measuring costs for one event, without sockets: `python -m bench.per_event`.

Feeds the observations of 64 exchanges in turn with vLLM-shaped events, one a chunk, as the relay
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
from tokgauge.engine.facts import EngineFacts
from tokgauge.export.prometheus import Metrics
from tokgauge.measure.record import Measurement
from tokgauge.measure.tap import Observation, Observer
from tokgauge.measure.timeline import Exchange
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
    """The measuring side as the application puts it together."""

    def __init__(self) -> None:
        settings = Settings(upstream="http://127.0.0.1:1")
        facts = EngineFacts((MODEL,))
        self._metrics = Metrics(settings.duration_buckets, None)
        self._observer = Observer(settings, facts, self._record, self._failed)
        self._meter = LiveMeter(
            self._observer.live, self._metrics, facts, settings, self._observer.report
        )
        self.tick = self._meter.tick

    def begin(self, *, asks_for_usage: bool) -> Observation:
        """A stream whose head has come. One that does not ask for usage has it injected."""
        observation = self._observer.open("POST", _PATH, time.monotonic())
        options = b',"stream_options":{"include_usage":true}' if asks_for_usage else b""
        body = b'{"model":"%s","stream":true%s,"messages":[]}' % (MODEL.encode(), options)
        changed = observation.request_received(time.monotonic(), body, None)
        observation.enter()
        observation.request_sent(time.monotonic())
        hides = observation.hides(200, _HEADERS)
        observation.answer_begins(200, _HEADERS)
        if hides is asks_for_usage or (changed is None) is not asks_for_usage:
            raise RuntimeError("usage is not hidden as this comparison assumes")
        return observation

    def _record(self, exchange: Exchange, done: Measurement) -> None:
        if done.token_events != _ROUNDS:
            raise RuntimeError(f"{done.token_events} of {_ROUNDS} events were measured")
        self._metrics.record(done, MODEL)
        self._meter.finished(exchange, done, MODEL)

    def _failed(self, where: str) -> None:
        raise RuntimeError(f"measuring failed in {where}")


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
    """Microseconds for all of it: splitting, JSON, timeline, a tick of the live meter for every
    second of the streams, and the exchanges' ends in the metrics."""
    rig = _Rig()

    def prepare() -> Callable[[], None]:
        observations = [rig.begin(asks_for_usage=asks_for_usage) for _ in range(_STREAMS)]
        start = time.monotonic()

        def work() -> None:
            at = start
            counters = [observation.token for observation in observations]
            for index, data in enumerate(chunks):
                at += _INTERVAL
                for number, observation in enumerate(observations):
                    if not counters[number](at, data):
                        observation.onward(data)
                        observation.chunk(at, data)
                        counters[number] = observation.token_counter()
                if not index % 50:
                    rig.tick()
            for observation in observations:
                observation.passed_on(0.001)
                observation.answer_ends()
                observation.end("client_closed")

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
