"""A raw HTTP client: sends exactly the given bytes and shows the framing of what comes back."""

import json
import socket
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from tests.support.engine import parse_headers

_LINGER_ZERO = struct.pack("ii", 1, 0)


class UncleanEnd(Exception):
    """The connection ended before the response's head was complete."""


@dataclass
class Response:
    """One response. `body` is free of chunk framing; `clean` says whether it ended as framed.

    `arrivals` holds (monotonic seconds, length of the body so far) for every read.
    """

    head: bytes
    body: bytearray = field(default_factory=bytearray)
    framing: str = "none"
    clean: bool = False
    reset: bool = False
    chunks: list[bytes] = field(default_factory=list)
    trailers: bytes = b""
    interim: list[bytes] = field(default_factory=list)
    head_at: float = 0.0
    end_at: float = 0.0
    arrivals: list[tuple[float, int]] = field(default_factory=list)

    @property
    def status(self) -> int:
        return int(self.head.split(b" ", 2)[1])

    @property
    def status_line(self) -> bytes:
        return self.head.split(b"\r\n", 1)[0]

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return parse_headers(self.head)

    def values(self, name: str) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name.lower().encode()]

    def header(self, name: str) -> bytes | None:
        values = self.values(name)
        return values[0] if values else None

    def json(self) -> Any:
        return json.loads(self.body)

    def arrival(self, offset: int) -> float:
        """When the first `offset` bytes of the body were all here (monotonic seconds)."""
        for at, length in self.arrivals:
            if length >= offset:
                return at
        raise AssertionError(f"only {len(self.body)} bytes arrived, not {offset}")


def request(
    method: str,
    target: str,
    headers: Iterable[tuple[str, str]] = (),
    body: bytes | None = None,
    host: str = "127.0.0.1",
    version: str = "HTTP/1.1",
) -> bytes:
    """The bytes of a request; a body brings its Content-Length unless a framing is given."""
    pairs = [("Host", host), *headers]
    names = {name.lower() for name, _ in pairs}
    if body is not None and not names & {"content-length", "transfer-encoding"}:
        pairs.append(("Content-Length", str(len(body))))
    head = f"{method} {target} {version}\r\n" + "".join(f"{n}: {v}\r\n" for n, v in pairs)
    return head.encode("latin-1") + b"\r\n" + (body or b"")


class RawClient:
    """One connection to 127.0.0.1. Reads block for `timeout` seconds at most."""

    def __init__(self, port: int, timeout: float = 15.0, receive_buffer: int | None = None) -> None:
        self._socket = socket.socket()
        if receive_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.settimeout(timeout)
        try:
            self._socket.connect(("127.0.0.1", port))
        except OSError:
            self._socket.close()
            raise
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._eof = False
        self._reset = False

    def send(self, *pieces: bytes, gap: float = 0.0) -> Self:
        for number, piece in enumerate(pieces):
            if number and gap:
                time.sleep(gap)
            self._socket.sendall(piece)
        return self

    def request(
        self,
        method: str,
        target: str,
        headers: Iterable[tuple[str, str]] = (),
        body: bytes | None = None,
    ) -> Self:
        return self.send(request(method, target, headers, body))

    def close(self) -> None:
        self._socket.close()

    def shutdown_write(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Leave with a TCP reset."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def at_end(self, timeout: float = 5.0) -> bool:
        """Whether the peer closes the connection without sending another byte."""
        self._socket.settimeout(timeout)
        try:
            return not self._buffer and not self._more()
        except TimeoutError:
            return False

    def _more(self, size: int = 65536) -> bool:
        if self._eof:
            return False
        try:
            data = self._socket.recv(size)
        except ConnectionResetError:
            self._reset = True
            data = b""
        if not data:
            self._eof = True
            return False
        self._buffer += data
        return True

    def _head(self) -> bytes:
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if not self._more():
                raise UncleanEnd(f"connection ended in the head: {bytes(self._buffer)!r}")
        head = bytes(self._buffer[: end + 4])
        del self._buffer[: end + 4]
        return head

    def read_head(self) -> Response:
        """Read interim responses and the head of the final one; the body stays to be read."""
        interim = []
        while True:
            head = self._head()
            if not 100 <= int(head.split(b" ", 2)[1]) < 200:
                break
            interim.append(head)
        return Response(head, interim=interim, head_at=time.monotonic())

    def read_body(
        self, response: Response, *, at_least: int | None = None, to_head: bool = False
    ) -> Response:
        """Read the body to its end, or only until `at_least` bytes of it are here."""
        te = response.header("transfer-encoding")
        length = response.header("content-length")
        no_body = to_head or response.status in (204, 304)
        if no_body:
            response.framing, response.clean = "none", True
        elif te is not None and te.lower() == b"chunked":
            response.framing = "chunked"
            self._read_chunked(response, at_least)
        elif length is not None:
            response.framing = "length"
            self._read_length(response, int(length), at_least)
        else:
            response.framing = "close"
            self._read_to_close(response, at_least)
        response.end_at = time.monotonic()
        response.reset = self._reset
        return response

    def read_response(self, *, to_head: bool = False) -> Response:
        return self.read_body(self.read_head(), to_head=to_head)

    def _take(self, response: Response, count: int) -> None:
        response.body += self._buffer[:count]
        del self._buffer[:count]
        response.arrivals.append((time.monotonic(), len(response.body)))

    def _read_length(self, response: Response, length: int, at_least: int | None) -> None:
        while len(response.body) < length:
            if not self._buffer and not self._more():
                return
            self._take(response, min(len(self._buffer), length - len(response.body)))
            if at_least is not None and len(response.body) >= at_least:
                return
        response.clean = True

    def _read_to_close(self, response: Response, at_least: int | None) -> None:
        while self._buffer or self._more():
            self._take(response, len(self._buffer))
            if at_least is not None and len(response.body) >= at_least:
                return
        response.clean = not self._reset

    def _read_chunked(self, response: Response, at_least: int | None) -> None:
        while True:
            while (end := self._buffer.find(b"\r\n")) < 0:
                if not self._more():
                    return
            size = int(bytes(self._buffer[:end]).split(b";")[0], 16)
            if size == 0:
                break
            while len(self._buffer) < end + 2 + size + 2:
                if not self._more():
                    # What came of an unfinished chunk is part of what the client saw.
                    payload = bytes(self._buffer[end + 2 : end + 2 + size])
                    response.body += payload
                    response.arrivals.append((time.monotonic(), len(response.body)))
                    return
            assert self._buffer[end + 2 + size : end + 2 + size + 2] == b"\r\n", "bad chunk"
            response.chunks.append(bytes(self._buffer[end + 2 : end + 2 + size]))
            del self._buffer[: end + 2]
            self._take(response, size)
            del self._buffer[:2]
            if at_least is not None and len(response.body) >= at_least:
                return
        del self._buffer[: end + 2]
        while (end := self._buffer.find(b"\r\n")) != 0:
            if end > 0:
                response.trailers += bytes(self._buffer[: end + 2])
                del self._buffer[: end + 2]
            elif not self._more():
                return
        del self._buffer[:2]
        response.clean = True


def fetch(
    port: int,
    method: str,
    target: str,
    headers: Iterable[tuple[str, str]] = (),
    body: bytes | None = None,
    timeout: float = 15.0,
) -> Response:
    """One request on a connection of its own."""
    with RawClient(port, timeout) as client:
        client.request(method, target, headers, body)
        return client.read_response(to_head=method == "HEAD")


JSON = ("Content-Type", "application/json")


def post(port: int, target: str, document: object | bytes, timeout: float = 15.0) -> Response:
    """POST a JSON document (or raw bytes said to be JSON) on a connection of its own."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return fetch(port, "POST", target, [JSON], body, timeout)


def refuses(port: int) -> bool:
    """Whether nobody accepts connections on a port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False
