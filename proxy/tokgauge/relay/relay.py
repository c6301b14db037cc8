"""The relay as the HTTP server sees it: opens the exchange of each request."""

from __future__ import annotations

from time import monotonic
from typing import Protocol

from tokgauge.http import error_responses as errors
from tokgauge.http.error_responses import ErrorResponse
from tokgauge.http.server import ClientConnection, ClientLimits
from tokgauge.http.server import Exchange as Served
from tokgauge.measure.tap import Tap
from tokgauge.relay.exchange import Exchange
from tokgauge.relay.own_paths import OwnPaths
from tokgauge.relay.upstream import Upstream


class Taps(Protocol):
    """Who measures."""

    def open(self, method: str, path: bytes, at: float) -> Tap: ...


class Relay:
    """Everything between the clients and the engine, in one event loop.

    own: answers what belongs to the proxy itself. closing: what ends from now on is ended by the
    proxy.
    """

    def __init__(
        self, upstream: Upstream, taps: Taps, own: OwnPaths, limits: ClientLimits, *,
        max_in_flight: int | None, unfinished_bodies_bytes: int,
    ) -> None:  # fmt: skip
        self.limits = limits
        self._max_in_flight = max_in_flight
        self._most_held = unfinished_bodies_bytes
        self.closing = False
        self.in_flight = 0
        self._upstream = upstream
        self._taps = taps
        self._own = own
        self._held = 0

    # The server's side

    def open(self, client: ClientConnection) -> Served:
        """The exchange of a request."""
        request = client.request
        # What is refused is an exchange, too: it is counted.
        if request.refusal is None and self._own.has(request.path):
            return self._own.open(client)
        tap = self._taps.open(request.method, request.path, monotonic())
        return Exchange(self, self._upstream, client, tap)

    @property
    def for_own_pages(self) -> OwnRoom:
        """What exchanges with the analyst share: they do not count."""
        return OwnRoom(self)

    # The exchanges' side

    def enter(self, exchange: Exchange) -> ErrorResponse | None:
        """One more exchange runs; returns why it must not."""
        self.in_flight += 1
        most = self._max_in_flight
        if most is not None and self.in_flight > most:
            return errors.too_many_requests(most)
        return None

    def leave(self, exchange: Exchange) -> None:
        """It has ended."""
        self.in_flight -= 1

    def reserve(self, size: int) -> bool:
        """Whether a request body may hold so many more bytes in memory; they are counted then."""
        if self._held + size > self._most_held:
            return False
        self._held += size
        return True

    def release(self, size: int) -> None:
        """They are held no longer."""
        self._held -= size


class OwnRoom:
    """For exchanges with the analyst: no limit is theirs, and none of them counts."""

    __slots__ = ("_relay",)

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    @property
    def closing(self) -> bool:
        """As the relay's."""
        return self._relay.closing

    def enter(self, exchange: Exchange) -> ErrorResponse | None:
        """Always welcome."""

    def leave(self, exchange: Exchange) -> None:
        """It has ended."""

    def reserve(self, size: int) -> bool:
        """Bodies are small there."""
        return True

    def release(self, size: int) -> None:
        """They are gone."""
