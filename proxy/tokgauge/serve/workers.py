"""Several worker processes under a parent that carries no traffic itself.

The parent holds the workers' number, passes signals on to them and ends last; when it is gone
itself, they see that and shut down.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType

from prometheus_client.multiprocess import mark_process_dead
from uvicorn.config import STARTUP_FAILURE

from tokgauge.settings import Settings

logger = logging.getLogger("tokgauge")

DRAINING = "draining"
"""A file of this name in the workers' shared directory says that all of them are shutting down."""

_TURN = 0.25
"""Seconds until a signal is passed on, at most."""

_LAST_SECONDS = 5.0
"""Seconds beyond all limits after which a worker that has not ended is killed."""

_PAUSE = 5.0
"""Seconds before a worker is replaced that could not start, or ended as soon as it had."""

_SPAWN = multiprocessing.get_context("spawn")


@dataclass
class _Worker:
    """begun: readable once the process knows what to do with signals."""

    process: SpawnProcess
    begun: Connection
    started_at: float
    replaces: bool

    def tell(self, number: int) -> None:
        """Send a signal; one that is still starting has nothing to finish and just ends."""
        if self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, number if self.begun.poll() else signal.SIGTERM)


class Workers:
    """Runs `work(begun, *arguments)` in `settings.workers` processes, replaces those that end.

    work: must be importable, and its arguments picklable; closes `begun` when SIGINT makes no
    traceback any more. shared: the directory of the workers.
    """

    def __init__(
        self, settings: Settings, sockets: list[socket.socket], shared: Path,
        work: Callable[..., None], arguments: tuple[object, ...],
    ) -> None:  # fmt: skip
        self._number = settings.workers
        self._patience = settings.drain_delay + settings.drain_timeout + _LAST_SECONDS
        self._sockets = sockets
        self._shared = shared
        self._work = work
        self._arguments = arguments
        self._workers: list[_Worker] = []
        self._signals: list[int] = []
        self._not_before = 0.0
        self._kill_at: float | None = None
        """When those that still run are killed; None while nothing shall end."""
        self._code = 0

    def run(self) -> int:
        """Run until a signal, or workers that cannot start, end it. Returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)
        for _ in range(self._number):
            self._start(replaces=False)
        while self._workers or self._kill_at is None:
            wait([worker.process.sentinel for worker in self._workers], _TURN)
            while self._signals:
                self._end(self._signals.pop(0))
            self._look_after()
        return self._code

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)

    def _start(self, *, replaces: bool) -> None:
        reader, begun = _SPAWN.Pipe(duplex=False)
        with begun:
            # A daemon, so that it is told to end whatever may end this process.
            process = _SPAWN.Process(target=self._work, args=(begun, *self._arguments), daemon=True)
            # What is ignored stays so in a new process: it has no handler yet.
            hangups = signal.signal(signal.SIGHUP, signal.SIG_IGN)
            try:
                process.start()
            finally:
                signal.signal(signal.SIGHUP, hangups)
        self._workers.append(_Worker(process, reader, time.monotonic(), replaces))

    def _end(self, number: int) -> None:
        """Pass a signal on: the workers drain as a single process would."""
        for worker in self._workers:
            worker.tell(number)
        if self._kill_at is not None:
            return
        self._kill_at = time.monotonic() + self._patience
        say_draining(self._shared)
        # A socket that only this process holds would take connections which nobody answers.
        for sock in self._sockets:
            sock.close()

    def _look_after(self) -> None:
        now = time.monotonic()
        for worker in [worker for worker in self._workers if not worker.process.is_alive()]:
            worker.process.join()
            worker.begun.close()
            self._workers.remove(worker)
            # Its counters still count; what it had in flight is no more.
            mark_process_dead(worker.process.pid, str(self._shared))  # type: ignore[no-untyped-call]
            if self._kill_at is None:
                self._miss(worker, now)
        if self._kill_at is None:
            if len(self._workers) < self._number and now >= self._not_before:
                self._replace(now)
        elif now >= self._kill_at:
            for worker in self._workers:
                logger.error("worker %s does not end: killed", worker.process.pid)
                worker.process.kill()
                worker.process.join()

    def _miss(self, worker: _Worker, now: float) -> None:
        code = worker.process.exitcode
        if code == STARTUP_FAILURE and not worker.replaces:
            self._code = STARTUP_FAILURE  # the worker has said why; another would fail alike
            self._end(signal.SIGTERM)
            return
        logger.error("worker %s ended (code %s): it is replaced", worker.process.pid, code)
        if code == STARTUP_FAILURE or now - worker.started_at < _PAUSE:
            self._not_before = now + _PAUSE  # the others need the processor

    def _replace(self, now: float) -> None:
        try:
            self._start(replaces=True)
        except OSError as error:
            logger.error("no worker can be started: %s", error)
            self._not_before = now + _PAUSE


def say_draining(shared: Path) -> None:
    """Let all workers say that they are not ready any more."""
    try:
        (shared / DRAINING).touch()
    except OSError as error:  # each worker still says so for itself once it drains
        logger.warning("the workers' directory cannot be written: %s", error)


def end_with_parent(shared: Path) -> None:
    """In a worker: drain when the parent has gone without a word (killed, out of memory)."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()  # a pipe whose other end the parent held
        logger.error("the parent process is gone: shutting down")
        say_draining(shared)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
