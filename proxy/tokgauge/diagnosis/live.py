"""The running exchanges, once a second: counters that move while streams run, and rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from time import monotonic

from tokgauge.engine.facts import EngineFacts
from tokgauge.export.prometheus import Metrics
from tokgauge.measure.record import Measurement
from tokgauge.measure.timeline import Exchange
from tokgauge.settings import Settings

TICK = 1.0
"""Seconds between two looks at the running exchanges."""

_EVENTS_REMEMBERED = 10_000


class TokensPerEvent:
    """How many tokens an event of a model carries, from finished answers with usage."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._events = 0.0

    def learn(self, tokens: int, events: int) -> None:
        """Take a finished answer; older answers fade as newer ones come."""
        if self._events > _EVENTS_REMEMBERED:
            self._tokens /= 2
            self._events /= 2
        self._tokens += tokens
        self._events += events

    @property
    def value(self) -> float:
        """Tokens per event; 1 before any answer has told."""
        return self._tokens / self._events if self._events else 1.0


class RateWindow:
    """Tokens per second over the last `length` seconds, kept in slots of a hundredth of that."""

    def __init__(self, length: float) -> None:
        self._length = length
        self._slot = length / 100
        self._since: float | None = None
        self._slots: dict[int, float] = {}

    def add(self, start: float, end: float, tokens: float) -> None:
        """Spread `tokens` evenly over `start`…`end` (monotonic seconds)."""
        if self._since is None or start < self._since:
            self._since = start
        size, span = self._slot, end - start
        first, last = int(max(start, end - self._length - size) / size), int(end / size)
        if first == last or span <= 0:
            self._slots[last] = self._slots.get(last, 0.0) + tokens
            return
        for slot in range(first, last + 1):
            share = (min(end, (slot + 1) * size) - max(start, slot * size)) / span
            self._slots[slot] = self._slots.get(slot, 0.0) + tokens * max(share, 0.0)

    def rate(self, now: float) -> float:
        """Tokens per second up to `now`, since the first ones where that is not so long ago."""
        if self._since is None:
            return 0.0
        begins = now - self._length
        oldest = int(begins / self._slot)
        for slot in [slot for slot in self._slots if slot < oldest]:
            del self._slots[slot]
        # Of the slot in which the window begins, only a part lies in it.
        outside = self._slots.get(oldest, 0.0) * (begins / self._slot - oldest)
        tokens = max(0.0, sum(self._slots.values()) - outside)
        return tokens / min(self._length, max(now - self._since, TICK))


class _Gained:
    """What exchanges of one model have counted since they were last looked at."""

    def __init__(self) -> None:
        self.events = 0
        self.since = math.inf
        self.gaps: list[int] = []
        self.gaps_total = 0.0

    def add(self, exchange: Exchange, tokens_per_event: float) -> None:
        """Take what an exchange has counted."""
        new = exchange.token_events - exchange.reported_events
        self.events += new
        exchange.reported_events = exchange.token_events
        exchange.reported_tokens += new * tokens_per_event
        if exchange.first_token_at is not None:
            self.since = min(self.since, exchange.first_token_at)
        counts, total = exchange.take_gaps()
        self.gaps_total += total
        self.gaps = [a + b for a, b in zip(self.gaps, counts, strict=True)] if self.gaps else counts


class LiveMeter:
    """Moves what running exchanges have counted into the metrics."""

    def __init__(
        self, live: Collection[Exchange], metrics: Metrics, facts: EngineFacts,
        settings: Settings, failed: Callable[[str, Exception], None],
    ) -> None:  # fmt: skip
        """failed: receives the place and the error when a tick fails."""
        self._failed = failed
        self._live = live
        self._metrics = metrics
        self._facts = facts
        self._settings = settings
        self._windows: dict[str, RateWindow] = {}
        self._per_event: dict[str, TokensPerEvent] = {}
        self._last = monotonic()

    def tick(self) -> None:
        """Bring counters and gauges up to now; also done just before a scrape. Never raises."""
        try:
            self._tick()
        except Exception as error:  # border: measuring must not end the server
            self._failed("live", error)

    def _tick(self) -> None:
        now = monotonic()
        in_flight = dict.fromkeys(self._windows, 0)
        stalled = 0
        stall_after = self._settings.stall_after
        gained: dict[str, _Gained] = {}
        for exchange in self._live:
            model = self._facts.label(*exchange.model_names)
            in_flight[model] = in_flight.get(model, 0) + 1
            if not exchange.token_events:
                continue
            stalled += exchange.is_stalled(now, stall_after)
            if exchange.token_events != exchange.reported_events:
                so_far = gained.get(model)
                if so_far is None:
                    so_far = gained[model] = _Gained()
                so_far.add(exchange, self._tokens_per_event(model))
        for model, so_far in gained.items():
            self._report(model, so_far, now)
        for model, count in in_flight.items():
            self._metrics.set_live(
                model, in_flight=count, output_rate=self._window(model).rate(now)
            )
        self._metrics.streams_stalled.set(stalled)
        if self._facts.up is not None:
            self._metrics.upstream_up.labels(self._settings.engine.upstream).set(self._facts.up)
        for route, (state, _) in self._facts.injection.states().items():
            self._metrics.set_usage_injection(route, state)
        self._last = now

    def finished(self, exchange: Exchange, done: Measurement, model: str) -> None:
        """Take the rest of an exchange that has ended."""
        now = monotonic()
        if exchange.token_events != exchange.reported_events:
            rest = _Gained()
            rest.add(exchange, self._tokens_per_event(model))
            self._report(model, rest, now)
        if done.token_source != "usage" or done.completion_tokens is None:
            return
        if done.token_events:
            per_event = self._per_event.setdefault(model, TokensPerEvent())
            per_event.learn(done.completion_tokens, done.token_events)
        # What is known now, less what was taken for it while the answer ran.
        rest_of_tokens = done.completion_tokens - exchange.reported_tokens
        if rest_of_tokens:
            span = exchange.decode_span(now) or (now - done.duration, now)
            self._window(model).add(*span, rest_of_tokens)

    def _report(self, model: str, gained: _Gained, now: float) -> None:
        self._metrics.add_token_events(model, gained.events)
        self._metrics.add_gaps(model, gained.gaps, gained.gaps_total)
        tokens = gained.events * self._tokens_per_event(model)
        self._window(model).add(min(max(self._last, gained.since), now), now, tokens)

    def _tokens_per_event(self, model: str) -> float:
        per_event = self._per_event.get(model)
        return per_event.value if per_event is not None else 1.0

    def _window(self, model: str) -> RateWindow:
        window = self._windows.get(model)
        if window is None:
            window = self._windows[model] = RateWindow(self._settings.rate_window)
        return window
