"""Processes of the bench: started on their core, asked what they have used, stopped."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import psutil

ROOT = Path(__file__).resolve().parent.parent
"""The repository: children import `bench` and `proxy` from it."""

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>

FILES_LIMIT = 16_384
"""File descriptors that each process may have open."""


class Cores:
    """Which core does what: candidates on one, engine and client on the others."""

    def __init__(self) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self.candidates = {cores[0]}
        self.engine = {cores[-1]}
        self.client = {cores[1]} if len(cores) > 1 else {cores[0]}
        self.shared = len(cores) == 1


def raise_file_limit() -> None:
    """Let this process and its children open enough sockets for thousands of streams."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_LIMIT if hard == resource.RLIM_INFINITY else min(FILES_LIMIT, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Child:
    """A child process with all that it has started; stopped when the `with` block ends."""

    def __init__(
        self, command: Sequence[str], cores: set[int], *, log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._log_path = log
        self._log: IO[bytes] = log.open("wb")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, **(environment or {})},
            cwd=ROOT,
            start_new_session=True,
            preexec_fn=lambda: _prepare(cores),
        )

    @property
    def exited(self) -> int | None:
        """The exit status, None while it runs."""
        return self._process.poll()

    def last_words(self) -> str:
        """The end of what it has written."""
        return self._log_path.read_text(errors="replace")[-300:].strip()

    def processes(self) -> list[psutil.Process]:
        """The process and its descendants."""
        try:
            top = psutil.Process(self._process.pid)
            return [top, *top.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def cpu_seconds(self) -> float:
        """CPU time of all of them, user and system."""
        return sum(_cpu_seconds(process) for process in self.processes())

    def resident_bytes(self) -> int:
        """Resident memory of all of them; pages that they share count in each."""
        total = 0
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total

    def stop(self) -> None:
        """Ask it to end, then make it and whatever it has left behind."""
        processes = self.processes()
        self._process.terminate()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        self.stop()


def _prepare(cores: set[int]) -> None:
    """In the child: take its cores, and end when the bench is killed before it can stop it."""
    os.sched_setaffinity(0, cores)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _cpu_seconds(process: psutil.Process) -> float:
    """From `schedstat`, which counts nanoseconds; `stat` counts hundredths of a second."""
    total = 0
    for task in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            total += int(task.read_text().split()[0])
    if total:
        return total / 1e9
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
