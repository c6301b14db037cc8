"""Puts the parts together: the ASGI application, its own pages, and what runs beside it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from proxy.client_request import SeenHeads
from proxy.engine import EngineFacts
from proxy.exchange import Exchange
from proxy.judge import Judge
from proxy.live import LiveMeter
from proxy.measurement import Measurement
from proxy.metrics import Metrics
from proxy.observation import Observer
from proxy.pages import Readiness, is_own, own_pages
from proxy.protocol import Client
from proxy.relay import Relay, Send
from proxy.request_log import RequestLog
from proxy.settings import Settings
from proxy.telemetry import Telemetry, exporting_provider
from proxy.upload import Receive
from proxy.upstream import Upstream

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
        self.heads = SeenHeads()
        self.readiness = Readiness(self._facts, shared)
        self._pages = own_pages(
            self._metrics.registry, self._refresh, self.readiness, self._metrics.published
        )

    def __call__(self, scope: Any, receive: Receive, send: Send) -> Awaitable[None]:
        """ASGI: scopes of type `http` and `lifespan`."""
        if scope["type"] == "lifespan":
            return self._live(receive, send)
        relay = self._relay_of(scope["raw_path"], scope["server"])
        return (relay or self._pages)(scope, receive, send)

    def carry_at_once(self, client: Client, server: tuple[str, int | None] | None) -> bool:
        """Carry a request that is here completely; False when it must go by ASGI."""
        relay = self._relay_of(client.request.path, server)
        return relay is not None and relay.carry_at_once(client)

    def _relay_of(self, path: bytes, server: tuple[str, int | None] | None) -> Relay | None:
        """The relay for what is the engine's, None for what the proxy answers by itself."""
        admin_port = self._admin_port
        on_admin_port = admin_port is not None and server is not None and server[1] == admin_port
        return None if on_admin_port or is_own(path) else self._relay

    async def _live(self, receive: Receive, send: Send) -> None:
        """ASGI lifespan: what runs beside the requests starts and ends with the server."""
        await receive()
        try:
            if self._settings.request_log is not None:
                self._log = RequestLog(self._settings.request_log)
            if self._settings.otel:
                self._telemetry = Telemetry(exporting_provider())
            upstream = Upstream(self._settings, self._facts)
        except ImportError:
            message = "otel is set, but its extra is missing: pip install 'tokgauge[otel]'"
            await send({"type": "lifespan.startup.failed", "message": message})
            return
        except OSError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        sys.setswitchinterval(_SWITCH_INTERVAL)
        await upstream.first_poll()
        self._relay = Relay(upstream, self._observer, self._settings)
        async with asyncio.TaskGroup() as beside:
            tasks = [
                beside.create_task(upstream.poll_forever()),
                beside.create_task(self._meter.run()),
                beside.create_task(self._judge.run(upstream)),
            ]
            await send({"type": "lifespan.startup.complete"})
            await receive()
            for task in tasks:
                task.cancel()
        self._relay.closing = True
        await upstream.transport.aclose()
        self._observer.flush()
        if self._log is not None:
            await asyncio.to_thread(self._log.close)
        if self._telemetry is not None:
            await asyncio.to_thread(self._telemetry.close)
        await send({"type": "lifespan.shutdown.complete"})

    def _refresh(self) -> None:
        self._observer.flush()
        self._meter.tick()

    def _record(self, exchange: Exchange, done: Measurement) -> None:
        model = self._facts.label(done.model)
        done = self._judge.complete(done)
        self._judge.ended(exchange, done)
        self._metrics.record(done, model)
        self._meter.finished(exchange, done, model)
        if self._log is not None:
            self._log.write(done, model)
        if self._telemetry is not None:
            self._telemetry.record(done, model)
