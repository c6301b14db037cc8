"""A cheap client: counts reads, events and delays at the socket."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Sequence
from typing import cast

from bench.engine import MICROSECONDS, MODEL, now

_MARK = b'"content":"'
_END = b"0\r\n\r\n"
_OPENED_AT_ONCE = 64


class LoadError(Exception):
    """The candidate did not answer as it must."""


class Silence(LoadError):  # noqa: N818 - what happened, not an error of the bench
    """The candidate did not answer within the time it has."""


def request(*, stream: bool) -> bytes:
    """A chat request as a client library would send it."""
    body = (
        b'{"model":"%s","messages":[{"role":"system","content":"You are a helpful assistant."},'
        b'{"role":"user","content":"Explain in a few sentences why the memory bandwidth of a GPU '
        b'limits how fast a language model can write."}],"max_tokens":512,"temperature":0.7%s}'
        % (MODEL.encode(), b',"stream":true' if stream else b"")
    )
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: application/json\r\n"
        b"content-type: application/json\r\nauthorization: Bearer sk-bench\r\n"
        b"user-agent: bench\r\ncontent-length: %d\r\n\r\n" % len(body)
    ) + body


STREAM = request(stream=True)
PLAIN = request(stream=False)


class Tally:
    """What all connections of one measurement have seen.

    `delays` (microseconds from the engine's write to the client's read, one for each event) is
    filled only when it is not None.
    """

    def __init__(self) -> None:
        self.reads = 0
        self.events = 0
        self.answers = 0
        self.failures = 0
        self.delays: array[int] | None = None


class Connection(asyncio.Protocol):
    """One keep-alive connection; answers are not looked into further than needed."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._head: bytes | None = None
        self._left: int | None = None
        self._open_line = False
        self.asked_at = 0
        self.on_first: Callable[[int], None] | None = None
        self.on_end: Callable[[Connection], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head is not None or self.on_first is not None:
            self._tally.failures += 1

    def ask(self, data: bytes) -> None:
        self._head = b""
        self._left = None
        self.asked_at = time.monotonic_ns()
        self._transport.write(data)

    def close(self) -> None:
        self._head = self.on_first = self.on_end = None
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        tally = self._tally
        tally.reads += 1
        if self._head is not None and not self._head.endswith(b"\r\n\r\n"):
            data = self._read_head(data)
            if not data:
                return
        if self._left is not None:
            self._left -= len(data)
            if self._left <= 0:
                self._ended()
            return
        events = data.count(b"\n\n")
        if self._open_line and data[0] == 10:
            events += 1
        self._open_line = data[-1] == 10 and data[-2:] != b"\n\n" and data[-2:] != b"\r\n"
        tally.events += events
        if self.on_first is not None and _MARK in data:
            on_first, self.on_first = self.on_first, None
            on_first(time.monotonic_ns() - self.asked_at)
        if tally.delays is not None:
            self._time(data, tally.delays)
        if data.endswith(_END):
            self._ended()

    def _read_head(self, data: bytes) -> bytes:
        whole = (self._head or b"") + data
        head, found, rest = whole.partition(b"\r\n\r\n")
        if not found:
            self._head = whole
            return b""
        self._head = b"\r\n\r\n"
        lower = head.lower()
        if not head.startswith(b"HTTP/1.1 200"):
            self._tally.failures += 1
        at = lower.find(b"\r\ncontent-length:")
        if at >= 0:
            self._left = int(lower[at + 17 :].partition(b"\r\n")[0])
        return rest

    def _time(self, data: bytes, delays: array[int]) -> None:
        arrived = now()
        at = data.find(_MARK)
        while at >= 0:
            sent = data[at + 11 : at + 20]
            if len(sent) == 9 and sent.isdigit():
                delays.append((arrived - int(sent)) % MICROSECONDS)
            at = data.find(_MARK, at + 20)

    def _ended(self) -> None:
        self._head = None
        self._left = None
        self._tally.answers += 1
        if self.on_end is not None:
            self.on_end(self)


async def connect(port: int, count: int, tally: Tally) -> list[Connection]:
    """Open `count` connections."""
    loop = asyncio.get_running_loop()
    opened: list[Connection] = []
    for start in range(0, count, _OPENED_AT_ONCE):
        pairs = await asyncio.gather(
            *(
                loop.create_connection(lambda: Connection(tally), "127.0.0.1", port)
                for _ in range(start, min(start + _OPENED_AT_ONCE, count))
            )
        )
        opened += [protocol for _, protocol in pairs]
    return opened


async def open_streams(
    port: int, count: int, tally: Tally, *, timeout: float = 10.0
) -> list[Connection]:
    """Open `count` streams; returns when each has had its first event. Raises Silence."""
    loop = asyncio.get_running_loop()
    streams: list[Connection] = []
    begun = 0
    try:
        async with asyncio.timeout(timeout):
            while len(streams) < count:
                batch = await connect(port, min(_OPENED_AT_ONCE, count - len(streams)), tally)
                streams += batch
                waiting = len(batch)
                all_there: asyncio.Future[None] = loop.create_future()

                def first(_: int, all_there: asyncio.Future[None] = all_there) -> None:
                    nonlocal waiting, begun
                    waiting -= 1
                    begun += 1
                    if not waiting and not all_there.done():
                        all_there.set_result(None)

                for stream in batch:
                    stream.on_first = first
                    stream.ask(STREAM)
                await all_there
    except (TimeoutError, OSError) as error:
        close(streams)
        raise Silence(f"{begun} of {count} streams after {timeout:.0f} s") from error
    except asyncio.CancelledError:
        close(streams)
        raise
    return streams


def close(connections: Sequence[Connection]) -> None:
    """Leave, in mid-stream if need be."""
    for connection in connections:
        connection.close()


async def keep_asking(port: int, requests: Sequence[bytes], tally: Tally) -> list[Connection]:
    """One connection for each of `requests`, sending it again whenever its answer has ended."""
    connections = await connect(port, len(requests), tally)
    for connection, data in zip(connections, requests, strict=True):
        connection.on_end = lambda ended, data=data: ended.ask(data)
        connection.ask(data)
    return connections


async def first_event_times(port: int, count: int) -> list[float]:
    """Seconds from request to first event of `count` streams, one after the other."""
    loop = asyncio.get_running_loop()
    tally = Tally()
    (connection,) = await connect(port, 1, tally)
    times: list[float] = []
    try:
        async with asyncio.timeout(60):
            for _ in range(count):
                ended: asyncio.Future[None] = loop.create_future()
                connection.on_first = lambda ns: times.append(ns / 1e9)
                connection.on_end = lambda _, ended=ended: ended.set_result(None)
                connection.ask(STREAM)
                await ended
    except TimeoutError as error:
        raise Silence(f"{len(times)} of {count} first events in 60 s") from error
    finally:
        connection.close()
    if tally.failures:
        raise LoadError(f"{tally.failures} of {count} requests failed")
    return times
