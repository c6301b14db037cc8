"""ASGI servers as commands, each in a process of its own on a port that is listened on already."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import psutil

from tests.asgi.documented import ROOT, command
from tests.support.process import environment

PLAIN = "tokgauge.asgi:app"

COMMANDS: dict[str, tuple[str, ...]] = {
    "hypercorn": tuple(command()),
    "uvicorn h11": ("uvicorn", PLAIN, "--fd", "{fd}", "--http", "h11"),
    "uvicorn httptools": ("uvicorn", PLAIN, "--fd", "{fd}", "--http", "httptools"),
}


@dataclass
class Server:
    """prefix: what stands before the engine's paths."""

    popen: subprocess.Popen[str]
    port: int
    prefix: str = ""
    said: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.said)

    def analyst(self) -> psutil.Process | None:
        for child in psutil.Process(self.popen.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if "tokgauge.serve.analyst_process" in child.cmdline():
                    return child
        return None

    def read(self) -> None:
        assert self.popen.stderr is not None
        self.said.extend(self.popen.stderr)


@contextlib.contextmanager
def running(
    server: str, application: str, upstream: str, prefix: str = "", **variables: str
) -> Iterator[Server]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(64)
        port = sock.getsockname()[1]
        fd = os.dup(sock.fileno())
    parts = [application if part == PLAIN else part for part in COMMANDS[server]]
    popen = subprocess.Popen(
        [sys.executable, "-m", *(part.format(fd=fd) for part in parts)],
        cwd=ROOT,
        pass_fds=[fd],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(TOKGAUGE_UPSTREAM=upstream, TOKGAUGE_NVML="false", **variables),
    )
    os.close(fd)
    running = Server(popen, port, prefix)
    reader = threading.Thread(target=running.read, daemon=True)
    with popen:
        reader.start()
        try:
            yield running
        finally:
            if popen.poll() is None:
                popen.terminate()
                try:
                    popen.wait(20)
                except subprocess.TimeoutExpired:
                    popen.kill()
            reader.join(5)
