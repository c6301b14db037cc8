"""Runs the application: one process or several, drained on SIGTERM."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

import uvicorn
from uvicorn.config import STARTUP_FAILURE

from tokgauge.export.request_log import STANDARD_OUTPUT
from tokgauge.http.server import ProxyProtocol
from tokgauge.serve.app import App
from tokgauge.serve.workers import Workers, end_with_parent
from tokgauge.settings import Settings

logger = logging.getLogger("tokgauge")

_BACKLOG = 4096


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
        at = time.monotonic() + delay
        # A second signal never makes it later.
        self._stop_accepting_at = min(at, self._stop_accepting_at or at)

    async def on_tick(self, counter: int) -> bool:
        at = self._stop_accepting_at
        if at is not None and time.monotonic() >= at:
            self.should_exit = True
        return await super().on_tick(counter)


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
    """Run until a signal ends it. Raises OSError when it cannot begin, SystemExit otherwise."""
    if settings.request_log == STANDARD_OUTPUT and sys.stdout is None:
        raise OSError("request_log is -, but standard output is closed")
    _fill_standard_streams()
    for number in (signal.SIGTERM, signal.SIGINT):  # until the server takes them over
        signal.signal(number, lambda *_: sys.exit(0))
    _ignore_hangups()
    _set_up_logging(settings.log_level)
    try:
        _serve(settings)
    finally:
        # It has ended: what comes now must not become its exit code.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)


def _serve(settings: Settings) -> None:
    sockets = _bind(settings)
    port, admin_port = _ports(sockets)
    logger.info(
        "tokgauge listens on http://%s:%d, engine %s",
        _in_url(settings.host), port, settings.engine.upstream,
    )  # fmt: skip
    if settings.workers == 1:
        _run(settings, sockets, admin_port)
        return
    # A fresh directory for every run: counts of an earlier run or another instance never mix in.
    directory = Path(tempfile.mkdtemp(prefix="tokgauge-metrics-"))
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(directory)
    try:
        arguments = (settings, sockets, admin_port, directory)
        code = Workers(settings, sockets, directory, _work, arguments).run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if code:
        raise SystemExit(code)


def _work(
    begun: Connection, settings: Settings, sockets: list[socket.socket], admin_port: int | None,
    shared: Path,
) -> None:  # fmt: skip
    """What a worker process does."""
    # A session of its own: Ctrl-C reaches the parent only, which passes it on once.
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    begun.close()
    _ignore_hangups()
    _set_up_logging(settings.log_level)
    end_with_parent(shared)
    _run(settings, sockets, admin_port, shared)


def _run(
    settings: Settings, sockets: list[socket.socket], admin_port: int | None,
    shared: Path | None = None,
) -> None:  # fmt: skip
    """Serve in this process until a signal ends it. Raises SystemExit when it cannot begin."""
    try:
        app = App(settings, admin_port=admin_port, shared=shared)
        server = ProxyServer(_config(app, settings), app, settings)
    except Exception as error:
        logger.error("tokgauge cannot start", exc_info=error)
        raise SystemExit(STARTUP_FAILURE) from error
    _spare_the_collector()
    server.run(sockets)


def _fill_standard_streams() -> None:
    """Open what is closed of standard input, output and error.

    Else the next socket gets the free number, and what somebody prints goes to a client.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def _ignore_hangups() -> None:
    """SIGHUP (a closed terminal, a habit of reloading) cuts nobody's answer."""

    def note(number: int, frame: FrameType | None) -> None:
        logger.warning("SIGHUP is ignored: settings are read at the start only")

    signal.signal(signal.SIGHUP, note)


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
        except (OSError, UnicodeError) as error:
            for opened in sockets:
                opened.close()
            address = f"{_in_url(settings.host)}:{port}"
            why = error.strerror if isinstance(error, OSError) else error
            raise OSError(f"cannot listen on {address}: {why}") from error
        sock.listen(_BACKLOG)
        sock.set_inheritable(True)
    return sockets


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _config(app: App, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=ProxyProtocol,
        interface="asgi3",
        proxy_headers=False,
        loop="uvloop",
        ws="none",
        lifespan="on",  # a failure in there is the end, not a server without its relay
        backlog=_BACKLOG,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=settings.drain_timeout,  # type: ignore[arg-type]
    )


def _set_up_logging(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # uvicorn reports every start and stop; what matters of that is said here.
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLogger().level))
