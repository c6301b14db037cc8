"""The server of the analyst's pages."""

from __future__ import annotations

import signal
from types import FrameType

import uvicorn

from tokgauge.serve.analyst import Analyst


class AnalystServer(uvicorn.Server):
    """uvicorn's, on a Unix socket and perhaps the admin port. Its parent ends it, not Ctrl-C."""

    def __init__(self, analyst: Analyst) -> None:
        super().__init__(
            uvicorn.Config(
                analyst.app,
                interface="asgi3",
                proxy_headers=False,
                loop="asyncio",  # uvloop takes no Unix socket that is open already
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                timeout_graceful_shutdown=2,
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGTERM:
            super().handle_exit(sig, frame)
