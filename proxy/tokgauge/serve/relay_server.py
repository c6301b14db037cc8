"""The server of one relay: uvicorn's, with a drain."""

from __future__ import annotations

import signal
import time
from types import FrameType

import uvicorn

from tokgauge.http.server import ServerConnection
from tokgauge.serve.relay_app import RelayApp, RelaySettings


class RelayServer(uvicorn.Server):
    """readyz turns 503 first, then accepting ends, then streams end."""

    def __init__(self, app: RelayApp, settings: RelaySettings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=ServerConnection,
                interface="asgi3",
                proxy_headers=False,
                loop="uvloop",
                ws="none",
                lifespan="on",  # a failure in there is the end, not a server without its relay
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                timeout_graceful_shutdown=settings.drain_timeout,  # type: ignore[arg-type]
            )
        )
        self._app = app
        self._drain_delay = settings.drain_delay
        self._stop_accepting_at: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGINT and self._app.draining:
            self.force_exit = True
        self._app.draining = True
        # A person at a keyboard does not want to wait for load balancers to notice.
        delay = self._drain_delay if sig == signal.SIGTERM else 0.0
        at = time.monotonic() + delay
        # A second signal never makes it later.
        self._stop_accepting_at = min(at, self._stop_accepting_at or at)

    async def on_tick(self, counter: int) -> bool:
        at = self._stop_accepting_at
        if at is not None and time.monotonic() >= at:
            self.should_exit = True
        return await super().on_tick(counter)
