"""Runs the application: one process or several, drained on SIGTERM."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import uvicorn
from prometheus_client.multiprocess import mark_process_dead
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from proxy.app import App
from proxy.pages import DRAINING
from proxy.protocol import ProxyProtocol
from proxy.settings import Settings

logger = logging.getLogger("tokgauge")

_BACKLOG = 4096

_WORKER_PATIENCE = 60
"""Seconds for a new worker to begin when SIGHUP renews them: on a busy machine it imports for
longer than uvicorn's default of 5."""


class ProxyServer(uvicorn.Server):
    """uvicorn's server with a drain: readyz turns 503, then accepting ends, then streams end."""

    def __init__(self, config: uvicorn.Config, app: App, settings: Settings) -> None:
        super().__init__(config)
        self._readiness = app.readiness
        self._drain_delay = settings.drain_delay
        self._stop_accepting_at: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGINT and self._readiness.draining:
            self.force_exit = True
        self._readiness.draining = True
        # A person at a keyboard does not want to wait for load balancers to notice.
        delay = self._drain_delay if sig == signal.SIGTERM else 0.0
        self._stop_accepting_at = time.monotonic() + delay

    async def on_tick(self, counter: int) -> bool:
        at = self._stop_accepting_at
        if at is not None and time.monotonic() >= at:
            self.should_exit = True
        return await super().on_tick(counter)


class _Supervisor(Multiprocess):
    """uvicorn's supervisor of worker processes, with the same drain."""

    def __init__(
        self, config: uvicorn.Config, sockets: list[socket.socket], settings: Settings,
        shared: Path,
    ) -> None:  # fmt: skip
        super().__init__(config, sockets)
        self._drain_delay = settings.drain_delay
        self._shared = shared
        self._workers: set[int | None] = set()

    def handle_term(self) -> None:
        (self._shared / DRAINING).touch()
        self.should_exit.wait(self._drain_delay)
        self.should_exit.set()

    def keep_subprocess_alive(self) -> None:
        """Replace workers that have ended.

        uvicorn also kills those that do not answer a ping in time, which on a busy machine hits
        workers that still import, over and over; and waiting for an answer holds up signals.
        """
        for index, process in enumerate(self.processes):
            if process.process.is_alive():
                continue
            process.kill()  # closes its pipes
            process.join()
            if process.exitcode == STARTUP_FAILURE:
                self.should_exit.set()  # the next one would fail the same way
                return
            logger.error("worker %s ended (code %s): replaced", process.pid, process.exitcode)
            self.processes[index] = Process(self.config, self.sockets)
            self.processes[index].start()
        workers = {process.pid for process in self.processes}
        for gone in self._workers - workers:
            # Its counters still count; what it had in flight is no more.
            mark_process_dead(gone, str(self._shared))  # type: ignore[no-untyped-call]
        self._workers = workers

    def terminate_all(self) -> None:
        # A socket that only the supervisor holds would take connections which nobody answers.
        for sock in self.sockets:
            sock.close()
        super().terminate_all()


class _WorkerApp:
    """Makes the application inside a worker process."""

    def __init__(self, settings: Settings, directory: Path, admin_port: int | None) -> None:
        self._settings = settings
        self._directory = directory
        self._admin_port = admin_port

    def __call__(self) -> App:
        _set_up_logging(self._settings.log_level)
        _spare_the_collector()
        return App(self._settings, admin_port=self._admin_port, shared=self._directory)


class BackgroundProxy:
    """The proxy in a thread of this process, for as long as the `with` block lasts."""

    def __init__(self, settings: Settings) -> None:
        self._sockets = _bind(settings)
        self.port, self.admin_port = _ports(self._sockets)
        app = App(settings, admin_port=self.admin_port)
        self._server = ProxyServer(_config(app, settings), app, settings)
        self.url = f"http://{_in_url(settings.host)}:{self.port}"
        self._thread = threading.Thread(
            target=self._server.run, args=(self._sockets,), name="tokgauge", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise RuntimeError("the proxy did not start; see its log")
            time.sleep(0.005)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        self._server.should_exit = True
        self._thread.join()


def serve(settings: Settings) -> None:
    """Run until a signal ends it. Raises OSError when the port cannot be bound."""
    _set_up_logging(settings.log_level)
    sockets = _bind(settings)
    port, admin_port = _ports(sockets)
    logger.info(
        "tokgauge listens on http://%s:%d, engine %s",
        _in_url(settings.host), port, settings.engine.upstream,
    )  # fmt: skip
    if settings.workers == 1:
        app = App(settings, admin_port=admin_port)
        _spare_the_collector()
        ProxyServer(_config(app, settings), app, settings).run(sockets)
        return
    # A fresh directory for every run: counts of an earlier run or another instance never mix in.
    directory = Path(tempfile.mkdtemp(prefix="tokgauge-metrics-"))
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(directory)
    try:
        worker = _WorkerApp(settings, directory, admin_port)
        config = _config(worker, settings, factory=True)
        supervisor = _Supervisor(config, sockets, settings, directory)
        supervisor.run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes):
        raise SystemExit(STARTUP_FAILURE)  # the worker has said why


def _spare_the_collector() -> None:
    """Keep what has been loaded out of garbage collections from here on.

    Walking all modules takes 25 ms, in which no event would leave.
    """
    gc.collect()
    gc.freeze()


def _ports(sockets: list[socket.socket]) -> tuple[int, int | None]:
    ports = [sock.getsockname()[1] for sock in sockets]
    return ports[0], ports[1] if len(ports) > 1 else None


def _bind(settings: Settings) -> list[socket.socket]:
    ports = [settings.port, *([settings.admin_port] if settings.admin_port is not None else [])]
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    sockets: list[socket.socket] = []
    for port in ports:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sockets.append(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((settings.host, port))
        except OSError as error:
            for opened in sockets:
                opened.close()
            address = f"{_in_url(settings.host)}:{port}"
            raise OSError(f"cannot listen on {address}: {error.strerror}") from error
        sock.listen(_BACKLOG)
        sock.set_inheritable(True)
    return sockets


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _config(app: Any, settings: Settings, **more: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=ProxyProtocol,
        interface="asgi3",
        proxy_headers=False,
        h11_max_incomplete_event_size=settings.max_header_bytes,  # ProxyProtocol reads it, too
        loop="uvloop",
        ws="none",
        workers=settings.workers,
        timeout_worker_healthcheck=_WORKER_PATIENCE,
        backlog=_BACKLOG,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=settings.keep_alive_timeout,  # type: ignore[arg-type]
        timeout_graceful_shutdown=settings.drain_timeout,  # type: ignore[arg-type]
        **more,
    )


def _set_up_logging(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # uvicorn reports every start and stop; what matters of that is said here.
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLogger().level))
