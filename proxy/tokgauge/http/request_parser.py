"""From a client's bytes to requests: heads through the parser, bodies by their one length.

The parser gets heads only, so nothing that a head says to it (an offer to switch protocols, a
method like CONNECT) makes it read what follows in another way than it is read here.
"""

from __future__ import annotations

import re
from typing import Protocol

import httptools

from tokgauge.http.error_responses import (
    ErrorResponse,
    headers_too_large,
    malformed,
    version_not_supported,
)
from tokgauge.http.headers import Header
from tokgauge.http.request import Request, origin_form

_HEAD_END = b"\r\n\r\n"
_VERSIONS = {b"HTTP/1.1": "1.1", b"HTTP/1.0": "1.0"}
_OTHER_VERSION = re.compile(rb"HTTP/\d+(\.\d+)?")

_MOST_STEPS = 2000
"""What is read in one turn of the event loop, so that a flood of tiny chunks holds up nobody."""

_LONGEST_SIZE_LINE = 4096
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t\x20-\x7e\x80-\xff]*)?(\r\n?)?")
"""Also the beginning of one; whole when the second group is CRLF."""
_PLAIN_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})\r\n")
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n")


class RequestSink(Protocol):
    """What takes the requests of one connection, in their order."""

    @property
    def has_enough(self) -> bool:
        """Whether no further request shall begin until `RequestParser.resume`."""

    def head_begins(self) -> None:
        """The first byte of a head has come."""

    def request_begins(self, request: Request) -> None:
        """A head is complete, or can never be one. With a `refusal`, nothing is read behind it."""

    def request_body(self, data: bytes) -> None:
        """A part of the request's body, not empty."""

    def request_ends(self) -> None:
        """The request is complete."""

    def body_refused(self, refusal: ErrorResponse) -> None:
        """The rest of the body can never be read. Nothing more is read."""


class RequestParser:
    """The bytes of one connection. Whatever they are, they are read in one way or not at all.

    head_limit: most bytes of a head, its trailers included. between: the next byte begins one.
    ended: nothing more is read. broken: that is because it makes no sense.
    """

    __slots__ = (
        "_blank", "_framing_left", "_head", "_head_limit", "_head_size", "_headers",
        "_keep_alive", "_line", "_missing", "_parsed", "_parser", "_rest", "_sink", "_step",
        "_steps_left", "_url", "_version", "between", "broken", "ended",
    )  # fmt: skip

    def __init__(self, sink: RequestSink, head_limit: int) -> None:
        self._sink = sink
        self._head_limit = head_limit
        self._step = self._read_head
        self.between = True
        self._rest: tuple[bytes, int] | None = None
        self._steps_left = 0
        self._blank = 0
        self._head = bytearray()
        self._head_size = 0
        self._version: str | None = None
        self._parser: httptools.HttpRequestParser | None = None
        self._parsed = False
        self._keep_alive = True
        self._url = b""
        self._headers: list[Header] = []
        self._missing = 0  # bytes of the body, or of the chunk
        self._line = bytearray()
        self._framing_left = 0
        self.ended = False
        self.broken = False

    @property
    def in_head(self) -> bool:
        """Whether a head has begun and is not complete."""
        return bool(self._head)

    @property
    def kept(self) -> int:
        """Bytes that are kept, because the sink has enough or it is the others' turn."""
        return 0 if self._rest is None else len(self._rest[0]) - self._rest[1]

    def feed(self, data: bytes) -> None:
        """Read what has come."""
        if self._rest is not None:
            rest, at = self._rest
            data = rest[at:] + data
        self._read(data, 0)

    def resume(self) -> None:
        """Go on with what is kept, as far as the sink takes it."""
        if self._rest is not None:
            self._read(*self._rest)

    def close(self) -> None:
        """Read nothing more, and let go of the sink."""
        self.ended = True
        self._rest = None
        self._drop_head()
        del self._sink, self._step  # both refer back

    def give_up(self, refusal: ErrorResponse) -> None:
        """The rest of what has begun takes too long."""
        if self.in_head:
            self._refuse_head(refusal)
        else:
            self._refuse_body(refusal)

    def _read(self, data: bytes, at: int) -> None:
        self._rest = None
        self._steps_left = _MOST_STEPS
        while at < len(data) and self._steps_left > 0 and not self.ended:
            if self.between and self._sink.has_enough:
                break
            self._steps_left -= 1
            at = self._step(data, at)
        if at < len(data) and not self.ended:
            self._rest = data, at

    # The head

    def _read_head(self, data: bytes, at: int) -> int:
        head = self._head
        if not head:
            at = self._skip_blank_lines(data, at)
            if at == len(data) or self.ended:
                return at
            self._begin_head()
        end = _end_of_head(head, data, at)
        piece = data[at:end]  # end is None while it has not come
        head += piece
        self._head_size += len(piece)
        if (self._version is not None or self._look_at_request_line()) and self._parse(piece):
            complete = end is not None
            if self._head_size > self._head_limit:
                self._refuse_head(headers_too_large(self._head_limit))
            elif complete != self._parsed or (complete and not self._has_one_line_each()):
                self._refuse_head(_not_valid("the head does not end with its first empty line"))
            elif complete:
                self._end_head()
        return len(data) if end is None else end

    def _skip_blank_lines(self, data: bytes, at: int) -> int:
        start = at
        while at < len(data) and data[at] in b"\r\n":
            at += 1
        self._blank += at - start
        if self._blank > self._head_limit:
            self._refuse_head(headers_too_large(self._head_limit))
        return at

    def _begin_head(self) -> None:
        self.between = self._parsed = False
        self._blank = self._head_size = 0
        self._version = None
        self._url = b""
        self._headers = []
        self._parser = httptools.HttpRequestParser(self)
        self._sink.head_begins()

    def _look_at_request_line(self) -> bool:
        """The parser takes other protocols, too. False: refused."""
        end = self._head.find(b"\r\n")
        if end < 0:
            return True
        *words, version = bytes(self._head[:end]).split(b" ")
        self._version = _VERSIONS.get(version)
        if self._version is not None and len(words) == 2:
            return True
        self._refuse_head(
            version_not_supported()
            if self._version is None and _OTHER_VERSION.fullmatch(version)
            else _not_valid("the first line is not a method, a target and HTTP/1.1 or HTTP/1.0")
        )
        return False

    def _parse(self, piece: bytes) -> bool:
        assert self._parser is not None  # noqa: S101
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            pass  # an offer that may be ignored (RFC 9110 §7.8)
        except httptools.HttpParserError as error:
            self._refuse_head(_not_valid(str(error)))
            return False
        return True

    def _has_one_line_each(self) -> bool:
        """Whether the head is a request line and one line for each header, ended by CRLF."""
        lines = len(self._headers) + 2
        return self._head.count(b"\n") == self._head.count(b"\r") == lines

    def on_url(self, url: bytes) -> None:
        """Called by the parser."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        assert self._parser is not None  # noqa: S101
        self._parsed = True
        self._keep_alive = self._parser.should_keep_alive()

    def _end_head(self) -> None:
        assert self._parser is not None  # noqa: S101
        assert self._version is not None  # noqa: S101
        request = Request(
            self._parser.get_method().decode("ascii"), origin_form(self._url), self._version,
            self._headers, keep_alive=self._version != "1.0" and self._keep_alive,
        )  # fmt: skip
        self._keep_alive = request.keep_alive
        self._drop_head()
        self.ended = self.broken = request.refusal is not None
        self._sink.request_begins(request)
        if self.ended:
            return
        if request.incoming.codings:
            self._framing_left = self._head_limit
            self._step = self._read_size
        elif request.length:
            self._missing = request.length
            self._step = self._read_length
        else:
            self._end_request()

    def _drop_head(self) -> None:
        self._head = bytearray()
        self._parser = None
        self._headers = []

    def _refuse_head(self, refusal: ErrorResponse) -> None:
        method, target = "", b""
        if self._url and self._parser is not None:
            method = self._parser.get_method().decode("ascii")
            target = origin_form(self._url)
        self._drop_head()
        self.ended = self.broken = True
        self._sink.request_begins(Request.broken(method, target, refusal))

    # The body

    def _read_length(self, data: bytes, at: int) -> int:
        at = self._take_body(data, at)
        if not self._missing:
            self._end_request()
        return at

    def _take_body(self, data: bytes, at: int) -> int:
        stop = min(at + self._missing, len(data))
        self._missing -= stop - at
        self._sink.request_body(data[at:stop])
        return stop

    def _end_request(self) -> None:
        self._step = self._read_head
        self.between = True
        self.ended = not self._keep_alive
        self._sink.request_ends()

    def _read_size(self, data: bytes, at: int) -> int:
        if not self._line:
            start, at = at, self._take_whole_chunks(data, at)
            if at > start:
                return at
        at, _ = self._take_line(data, at)
        line = self._line
        found = _SIZE_LINE.fullmatch(line)
        if len(line) > _LONGEST_SIZE_LINE:
            self._refuse_body(headers_too_large(self._head_limit))
        elif found is None:
            self._refuse_body(_bad_body("a chunk's size is not valid"))
        elif found[2] == b"\r\n":
            # Extensions and leading zeros, beyond what a size takes, may not outgrow the body.
            self._framing_left -= max(0, len(line) - 18)
            if self._framing_left < 0:
                self._refuse_body(headers_too_large(self._head_limit))
                return at
            self._missing = int(found[1], 16)
            self._framing_left += self._missing
            self._step = self._read_chunk if self._missing else self._read_trailer
            line.clear()
        return at

    def _take_whole_chunks(self, data: bytes, at: int) -> int:
        """Take plain chunks of which all is here; step by step, many small ones hold up the loop.

        Anything else is left to the steps.
        """
        pieces: list[bytes] = []
        while len(pieces) < self._steps_left:
            found = _PLAIN_SIZE_LINE.match(data, at)
            if found is None:
                break
            start = found.end()
            stop = start + int(found[1], 16)
            if stop == start or data[stop : stop + 2] != b"\r\n":
                break
            pieces.append(data[start:stop])
            at = stop + 2
        if pieces:
            self._steps_left -= len(pieces)
            body = b"".join(pieces)
            self._framing_left += len(body)
            self._sink.request_body(body)
        return at

    def _read_chunk(self, data: bytes, at: int) -> int:
        at = self._take_body(data, at)
        if not self._missing:
            self._step = self._read_chunk_end
        return at

    def _read_chunk_end(self, data: bytes, at: int) -> int:
        at, _ = self._take_line(data, at)
        if self._line == b"\r\n":
            self._line.clear()
            self._step = self._read_size
        elif self._line != b"\r":
            self._refuse_body(_bad_body("a chunk is not as long as it says"))
        return at

    def _read_trailer(self, data: bytes, at: int) -> int:
        """Trailers are dropped; they count as a part of the head."""
        start = at
        at, whole = self._take_line(data, at)
        self._head_size += at - start
        if self._head_size > self._head_limit:
            self._refuse_body(headers_too_large(self._head_limit))
        elif whole:
            if self._line == b"\r\n":
                self._end_request()
            elif _TRAILER.fullmatch(self._line) is None:
                self._refuse_body(_bad_body("a trailer is not valid"))
            self._line.clear()
        return at

    def _take_line(self, data: bytes, at: int) -> tuple[int, bool]:
        """Move what there is of a line to `_line`; whether that is all of it."""
        stop = data.find(b"\n", at) + 1
        whole = stop > 0
        if not whole:
            stop = len(data)
        self._line += data[at:stop]
        return stop, whole

    def _refuse_body(self, refusal: ErrorResponse) -> None:
        self._line.clear()
        self.ended = self.broken = True
        self._sink.body_refused(refusal)


def _end_of_head(head: bytearray, data: bytes, at: int) -> int | None:
    """Where in `data` the head ends whose beginning is `head`; None if it goes on."""
    if head:
        # The empty line may be cut between two reads.
        before = bytes(head[-3:])
        seam = (before + data[at : at + 3]).find(_HEAD_END)
        if seam >= 0:
            return at + seam + len(_HEAD_END) - len(before)
    end = data.find(_HEAD_END, at)
    return None if end < 0 else end + len(_HEAD_END)


def _not_valid(why: str) -> ErrorResponse:
    return malformed(f"This is not a valid HTTP/1.1 request: {why}.")


def _bad_body(why: str) -> ErrorResponse:
    return malformed(f"The request body is malformed: {why}.")
