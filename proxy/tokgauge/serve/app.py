"""Puts the parts together: the ASGI application, its own pages, and what runs beside it."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from tokgauge.diagnosis.ceiling_inputs import gpu_problem
from tokgauge.diagnosis.judge import Judge
from tokgauge.diagnosis.live import TICK, LiveMeter
from tokgauge.engine.facts import EngineFacts
from tokgauge.export.opentelemetry import Telemetry, exporting_provider
from tokgauge.export.prometheus import Metrics
from tokgauge.export.request_log import RequestLog
from tokgauge.export.workers_figures import take_failure
from tokgauge.http.request import REQUEST, ClientRequest
from tokgauge.http.server import Client, ClientLimits
from tokgauge.measure.record import Measurement
from tokgauge.measure.tap import Observer
from tokgauge.measure.timeline import Exchange
from tokgauge.pages.own_pages import AllowedHosts, Readiness, is_own, own_pages
from tokgauge.relay.relay import Relay, Send
from tokgauge.relay.upload import Receive
from tokgauge.relay.upstream import Upstream
from tokgauge.serve.background_turns import attempt, repeat
from tokgauge.settings import Settings

logger = logging.getLogger("tokgauge")

# A scrape renders in a thread; with the default of 5 ms it could hold an event up for as long.
_SWITCH_INTERVAL = 0.0005

_RECORD_AFTER = 0.005
"""Seconds after which an exchange that has ended is recorded, or with the next scrape: whoever asks
again at once does not wait for the figures of his last request."""


class App:
    """The ASGI application of one process.

    admin_port: requests that come in there see only the proxy's own pages.
    shared: the directory that worker processes share, None for one process.
    """

    def __init__(
        self, settings: Settings, *, admin_port: int | None = None, shared: Path | None = None
    ) -> None:
        self._settings = settings
        self._admin_port = admin_port
        self._facts = EngineFacts(settings.engine.models)
        self._metrics = Metrics(settings.duration_buckets, shared)
        self._observer = Observer(
            settings, self._facts, self._record,
            lambda where: self._metrics.observer_errors.labels(where).inc(),
            lambda flush: asyncio.get_running_loop().call_later(_RECORD_AFTER, flush),
        )  # fmt: skip
        self._meter = LiveMeter(
            self._observer.live, self._metrics, self._facts, settings, self._observer.report
        )
        self._judge = Judge(
            settings, self._facts, self._observer.live, self._metrics.published,
            self._observer.report, shared,
        )  # fmt: skip
        self._log: RequestLog | None = None
        self._telemetry: Telemetry | None = None
        self._relay: Relay | None = None
        self.limits = ClientLimits(
            head_bytes=settings.max_header_bytes, head=settings.head_timeout,
            body=settings.body_timeout, idle=settings.keep_alive_timeout,
        )  # fmt: skip
        self.readiness = Readiness(self._facts, shared)
        self._pages = own_pages(
            self._metrics.registry,
            self._refresh,
            self.readiness,
            self._metrics.published,
            AllowedHosts(settings.host, settings.allowed_hosts),
            self._problems,
        )

    def __call__(self, scope: Any, receive: Receive, send: Send) -> Awaitable[None]:
        """ASGI: scopes of type `http` and `lifespan`."""
        if scope["type"] == "lifespan":
            return self._live(receive, send)
        relay = self._relay_of(scope["extensions"][REQUEST], scope["server"])
        return (relay or self._pages)(scope, receive, send)

    def carry_at_once(self, client: Client, server: tuple[str, int | None] | None) -> bool:
        """Carry a request that is here completely; False when it must go by ASGI."""
        relay = self._relay_of(client.request, server)
        return relay is not None and relay.carry_at_once(client)

    def _relay_of(
        self, request: ClientRequest, server: tuple[str, int | None] | None
    ) -> Relay | None:
        """The relay for what is the engine's, None for the proxy's own pages.

        What is refused is the relay's, too: it counts it.
        """
        if request.refusal is not None:
            return self._relay
        admin_port = self._admin_port
        on_admin_port = admin_port is not None and server is not None and server[1] == admin_port
        return None if on_admin_port or is_own(request.path) else self._relay

    async def _live(self, receive: Receive, send: Send) -> None:
        """ASGI lifespan: what runs beside the requests starts and ends with the server."""
        await receive()
        async with AsyncExitStack() as running:
            try:
                await self._start(running)
            except Exception as error:
                await send({"type": "lifespan.startup.failed", "message": _reason(error)})
                return
            await send({"type": "lifespan.startup.complete"})
            with suppress(asyncio.CancelledError):  # a second Ctrl-C: no wait for streams
                await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _start(self, running: AsyncExitStack) -> None:
        """Start everything; what has to be ended again is left to `running`."""
        if self._settings.request_log is not None:
            self._log = RequestLog(self._settings.request_log)
            running.push_async_callback(asyncio.to_thread, self._log.close)
        if self._settings.otel:
            self._telemetry = Telemetry(exporting_provider())
            running.push_async_callback(asyncio.to_thread, self._telemetry.close)
        running.callback(self._observer.flush)
        upstream = Upstream(self._settings, self._facts)
        running.push_async_callback(upstream.transport.aclose)
        named_wrong = gpu_problem(self._settings.engine)
        if named_wrong is not None:
            logger.warning("%s", named_wrong)
        sys.setswitchinterval(_SWITCH_INTERVAL)
        await attempt(upstream.first_poll, partial(self._observer.report, "poll"))
        self._relay = relay = Relay(upstream, self._observer, self._settings)
        running.callback(setattr, relay, "closing", True)
        running.callback(self._judge.close)
        looks = self._settings.engine_metrics_interval
        for where, turn, pause in (
            ("poll", upstream.poll_when_it_may, upstream.pause),
            ("live", self._tick, lambda: TICK),
            ("metrics_files", self._look_at_files, lambda: TICK),
            ("judge", partial(self._judge.look, upstream), lambda: looks),
        ):
            beside = repeat(turn, pause, partial(self._observer.report, where))
            running.push_async_callback(_cancel, asyncio.create_task(beside))

    async def _tick(self) -> None:
        self._meter.tick()

    async def _look_at_files(self) -> None:
        failure = take_failure()
        if failure is not None:
            raise failure

    def _problems(self) -> list[str]:
        found = (self._facts.models_problem, gpu_problem(self._settings.engine))
        return [problem for problem in found if problem is not None]

    def _refresh(self) -> None:
        self._observer.flush()
        self._meter.tick()

    def _record(self, exchange: Exchange, done: Measurement) -> None:
        model = self._facts.label(*exchange.model_names)
        done = self._judge.complete(exchange, done)
        self._judge.ended(exchange, done)
        self._metrics.record(done, model)
        self._meter.finished(exchange, done, model)
        if self._log is not None:
            self._log.write(done, model)
        if self._telemetry is not None:
            self._telemetry.record(done, model)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _reason(error: Exception) -> str:
    """Why it cannot start, for a person."""
    if isinstance(error, ImportError):
        return "otel is set, but its extra is missing: pip install 'tokgauge[otel]'"
    if isinstance(error, OSError):
        return str(error)
    logger.error("tokgauge cannot start", exc_info=error)
    return f"{type(error).__name__}: {error}"
