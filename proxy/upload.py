"""A request body that goes up as it comes, and the client's leaving meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import httpx2

from proxy.protocol import Client


class Receive(Protocol):
    """ASGI's receive."""

    async def __call__(self) -> Any: ...


class ClientLeft(Exception):  # noqa: N818 - an event, not an error
    """The client has closed its connection."""


class BodyTooLarge(Exception):  # noqa: N818 - an event, not an error
    """The request body has grown beyond the limit."""


class Departure:
    """Watches for the client to leave and then interrupts whatever the exchange waits for.

    Starts when nobody else reads from the client any more: when the request is here, or when the
    engine has answered without wanting the rest of it.
    """

    __slots__ = ("_reader", "_receive", "_task", "_watches", "happened")

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

    def read_on(self) -> None:
        """The rest of the request is read, because the client may send all of it, and dropped."""
        if not self._watches:
            self._watches = True
            self._reader = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
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

    received: the part of it that is here already. limit: most bytes, None for any number.
    `taken` says that bytes have gone which cannot be sent again. Raises ClientLeft, BodyTooLarge.
    """

    def __init__(
        self, received: bytes, receive: Receive, limit: int | None, completed: Callable[[], None]
    ) -> None:
        self._received = received
        self._receive = receive
        self._limit = limit
        self._total = len(received)
        self._completed = completed
        self.taken = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.taken = True
        if self._received:
            yield self._received
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            piece = message.get("body", b"")
            self._total += len(piece)
            if self._limit is not None and self._total > self._limit:
                raise BodyTooLarge
            more = message.get("more_body", False)
            if not more:
                self._completed()
            if piece:
                yield piece


async def collect(receive: Receive, wanted: int, limit: int | None) -> tuple[bytes | None, bytes]:
    """Read a request body up to `wanted` bytes.

    Returns the whole body, or None and the part of it that has been read. Raises ClientLeft, and
    BodyTooLarge above `limit` bytes.
    """
    pieces: list[bytes] = []
    size = 0
    while size <= wanted:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if limit is not None and size > limit:
            raise BodyTooLarge
        if not message.get("more_body", False):
            return b"".join(pieces), b""
    return None, b"".join(pieces)
