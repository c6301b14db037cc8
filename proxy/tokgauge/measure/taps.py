"""All exchanges of one relay that run, and the way of what has ended to the analyst."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from time import monotonic

import msgspec

from tokgauge.dialects.routes import classify
from tokgauge.measure.failure_log import FailureLog
from tokgauge.measure.record import EngineNews, Gained, Outcome, Progress, Summary
from tokgauge.measure.tap import Tap
from tokgauge.measure.timeline import RequestTimeline
from tokgauge.measure.usage_injection import UsageInjection

_encode = msgspec.msgpack.Encoder().encode


class Taps:
    """Opens a `Tap` for each exchange, and sends what it measured.

    gap_bounds: upper bounds [s] of the buckets in which gaps between events are counted.
    observed_body_bytes: the largest body that is read. send: takes a frame for the analyst.
    """

    def __init__(
        self, *, gap_bounds: Sequence[float], observed_body_bytes: int, inject_usage: bool,
        send: Callable[[bytes], None],
    ) -> None:  # fmt: skip
        self.injection = UsageInjection()
        self.injection.enabled = inject_usage
        self.observed_body_bytes = observed_body_bytes
        self._gap_bounds = tuple(gap_bounds)
        self._send = send
        self._running: set[RequestTimeline] = set()
        self._generating: set[RequestTimeline] = set()
        self._empty_is_token = False
        self._failures: dict[str, int] = {}
        self._log = FailureLog()
        self._ids = _random_ids()

    def open(self, method: str, path: bytes, at: float) -> Tap:
        """Measure an exchange whose head has been received at `at`."""
        return Tap(self, next(self._ids), method, classify(method, path), at)

    def learn(self, news: EngineNews) -> None:
        """Take what the analyst has found out about the engine."""
        self._empty_is_token = news.is_vllm
        if news.started_at is not None:
            self.injection.process_started(news.started_at)

    # The taps' side

    def enter(self, exchange_id: str, method: str, route: str, at: float) -> RequestTimeline:
        """The timeline of an exchange that runs from now on."""
        timeline = RequestTimeline(
            exchange_id=exchange_id, method=method, route=route, opened_at=at,
            gap_bounds=self._gap_bounds, observed_body_bytes=self.observed_body_bytes,
            empty_is_token=self._empty_is_token,
        )  # fmt: skip
        self._running.add(timeline)
        if timeline.generates:
            if self._generating:
                timeline.alone = False
                if len(self._generating) == 1:  # with more of them, none was alone any longer
                    next(iter(self._generating)).alone = False
            self._generating.add(timeline)
        return timeline

    def forget(self, timeline: RequestTimeline) -> None:
        """It is not measured any longer."""
        self._running.discard(timeline)
        self._generating.discard(timeline)

    def finish(self, timeline: RequestTimeline, at: float, outcome: Outcome) -> None:
        """It has ended: send its record."""
        self.forget(timeline)
        self._send(_encode(timeline.end(at, outcome)))

    def report(self, where: str, error: Exception) -> None:
        """Count a failure of the measuring side and log the first of its kind. Never raises."""
        self._log.note(where, error)
        self._failures[where] = self._failures.get(where, 0) + 1

    # The analyst's question

    def summary(
        self, number: int, *, draining: bool, up: bool | None, up_at: float, lost: int,
        error: str,
    ) -> bytes:  # fmt: skip
        """What runs now, and what has been counted since the last summary, as a frame."""
        running: list[Progress] = []
        gained: dict[tuple[str | None, str | None], tuple[list[int], float]] = {}
        for timeline in list(self._running):
            try:
                progress = timeline.progress()
                counts, total = timeline.take_gaps()
            except Exception as failure:  # border: one exchange must not cost the others
                self.forget(timeline)
                self.report("progress", failure)
                continue
            running.append(progress)
            if counts:
                names = (progress.requested, progress.answered)
                known = gained.get(names)
                if known is not None:
                    counts = [a + b for a, b in zip(known[0], counts, strict=True)]
                    total += known[1]
                gained[names] = (counts, total)
        failures, self._failures = self._failures, {}
        return _encode(
            Summary(
                number=number, at=monotonic(), draining=draining, up=up, up_at=up_at, lost=lost,
                running=running,
                gained=[Gained(*names, *counted) for names, counted in gained.items()],
                failures=failures,
                injection=self.injection.states(), error=error,
            )
        )  # fmt: skip


def _random_ids() -> Iterator[str]:
    """Identifiers that nobody can guess, 96 bits each; the kernel is asked for many at once."""
    while True:
        block = secrets.token_hex(12 * 64)
        for start in range(0, len(block), 24):
            yield block[start : start + 24]
