"""The body of one response, handed over read by read."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import httpx2

HIGH_WATER = 64 * 1024
_ENTRY = 128
"""Bytes that one queued read costs besides its body, so that tiny reads are bounded too."""


Sink = Callable[[float, bytes], bool]
"""Takes the body bytes of one read and when they came; returns whether it is ready for more."""


class Source(Protocol):
    """The connection that feeds a stream."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def discard(self) -> None: ...


class EngineStream(httpx2.AsyncByteStream):
    """Iterates over the body bytes, one object for each read from the socket.

    Framing is removed, nothing is decoded. One consumer at a time. Iteration ends cleanly only
    when the response was complete; otherwise the bytes that came are delivered and then the
    error is raised. `aclose` must be called in the end, however the iteration ended.

    arrived_at: time.monotonic() when the bytes last returned came off the socket.
    sent_at: time.monotonic() when the request was handed to the socket; None until then.
    """

    __slots__ = (
        "_backlog",
        "_body",
        "_body_at",
        "_closed",
        "_complete",
        "_error",
        "_loop",
        "_paused",
        "_queued",
        "_sink",
        "_source",
        "_waiter",
        "arrived_at",
        "sent_at",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, source: Source) -> None:
        self._loop = loop
        self._source: Source | None = source
        self._waiter: asyncio.Future[None] | None = None
        # The first waiting read has a place of its own: an idle stream carries no deque.
        self._body: bytes | None = None
        self._body_at = 0.0
        self._backlog: deque[tuple[float, bytes]] | None = None
        self._queued = 0
        self._sink: Sink | None = None
        self._paused = False
        self._complete = False
        self._closed = False
        self._error: Exception | None = None
        self.arrived_at = 0.0
        self.sent_at: float | None = None

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while self._body is None:
            if self._error is not None:
                raise self._error
            if self._complete:
                raise StopAsyncIteration
            if self._closed:
                raise httpx2.StreamClosed
            # As in `wait`, but without a second coroutine for every event.
            waiter = self._waiter = self._loop.create_future()
            try:
                await waiter
            finally:
                self._waiter = None
        return self._take()

    def _take(self) -> bytes:
        """The oldest waiting read; there must be one."""
        body = self._body
        assert body is not None  # noqa: S101
        self.arrived_at = self._body_at
        backlog = self._backlog
        if backlog:
            self._body_at, self._body = backlog.popleft()
        else:
            self._body = None
        self._queued -= len(body) + _ENTRY
        if self._paused and self._queued < HIGH_WATER:
            self._paused = False
            if self._source is not None:
                self._source.resume_reading()
        return body

    async def pour(self, sink: Sink) -> bool:
        """Hand every read to `sink` within the callback that the socket's bytes came in.

        Iteration without a task's turn for every event. Returns True when the response is complete
        and False as soon as `sink` is not ready for more: what comes then is queued until the next
        call. Raises as iteration does, and what `sink` raises.
        """
        while self._body is not None:
            body = self._take()
            if not sink(self.arrived_at, body):
                return False
        self._sink = sink
        try:
            while True:
                if self._error is not None:
                    raise self._error
                if self._sink is None:
                    return False
                if self._complete:
                    return True
                if self._closed:
                    raise httpx2.StreamClosed
                await self.wait()
        finally:
            self._sink = None

    async def aclose(self) -> None:
        """As `close`."""
        self.close()

    def close(self) -> None:
        """Drop what is left; an unfinished response closes its connection at once."""
        self._closed = True
        self._body = self._backlog = None
        self._queued = 0
        source = self._source
        if source is not None:
            self._source = None
            source.discard()
        self.wake()

    # The connection's side

    async def wait(self) -> None:
        """Sleep until `wake`."""
        waiter = self._waiter = self._loop.create_future()
        try:
            await waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    def push(self, at: float, body: bytes) -> None:
        """Queue the body bytes of one read."""
        if self._closed:
            return
        sink = self._sink
        if sink is not None:
            try:
                if sink(at, body):
                    return
            except Exception as error:  # border: the sink may raise anything; `pour` gives it back
                self._error = error
            self._sink = None
            self.wake()
            return
        if self._body is None:
            self._body = body
            self._body_at = at
            self.wake()
        elif self._backlog is None:
            self._backlog = deque([(at, body)])
        else:
            self._backlog.append((at, body))
        self._queued += len(body) + _ENTRY
        if self._queued > HIGH_WATER and not self._paused and self._source is not None:
            self._paused = True
            self._source.pause_reading()

    def finish(self) -> None:
        """The response is complete; the connection no longer belongs to this stream."""
        self._complete = True
        self._source = None
        self.wake()

    def fail(self, error: Exception) -> None:
        """The response ended in an error; only the first one counts."""
        if not self._complete and self._error is None:
            self._error = error
        self._source = None
        self.wake()

    @property
    def waiting(self) -> bool:
        """Whether body bytes are here that have not been taken yet."""
        return self._body is not None

    @property
    def error(self) -> Exception | None:
        return self._error

    @property
    def paused(self) -> bool:
        return self._paused
