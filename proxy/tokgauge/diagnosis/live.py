"""What runs, and how fast: from what relays tell of running and of ended exchanges.

Pure bookkeeping over `Progress` and `Record`, whatever the number of relays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tokgauge.diagnosis.rate_window import RateWindow
from tokgauge.measure.record import Progress, Record

Label = Callable[[str | None, str | None], str]
"""The model's label from its names as requested and as answered."""

_EVENTS_REMEMBERED = 10_000


class TokensPerEvent:
    """How many tokens an event of a model carries, from finished responses with usage."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._events = 0.0

    def learn(self, tokens: int, events: int) -> None:
        """Take a finished response; older ones fade as newer ones come."""
        if self._events > _EVENTS_REMEMBERED:
            self._tokens /= 2
            self._events /= 2
        self._tokens += tokens
        self._events += events

    @property
    def value(self) -> float | None:
        """Tokens per event; None before any response has told."""
        return self._tokens / self._events if self._events else None


@dataclass(slots=True)
class _Reported:
    """What of a running exchange has been counted already."""

    events: int = 0
    tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class Live:
    """The moment. in_flight, output_rate [tokens/s]: by model. stalled: streams."""

    in_flight: dict[str, int]
    output_rate: dict[str, float]
    stalled: int


@dataclass(slots=True)
class LiveMeter:
    """Counts token events while streams run, and keeps the rate of tokens.

    label: see `Label`. add_events: is told of newly counted token events of a model. window:
    seconds of the sliding window. stall_after: seconds of silence after which a stream has stalled.
    """

    label: Label
    add_events: Callable[[str, int], None]
    window: float
    stall_after: float
    _reported: dict[str, _Reported] = field(default_factory=dict)
    _windows: dict[str, RateWindow] = field(default_factory=dict)
    _per_event: dict[str, TokensPerEvent] = field(default_factory=dict)
    _last: float | None = None

    def look(self, running: Iterable[Progress], now: float) -> Live:
        """Count what has come since the last look; `running` is what runs at `now`."""
        in_flight = dict.fromkeys(self._windows, 0)
        stalled = 0
        alive: dict[str, _Reported] = {}
        for progress in running:
            model = self.label(progress.requested, progress.answered)
            in_flight[model] = in_flight.get(model, 0) + 1
            if not progress.token_events:
                continue
            stalled += progress.is_stalled(now, self.stall_after)
            alive[progress.id] = self._gain(progress, model, now)
        self._reported = alive
        self._last = now
        return Live(
            in_flight,
            {model: self._window(model).rate(now) for model in in_flight},
            stalled,
        )

    def ended(self, record: Record, model: str, now: float) -> None:
        """An exchange has ended: count the rest of it."""
        progress = record.progress
        reported = self._gain(progress, model, now) if record.token_events else _Reported()
        self._reported.pop(record.id, None)
        if record.token_source != "usage" or record.completion_tokens is None:
            return
        if record.token_events:
            per_event = self._per_event.setdefault(model, TokensPerEvent())
            per_event.learn(record.completion_tokens, record.token_events)
        # What is known now, less what was taken for it while the response ran.
        rest = record.completion_tokens - reported.tokens
        if rest:
            span = progress.decode_span(record.ended_at)
            self._window(model).add(*(span or (record.ended_at - record.duration, now)), rest)

    def _gain(self, progress: Progress, model: str, now: float) -> _Reported:
        """Count the token events of an exchange that are new."""
        reported = self._reported.get(progress.id)
        if reported is None:
            reported = self._reported[progress.id] = _Reported()
        new = progress.token_events - reported.events
        if new > 0:
            per_event = self._per_event.get(model)
            tokens = new * ((per_event.value if per_event is not None else None) or 1.0)
            reported.events = progress.token_events
            reported.tokens += tokens
            self.add_events(model, new)
            begins = progress.decodes_from or now
            since = begins if self._last is None else max(self._last, begins)
            self._window(model).add(min(since, now), now, tokens)
        return reported

    def _window(self, model: str) -> RateWindow:
        window = self._windows.get(model)
        if window is None:
            window = self._windows[model] = RateWindow(self.window)
        return window
