"""The analyst: takes in what relays tell, keeps all figures, asks the engine, shows the pages."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from prometheus_client import PlatformCollector

from tokgauge.diagnosis.calibration_file import CalibrationFileError, Entry, read_calibrations
from tokgauge.diagnosis.ceiling_inputs import gpu_problem
from tokgauge.diagnosis.live import LiveMeter
from tokgauge.diagnosis.monitor import Monitor
from tokgauge.diagnosis.traffic import Traffic
from tokgauge.engine.client import EngineClient
from tokgauge.engine.facts import EngineFacts
from tokgauge.engine.poll import EnginePoll
from tokgauge.export.opentelemetry import Telemetry, exporting_provider
from tokgauge.export.processes import Processes
from tokgauge.export.prometheus import Metrics
from tokgauge.export.request_log import RequestLog
from tokgauge.http.hosts import AllowedHosts
from tokgauge.measure.failure_log import FailureLog
from tokgauge.measure.record import INJECTION_STATES, EngineNews, Record, with_context
from tokgauge.pages.own_pages import own_pages
from tokgauge.serve.background_turns import attempt, repeat
from tokgauge.serve.intake import Intake, RelayLink
from tokgauge.settings import Settings

logger = logging.getLogger("tokgauge")

_TICK = 1.0
"""Seconds between two looks at what runs."""

_PATIENCE = 0.5
"""Seconds that a page waits for relays to tell what runs."""

_LAST_FRAMES = 2.0
"""Seconds that the end waits for what relays have sent and nobody has read yet."""

_STATES: tuple[str, ...] = INJECTION_STATES


def _calibrations(file: Path | None) -> Sequence[Entry]:
    """Of the file; the start has refused a wrong one, so it has become wrong since."""
    if file is None:
        return ()
    try:
        return read_calibrations(file)
    except CalibrationFileError as error:
        logger.warning("%s; until then typical constants are used", error)
        return ()


class Analyst:
    """Everything but the traffic. records: the Unix socket that relays connect to, listening."""

    def __init__(self, settings: Settings, records: socket.socket) -> None:
        self._settings = settings
        self._records = records
        self._facts = EngineFacts(settings.engine.models)
        self._traffic = Traffic(several=settings.workers > 1)
        self.metrics = Metrics(settings.duration_buckets)
        self.metrics.registry.register(Processes(self._pids))
        self.metrics.registry.register(PlatformCollector(registry=None))
        self._intake = Intake(
            self._ended, self._told, self._traffic.came, self._left, self._failed, self._news
        )
        self._meter = LiveMeter(
            self._facts.label, self.metrics.add_token_events, settings.rate_window,
            settings.stall_after,
        )  # fmt: skip
        self._monitor = Monitor(
            settings, self._facts, self._traffic, _calibrations(settings.engine.calibration),
            self.metrics.published.publish, self._failed,
        )  # fmt: skip
        self._log: RequestLog | None = None
        self._telemetry: Telemetry | None = None
        self._told_news: EngineNews | None = None
        self.injection: Mapping[str, tuple[str, str]] = {}
        self._lost: dict[RelayLink, int] = {}
        self._failures = FailureLog()
        allowed = AllowedHosts(settings.host, settings.allowed_hosts)
        self.app = own_pages(self, allowed, self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, app: Any) -> AsyncIterator[None]:
        """What runs beside the pages starts and ends with their server."""
        async with AsyncExitStack() as running:
            await self._start(running)
            yield

    async def _start(self, running: AsyncExitStack) -> None:
        settings = self._settings
        if settings.request_log is not None:
            self._log = RequestLog(settings.request_log)
            running.push_async_callback(asyncio.to_thread, self._log.close)
        if settings.otel:
            self._telemetry = Telemetry(exporting_provider())
            running.push_async_callback(asyncio.to_thread, self._telemetry.close)
        named_wrong = gpu_problem(settings.engine)
        if named_wrong is not None:
            logger.warning("%s", named_wrong)
        client = EngineClient(settings.engine)
        running.push_async_callback(client.close)
        poll = EnginePoll(client, self._facts, self._is_busy, settings.poll_interval)
        await attempt(poll.first, partial(self._failed, "poll"))
        server = await asyncio.get_running_loop().create_server(
            self._intake.link, sock=self._records
        )
        running.callback(server.close)
        turns = (
            (poll.models, poll.pause, "poll"),
            (self.refresh, lambda: _TICK, "live"),
            (partial(self._monitor.look, poll, self.refresh), self._monitor.pause, "judge"),
        )
        for turn, pause, where in turns:
            task = asyncio.create_task(repeat(turn, pause, partial(self._failed, where)))
            running.callback(task.cancel)
        running.callback(self._monitor.close)
        # When the analyst ends, its relays have ended: what they sent last is still to be read.
        running.push_async_callback(self._intake.all_left, _LAST_FRAMES)

    # What relays tell

    async def refresh(self) -> None:
        """Bring counters and gauges up to now: all that has ended, and what runs. Never raises."""
        try:
            await self._intake.refresh(_PATIENCE)
            live = self._meter.look(self._traffic.running, monotonic())
            self.metrics.set_live(live, self._facts.up, self._settings.engine.upstream)
            self._tell_news()
        except Exception as error:  # border: what else is known is still worth showing
            self._failed("live", error)

    def _told(self, link: RelayLink) -> None:
        summary = link.summary
        assert summary is not None  # noqa: S101 - it has just been told
        if summary.up is not None:
            self._facts.reached(summary.up, summary.up_at, summary.error)
        for gained in summary.gained:
            model = self._facts.label(gained.requested, gained.answered)
            self.metrics.add_gaps(model, gained.gaps, gained.total)
        for where, count in summary.failures.items():
            self.metrics.measurement_errors.labels(where).inc(count)
        lost = summary.lost - self._lost.get(link, 0)
        self._lost[link] = summary.lost
        self.metrics.records_lost.inc(lost)
        self._note_injection()
        for record in self._traffic.told(link, summary.at, summary.running):
            self._count(record)

    def _note_injection(self) -> None:
        """Each relay learns by itself: pages show the state that says most of those that hold."""
        held: dict[str, dict[str, str]] = {}
        for relay in self._intake.relays:
            if relay.summary is not None:
                for route, (state, why) in relay.summary.injection.items():
                    held.setdefault(route, {})[state] = why
        telling = {route: max(states, key=_STATES.index) for route, states in held.items()}
        self.injection = {route: (state, held[route][state]) for route, state in telling.items()}
        for route, states in held.items():
            self.metrics.set_usage_injection(route, states)

    def _ended(self, link: RelayLink, record: Record) -> None:
        """An exchange has ended. What looks at running ones hears of it before the next look; the
        record waits until it is known whether it was alone.
        """
        names = record.progress.requested, record.progress.answered
        if record.truncations:
            record = with_context(record, self._facts.context_length(*names))
        record = self._monitor.complete(record)
        self._monitor.ended(record)
        self._meter.ended(record, self._facts.label(*names), monotonic())
        for complete in self._traffic.ended(link, record):
            self._count(complete)

    def _left(self, link: RelayLink) -> None:
        for record in self._traffic.gone(link, monotonic()):
            self._count(record)
        self._lost.pop(link, None)

    def _count(self, record: Record) -> None:
        """Count one exchange, of which everything is known now."""
        progress = record.progress
        model = self._facts.label(progress.requested, progress.answered)
        self.metrics.record(record, model)
        if self._log is not None:
            self._log.write(record, model)
        if self._telemetry is not None:
            self._telemetry.record(record, model)

    # What relays are told

    def _news(self) -> EngineNews:
        facts = self._facts
        return EngineNews(facts.up, facts.up_at, facts.is_vllm, facts.started_at)

    def _tell_news(self) -> None:
        news = self._news()
        if news != self._told_news:
            self._told_news = news
            self._intake.tell(news)

    # What the pages want to know

    def _is_busy(self) -> bool:
        return any(True for _ in self._traffic.running)

    @property
    def problems(self) -> list[str]:
        """What of settings and engine costs figures, and what to do."""
        found = (self._facts.models_problem, gpu_problem(self._settings.engine))
        return [problem for problem in found if problem is not None]

    def not_ready(self) -> str | None:
        """Why new requests are not welcome, None when they are."""
        told = [relay.summary for relay in self._intake.relays if relay.summary is not None]
        if not told:
            return "no relay has reported"
        if all(summary.draining for summary in told):
            return "shutting down"
        if self._facts.up is None:
            return "the engine has not been reached yet"
        return None if self._facts.up else "the engine cannot be reached"

    def _pids(self) -> dict[str, int]:
        relays = {relay.name: relay.pid for relay in self._intake.relays if relay.pid}
        return {"analyst": os.getpid(), **relays}

    def _failed(self, where: str, error: Exception) -> None:
        """Count a failure and log the first of its kind; in any thread. Never raises."""
        self._failures.note(where, error)
        self.metrics.measurement_errors.labels(where).inc()
