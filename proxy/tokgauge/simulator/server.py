"""Serving the simulated engine with uvicorn: in the foreground, or in a thread of a test."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tokgauge.simulator.app import create_engine
from tokgauge.simulator.connection import TRANSPORT
from tokgauge.simulator.profile import EngineProfile


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol, which also gives the socket to the application, to cut it."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {TRANSPORT: {"transport": self.transport}}


def create_server(
    profile: EngineProfile, host: str = "127.0.0.1", port: int = 0, *, log_level: str = "warning"
) -> uvicorn.Server:
    """A server that is not running yet: await its serve(), or call its run()."""
    config = uvicorn.Config(
        create_engine(profile),
        host=host,
        port=port,
        loop="uvloop",
        http=_Protocol,
        lifespan="on",
        log_level=log_level,
        access_log=False,
        proxy_headers=False,  # whoever asks is the peer of the socket
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(config)


def run(profile: EngineProfile, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serve until interrupted."""
    create_server(profile, host, port, log_level="info").run()


@contextlib.contextmanager
def running_engine(profile: EngineProfile | None = None) -> Iterator[str]:
    """An engine in a thread, on a free loopback port: its base URL, without a slash at the end."""
    server = create_server(profile or EngineProfile(), log_level="critical")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)
