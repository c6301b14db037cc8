"""The transport: connects, keeps idle connections, watches time limits."""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import cast

import httpx2

from tokgauge.http.client.connection import Connection
from tokgauge.http.client.errors import transport_error
from tokgauge.http.client.reader import ResponseReader
from tokgauge.http.client.request import RequestHead, request_head
from tokgauge.http.client.stream import EngineStream, Listener
from tokgauge.http.client.timeouts import Timeouts

Origin = tuple[str, str, int]

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class TransportStats:
    """Connections now (active, idle) and since the start (opened, taken again from the pool)."""

    active: int
    idle: int
    opened_total: int
    reused_total: int


def origin_of(url: httpx2.URL) -> Origin:
    """Where `url` leads. Raises httpx2.UnsupportedProtocol."""
    scheme = url.scheme
    if scheme not in _PORTS:
        raise transport_error(httpx2.UnsupportedProtocol, f"unsupported scheme {scheme!r}")
    return (scheme, url.raw_host.decode("ascii"), url.port or _PORTS[scheme])


class EngineTransport(httpx2.AsyncBaseTransport):
    """HTTP/1.1 to the engine, made for many long streams of small events.

    Sends what it is given and nothing else: target (`request.extensions["target"]`, else the
    URL's raw path) and headers verbatim; `request.url` only names scheme, host and port. Does not
    retry. Bodies given as `httpx2.ByteStream` (up to 64 KiB) cost neither a task nor a second
    write. The upload goes on while the response is received; a response with status 400 or above
    stops it.

    timeouts: see `Timeouts`.
    ssl_context: for https; its ALPN list is set. Default: the system's trusted certificates.
    max_idle_connections: idle connections kept, over all origins; active ones are not limited.
    idle_expiry: seconds after which an idle connection is not used any more. The default is below
        the five seconds after which uvicorn, and so vLLM, closes it.
    max_header_bytes: limit on the response head, and on what else is not body.
    on_left: called when the engine has closed an idle connection that could have been used.

    A transport belongs to one event loop. Time limits in `request.extensions`, which an
    `httpx2.AsyncClient` puts there, are ignored. Raises httpx2's exceptions (see `errors`).
    """

    def __init__(
        self,
        *,
        timeouts: Timeouts | None = None,
        ssl_context: ssl.SSLContext | None = None,
        max_idle_connections: int = 256,
        idle_expiry: float = 4.0,
        max_header_bytes: int = 64 * 1024,
        on_left: Callable[[], None] = lambda: None,
    ) -> None:
        self._timeouts = timeouts = timeouts or Timeouts()
        self._ssl_context = ssl_context
        if ssl_context is not None:
            ssl_context.set_alpn_protocols(["http/1.1"])
        self._max_idle = max_idle_connections
        self._idle_expiry = idle_expiry
        self._max_header_bytes = max_header_bytes
        self._active: set[Connection] = set()
        self._idle: dict[Origin, dict[Connection, float]] = {}
        self._idle_count = 0
        self._closing: set[Connection] = set()
        self._all_closed: asyncio.Event | None = None
        self._opened_total = 0
        self._reused_total = 0
        self._closed = False
        self._on_left = on_left
        self._sweeper: asyncio.TimerHandle | None = None
        limits = (timeouts.write, timeouts.first_byte, timeouts.stream_idle)
        shortest = min((limit for limit in limits if limit is not None), default=8.0)
        self._sweep_interval = min(max(shortest / 8, 0.01), 1.0)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send `request` and return its response as soon as the head has come.

        `response.stream` is an `EngineStream`. `response.extensions`: `http_version`,
        `reason_phrase` (bytes), `raw_headers` (list of byte pairs as received), `headers_at` and
        `sent_at` (time.monotonic(); `sent_at` is None while the body is still being sent, then see
        the stream), `reused` (bool).
        """
        body = request.stream
        if not isinstance(body, httpx2.AsyncByteStream):
            raise TypeError("the request's stream is not an AsyncByteStream")
        connection, reader, stream = await self._start(
            origin_of(request.url),
            request.method,
            request.extensions.get("target") or request.url.raw_path,
            request.headers.raw,
            b"".join(body) if isinstance(body, httpx2.ByteStream) else body,
            None,
        )
        try:
            while not reader.head_done:
                if stream.error is not None:
                    raise stream.error
                await stream.wait()
        except BaseException:
            stream.close()
            raise
        return httpx2.Response(
            reader.status,
            headers=reader.headers,
            stream=stream,
            extensions={
                "http_version": reader.version,
                "reason_phrase": reader.reason,
                "raw_headers": reader.headers,
                "headers_at": connection.headers_at,
                "sent_at": stream.sent_at,
                "reused": connection.reused,
            },
        )

    async def exchange(
        self, origin: Origin, method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]],
        body: bytes | httpx2.AsyncByteStream, listener: Listener, *, reads_body: bool = True,
        fresh: bool = False,
    ) -> EngineStream:  # fmt: skip
        """Send a request whose response goes to `listener`; returns when it is under way.

        reads_body: a good response means that the engine has read the request's body; see
        `Connection.start`. fresh: on a new connection, even if there are idle ones.
        Raises what happens before that, connecting above all; what happens later ends the stream.
        """
        _, _, stream = await self._start(
            origin, method, target, headers, body, listener, reads_body=reads_body, fresh=fresh
        )
        return stream

    def exchange_at_once(
        self, origin: Origin, method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]],
        body: bytes, listener: Listener, *, reads_body: bool = True,
    ) -> EngineStream | None:  # fmt: skip
        """`exchange` if there is an idle connection; else None, and nothing has happened.

        Raises httpx2.LocalProtocolError for a request that cannot be sent.
        """
        if self._closed:
            return None
        head = request_head(method, target, headers)
        connection = self._take_idle(origin)
        if connection is None:
            return None
        _, stream = self._start_on(
            connection, head, body, listener, method=method, reads_body=reads_body, reused=True
        )
        return stream

    async def _start(
        self, origin: Origin, method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]],
        body: bytes | httpx2.AsyncByteStream, listener: Listener | None, *,
        reads_body: bool = True, fresh: bool = False,
    ) -> tuple[Connection, ResponseReader, EngineStream]:  # fmt: skip
        if self._closed:
            raise RuntimeError("the transport is closed")
        head = request_head(method, target, headers)
        connection = None if fresh else self._take_idle(origin)
        reused = connection is not None
        if connection is None:
            connection = await self._connect(origin)
            self._opened_total += 1
        reader, stream = self._start_on(
            connection, head, body, listener, method=method, reads_body=reads_body, reused=reused
        )
        return connection, reader, stream

    def _start_on(
        self, connection: Connection, head: RequestHead, body: bytes | httpx2.AsyncByteStream,
        listener: Listener | None, *, method: str, reads_body: bool, reused: bool,
    ) -> tuple[ResponseReader, EngineStream]:  # fmt: skip
        self._active.add(connection)
        if self._sweeper is None:
            self._arm_sweep(asyncio.get_running_loop())
        try:
            return connection.start(
                head, body, head_request=method == "HEAD", reads_body=reads_body, reused=reused,
                listener=listener,
            )  # fmt: skip
        except BaseException:
            connection.discard()
            raise

    async def aclose(self) -> None:
        """Close every connection; running exchanges end in ReadError. Returns when all are shut."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in [*self._active, *(c for idle in self._idle.values() for c in idle)]:
            connection.shut()
        if self._closing:
            self._all_closed = asyncio.Event()
            await self._all_closed.wait()

    def stats(self) -> TransportStats:
        return TransportStats(
            active=len(self._active),
            idle=self._idle_count,
            opened_total=self._opened_total,
            reused_total=self._reused_total,
        )

    # The connections' side

    def connection_idle(self, connection: Connection) -> None:
        self._active.discard(connection)
        if self._idle_count >= self._max_idle:
            connection.discard()
            return
        self._idle.setdefault(connection.origin, {})[connection] = monotonic()
        self._idle_count += 1

    def connection_gone(self, connection: Connection) -> None:
        self._active.discard(connection)
        idle = self._idle.get(connection.origin)
        since = idle.pop(connection, None) if idle is not None else None
        if since is not None:
            self._idle_count -= 1
            if not self._closed and since >= monotonic() - self._idle_expiry:
                self._on_left()
        if connection.established:
            self._closing.add(connection)

    def connection_lost(self, connection: Connection) -> None:
        self._closing.discard(connection)
        if self._all_closed is not None and not self._closing:
            self._all_closed.set()

    # Connecting

    def _take_idle(self, origin: Origin) -> Connection | None:
        idle = self._idle.get(origin)
        oldest = monotonic() - self._idle_expiry
        while idle:
            connection, since = idle.popitem()
            self._idle_count -= 1
            if since >= oldest:
                if connection.usable():
                    self._reused_total += 1
                    return connection
                self._on_left()
            connection.discard()
        return None

    async def _connect(self, origin: Origin) -> Connection:
        scheme, host, port = origin
        loop = asyncio.get_running_loop()
        connection = Connection(loop, self, origin, self._max_header_bytes)
        try:
            async with asyncio.timeout(self._timeouts.connect):
                # Several addresses are tried in turn. Not with happy_eyeballs_delay: uvloop has no
                # such option, and asyncio's loses the winning socket when it is cancelled.
                await loop.create_connection(lambda: connection, host, port)
                if scheme == "https":
                    # Not create_connection(ssl=...): its half-open socket could not be closed at
                    # once when the handshake is cancelled.
                    secured = await loop.start_tls(
                        connection.transport,
                        connection,
                        self._secure_context(),
                        server_hostname=host,
                    )
                    connection.transport = cast(asyncio.Transport, secured)
            if self._closed:
                raise transport_error(httpx2.ConnectError, "the transport was closed")
            if connection.discarded:  # before this task could run again
                raise transport_error(
                    httpx2.ConnectError, f"{host}:{port} accepted the connection and closed it"
                )
        except TimeoutError as error:
            connection.discard()
            raise transport_error(
                httpx2.ConnectTimeout, f"no connection to {host}:{port} in time"
            ) from error
        except (OSError, UnicodeError) as error:
            connection.discard()
            raise transport_error(httpx2.ConnectError, str(error)) from error
        except BaseException:
            connection.discard()
            raise
        connection.established = True
        return connection

    def _secure_context(self) -> ssl.SSLContext:
        if self._ssl_context is None:
            self._ssl_context = ssl.create_default_context()
            self._ssl_context.set_alpn_protocols(["http/1.1"])
        return self._ssl_context

    # Time limits

    def _arm_sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweeper = loop.call_later(self._sweep_interval, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """One timer for all connections: no timer has to be moved when an event comes."""
        now = monotonic()
        for connection in list(self._active):
            connection.check(now, self._timeouts)
        oldest = now - self._idle_expiry
        for idle in self._idle.values():
            # Oldest first, because connections enter and leave at the end.
            for connection in [c for c, since in idle.items() if since < oldest]:
                connection.discard()
        if self._active or self._idle_count:
            self._arm_sweep(loop)
        else:
            self._sweeper = None
