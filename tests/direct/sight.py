"""What a raw client sees of one exchange, with the framing taken off as bytes come."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from dataclasses import dataclass, field

from tests.support.engine import Received, parse_headers

PATIENCE = 5.0
"""Seconds after which an engine that waits for its client gives up; only a fault takes so long."""

_LINGER_ZERO = struct.pack("ii", 1, 0)


class Progress:
    """How much a client has seen, for the engine in its own thread to wait for.

    seen: -1 before the head, then the length of the body so far.
    """

    def __init__(self) -> None:
        self.seen = -1
        self.arrived = threading.Event()  # the engine has the request
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def saw(self, length: int) -> None:
        with self._lock:
            self.seen = length
            ready = [entry for entry in self._waiting if entry[0] <= length]
            self._waiting = [entry for entry in self._waiting if entry[0] > length]
        for _, loop, future in ready:
            loop.call_soon_threadsafe(_resolve, future)

    async def reach(self, length: int) -> bool:
        """Wait until the client has seen so much; False when it does not."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self.seen >= length:
                return True
            self._waiting.append((length, loop, future))
        try:
            async with asyncio.timeout(PATIENCE):
                await future
        except TimeoutError:
            return False
        return True


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@dataclass
class Sight:
    """One exchange, as its client and its engine saw it.

    ending: `whole`, `cut`, `nothing` (no head), `left` (by the client). kept: whether the
    connection carried another exchange after it; None when that was not tried. late: the engine
    waited in vain for the client to see so much. gone: whether the engine saw its client leave.
    """

    interim: list[bytes] = field(default_factory=list)
    head: bytes = b""
    body: bytearray = field(default_factory=bytearray)
    trailers: bytes = b""
    ending: str = "nothing"
    kept: bool | None = None
    surplus: bytes = b""
    late: int | None = None
    gone: bool = False
    requests: list[Received] = field(default_factory=list)

    @property
    def status(self) -> int:
        return int(self.head.split(b" ", 2)[1]) if self.head else 0

    @property
    def reason(self) -> bytes:
        return self.head.split(b"\r\n", 1)[0].split(b" ", 2)[-1]

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return parse_headers(self.head)

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name]


class Reading:
    """Takes the framing of responses off, byte by byte as they come."""

    def __init__(self, sight: Sight, *, to_head: bool = False) -> None:
        self.sight = sight
        self.rest = bytearray()
        self.complete = False
        self._to_head = to_head
        self._left: int | None = None  # of the body or the chunk
        self._state = "head"

    @property
    def progress(self) -> int:
        return len(self.sight.body) if self.sight.head else -1

    def feed(self, data: bytes) -> None:
        self.rest += data
        while not self.complete and getattr(self, f"_{self._state}")():
            pass

    def end(self) -> None:
        """The connection has ended in order."""
        if self._state == "until_close":
            self.complete = True

    def _line(self, end: bytes = b"\r\n") -> bytes | None:
        at = self.rest.find(end)
        if at < 0:
            return None
        line = bytes(self.rest[: at + len(end)])
        del self.rest[: at + len(end)]
        return line

    def _head(self) -> bool:
        head = self._line(b"\r\n\r\n")
        if head is None:
            return False
        if head.split(b" ", 2)[1].startswith(b"1"):
            self.sight.interim.append(head)
            return True
        sight = self.sight
        sight.head = head
        codings, lengths = sight.values(b"transfer-encoding"), sight.values(b"content-length")
        if self._to_head or sight.status in (204, 304):
            self.complete = True
        elif codings and codings[-1].lower().endswith(b"chunked"):
            self._state = "chunk_line"
        elif lengths:
            self._left = int(lengths[0])
            self._state = "length"
            self.complete = self._left == 0
        else:
            self._state = "until_close"
        return True

    def _take(self) -> bool:
        taken = self.rest[: self._left]
        del self.rest[: len(taken)]
        self.sight.body += taken
        if self._left is not None:
            self._left -= len(taken)
        return bool(taken)

    def _length(self) -> bool:
        taken = self._take()
        self.complete = self._left == 0
        return taken

    def _until_close(self) -> bool:
        return self._take()

    def _chunk_line(self) -> bool:
        line = self._line()
        if line is None:
            return False
        self._left = int(line.split(b";")[0], 16)
        self._state = "chunk" if self._left else "trailers"
        return True

    def _chunk(self) -> bool:
        if self._left:
            return self._take()
        line = self._line()
        assert line in (None, b"\r\n"), f"no end of a chunk: {line!r}"
        if line is not None:
            self._state = "chunk_line"
        return line is not None

    def _trailers(self) -> bool:
        line = self._line()
        if line == b"\r\n":
            self.complete = True
        elif line is not None:
            self.sight.trailers += line
        return line is not None


class Client:
    """One client connection to a port on this machine."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=3 * PATIENCE)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, writes: list[bytes]) -> None:
        for number, data in enumerate(writes):
            if number:
                time.sleep(0.002)  # so that it is a read of its own at the other end, mostly
            with contextlib.suppress(
                ConnectionError
            ):  # what was answered early is read all the same
                self._socket.sendall(data)

    def read(self, reading: Reading, progress: Progress, leaves_at: int | None = None) -> None:
        """Read one response to its end, or until so much of it is there; says how it ended."""
        sight = reading.sight
        reading.feed(b"")
        while not reading.complete:
            if leaves_at is not None and reading.progress >= leaves_at:
                sight.ending = "left"
                return
            try:
                data = self._socket.recv(65536)
            except ConnectionError:
                data = b""
            else:
                if not data:
                    reading.end()
            if not data:
                break
            reading.feed(data)
            progress.saw(reading.progress)
        if reading.complete:
            sight.ending = "whole"
        elif sight.head:
            sight.ending = "cut"

    def close(self) -> None:
        self._socket.close()

    def reset(self) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        self._socket.close()
