"""A process of ours, and how it is started again when it has died.

Used by the parent of `tokgauge serve`, which must stay small, and by `tokgauge.asgi`.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

STARTUP_FAILURE = 3
"""Exit code of a process that cannot start, and would not the next time either."""

_GRACE = 5.0
"""Seconds after which a process that was asked to end is killed."""
_STEADY = 10.0
"""Seconds after which a process that dies had started well."""
_MOST_DELAY = 5.0


@dataclass
class Child:
    """A process of ours. `module` is run with `arguments`; `fds` stay open in it."""

    name: str
    module: str
    arguments: list[str]
    fds: list[int]
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    start_again_at: float | None = None
    failures: int = 0
    starts: int = 0

    def start(self) -> None:
        self.start_again_at = None
        self.started_at = time.monotonic()
        self.starts += 1
        self.process = None
        try:
            self.process = subprocess.Popen(  # noqa: S603 - our own modules
                [sys.executable, "-m", self.module, *self.arguments],
                pass_fds=self.fds,
                process_group=0,  # what a terminal sends is for the parent alone
            )
        except OSError as error:  # no memory or no process left: there may be later
            say(f"the {self.name} could not be started: {error}")

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    @property
    def cannot_start(self) -> bool:
        """Whether its first start has failed: it has said why, and would say it again."""
        code = self.process.poll() if self.process is not None else None
        return code == STARTUP_FAILURE and self.starts == 1

    def look_after(self) -> None:
        """Start it again when it has died: at once, and later each time that this does not last."""
        now = time.monotonic()
        if self.alive or self.cannot_start:
            return
        if self.start_again_at is None:
            self._died(now)
        elif now >= self.start_again_at:
            self.start()

    def _died(self, now: float) -> None:
        code = self.process.returncode if self.process is not None else None
        self.failures = 0 if now - self.started_at > _STEADY else self.failures + 1
        delay = min(_MOST_DELAY, 0.1 * 2**self.failures) if self.failures else 0.0
        self.start_again_at = now + delay
        say(f"the {self.name} ended (code {code}): started again")

    def end(self) -> None:
        """End it in order; kill it when it does not."""
        self.signal(signal.SIGTERM)
        if self.process is not None:
            try:
                self.process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def say(text: str) -> None:
    """One line of the log, in its usual form."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S") + f",{int(time.time() * 1000) % 1000:03d}"
    with contextlib.suppress(OSError):
        print(f"{stamp} WARNING tokgauge: {text}", file=sys.stderr, flush=True)
