"""The parent process: starts relays and analyst, passes signals on, starts again what died.

It holds no traffic and no figures, and imports nothing that is large: `serve` replaces itself with
it once the settings are read and the sockets are open.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from tokgauge.serve.child import STARTUP_FAILURE, Child, say

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
_LOOK = 0.5
"""Seconds between looks at what has died, were a signal to be missed."""
_GRACE = 5.0
"""Seconds beyond the drain's limits after which a process that does not end is killed."""


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
        self.analyst.end()
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
            if child.cannot_start:
                self.exit_code = STARTUP_FAILURE
                if self._draining_until is None:
                    self._drain(signal.SIGINT)  # without waiting for load balancers
            elif self._draining_until is None or child is self.analyst:
                child.look_after()


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
