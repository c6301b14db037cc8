"""One response on its way from the connection to whoever consumes it, read by read."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import httpx2

from tokgauge.http.client.reader import ResponseReader

HIGH_WATER = 64 * 1024
_ENTRY = 128
"""Bytes that one queued read costs besides its body, so that tiny reads are bounded too."""


Passage = tuple[Callable[[float, bytes], bool], Callable[[bytes], object]]
"""What is given a chunk's body, as `Listener.take` is, and tells whether `take` need not have it;
and what then is given the whole chunk instead. What runs for every event, as short as can be:
after the kernel nothing of it is in the processor's caches.
"""


class Source(Protocol):
    """The connection that feeds a stream."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def discard(self) -> None: ...


class Listener(Protocol):
    """Takes a response within the callbacks that its bytes came in: no task's turn for an event.

    `answered` comes once, then `take` for every read with body bytes in it, `ended` once and last;
    `ended` alone when there is no answer. `answered` and `take` return whether they are ready for
    more: if not, what comes is queued until `EngineStream.resume`. None of them may raise; what
    they raise all the same ends the stream with that error.
    """

    def answered(self, head: ResponseReader, *, body_follows: bool) -> bool:
        """The head. body_follows: `take` is called before anything else happens."""

    def take(self, at: float, data: bytes) -> bool:
        """The body bytes of one read, not empty, and when they came off the socket."""

    def passage(self) -> Passage | None:
        """How reads of exactly one chunk of the transfer coding may pass `take` by.

        Asked for after each `take`, good until the next one or until the stream is paused or ends.
        """

    def passage_failed(self, error: Exception) -> None:
        """The first function of the passage raised `error`."""

    def ended(self, error: Exception | None) -> None:
        """The response is complete (None), or broke off, or did not come at all."""


class EngineStream(httpx2.AsyncByteStream):
    """The body bytes, one object for each read from the socket.

    Framing is removed, nothing is decoded. With a `listener` it is pushed there. Without one it is
    iterated over, by one consumer: iteration ends cleanly only when the response was complete;
    otherwise the bytes that came are delivered and then the error is raised. `close` must be called
    in the end, however the stream ended.

    flows_to: the listener for as long as it is ready for more, else None.
    in_passage: seconds that reads took which passed the listener by.
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
        "_listener",
        "_loop",
        "_paused",
        "_queued",
        "_source",
        "_waiter",
        "arrived_at",
        "flows_to",
        "in_passage",
        "sent_at",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, source: Source, listener: Listener | None = None
    ) -> None:
        self._loop = loop
        self._source: Source | None = source
        self._listener = self.flows_to = listener
        self._waiter: asyncio.Future[None] | None = None
        # The first waiting read has a place of its own: an idle stream carries no deque.
        self._body: bytes | None = None
        self._body_at = 0.0
        self._backlog: deque[tuple[float, bytes]] | None = None
        self._queued = 0
        self._paused = False
        self._complete = False
        self._closed = False
        self._error: Exception | None = None
        self.arrived_at = 0.0
        self.in_passage = 0.0
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
            await self.wait()
        body = self._oldest()
        if self._paused and self._queued < HIGH_WATER:
            self._unpause()
        return body

    def _oldest(self) -> bytes:
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
        return body

    async def aclose(self) -> None:
        """As `close`."""
        self.close()

    def close(self) -> None:
        """Drop what is left; an unfinished response closes its connection at once."""
        self._closed = True
        self._listener = self.flows_to = None
        self._body = self._backlog = None
        self._queued = 0
        source = self._source
        if source is not None:
            self._source = None
            source.discard()
        self.wake()

    def resume(self) -> None:
        """The listener is ready for more. Does nothing when it was all the time."""
        if not self._paused:
            return
        while self._body is not None and (listener := self._listener) is not None:
            body = self._oldest()
            try:
                if not listener.take(self.arrived_at, body):
                    return
            except Exception as error:  # border: as in `answered`
                self.break_off(error)
                return
        self._unpause()
        if self._complete or self._error is not None:
            self._tell_end()

    def _unpause(self) -> None:
        self._paused = False
        self.flows_to = self._listener
        if self._source is not None:
            self._source.resume_reading()

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

    def answered(self, head: ResponseReader, *, body_follows: bool) -> None:
        """The head has come."""
        listener = self._listener
        if listener is None:
            self.wake()
            return
        try:
            if not listener.answered(head, body_follows=body_follows):
                self.pause()
        except Exception as error:  # border: whatever a listener raises ends its own stream only
            self.break_off(error)

    def push(self, at: float, body: bytes) -> None:
        """Hand on or queue the body bytes of one read."""
        listener = self.flows_to
        if listener is not None:
            try:
                if not listener.take(at, body):
                    self.pause()
            except Exception as error:  # border: as in `answered`
                self.break_off(error)
            return
        if self._closed:
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
        if self._queued > HIGH_WATER and not self._paused:
            self.pause()

    def pause(self) -> None:
        """Queue what comes, and let the engine wait, until `resume` or the iteration."""
        if not self._closed:
            self._paused = True
            self.flows_to = None
            if self._source is not None:
                self._source.pause_reading()

    def break_off(self, error: Exception) -> None:
        """Leave the engine; the stream ends in `error`."""
        source, self._source = self._source, None
        if source is not None:
            source.discard()
        self._body = self._backlog = None
        self._error = error
        self._tell_end()

    def finish(self) -> None:
        """The response is complete; the connection no longer belongs to this stream."""
        self._complete = True
        self._source = None
        self._tell_end()

    def fail(self, error: Exception) -> None:
        """The response ended in an error; only the first one counts."""
        if self._complete or self._error is not None:
            return
        self._error = error
        self._source = None
        self._tell_end()

    def _tell_end(self) -> None:
        listener = self._listener
        if listener is None:
            self.wake()
        elif self._body is None:  # else the listener is not ready for what comes before the end
            self._listener = self.flows_to = None
            listener.ended(self._error)

    def passage(self) -> Passage | None:
        """The listener's, while it is ready for more."""
        listener = self.flows_to
        if listener is None:
            return None
        try:
            return listener.passage()
        except Exception as error:  # border: as in `answered`
            self.break_off(error)
            return None

    def passage_failed(self, error: Exception) -> None:
        """To be told to the listener."""
        if self._listener is not None:
            self._listener.passage_failed(error)

    @property
    def error(self) -> Exception | None:
        return self._error

    @property
    def paused(self) -> bool:
        return self._paused
