"""Messages made wrong in every way that a parser may stumble over, each from its seed."""

import json
import random
import re
from dataclasses import dataclass

Random = random.Random

_LINES = (
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding : chunked", b"Transfer-Encoding: chunked, chunked", b"transfer-encoding:",
    b"Transfer-Encoding:\x0bchunked", b"Transfer-Encoding: gzip, chunked", b"TE: trailers",
    b"Content-Length: 0", b"Content-Length: 5", b"Content-Length: 33", b"Content-Length: +5",
    b"Content-Length:  7 ", b"Content-Length : 5", b"Content-Length: 5, 5", b"Content-Length: -1",
    b"Content-Length: 99999999999999999999", b"Content_Length: 5", b"Content-Length:",
    b"Connection: close", b"Connection: keep-alive", b"Connection: upgrade", b"Upgrade: h2c",
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk",
    b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    b"Connection: content-length, host", b"Connection: transfer-encoding", b"Keep-Alive: max=1",
    b"Expect: 100-continue", b"Expect: nothing", b"Host: b", b"Host:", b"Host: a b", b"Trailer: x",
    b"X: y\rTransfer-Encoding: chunked", b"X: y\nTransfer-Encoding: chunked", b"X: y\r\n folded",
    b" Transfer-Encoding: chunked", b"\tContent-Length: 5", b"X", b": y", b"X:", b"X: \x00",
    b"X: \xff", b"Content-Encoding: gzip", b"Proxy-Connection: keep-alive",
    b"X-Long: " + b"l" * 3000, b"Content-Type: text/event-stream",
    b"Date: Mon, 30 Nov 2026 00:00:00 GMT",
)  # fmt: skip
_ENDS = (
    b"\n",
    b"\r",
    b"\r\r\n",
    b"",
    b"\r\n\r\n",
    b"\n\r",
    b" \r\n",
    b"\t\r\n",
    b"\x0b\r\n",
    b"\x00\r\n",
)
_BYTES = b'\x00\r\n\t :;,="\x0b\x0c\x1b\x7f\x80\xff0159afFzZ/#?%-+_'
_VERSIONS = (
    b"HTTP/1.0",
    b"HTTP/0.9",
    b"HTTP/2.0",
    b"HTTP/1.2",
    b"http/1.1",
    b"HTTP/1.1 ",
    b"HTTP/11",
)
_HIDDEN = b"GET /hidden/%d HTTP/1.1\r\nHost: a\r\n\r\n"
_SURPLUS = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nEVIL%07d"


@dataclass(frozen=True)
class Mutated:
    """The bytes of one connection, in the pieces in which they are written.

    method: of the request that a response answers. closes: the writer ends the connection then.
    """

    seed: int
    pieces: tuple[bytes, ...]
    method: bytes = b"GET"
    closes: bool = False

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)


def mutated_requests(seed: int) -> Mutated:
    """One to three requests on a connection, with up to four faults."""
    chance = Random(seed)
    data = b"".join(_request(chance, seed, n) for n in range(chance.choice((1, 1, 1, 2, 3))))
    data = _mutate(chance, data, _HIDDEN % seed)
    return Mutated(seed, _cut(chance, data))


def mutated_response(seed: int) -> Mutated:
    """One response with up to four faults."""
    chance = Random(seed)
    method = chance.choice((b"GET", b"GET", b"GET", b"POST", b"HEAD"))
    data = _response(chance, seed, method)
    data = _mutate(chance, data, _SURPLUS % seed)
    return Mutated(seed, _cut(chance, data), method, chance.random() < 0.4)


def _request(chance: Random, seed: int, number: int) -> bytes:
    target = b"/%d/%d" % (seed, number)
    body = b"body of %d %d" % (seed, number)
    kind = chance.randrange(8)
    if kind == 0:
        return b"GET %b HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n" % target
    if kind == 1:
        return b"HEAD %b HTTP/1.1\r\nHost: a\r\n\r\n" % target
    if kind == 2:
        return b"GET %b HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" % target
    if kind == 3:
        return _chunked_request(chance, target, body)
    if kind == 4:
        target = b"/v1/chat/completions?%d-%d" % (seed, number)
        body = json.dumps({"model": "qwen", "messages": [], "n": seed}).encode()
    if kind == 5:
        body += b"x" * chance.randrange(3000)
    offer = b"Connection: Upgrade\r\nUpgrade: h2c\r\n" if kind == 6 else b""
    expect = b"Expect: 100-continue\r\n" if kind == 7 else b""
    head = b"POST %b HTTP/1.1\r\nHost: a\r\n%b%bContent-Length: %d\r\n\r\n"
    return head % (target, offer, expect, len(body)) + body


def _chunked_request(chance: Random, target: bytes, body: bytes) -> bytes:
    head = b"POST %b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" % target
    return head + _chunks(chance, body)


def _chunks(chance: Random, body: bytes) -> bytes:
    middle = chance.randrange(1, len(body))
    extension = chance.choice((b"", b"", b";a=b", b';a="b"'))
    trailer = chance.choice((b"", b"", b"X-Trailer: t\r\n"))
    pieces = (body[:middle], body[middle:])
    framed = b"".join(b"%x%b\r\n%b\r\n" % (len(one), extension, one) for one in pieces)
    return framed + b"0\r\n%b\r\n" % trailer


def _response(chance: Random, seed: int, method: bytes) -> bytes:
    body = b'{"answer to": %d, "text": "%b"}' % (seed, b"y" * chance.randrange(200))
    kind = chance.randrange(8)
    if kind == 0:
        return b"HTTP/1.1 204 No Content\r\nX-For: %d\r\n\r\n" % seed
    if kind == 1:
        return b"HTTP/1.1 200 OK\r\nX-For: %d\r\n\r\n%b" % (
            seed,
            body if method != b"HEAD" else b"",
        )
    if kind in (2, 3, 4):
        head = b"HTTP/1.1 200 OK\r\nX-For: %d\r\nTransfer-Encoding: chunked\r\n" % seed
        if kind == 2:
            body = b"data: {%d}\n\n" % seed * 3
            head += b"Content-Type: text/event-stream\r\n"
        return head + b"\r\n" + (_chunks(chance, body) if method != b"HEAD" else b"")
    interim = b"HTTP/1.1 100 Continue\r\n\r\n" if kind == 5 else b""
    status = chance.choice((b"200 OK", b"200 OK", b"400 Bad Request", b"503 No", b"299 Odd"))
    head = b"%bHTTP/1.1 %b\r\nX-For: %d\r\nContent-Length: %d\r\n\r\n"
    return head % (interim, status, seed, len(body)) + (body if method != b"HEAD" else b"")


def _mutate(chance: Random, data: bytes, extra: bytes) -> bytes:
    for _ in range(chance.choice((0, 1, 1, 1, 2, 2, 3, 4))):
        data = chance.choice(_MUTATIONS)(chance, data, extra)
    return data


def _ends(data: bytes) -> list[int]:
    return [found.start() for found in re.finditer(rb"\r\n", data)]


def _add_line(chance: Random, data: bytes, extra: bytes) -> bytes:
    at = chance.choice(_ends(data) or [0])
    return data[:at] + b"\r\n" + chance.choice(_LINES) + data[at:]


def _other_end(chance: Random, data: bytes, extra: bytes) -> bytes:
    ends = _ends(data)
    if not ends:
        return data
    at = chance.choice(ends)
    return data[:at] + chance.choice(_ENDS) + data[at + 2 :]


def _drop_line(chance: Random, data: bytes, extra: bytes) -> bytes:
    lines = data.split(b"\r\n")
    del lines[chance.randrange(len(lines))]
    return b"\r\n".join(lines)


def _double_line(chance: Random, data: bytes, extra: bytes) -> bytes:
    lines = data.split(b"\r\n")
    at = chance.randrange(len(lines))
    lines.insert(chance.randrange(len(lines)), lines[at])
    return b"\r\n".join(lines)


def _other_number(chance: Random, data: bytes, extra: bytes) -> bytes:
    numbers = list(re.finditer(rb"\b[0-9a-f]+(?=\r\n|;)", data))
    if not numbers:
        return data
    found = chance.choice(numbers)
    digits = found.group()
    value = int(digits, 16)
    other = chance.choice(
        (b"%x" % (value + 1), b"%x" % max(value - 1, 0), b"%d" % (value * 16), b"+" + digits,
         b"-" + digits, b"0x" + digits, b"00" + digits, digits + b" ", b" " + digits, b"0", b"",
         b"f" * 16, b"f" * 17, b"1" + b"0" * 15 + digits, digits + b"_0", digits + b";",
         digits + b";\n")
    )  # fmt: skip
    return data[: found.start()] + other + data[found.end() :]


def _other_byte(chance: Random, data: bytes, extra: bytes) -> bytes:
    at = chance.randrange(len(data) + 1)
    new = bytes([chance.choice(_BYTES)])
    how = chance.randrange(3)
    return data[:at] + (new if how else b"") + data[at + (how != 1) :]


def _other_blank(chance: Random, data: bytes, extra: bytes) -> bytes:
    blanks = [found.start() for found in re.finditer(rb"[ :]", data)]
    if not blanks:
        return data
    at = chance.choice(blanks)
    return data[:at] + chance.choice((b" ", b"\t", b"\x0b", b"  ", b"\xa0", b"")) + data[at + 1 :]


def _other_version(chance: Random, data: bytes, extra: bytes) -> bytes:
    return data.replace(b"HTTP/1.1", chance.choice(_VERSIONS), 1)


def _other_case(chance: Random, data: bytes, extra: bytes) -> bytes:
    lines = data.split(b"\r\n")
    at = chance.randrange(len(lines))
    lines[at] = lines[at].swapcase()
    return b"\r\n".join(lines)


def _cut_off(chance: Random, data: bytes, extra: bytes) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _insert(chance: Random, data: bytes, extra: bytes) -> bytes:
    at = chance.choice((len(data), chance.randrange(len(data) + 1)))
    return data[:at] + chance.choice((extra, extra, b"\r\n", b"0\r\n\r\n", b"\r\n\r\n")) + data[at:]


_MUTATIONS = (
    _add_line, _add_line, _add_line, _other_end, _other_end, _drop_line, _double_line,
    _other_number, _other_number, _other_byte, _other_blank, _other_version, _other_case,
    _cut_off, _insert, _insert,
)  # fmt: skip


def _cut(chance: Random, data: bytes) -> tuple[bytes, ...]:
    """In pieces: most at once, as most come."""
    if chance.random() < 0.5 or len(data) < 2:
        return (data,)
    places = sorted(chance.sample(range(1, len(data)), min(chance.randrange(1, 4), len(data) - 1)))
    return tuple(
        data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)
    )
