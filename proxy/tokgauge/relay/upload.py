"""A request body that goes up as it comes, and the client's leaving meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import httpx2

from tokgauge.http.error_responses import Refused, body_too_large
from tokgauge.http.server import Client


class Receive(Protocol):
    """ASGI's receive."""

    async def __call__(self) -> Any: ...


class ClientLeft(Exception):  # noqa: N818 - an event, not an error
    """The client has closed its connection."""


class Held:
    """What one body that is not complete holds in memory."""

    __slots__ = ("_bytes", "_unfinished")

    def __init__(self, unfinished: UnfinishedBodies) -> None:
        self._unfinished = unfinished
        self._bytes = 0

    def add(self, count: int) -> None:
        self._bytes += count
        self._unfinished.held += count

    def release(self) -> None:
        """It holds nothing any more. May be called repeatedly."""
        self._unfinished.held -= self._bytes
        self._bytes = 0


class UnfinishedBodies:
    """What all bodies hold together that are being collected and are not complete.

    most: bytes beyond which none is collected any further.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0


class Departure:
    """Watches for the client to leave and then interrupts whatever the exchange waits for.

    Starts when nobody else reads from the client any more: when the request is here, or when the
    engine has answered without wanting the rest of it.
    """

    __slots__ = ("_client", "_reader", "_receive", "_task", "_watches", "happened")

    _client: Client

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._task = asyncio.current_task()
        self._reader: asyncio.Task[None] | None = None
        self._watches = False
        self.happened = False

    def watch(self, client: Client) -> None:
        """The whole request has been received."""
        if not self._watches:
            self._watches = True
            client.when_left(self._left)

    def read_on(self, client: Client) -> None:
        """The rest of the request is read, because the client may send all of it, and dropped."""
        if not self._watches:
            self._watches = True
            self._client = client
            self._reader = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        try:
            while (await self._receive())["type"] != "http.disconnect":
                pass
        except Refused:  # the rest cannot be read, and nobody wants it
            if self._task is not None:
                self._client.when_left(self._left)
        else:
            self._left()

    def _left(self) -> None:
        self.happened = True
        if self._task is not None:
            self._task.cancel()

    def stop(self) -> None:
        self._task = None
        if self._reader is not None:
            self._reader.cancel()


class Upload(httpx2.AsyncByteStream):
    """A request body on its way up, as the client sends it; `completed` is called at its end.

    received: the part of it that is here already, and held: what it counts as, until it has gone.
    limit: most bytes, None for any number. `taken` says that bytes have gone which cannot be sent
    again. Raises ClientLeft, Refused.
    """

    def __init__(
        self, received: bytes, held: Held, receive: Receive, limit: int | None,
        completed: Callable[[], None],
    ) -> None:  # fmt: skip
        self._received = received
        self._held = held
        self._receive = receive
        self._limit = limit
        self._total = len(received)
        self._completed = completed
        self.taken = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.taken = True
        received, self._received = self._received, b""
        if received:
            yield received
            del received
            self._held.release()
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            piece = message.get("body", b"")
            self._total += len(piece)
            if self._limit is not None and self._total > self._limit:
                raise Refused(body_too_large(self._limit))
            more = message.get("more_body", False)
            if not more:
                self._completed()
            if piece:
                yield piece


async def collect(
    receive: Receive, wanted: int, limit: int | None, unfinished: UnfinishedBodies, held: Held
) -> tuple[bytes | None, bytes]:
    """Read a request body up to `wanted` bytes, or until all `unfinished` ones hold too much.

    Returns the whole body, or None and the part of it that has been read. Raises ClientLeft, and
    Refused above `limit` bytes.
    """
    body = bytearray()  # not a list of pieces: those may be of one byte each
    while len(body) <= wanted and unfinished.held <= unfinished.most:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        piece = message.get("body", b"")
        body += piece
        held.add(len(piece))
        if limit is not None and len(body) > limit:
            raise Refused(body_too_large(limit))
        if not message.get("more_body", False):
            held.release()
            return bytes(body), b""
    return None, bytes(body)
