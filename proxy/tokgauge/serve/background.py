"""The proxy in threads of this process: for the demo and for tests."""

from __future__ import annotations

import socket
import threading
import time
from types import TracebackType
from typing import Self

import uvicorn

from tokgauge.serve.analyst import Analyst
from tokgauge.serve.analyst_server import AnalystServer
from tokgauge.serve.relay_app import RelayApp
from tokgauge.serve.relay_server import RelayServer
from tokgauge.serve.sockets import AnalystSockets, bind, in_url, path_of
from tokgauge.serve.start import relay_settings
from tokgauge.settings import Settings


class BackgroundProxy:
    """One relay and the analyst, each in a thread, for as long as the `with` block lasts.

    url: of the relay, which listens on `port`; `admin_port` is the analyst's, where one is set.
    relay: its application.
    """

    def __init__(self, settings: Settings) -> None:
        ports = [settings.port, *([settings.admin_port] if settings.admin_port is not None else [])]
        self._clients, *self._admin = bind(settings.host, ports)
        self._analyst = AnalystSockets.make()
        self.port: int = self._clients.getsockname()[1]
        self.admin_port: int | None = self._admin[0].getsockname()[1] if self._admin else None
        self.url = f"http://{in_url(settings.host)}:{self.port}"
        for_relay = relay_settings(settings)
        self.relay = relay = RelayApp(
            for_relay, name="relay-0", records=path_of(self._analyst.to_records),
            pages=path_of(self._analyst.to_pages),
        )  # fmt: skip
        analyst = Analyst(settings, self._analyst.records.dup())
        self._servers: list[tuple[uvicorn.Server, threading.Thread]] = [
            _threaded(AnalystServer(analyst), [self._analyst.pages.dup(), *self._admin]),
            _threaded(RelayServer(relay, for_relay), [self._clients]),
        ]

    @property
    def clients(self) -> int:
        """Connections of clients that are open now."""
        server, _ = self._servers[-1]
        return len(server.server_state.connections)

    def drain(self) -> None:
        """Let what runs come to its end; nothing new is accepted."""
        server, _ = self._servers[-1]
        server.should_exit = True

    def __enter__(self) -> Self:
        for server, thread in self._servers:
            thread.start()
            while not server.started:
                if not thread.is_alive():
                    raise RuntimeError("the proxy did not start; see its log")
                time.sleep(0.002)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        for server, thread in reversed(self._servers):
            server.should_exit = True
            thread.join()
        self._analyst.close()


def _threaded(
    server: uvicorn.Server, sockets: list[socket.socket]
) -> tuple[uvicorn.Server, threading.Thread]:
    return server, threading.Thread(target=server.run, args=(sockets,), daemon=True)
