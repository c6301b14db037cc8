"""What exchanges with one upstream share: how many run, and what their bodies hold in memory."""

from __future__ import annotations

from tokgauge.http import error_responses as errors
from tokgauge.http.error_responses import ErrorResponse


class Room:
    """Limits, None for none: exchanges at once, and bytes of all bodies that are not complete.

    running: how many exchanges there are. closing: what ends from now on is ended by the proxy.
    """

    def __init__(self, *, max_in_flight: int | None, unfinished_bodies_bytes: int | None) -> None:
        self.running = 0
        self.closing = False
        self._max_in_flight = max_in_flight
        self._most_held = unfinished_bodies_bytes
        self._held = 0

    def enter(self) -> ErrorResponse | None:
        """One more exchange runs; returns why it must not."""
        self.running += 1
        most = self._max_in_flight
        return errors.too_many_requests(most) if most is not None and self.running > most else None

    def leave(self) -> None:
        """It has ended."""
        self.running -= 1

    def reserve(self, size: int) -> bool:
        """Whether a body may hold so many more bytes in memory; they are counted then."""
        if self._most_held is not None and self._held + size > self._most_held:
            return False
        self._held += size
        return True

    def release(self, size: int) -> None:
        """They are held no longer."""
        self._held -= size
