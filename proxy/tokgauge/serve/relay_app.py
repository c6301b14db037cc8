"""One relay, put together: the application of its HTTP server."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from tokgauge.dialects.routes import READ_BODIES, READERS, classify
from tokgauge.engine.address import EngineAddress
from tokgauge.http import error_responses as errors
from tokgauge.http.client.limits import Limits
from tokgauge.http.client.pool import Address, Pool
from tokgauge.http.client_connection import ClientConnection, Exchange
from tokgauge.http.error_responses import ErrorResponse
from tokgauge.http.hosts import AllowedHosts
from tokgauge.http.server import ClientLimits
from tokgauge.measure.no_tap import NoTap
from tokgauge.measure.record import EngineNews, Hello, Message, Report
from tokgauge.measure.taps import Taps
from tokgauge.relay.exchange import Exchange as RelayedExchange
from tokgauge.relay.outlet import Outlet
from tokgauge.relay.own_paths import OwnPaths
from tokgauge.relay.reachability import Reachability
from tokgauge.relay.room import Room
from tokgauge.relay.upstream import Upstream

logger = logging.getLogger("tokgauge")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode

_ANALYST_PATIENCE = 0.5
"""Seconds that a relay waits at its start for the analyst, so that its first requests count."""


class RelaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a relay has to know; see the settings of these names."""

    upstream: str
    upstream_host: str | None
    upstream_ca_file: Path | None
    host: str
    allowed_hosts: tuple[str, ...]
    log_level: str
    connect_timeout: float
    first_byte_timeout: float | None
    stream_idle_timeout: float
    keep_alive_timeout: float
    head_timeout: float
    body_timeout: float
    drain_delay: float
    drain_timeout: float
    max_header_bytes: int
    max_body_bytes: int | None
    max_in_flight: int | None
    unfinished_bodies_bytes: int
    inject_usage: bool
    observed_body_bytes: int
    duration_buckets: tuple[float, ...]


class RelayApp:
    """The application of one relay: uvicorn runs its lifespan, our connections open its exchanges.

    taps: measure its exchanges. name: under which the analyst knows it. records, pages: the
    analyst's Unix sockets. Raises OSError when the file with certificates cannot be used.
    """

    def __init__(self, settings: RelaySettings, *, name: str, records: str, pages: str) -> None:
        self.limits = ClientLimits(
            head_bytes=settings.max_header_bytes, head=settings.head_timeout,
            body=settings.body_timeout, idle=settings.keep_alive_timeout,
        )  # fmt: skip
        self.draining = False
        self._name = name
        self._engine = Reachability()
        self._outlet = Outlet(records, self._hello, self._told)
        self.taps = Taps(
            gap_bounds=settings.duration_buckets,
            observed_body_bytes=settings.observed_body_bytes,
            inject_usage=settings.inject_usage,
            send=self._outlet.send,
        )
        self._hosts = AllowedHosts(settings.host, settings.allowed_hosts)
        self._upstream = _engine_upstream(
            settings, self._engine, self.taps.injection.connection_closed
        )
        self._pages = _analyst_upstream(settings, pages)
        self._room = Room(
            max_in_flight=settings.max_in_flight,
            unfinished_bodies_bytes=settings.unfinished_bodies_bytes,
        )
        self._pages_room = Room(max_in_flight=None, unfinished_bodies_bytes=None)
        self._own = OwnPaths(self._refuses, self._not_ready, self._open_page)

    def open(self, client: ClientConnection) -> Exchange:
        """The exchange of a request."""
        request = client.request
        # What is refused is an exchange, too: it is counted.
        if request.refusal is None and self._own.has(request.path):
            return self._own.open(client)
        tap = self.taps.open(request.method, request.path, monotonic())
        return RelayedExchange(self._room, self._upstream, client, tap)

    async def __call__(
        self, scope: Any, receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:  # fmt: skip
        """ASGI's lifespan; requests come by `open`."""
        await receive()
        async with self.running():
            await send({"type": "lifespan.startup.complete"})
            with suppress(asyncio.CancelledError):  # a second Ctrl-C: no wait for streams
                await receive()
        await send({"type": "lifespan.shutdown.complete"})

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While this lasts, exchanges may be opened; what runs at its end is cut."""
        async with AsyncExitStack() as running:
            running.push_async_callback(self._outlet.close)
            running.push_async_callback(self._pages.pool.close)
            running.push_async_callback(self._upstream.pool.close)
            running.callback(setattr, self._room, "closing", True)
            await self._outlet.open(_ANALYST_PATIENCE)
            yield

    # What is the proxy's own

    def _refuses(self, client: ClientConnection) -> ErrorResponse | None:
        host = client.request.incoming.host
        if host is None or self._hosts.allows(host.decode("latin-1")):
            return None
        return errors.host_not_allowed(host.decode("latin-1"))

    def _not_ready(self) -> str | None:
        if self.draining:
            return "shutting down"
        if self._engine.up is None:
            return "the engine has not been reached yet"
        return None if self._engine.up else "the engine cannot be reached"

    def _open_page(self, client: ClientConnection) -> Exchange:
        return RelayedExchange(self._pages_room, self._pages, client, NoTap())

    # The analyst's side

    def _hello(self) -> bytes:
        return _encode(Hello(self._name, os.getpid()))

    def _told(self, frame: bytes) -> None:
        try:
            message = _decode(frame)
            if isinstance(message, Report):
                self._report(message.number)
            elif isinstance(message, EngineNews):
                self._engine.heard(message.up, message.up_at)
                self.taps.learn(message)
        except Exception as error:  # border: what the analyst says must not harm the traffic
            self.taps.report("analyst", error)

    def _report(self, number: int) -> None:
        self._outlet.send(
            self.taps.summary(
                number, draining=self.draining, up=self._engine.up, up_at=self._engine.at,
                lost=self._outlet.lost, error=self._engine.error,
            )
        )  # fmt: skip
        self._outlet.flush()


def _engine_upstream(
    settings: RelaySettings, engine: Reachability, on_left: Callable[[], None]
) -> Upstream:
    address = EngineAddress.of(
        settings.upstream, host_header=settings.upstream_host, ca_file=settings.upstream_ca_file
    )
    limits = Limits(
        connect=settings.connect_timeout,
        first_byte=settings.first_byte_timeout,
        stream_idle=settings.stream_idle_timeout,
    )
    pool = Pool(
        Address(address.host, address.port, address.tls), limits,
        tls=address.tls_context(), max_head_bytes=settings.max_header_bytes, on_left=on_left,
    )  # fmt: skip
    return Upstream(
        pool, limits, address=address.url, prefix=address.prefix, host=address.host_header,
        own_host=address.own_host, max_body_bytes=settings.max_body_bytes,
        generates=lambda method, path: classify(method, path) in READERS,
        reads_bodies=_reads_body,
        reached=engine.tried,
    )  # fmt: skip


def _reads_body(method: str, path: bytes) -> bool:
    return method == "POST" and classify(method, path) in READ_BODIES


def _analyst_upstream(settings: RelaySettings, path: str) -> Upstream:
    limits = Limits(connect=settings.connect_timeout, first_byte=30.0, stream_idle=30.0)
    return Upstream(
        Pool(Address(path=path), limits), limits, address="the analyst", prefix=b"", host=None,
        own_host=b"localhost", max_body_bytes=1024 * 1024,
        generates=lambda method, path: False,
        reads_bodies=lambda method, path: False, reached=lambda up, why: None,
        unreachable=errors.analyst_away,
    )  # fmt: skip
