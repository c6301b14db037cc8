"""`tokgauge` as a process of its own, as a user runs it."""

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

import psutil

from tests.support.client import fetch
from tests.support.metrics import wait_until

CODE = "from tokgauge.cli import main; main(prog_name='tokgauge')"


def environment(**variables: str) -> dict[str, str]:
    """The environment without settings of whoever runs the tests."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TOKGAUGE_", "PROMETHEUS_"))}
    return {**kept, **variables}


def run(*arguments: str, timeout: float = 90, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself."""
    return subprocess.run(
        [sys.executable, "-c", CODE, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
    )


@dataclass
class Process:
    """A running `tokgauge serve` and what it has said so far."""

    popen: subprocess.Popen[str]
    port: int = 0
    said: list[str] = field(default_factory=list)
    _listened: threading.Event = field(default_factory=threading.Event)
    _reader: threading.Thread | None = None

    def start(self) -> Self:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._listened.wait(60) or not self.port:
            raise AssertionError(f"it did not start: {''.join(self.said)}")
        return self

    def _read(self) -> None:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            self.said.append(line)
            if found := re.search(r"listens on http://[^ ]+:(\d+)", line):
                self.port = int(found[1])
                self._listened.set()
        self._listened.set()

    @property
    def text(self) -> str:
        return "".join(self.said)

    def ready(self) -> bool:
        return status(self.port, "/tokgauge/readyz") == 200

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def ended(self, timeout: float = 20) -> int:
        """Wait for the end; the exit code."""
        code = self.popen.wait(timeout)
        if self._reader is not None:
            self._reader.join(5)
        return code

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.popen.pid).children(recursive=True)

    def relays(self) -> list[psutil.Process]:
        return self._running("tokgauge.serve.relay_process")

    def analyst(self) -> psutil.Process | None:
        """None while it is away."""
        return next(iter(self._running("tokgauge.serve.analyst_process")), None)

    def _running(self, module: str) -> list[psutil.Process]:
        found = []
        for child in self.children():
            with contextlib.suppress(psutil.NoSuchProcess):  # a zombie, too
                if module in child.cmdline():
                    found.append(child)
        return found


def status(port: int, path: str) -> int | None:
    """The status of a GET; None when nobody answers."""
    try:
        return fetch(port, "GET", path).status
    except OSError:
        return None


@contextlib.contextmanager
def serving(
    upstream: str, *options: str, ready: bool = True, up: bool = True, **variables: str
) -> Iterator[Process]:
    """`tokgauge serve` before `upstream`; with `ready` once it is, without `up` while it starts."""
    arguments = ["serve", "--upstream", upstream, "--port", "0", "--no-nvml", *options]
    popen = subprocess.Popen(
        [sys.executable, "-c", CODE, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**variables),
    )
    process = Process(popen)
    with popen:
        try:
            process.start()
            path = "/tokgauge/readyz" if ready else "/tokgauge/healthz"
            if up:
                wait_until(lambda: status(process.port, path) == 200, 60, f"{path} says 200")
            yield process
        finally:
            if popen.poll() is None:
                family = [*process.children(), psutil.Process(popen.pid)]
                popen.terminate()
                try:
                    popen.wait(5)
                except subprocess.TimeoutExpired:
                    for member in family:
                        with contextlib.suppress(psutil.NoSuchProcess):
                            member.kill()
