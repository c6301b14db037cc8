"""The way from a relay to the analyst: frames over a Unix socket, bounded, never waited for.

A frame is its length in four bytes, little-endian, and that many bytes. Towards the relay the same
framing is used for what it has to know of the engine. When the analyst is away or does not keep up,
frames are lost and counted; the traffic notices nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

_MOST_WAITING = 8 * 1024 * 1024
"""Bytes that may wait to be taken by the analyst."""

_AGAIN = 0.2
"""Seconds between two attempts to connect."""

_GATHER = 0.05
"""Seconds for which frames are gathered: a write for each would cost either side as much as the
rest of a record, and come just when a client sends its next request."""


class Outlet(asyncio.Protocol):
    """The relay's end. `hello` is called for each new connection and gives its first frame.

    told: receives each frame that the analyst sends. lost: frames that could not be sent so far.
    """

    def __init__(
        self, path: str, hello: Callable[[], bytes], told: Callable[[bytes], None]
    ) -> None:
        self._path = path
        self._hello = hello
        self._told = told
        self._transport: asyncio.WriteTransport | None = None
        self._unread = bytearray()
        self._connecting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._gathered: list[bytes] = []
        self._flusher: asyncio.TimerHandle | None = None
        self._closed = False
        self.lost = 0

    def send(self, frame: bytes) -> None:
        """Send a frame soon, or lose it."""
        transport = self._transport
        if transport is None or transport.get_write_buffer_size() > _MOST_WAITING:
            self.lost += 1
            return
        self._gathered += (len(frame).to_bytes(4, "little"), frame)
        if self._flusher is None:
            self._flusher = asyncio.get_running_loop().call_later(_GATHER, self.flush)

    def flush(self) -> None:
        """Send now what has been gathered."""
        if self._flusher is not None:
            self._flusher.cancel()
            self._flusher = None
        gathered, self._gathered = self._gathered, []
        if self._transport is None:
            self.lost += len(gathered) // 2
        elif gathered:
            self._transport.write(b"".join(gathered))

    async def open(self, patience: float) -> None:
        """Connect; returns after `patience` seconds at most, and goes on trying."""
        self._connect()
        if self._connecting is not None:
            await asyncio.wait([self._connecting], timeout=patience)

    async def close(self) -> None:
        """Send what waits, as long as the analyst takes it, and disconnect."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
        self.flush()
        transport = self._transport
        if transport is None:
            return
        transport.close()
        for _ in range(100):
            if self._transport is None:
                return
            await asyncio.sleep(0.01)

    def _connect(self) -> None:
        if not self._closed:
            self._connecting = asyncio.get_running_loop().create_task(self._try())

    async def _try(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_unix_connection(lambda: self, self._path)
        except OSError:
            self._timer = loop.call_later(_AGAIN, self._connect)

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._unread.clear()
        self.send(self._hello())
        self.flush()

    def data_received(self, data: bytes) -> None:
        self._unread += data
        for frame in frames(self._unread):
            self._told(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.flush()
        self._connect()


def frames(unread: bytearray) -> list[bytes]:
    """The whole frames at the beginning of `unread`, which are taken out of it."""
    found: list[bytes] = []
    at = 0
    while len(unread) - at >= 4:
        end = at + 4 + int.from_bytes(unread[at : at + 4], "little")
        if end > len(unread):
            break
        found.append(bytes(unread[at + 4 : end]))
        at = end
    del unread[:at]
    return found
