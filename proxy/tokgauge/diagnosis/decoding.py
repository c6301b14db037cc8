"""When the engine decoded, as the streams show it.

Knows only times and counts of exchanges, so it works for every engine. All times are monotonic
seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tokgauge.measure.record import Progress


@dataclass(frozen=True, slots=True)
class Decoded:
    """What the streams showed between two looks.

    seconds: between the looks. busy_seconds: with at least one sequence decoding (answers that are
    not streamed count from sent to ended). sequence_seconds: the same, added up over sequences.
    sequence_events, event_seconds: token events of streamed sequences and the time they took, those
    that call tools left out; their quotient is the rate of one sequence. context_tokens_at_most:
    the most tokens of context that all running sequences can have together; None where a request
    does not bound it. uncounted_seconds: of sequence_seconds, those of exchanges whose tokens do
    not show as events. solo_wait_seconds: in which somebody waited for a first token and nobody
    decoded; shared_wait_seconds: the same while others decoded. first_tokens: requests whose first
    token came. open_wait_seconds: for how long somebody has been waiting for one at the end.
    """

    seconds: float
    busy_seconds: float
    sequence_seconds: float
    sequence_events: float
    event_seconds: float
    context_tokens_at_most: float | None
    waiting_for_first_token: int
    context_tokens_at_least: float = 0.0
    uncounted_seconds: float = 0.0
    solo_wait_seconds: float = 0.0
    shared_wait_seconds: float = 0.0
    first_tokens: int = 0
    open_wait_seconds: float = 0.0


NOTHING = Decoded(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0)
"""No time at all."""


@dataclass(frozen=True, slots=True)
class _Span:
    start: float
    end: float
    sequences: int


class DecodingWatch:
    """Looks at the running and the ended exchanges, again and again."""

    def __init__(self, now: float) -> None:
        self._last = now
        self._seen_events: dict[str, int] = {}
        self._ended: list[Progress] = []

    def ended(self, exchange: Progress) -> None:
        """An exchange has ended since the last look."""
        if exchange.generates:
            self._ended.append(exchange)

    def look(self, now: float, live: Collection[Progress]) -> Decoded:
        """What happened since the last look."""
        start, self._last = self._last, now
        ended, self._ended = self._ended, []
        running = [exchange for exchange in live if exchange.generates]
        spans: list[_Span] = []
        waits: list[_Span] = []
        first_tokens = 0
        events = seconds = uncounted = 0.0
        most: float | None = 0.0  # token-seconds
        least = 0.0
        waiting = 0
        open_wait = 0.0
        for exchange in (*ended, *running):
            span = exchange.decode_span(now)
            waited = max(exchange.opened_at, start), now if span is None else min(span[0], now)
            if waited[1] > waited[0]:
                waits.append(_Span(*waited, 1))
            if span is None:
                waiting += 1
                open_wait = max(open_wait, now - exchange.opened_at)
                continue
            first_tokens += span[0] > start
            first, last = max(span[0], start), min(span[1], now)
            if last <= first:
                continue
            bound = exchange.context_at_most
            most = None if most is None or bound is None else most + bound * (last - first)
            least += exchange.context_at_least * (last - first)
            sequences = exchange.sequences
            spans.append(_Span(first, last, sequences))
            if not exchange.streamed or exchange.calls_tools:
                uncounted += (last - first) * sequences
                continue
            new = exchange.token_events - self._seen_events.get(exchange.id, 0)
            if new > 0:
                # The first event of a stream opens its span; the gaps after it are steps.
                opening = exchange.id not in self._seen_events
                events += (new / sequences) - opening
                seconds += last - first
        self._seen_events = {
            exchange.id: exchange.token_events for exchange in running if exchange.token_events
        }
        busy = _union(spans)
        solo = _union([*spans, *waits]) - busy
        return Decoded(
            seconds=now - start,
            busy_seconds=busy,
            sequence_seconds=sum((span.end - span.start) * span.sequences for span in spans),
            sequence_events=events,
            event_seconds=seconds,
            context_tokens_at_most=most / busy if most is not None and busy else most,
            waiting_for_first_token=waiting,
            context_tokens_at_least=least / busy if busy else 0.0,
            uncounted_seconds=uncounted,
            solo_wait_seconds=solo,
            shared_wait_seconds=_union(waits) - solo,
            first_tokens=first_tokens,
            open_wait_seconds=open_wait,
        )


def _union(spans: Iterable[_Span]) -> float:
    """Seconds covered by at least one span."""
    covered = 0.0
    reach = float("-inf")
    for span in sorted(spans, key=lambda span: span.start):
        covered += max(0.0, span.end - max(span.start, reach))
        reach = max(reach, span.end)
    return covered


def merge(parts: Collection[Decoded]) -> Decoded:
    """Several consecutive looks as one. `parts` must not be empty."""
    busy = sum(part.busy_seconds for part in parts)
    most: float | None = 0.0
    for part in parts:
        if part.busy_seconds > 0 and most is not None:
            bound = part.context_tokens_at_most
            most = None if bound is None else most + bound * part.busy_seconds
    least = sum(part.context_tokens_at_least * part.busy_seconds for part in parts)
    return Decoded(
        seconds=sum(part.seconds for part in parts),
        busy_seconds=busy,
        sequence_seconds=sum(part.sequence_seconds for part in parts),
        sequence_events=sum(part.sequence_events for part in parts),
        event_seconds=sum(part.event_seconds for part in parts),
        context_tokens_at_most=most / busy if most is not None and busy else most,
        waiting_for_first_token=max(part.waiting_for_first_token for part in parts),
        context_tokens_at_least=least / busy if busy else 0.0,
        uncounted_seconds=sum(part.uncounted_seconds for part in parts),
        solo_wait_seconds=sum(part.solo_wait_seconds for part in parts),
        shared_wait_seconds=sum(part.shared_wait_seconds for part in parts),
        first_tokens=sum(part.first_tokens for part in parts),
        open_wait_seconds=[part.open_wait_seconds for part in parts][-1],
    )
