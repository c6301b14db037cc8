"""One HTTP/1.x response, from bytes to head and body. Knows no socket and no clock.

The parser is llhttp, through httptools. What llhttp leaves to its user is done here: responses
to HEAD, interim (1xx) responses, bodies that end with the connection, and limits on everything
that is not body.
"""

import httptools

from proxy.transport.heads import RawHeaders, SeenAnswer, SeenAnswers

_CHUNKED_HEAD = b"HTTP/1.1 200\r\ntransfer-encoding: chunked\r\n\r\n"


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
    """The body when `data`, which begins where a chunk begins, is exactly one chunk; else None."""
    if len(data) >= _LONGEST_CHUNK:
        return None
    line, size = _CHUNKS[len(data)]
    body = data.removeprefix(line).removesuffix(b"\r\n")
    return body if len(body) == size else None


_VERSIONS = {"1.1": b"HTTP/1.1", "1.0": b"HTTP/1.0"}


class _Refused(Exception):  # noqa: N818 - ends the parser's work, is never seen outside
    """Raised inside a parser callback to stop the parser."""


class ResponseReader:
    """Reads one response. After each `feed` look at `news`.

    news: set when anything but body happened in the last `feed` (head complete, response
        complete, fault, surplus); the caller clears it. Keeps the look at one flag per read.
    head_done: status, reason, version, headers are final.
    complete: the whole response has been read.
    surplus: bytes followed the end of the response; the connection must not be used again.
    fault: why the bytes are not an acceptable HTTP response; nothing may be fed after it.
    begun: the final response's first byte has come (interim responses do not count).
    keep_alive: the response lets the connection live on (RFC 9112, 9.3).
    seen, values: what is known of its head, when the same has come before, and what varies in it.
    between_chunks: the bytes so far end where a chunk ends, and another one follows. Known after
        the end of an event only; False may mean anything.
    until_eof: the body ends where the connection ends (RFC 9112, 6.3, rule 8).
    """

    __slots__ = (
        "_bare",
        "_head_request",
        "_headers",
        "_interim",
        "_limit",
        "_owed",
        "_parse",
        "_parser",
        "_pieces",
        "_seen_answers",
        "begun",
        "between_chunks",
        "complete",
        "fault",
        "head_done",
        "keep_alive",
        "news",
        "on_body",
        "reason",
        "seen",
        "status",
        "surplus",
        "until_eof",
        "values",
        "version",
    )

    def __init__(
        self, *, head_request: bool, limit: int, seen_answers: SeenAnswers | None = None
    ) -> None:
        """limit: most bytes without any body in them, in the head and between body bytes."""
        self._seen_answers = None if head_request else seen_answers
        self.seen: SeenAnswer | None = None
        self.values: list[bytes] = []
        self._head_request = head_request
        self._limit = limit
        self._bare = 0
        self._interim = False
        self._owed = b""
        """What the parser has not been told yet and has to be told first."""
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append  # C calls C: no Python frame per piece of body
        self._headers: RawHeaders = []
        self.status = 0
        self.reason = b""
        self.version = b"HTTP/1.1"
        self.news = False
        self.begun = False
        self.head_done = False
        self.complete = False
        self.surplus = False
        self.keep_alive = False
        self.until_eof = False
        self.between_chunks = False
        self.fault: str | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._parse = self._parser.feed_data

    @property
    def headers(self) -> RawHeaders:
        """Name and value as received."""
        if self.seen is not None:
            return self.seen.headers(self.values)
        return self._headers

    def feed_first(self, data: bytes) -> bytes:
        """`feed` for the first bytes after the request."""
        heads = self._seen_answers
        if heads is None:
            return self.feed(data)
        found = heads.find(data)
        if found is None:
            body = self.feed(data)
            if self.head_done and self.status == 200 and not self.until_eof:
                heads.keep(data, self.headers, self.reason, keep_alive=self.keep_alive)
            return body
        seen, self.values, rest = found
        self.seen = seen
        self.begun = self.head_done = self.news = True
        self.status = 200
        self.reason = seen.reason
        self.keep_alive = seen.keep_alive
        # The parser still has to know how the body is framed.
        if seen.chunked:
            self._owed = _CHUNKED_HEAD
            return self._feed_after_head(rest)
        length = self.values[seen.length_at]
        return self.feed(b"HTTP/1.1 200\r\ncontent-length: %b\r\n\r\n%b" % (length, rest))

    def _feed_after_head(self, data: bytes) -> bytes:
        """`feed` for what follows a head that has been seen.

        If that is nothing, or one event in one chunk, the parser waits: the event leaves earlier.
        """
        if not data:
            self.between_chunks = True
            return data
        body = chunk_body(data)
        if body is None:
            return self.feed(data)
        self.between_chunks = True
        return body

    def feed(self, data: bytes) -> bytes:
        """Read `data`; return the body bytes in it, joined (empty when there are none)."""
        if self._owed:
            data, self._owed = self._owed + data, b""
        parse = self._parse  # as a local: calling a slot's value through `self` is slower
        try:
            parse(data)
        except httptools.HttpParserUpgrade:
            self._refuse("the engine switched protocols")
        except httptools.HttpParserError as error:
            if self.complete:
                self.surplus = self.news = True
            elif self.fault is None:
                self._refuse(f"malformed response: {error}")
        body = self._take_pieces(data)
        # A line break after the body's last is none of the body's, so it ends the chunk: no
        # other place in the framing has a line break before this one.
        self.between_chunks = body.endswith(b"\n\n") and data.endswith(b"\n\n\r\n")
        return body

    def _take_pieces(self, data: bytes) -> bytes:
        pieces = self._pieces
        if len(pieces) == 1 and not self._head_request:
            self._bare = 0
            return pieces.pop()
        if not pieces:
            if not self.complete and self.fault is None:
                # Endless heads, interim responses, chunk extensions and trailers all end here.
                self._bare += len(data)
                if self._bare > self._limit:
                    self._refuse(f"more than {self._limit} bytes of response head or trailers")
            return b""
        self._bare = 0
        body = b"".join(pieces)
        pieces.clear()
        if self._head_request:
            self.surplus = self.news = True
            return b""
        return body

    def feed_eof(self) -> None:
        """The engine closed its side: completes a body that ends there, else does nothing."""
        if self.head_done and self.until_eof:
            self.complete = self.news = True

    def release(self) -> None:
        """Drop the parser, which refers back to this object."""
        del self._parse, self._parser

    # llhttp's callbacks

    def on_message_begin(self) -> None:
        if self.complete:
            self.surplus = self.news = True
        else:
            self.begun = True

    def on_status(self, reason: bytes) -> None:
        if not self.complete and not self.head_done:
            self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.head_done:  # later ones are trailers
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.complete or self.seen is not None:
            return
        parser = self._parser
        status = parser.get_status_code()
        version = _VERSIONS.get(parser.get_http_version())
        if version is None:
            self._stop(f"the engine speaks HTTP/{parser.get_http_version()}")
            return
        if status < 200:
            if status == 101:
                self._stop("the engine switched protocols")
            self._interim = True
            return
        size = 0
        framed = False
        for name, value in self._headers:
            size += len(name) + len(value) + 4
            lowered = name.lower()
            if lowered == b"content-length":
                framed = True
            elif lowered == b"transfer-encoding":
                framed = value.rpartition(b",")[2].strip().lower() == b"chunked"
        if size > self._limit:
            self._stop(f"more than {self._limit} bytes of response head")
        self.status = status
        self.version = version
        self.keep_alive = parser.should_keep_alive()
        self.until_eof = not framed
        self.head_done = self.news = True
        if self._head_request:
            self.complete = True  # llhttp cannot be told, and would wait for a body

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = self.begun = False
            self._headers = []
            self.reason = b""
        elif self.head_done:
            self.complete = self.news = True

    def _refuse(self, why: str) -> None:
        self.fault = why
        self.news = True

    def _stop(self, why: str) -> None:
        self._refuse(why)
        raise _Refused
