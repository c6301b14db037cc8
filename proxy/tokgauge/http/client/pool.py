"""The connections to one engine: made when needed, kept while idle, watched for their limits."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Protocol, cast

from tokgauge.http.client.connection import EngineConnection
from tokgauge.http.client.failures import ConnectFailed, ConnectTimedOut, EngineFailure
from tokgauge.http.client.limits import Limits


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine listens: host and port, with TLS or without, or a Unix socket's path."""

    host: str = ""
    port: int = 0
    tls: bool = False
    path: str | None = None

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Connections now."""

    active: int
    idle: int


class Waiter(Protocol):
    """Who waits for a new connection."""

    def connected(self, connection: EngineConnection) -> None: ...
    def failed(self, failure: EngineFailure) -> None: ...


class Pool:
    """Connections to one address, by one event loop. Active ones are not limited.

    limits: see `Limits`.
    tls: for addresses with TLS; its ALPN list is set. Default: the system's certificates.
    max_idle: idle connections that are kept.
    idle_expiry: seconds after which an idle connection is not used any more. The default is below
        the five seconds after which uvicorn, and so vLLM, closes it.
    max_head_bytes: limit on the response head, and on what else is not body.
    on_left: called when the other side has closed an idle connection that could have been used.
    """

    def __init__(
        self, address: Address, limits: Limits, *, tls: ssl.SSLContext | None = None,
        max_idle: int = 256, idle_expiry: float = 4.0, max_head_bytes: int = 64 * 1024,
        on_left: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.address = address
        self._limits = limits
        self._tls = tls
        if tls is not None:
            tls.set_alpn_protocols(["http/1.1"])
        self._max_idle = max_idle
        self._idle_expiry = idle_expiry
        self._max_head_bytes = max_head_bytes
        self._on_left = on_left
        self._active: set[EngineConnection] = set()
        self._idle: dict[EngineConnection, float] = {}
        self._closing: set[EngineConnection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._all_gone: asyncio.Event | None = None
        self._closed = False
        self._sweeper: asyncio.TimerHandle | None = None
        timed = [limit for limit in (limits.first_byte, limits.stream_idle) if limit is not None]
        self._sweep_interval = min(max(min(timed, default=8.0) / 8, 0.01), 1.0)

    def take(self) -> EngineConnection | None:
        """An idle connection that still looks alive; None when a new one is needed."""
        oldest = monotonic() - self._idle_expiry
        while self._idle and not self._closed:
            connection, since = self._idle.popitem()
            if since >= oldest:
                if connection.usable():
                    self._use(connection)
                    return connection
                self._on_left()
            connection.close()
        return None

    def connect(self, waiter: Waiter) -> Callable[[], object]:
        """Make a new connection for `waiter`, who is told; returns what gives it up."""
        task = asyncio.get_running_loop().create_task(self._connect_for(waiter))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return task.cancel

    @property
    def stats(self) -> PoolStats:
        return PoolStats(active=len(self._active), idle=len(self._idle))

    async def close(self) -> None:
        """Close every connection; running exchanges fail. Returns when all are gone."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for task in list(self._connecting):
            task.cancel()
        for connection in [*self._active, *self._idle]:
            connection.shut()
        if self._closing:
            self._all_gone = asyncio.Event()
            await self._all_gone.wait()

    # The connections' side

    def connection_idle(self, connection: EngineConnection) -> None:
        """The connection may serve another request."""
        self._active.discard(connection)
        if len(self._idle) >= self._max_idle:
            connection.close()
        else:
            self._idle[connection] = monotonic()

    def connection_closed(self, connection: EngineConnection) -> None:
        """The connection serves no more."""
        self._active.discard(connection)
        since = self._idle.pop(connection, None)
        if since is not None and not self._closed and since >= monotonic() - self._idle_expiry:
            self._on_left()
        if connection.established:
            self._closing.add(connection)

    def connection_gone(self, connection: EngineConnection) -> None:
        """Its socket is closed."""
        self._closing.discard(connection)
        if self._all_gone is not None and not self._closing:
            self._all_gone.set()

    # Connecting

    async def _connect_for(self, waiter: Waiter) -> None:
        try:
            connection = await self._connect()
        except EngineFailure as failure:
            waiter.failed(failure)
        else:
            self._use(connection)
            waiter.connected(connection)

    def _use(self, connection: EngineConnection) -> None:
        self._active.add(connection)
        if self._sweeper is None:
            self._sweep_later()

    async def _connect(self) -> EngineConnection:
        address = self.address
        loop = asyncio.get_running_loop()
        connection = EngineConnection(loop, self, self._max_head_bytes)
        try:
            async with asyncio.timeout(self._limits.connect):
                if address.path is not None:
                    await loop.create_unix_connection(lambda: connection, address.path)
                else:
                    # Several addresses are tried in turn. Not with happy_eyeballs_delay: uvloop has
                    # no such option, and asyncio's loses the winning socket when it is cancelled.
                    await loop.create_connection(lambda: connection, address.host, address.port)
                if address.tls:
                    await self._secure(loop, connection)
            if self._closed:
                raise ConnectFailed("the proxy shuts down")
            if connection.closed:  # before this task could run again
                raise ConnectFailed(f"{address} accepted the connection and closed it")
        except TimeoutError as error:
            connection.close()
            raise ConnectTimedOut(f"no connection to {address} in time") from error
        except (OSError, UnicodeError) as error:
            connection.close()
            raise ConnectFailed(str(error)) from error
        except BaseException:
            connection.close()
            raise
        connection.established = True
        return connection

    async def _secure(self, loop: asyncio.AbstractEventLoop, connection: EngineConnection) -> None:
        # Not create_connection(ssl=...): its half-open socket could not be closed at once when the
        # handshake is cancelled.
        if self._tls is None:
            self._tls = ssl.create_default_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        secured = await loop.start_tls(
            connection.transport, connection, self._tls, server_hostname=self.address.host
        )
        connection.transport = cast(asyncio.Transport, secured)

    # Time limits

    def _sweep_later(self) -> None:
        self._sweeper = asyncio.get_running_loop().call_later(self._sweep_interval, self._sweep)

    def _sweep(self) -> None:
        """One timer for all connections: no timer has to be moved when an event comes."""
        now = monotonic()
        for connection in list(self._active):
            connection.check(now, self._limits)
        oldest = now - self._idle_expiry
        for connection in [idle for idle, since in self._idle.items() if since < oldest]:
            connection.close()
        if self._active or self._idle:
            self._sweep_later()
        else:
            self._sweeper = None
