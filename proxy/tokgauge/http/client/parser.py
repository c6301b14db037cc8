"""One HTTP/1.x response, from bytes to head and body. Knows no socket and no clock.

Heads and chunks are parsed by llhttp, through httptools; where a message ends is decided here, to
the byte. What was seen of llhttp 9 (httptools 0.9), and is therefore done here:

- It reads on behind the end of a message, into the next one, and skips line ends there without a
  word. So a head is cut at its empty line, a body of known length is counted without it, and what
  it reads behind the last chunk is dropped.
- It cannot be told that a request was a HEAD.
- It reads bodies of interim responses (103 with a Content-Length has none, 104 has one), and takes
  `Connection: close` in them for the end. So each head gets a parser of its own.
- It takes `RTSP/1.0` and `ICE/1.0` for HTTP, any three digits for a status, and a NUL in the reason
  phrase. A coding that is not `chunked` at the very end of Transfer-Encoding (`gzip`, `chunked,`,
  `chunked` and a tab) means to it a body that ends with the connection.

It refuses by itself, in its strict default: NUL and other controls in names and values, folded
lines, a CR or LF of its own, blanks before the colon or the first name, two Content-Length headers
even if they are equal, anything but digits in one, Content-Length beside Transfer-Encoding (in
trailers, too), and chunks whose framing is not to the letter.
"""

from __future__ import annotations

import sys

import httptools

RawHeaders = list[tuple[bytes, bytes]]

_HEAD_END = b"\r\n\r\n"
_LINE_ENDS = b"\r\n"
_LENGTH_DIGITS = 18


def _chunk_framing(length: int) -> tuple[bytes, int]:
    for digits in (1, 2, 3):
        size = length - digits - len(b"\r\n" * 2)
        line = b"%x\r\n" % max(size, 0)
        if size > 0 and len(line) == digits + 2:
            return line, size
    return b"", -1


_LONGEST_CHUNK = 1024
_CHUNKS = tuple(_chunk_framing(length) for length in range(_LONGEST_CHUNK))
"""By the length of a chunk with its framing: its size line and its size; -1 if none is that long.
Longer ones than these are for the parser.
"""


def chunk_body(data: bytes) -> bytes | None:
    """The body when `data`, which begins where a chunk begins, is exactly one chunk; else None.

    Such a chunk has a body, so it is not the last one: no message ends in it, and nothing that
    follows a message hides in it.
    """
    if len(data) >= _LONGEST_CHUNK:
        return None
    line, size = _CHUNKS[len(data)]
    body = data.removeprefix(line).removesuffix(b"\r\n")
    return body if len(body) == size else None


def _flaw(head: bytes, version: str, status: int) -> str | None:
    """What is wrong with a head all the same that the parser has accepted."""
    if version not in ("1.1", "1.0") or not head.startswith(b"HTTP/"):
        line = head.partition(b"\r\n")[0][:40].decode("latin-1")
        return f"neither HTTP/1.1 nor HTTP/1.0: {line!r}"
    if b"\0" in head:
        return "a NUL in the response head"
    if not 100 <= status <= 599:
        return f"no such status: {status:03d}"
    if status == 101:
        return "a switch of protocols that nobody had asked for"
    return None


class ResponseParser:
    """Reads one response, with `feed`.

    head_done: status, reason, version, headers (as received) are final.
    complete: the whole response has been read.
    surplus: bytes came that belong to no response; the connection must not be used again.
    fault: why the bytes are not an acceptable HTTP response; nothing may be fed after it.
    keep_alive: the response lets the connection live on (RFC 9112, 9.3).
    between_chunks: the bytes so far end where a chunk may begin. Known after the head and after
        the end of an event only; False may mean anything.
    """

    __slots__ = (
        "_bare", "_head", "_head_parsed", "_head_request", "_last_piece", "_left", "_limit",
        "_parser", "_pieces", "between_chunks", "complete", "fault", "head_done", "headers",
        "keep_alive", "on_body", "reason", "status", "surplus", "version",
    )  # fmt: skip

    def __init__(self, *, head_request: bool, limit: int) -> None:
        """limit: most bytes without any body in them, in the head and between body bytes."""
        self._head_request = head_request
        self._limit = limit
        self._bare = 0
        self._head = b""
        self._head_parsed = False
        self._left: int | None = 0
        """Bytes of body that are missing; None for chunks."""
        self._last_piece = 0
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append  # C calls C: no Python frame per piece of body
        self.headers: RawHeaders = []
        self.status = 0
        self.reason = b""
        self.version = b"HTTP/1.1"
        self.head_done = False
        self.complete = False
        self.surplus = False
        self.keep_alive = False
        self.between_chunks = False
        self.fault: str | None = None
        self._parser = httptools.HttpResponseParser(self)

    @property
    def begun(self) -> bool:
        """Whether the final response's first byte has come; interim responses do not count."""
        return self.head_done or bool(self._head)

    @property
    def until_eof(self) -> bool:
        """Whether the body ends where the connection ends (RFC 9112, 6.3, rule 8)."""
        return self._left is not None and self._left > 10**_LENGTH_DIGITS

    def feed(self, data: bytes) -> bytes:
        """Read `data`; return the body bytes in it, joined (empty when there are none)."""
        while not self.head_done:
            data = self._feed_head(data)
            if not data:
                self.between_chunks = self._left is None and self.head_done
                return b""
        left = self._left
        if left is None:
            if not self.complete:
                return self._feed_chunks(data)
            left = 0
        if len(data) < left:
            self._left = left - len(data)
            return data
        self._left = 0
        self.complete = True
        if len(data) == left:
            return data
        self.surplus = True
        return data[:left]

    def _feed_head(self, data: bytes) -> bytes:
        """Read `data` to the end of a head at most; return what follows that."""
        if not self._head:
            line = data.lstrip(_LINE_ENDS)
            if len(line) != len(data):
                # Of an earlier message, if of any: it may be read, but not on this connection.
                self.surplus = True
                if not self._count(len(data) - len(line)) or not line:
                    return b""
                data = line
        seen = len(self._head)
        self._head += data
        # The empty line, wherever the reads were cut.
        end = self._head.find(_HEAD_END, max(0, seen + 1 - len(_HEAD_END))) + len(_HEAD_END)
        whole = end >= len(_HEAD_END)
        part = data[: end - seen] if whole else data
        if not self._count(len(part)):
            return b""
        error = self._run(part)
        if not self._head_parsed:
            if error is not None or whole:
                self._refuse(f"malformed response head: {error or 'no end'}")
            return b""
        self._judge(self._head[:end])
        self._head = b""
        return b"" if self.fault is not None else data[len(part) :]

    def _judge(self, head: bytes) -> None:
        """Look at a head that the parser has accepted: what it is, and how its body is framed."""
        parser = self._parser
        status = parser.get_status_code()
        version = parser.get_http_version()
        flaw = _flaw(head, version, status)
        if flaw is not None:
            self._refuse(flaw)
            return
        if status < 200:
            self._next_head()
            return
        length: bytes | None = None
        coding: bytes | None = None
        for name, value in self.headers:
            lowered = name.lower()
            if lowered == b"content-length":
                length = value.rstrip(b" \t")
            elif lowered == b"transfer-encoding":
                # The parser overlooks blanks at its end, but not tabs: then it sees no chunks.
                coding = value.rstrip(b" ").lower() if coding is None else b"several"
        if coding not in (None, b"chunked"):
            self._refuse("a Transfer-Encoding other than chunked")
            return
        if length is not None and len(length) > _LENGTH_DIGITS:
            # Any number of zeros passes the parser, and a client may give up on them.
            self._refuse("a Content-Length of too many digits")
            return
        self.status = status
        self.version = b"HTTP/" + version.encode()
        self.head_done = True
        if self._head_request or status in (204, 304):
            self.complete = True
        elif coding is not None:
            self._left = None
            if version == "1.0":
                self.keep_alive = False  # RFC 9112, 6.1: its framing cannot be relied upon
        elif length is not None:
            self._left = int(length)
            self.complete = self._left == 0
        else:
            self._left = sys.maxsize

    def _next_head(self) -> None:
        """That was an interim response, and all of it: another head follows."""
        self._parser = httptools.HttpResponseParser(self)
        self._head_parsed = False
        self.headers = []
        self.reason = b""

    def _feed_chunks(self, data: bytes) -> bytes:
        # The body ends with an empty line, and the parser does not tell where in `data` it found
        # it. So it gets the last byte by itself where the end may be: what was complete before
        # that, or without it, has something behind it.
        last = data[-1:] if data.endswith(_HEAD_END) or len(data) < len(_HEAD_END) else b""
        error = self._run(data[: len(data) - len(last)])
        if self.complete:
            self.surplus = True
        elif last and error is None:
            error = self._run(last)
        if error is not None and not self.complete:
            self._refuse(f"malformed chunks: {error}")
        body = self._join_pieces(len(data))
        # A line break after the body's last is none of the body's, so it ends the chunk: no
        # other place in the framing has a line break before this one.
        self.between_chunks = body.endswith(b"\n\n") and data.endswith(b"\n\n\r\n")
        return body

    def _join_pieces(self, read: int) -> bytes:
        pieces = self._pieces
        if self.complete:
            del pieces[self._last_piece :]
        if not pieces:
            if not self.complete and self.fault is None:
                self._count(read)
            return b""
        self._bare = 0
        if len(pieces) == 1:
            return pieces.pop()
        body = b"".join(pieces)
        pieces.clear()
        return body

    def _count(self, size: int) -> bool:
        """Count bytes without body. Endless heads, extensions, trailers and blanks end here."""
        self._bare += size
        if self._bare > self._limit:
            self._refuse(f"more than {self._limit} bytes of response head or trailers")
            return False
        return True

    def _run(self, data: bytes) -> httptools.HttpParserError | None:
        """Give the parser `data`; return what it has against that."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return None  # a head that `_judge` refuses
        except httptools.HttpParserError as error:
            return error
        return None

    def feed_eof(self) -> None:
        """The engine closed its side: completes a body that ends there, else does nothing."""
        if self.until_eof:
            self.complete = True

    def release(self) -> None:
        """Drop the parser, which refers back to this object."""
        del self._parser

    # llhttp's callbacks; it may call them for a second message, too

    def on_status(self, reason: bytes) -> None:
        if not self.head_done:
            self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.head_done:  # later ones are trailers
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if not self.head_done:
            self._head_parsed = True
            self.keep_alive = self._parser.should_keep_alive()  # later on it has forgotten

    def on_message_complete(self) -> None:
        if self._left is None and not self.complete:
            self._last_piece = len(self._pieces)
            self.complete = True

    def _refuse(self, why: str) -> None:
        self.fault = why
