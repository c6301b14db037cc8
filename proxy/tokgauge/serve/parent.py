"""The parent process: starts relays and analyst, passes signals on, starts again what died.

It holds no traffic and no figures, and imports nothing that is large: `serve` replaces itself with
it once the settings are read and the sockets are open.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any

STARTUP_FAILURE = 3
"""Exit code of a process that cannot start, and would not the next time either."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
_LOOK = 0.5
"""Seconds between looks at what has died, were a signal to be missed."""
_GRACE = 5.0
"""Seconds beyond the drain's limits after which a process that does not end is killed."""
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


@dataclass
class Parent:
    """Runs the children until a signal ends it.

    drain: seconds that relays may take to end. fds: sockets that the parent closes when it drains,
    so that nobody is accepted whom nobody serves.
    """

    relays: list[Child]
    analyst: Child
    drain: float
    fds: list[int]
    exit_code: int = 0
    _draining_until: float | None = field(default=None, init=False)

    def run(self) -> int:
        """Returns the exit code."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for child in (self.analyst, *self.relays):
            child.start()
        while self._goes_on():
            received = signal.sigtimedwait(SIGNALS, _LOOK)
            if received is not None:
                self._take(received.si_signo)
            self._look_after()
        self._end(self.analyst)
        return self.exit_code

    def _goes_on(self) -> bool:
        return self._draining_until is None or any(relay.alive for relay in self.relays)

    def _take(self, number: int) -> None:
        if number == signal.SIGHUP:
            say("SIGHUP is ignored: settings are read at the start only")
        elif number in (signal.SIGTERM, signal.SIGINT):
            self._drain(number)

    def _drain(self, number: int) -> None:
        if self._draining_until is None:
            self._draining_until = time.monotonic() + self.drain + _GRACE
            for fd in self.fds:
                os.close(fd)
        for relay in self.relays:
            relay.start_again_at = None
            relay.signal(number)

    def _look_after(self) -> None:
        now = time.monotonic()
        until = self._draining_until
        if until is not None and now > until:
            for relay in self.relays:
                if relay.alive:
                    say(f"the {relay.name} did not end in time: killed")
                relay.signal(signal.SIGKILL)
        for child in (self.analyst, *self.relays):
            if child.alive:
                continue
            if child.start_again_at is None:
                self._died(child, now)
            elif now >= child.start_again_at:
                child.start()

    def _died(self, child: Child, now: float) -> None:
        code = child.process.returncode if child.process is not None else None
        steady = now - child.started_at > _STEADY
        if code == STARTUP_FAILURE and child.starts == 1:
            self.exit_code = STARTUP_FAILURE  # it has said why, and the next one would say it too
            if self._draining_until is None:
                self._drain(signal.SIGINT)  # without waiting for load balancers
            return
        if self._draining_until is not None and child is not self.analyst:
            return
        child.failures = 0 if steady else child.failures + 1
        delay = min(_MOST_DELAY, 0.1 * 2**child.failures) if child.failures else 0.0
        child.start_again_at = now + delay
        say(f"the {child.name} ended (code {code}): started again")

    def _end(self, child: Child) -> None:
        child.signal(signal.SIGTERM)
        if child.process is not None:
            try:
                child.process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()


def say(text: str) -> None:
    """One line of the log, in its usual form."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S") + f",{int(time.time() * 1000) % 1000:03d}"
    with contextlib.suppress(OSError):
        print(f"{stamp} WARNING tokgauge: {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Run with the plan that `serve` has written: see `tokgauge.serve.start`."""
    plan: dict[str, Any] = json.loads(sys.argv[1])
    parent = Parent(
        relays=[Child(**relay) for relay in plan["relays"]],
        analyst=Child(**plan["analyst"]),
        drain=plan["drain"],
        fds=plan["close_when_draining"],
    )
    sys.exit(parent.run())


if __name__ == "__main__":
    main()
