"""What a client sends and what a scripted engine answers, as data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Headers = tuple[tuple[str, str], ...]

JSON: Headers = (("Content-Type", "application/json"),)


@dataclass(frozen=True)
class Request:
    """One request; `tag` on the wire tells the engine that a test sent it.

    framing: `length`, `chunked` (a chunk for each of `parts`) or `none`. parts: the body as it is
    written, each part on its own. version: the client's HTTP version.
    """

    method: str = "POST"
    target: str = "/v1/chat/completions"
    headers: Headers = JSON
    parts: tuple[bytes, ...] = ()
    framing: str = "length"
    version: str = "HTTP/1.1"
    trailers: bytes = b""

    @property
    def path(self) -> str:
        target = self.target
        if "://" in target:
            target = "/" + target.split("://", 1)[1].partition("/")[2]
        return target.split("?", 1)[0]

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    @property
    def keeps(self) -> bool:
        """Whether the client wants to keep its connection."""
        said = " ".join(value.lower() for name, value in self.headers if name == "Connection")
        return "close" not in said and (self.version == "HTTP/1.1" or "keep-alive" in said)

    def writes(self, tag: str) -> list[bytes]:
        """The bytes of the request, a write each."""
        lines = [f"{self.method} {self.target} {self.version}", "Host: engine.test"]
        lines += [f"X-Exchange: {tag}", *(f"{name}: {value}" for name, value in self.headers)]
        if self.framing == "chunked":
            lines.append("Transfer-Encoding: chunked")
            parts = [b"%x\r\n%b\r\n" % (len(part), part) for part in self.parts]
            parts.append(b"0\r\n" + self.trailers + b"\r\n")
        else:
            parts = list(self.parts)
            if self.framing == "length":
                lines.append(f"Content-Length: {len(self.body)}")
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        if not parts:
            return [head]
        return [head + parts[0], *parts[1:]]


def post(document: Any, target: str = "/v1/chat/completions", **more: Any) -> Request:
    """A POST of a JSON document, or of raw bytes said to be JSON."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return Request(target=target, parts=(body,), **more)


class Extra(bytes):
    """A piece of a body that the engine sends only because usage was asked for."""


class Joined(bytes):
    """A piece that leaves in one write with the next."""


class Apart(bytes):
    """A piece after which the engine goes on a little later, whether the client has seen it or not.

    For the one event whose last members may follow in the next, so that a proxy may wait for it.
    """


@dataclass(frozen=True)
class Reply:
    """One response in the pieces in which its engine makes it.

    framing: `chunked` (a chunk for each piece), `halves` (two for each), `one` (one chunk for all),
    `length`, `close`, `none` (no body and no framing). writes: `pieces` (a write for each, and the
    next one only when the client has seen it), `halves` (two for each), `bytes`, `once`.
    cut: pieces after which the engine stops, and `inside` the next one. end: what it does then or
    after the whole: `keep` the connection, `close` or `reset` it, or wait until the client
    `leaves`. surplus: bytes after the end, in the same write or (`surplus_later`) in one of their
    own. raw: the head as it is, in place of one made of status and headers. dies: ends as `end`
    says without a byte.
    """

    pieces: tuple[bytes, ...] = ()
    status: str = "200 OK"
    version: str = "HTTP/1.1"
    headers: Headers = ()
    framing: str = "chunked"
    writes: str = "pieces"
    cut: int | None = None
    inside: bool = False
    end: str = "keep"
    interim: bytes = b""
    surplus: bytes = b""
    surplus_later: bool = False
    trailers: bytes = b""
    raw: bytes = b""
    to_head: bool = False
    dies: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def head(self) -> bytes:
        if self.raw:
            return self.raw
        lines = [f"{self.version} {self.status}", *(f"{n}: {v}" for n, v in self.headers)]
        if self.framing == "length":
            lines.append(f"content-length: {len(self.body)}")
        elif self.framing in ("chunked", "halves", "one"):
            lines.append("transfer-encoding: chunked")
        return self.interim + ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


@dataclass(frozen=True)
class Write:
    """Bytes that the engine writes, and how much of the body the client must see before more.

    seen: None to go on at once; 0 for the head. pause: seconds to wait in any case.
    """

    data: bytes
    seen: int | None = None
    pause: float = 0.0


def shown_lengths(direct: Reply) -> list[int]:
    """How much of the body a client has seen after each piece."""
    total = 0
    lengths = []
    for piece in direct.pieces:
        total += len(piece)
        lengths.append(total)
    return lengths


def script(reply: Reply, direct: Reply, *, changed: bool) -> Iterator[Write]:
    """The engine's writes.

    direct: what it would answer to the client's own request, which says what the client must see
    after each piece. changed: the request is not the client's own: then an unfinished event may
    have to wait for its end, and an answer that is not like the direct one is for nobody to see.
    """
    own = [piece for piece in reply.pieces if not (changed and isinstance(piece, Extra))]
    lengths = shown_lengths(direct)
    gated = len(own) == len(direct.pieces)
    if changed and not reply.status.startswith("2"):
        gated = False  # it may be about the change
    if reply.writes == "once":
        yield Write(b"".join(_wire(reply)))
        return
    head, *pieces, last = _wire(reply)
    yield Write(head, 0 if gated and not reply.to_head else None)
    position = 0
    joined = b""
    for number, wire in enumerate(pieces):
        data = joined + wire
        joined = b""
        piece = reply.pieces[number] if number < len(reply.pieces) else b""
        before = lengths[position - 1] if position else 0
        if not (changed and isinstance(piece, Extra)):
            position += 1
        whole = lengths[position - 1] if gated and 0 < position <= len(lengths) else None
        if whole is not None and changed and not _ends_an_event(direct.body[:whole]):
            whole = None
        if isinstance(piece, Joined):
            joined = data
        elif isinstance(piece, Apart):
            yield Write(data, pause=0.005)
        elif reply.writes == "bytes":
            for at in range(len(data) - 1):
                yield Write(data[at : at + 1])
            yield Write(data[-1:], whole)
        elif reply.writes == "halves":
            middle = len(data) // 2
            framed = len(data) - len(piece) if reply.framing == "chunked" else 0
            seen = before + max(0, middle - (framed - 2 if framed else 0))
            yield Write(data[:middle], seen if gated and not changed else None)
            yield Write(data[middle:], whole)
        elif reply.cut is not None and number == reply.cut:  # the first half of the next one
            half = before + len(data) - data.find(b"\n") - 1 if reply.framing == "chunked" else None
            yield Write(data, half if gated and not changed else None)
        else:
            yield Write(data, whole)
    if last:
        yield Write(last)
    if reply.surplus and reply.surplus_later:
        yield Write(reply.surplus)


def _ends_an_event(body: bytes) -> bool:
    return body.endswith((b"\n\n", b"\n\r\n", b"\r\r"))


def _wire(reply: Reply) -> list[bytes]:
    """Head, pieces and end as they are framed."""
    pieces = reply.pieces
    if reply.framing == "one":
        pieces = (reply.body,) if reply.body else ()
    stop = len(pieces) if reply.cut is None else reply.cut
    framed = [_frame(reply.framing, piece) for piece in pieces[:stop]]
    if reply.cut is not None:
        if reply.inside:
            whole = _frame(reply.framing, pieces[stop])
            framed.append(whole[: len(whole) - len(pieces[stop]) // 2 - 2])
        return [reply.head, *framed, b""]
    last = b""
    if reply.framing in ("chunked", "halves", "one"):
        last = b"0\r\n" + reply.trailers + b"\r\n"
    if not reply.surplus_later:
        if last or not framed:
            last += reply.surplus
        else:
            framed[-1] += reply.surplus
    return [reply.head, *framed, last]


def _frame(framing: str, piece: bytes) -> bytes:
    if framing == "halves" and len(piece) > 1:
        middle = len(piece) // 2
        return _frame("chunked", piece[:middle]) + _frame("chunked", piece[middle:])
    if framing in ("chunked", "halves", "one"):
        return b"%x\r\n%b\r\n" % (len(piece), piece)
    return bytes(piece)
