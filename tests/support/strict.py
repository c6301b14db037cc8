"""HTTP/1.1 read as strictly as RFC 9112 can be read: what is not certain is nothing.

A second opinion on every byte, independent of the parser that the proxy uses. A request or a
response is read only where no reader that keeps to the RFC could see another one in its place.
What harms nobody is read: empty lines before a message (2.2), any reason phrase, which says nothing
(4), any text in a chunk's extension but line ends (7.1.1), a body's length on an interim response,
which has none.
"""

import re
from dataclasses import dataclass

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_REQUEST_LINE = re.compile(rb"(%b) ([!-~]+) HTTP/1\.([01])" % _TOKEN)
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n]*)?")
_VALUE = rb"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?"
_FIELD = re.compile(rb"(%b):[ \t]*(%b)[ \t]*" % (_TOKEN, _VALUE))
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t -~\x80-\xff]*)?")
_CODING = re.compile(_TOKEN)
_LENGTH = re.compile(rb"[0-9]{1,19}")
_HOST = re.compile(rb"(?:[A-Za-z0-9\-._~!$&'()*+,;=%]*|\[[0-9A-Za-z:.%_~-]+\])(?::[0-9]*)?")

Headers = list[tuple[bytes, bytes]]


class NotStrict(ValueError):
    """The bytes are not certainly a message."""


@dataclass(frozen=True, slots=True)
class Request:
    """A whole request.

    end: where it ends. last: the connection may carry no other after it. refusable: why it must be
    refused although it is certain where it ends.
    """

    method: bytes
    target: bytes
    version: bytes
    headers: Headers
    body: bytes
    end: int
    last: bool
    refusable: str | None

    def header(self, name: bytes) -> bytes | None:
        return next(iter(values(self.headers, name)), None)


@dataclass(frozen=True, slots=True)
class Response:
    """A whole response, interim ones left out. until_close: its body ends with the connection."""

    status: int
    headers: Headers
    body: bytes
    end: int
    last: bool
    until_close: bool

    def header(self, name: bytes) -> bytes | None:
        return next(iter(values(self.headers, name)), None)


def values(headers: Headers, name: bytes) -> list[bytes]:
    """All values of one header; `name` in lower case."""
    return [value for key, value in headers if key.lower() == name]


def read_request(data: bytes | bytearray, start: int = 0) -> Request | None:
    """The request at `start`; None when it is not complete. Raises NotStrict."""
    start = _after_empty_lines(data, start)
    line, at = _line(data, start)
    if line is None:
        return None
    first = _REQUEST_LINE.fullmatch(line)
    if first is None:
        raise NotStrict(f"request line {line[:80]!r}")
    method, target, minor = first.groups()
    headers, at = _fields(data, at)
    if headers is None:
        return None
    if method == b"CONNECT":
        raise NotStrict("CONNECT")
    hosts, codings = values(headers, b"host"), _codings(headers)
    refusable = None
    if len(hosts) > 1 or (minor == b"1" and not hosts):
        refusable = "not one Host"
    elif hosts and _HOST.fullmatch(hosts[0]) is None:
        refusable = f"no host: {hosts[0]!r}"
    elif codings not in ([], [b"chunked"]):
        refusable = f"another coding: {codings!r}"
    length, chunked = _framing(headers, minor)
    body, end = _chunks(data, at) if chunked else _counted(data, at, length or 0)
    if body is None:
        return None
    last = minor == b"0" or b"close" in _connection(headers)
    return Request(method, target, b"1." + minor, headers, body, end, last, refusable)


def read_requests(data: bytes) -> list[Request]:
    """All that `data` certainly holds, in order, up to the first doubt; refusable ones, too."""
    found: list[Request] = []
    at = 0
    while True:
        try:
            one = read_request(data, at)
        except NotStrict:
            return found
        if one is None:
            return found
        found.append(one)
        if one.last:
            return found
        at = one.end


def read_response(
    data: bytes | bytearray, start: int = 0, *, method: bytes = b"GET", closed: bool = False
) -> Response | None:
    """The final response at `start`; None when it is not complete. Raises NotStrict.

    method: of the request that it answers. closed: nothing more comes after `data`.
    """
    while True:
        start = _after_empty_lines(data, start)
        line, at = _line(data, start)
        if line is None:
            return None
        first = _STATUS_LINE.fullmatch(line)
        if first is None:
            raise NotStrict(f"status line {line[:80]!r}")
        minor, status = first[1], int(first[2])
        headers, at = _fields(data, at)
        if headers is None:
            return None
        if status >= 200:
            break
        if status == 101:
            raise NotStrict("a switch that nobody asked for")
        start = at
    if values(headers, b"transfer-encoding") and _codings(headers) != [b"chunked"]:
        raise NotStrict("another coding than chunked")
    # RFC 9112, 6.1: an HTTP/1.0 message in chunks may be read, but it is the connection's last.
    length, chunked = _framing(headers, b"1")
    last = minor == b"0" or b"close" in _connection(headers)
    until_close = False
    body: bytes | None
    if status in (204, 304) or method == b"HEAD":
        body, end = b"", at
    elif chunked:
        body, end = _chunks(data, at)
    elif length is not None:
        body, end = _counted(data, at, length)
    else:
        until_close = last = True
        body, end = (bytes(data[at:]) if closed else None), len(data)
    if body is None:
        return None
    return Response(status, headers, body, end, last, until_close)


def _after_empty_lines(data: bytes | bytearray, start: int) -> int:
    while data[start : start + 1] in (b"\r", b"\n"):
        start += 1
    return start


def _line(data: bytes | bytearray, start: int) -> tuple[bytes | None, int]:
    end = data.find(b"\r\n", start)
    line = bytes(data[start : end if end >= 0 else len(data)])
    if b"\n" in line or b"\r" in line[: None if end >= 0 else -1]:
        raise NotStrict("a bare line end")
    return (line, end + 2) if end >= 0 else (None, start)


def _fields(data: bytes | bytearray, at: int) -> tuple[Headers | None, int]:
    headers: Headers = []
    while True:
        line, at = _line(data, at)
        if line is None:
            return None, at
        if not line:
            return headers, at
        field = _FIELD.fullmatch(line)
        if field is None:
            raise NotStrict(f"header line {line[:80]!r}")
        headers.append((field[1], field[2]))


def _codings(headers: Headers) -> list[bytes]:
    listed = b",".join(values(headers, b"transfer-encoding"))
    return [coding.strip(b" \t").lower() for coding in listed.split(b",") if coding.strip(b" \t")]


def _connection(headers: Headers) -> list[bytes]:
    said = b",".join(values(headers, b"connection"))
    return [option.strip(b" \t").lower() for option in said.split(b",")]


def _framing(headers: Headers, minor: bytes) -> tuple[int | None, bool]:
    """Content-Length, and whether the body is chunked."""
    lengths, codings = values(headers, b"content-length"), _codings(headers)
    if values(headers, b"transfer-encoding"):
        certain = codings[-1:] == [b"chunked"] and codings.count(b"chunked") == 1
        if not certain or not all(map(_CODING.fullmatch, codings)) or lengths or minor == b"0":
            raise NotStrict("a doubtful Transfer-Encoding")
        return None, True
    if len(lengths) > 1 or (lengths and _LENGTH.fullmatch(lengths[0]) is None):
        raise NotStrict("a doubtful Content-Length")
    return (int(lengths[0]) if lengths else None), False


def _counted(data: bytes | bytearray, at: int, length: int) -> tuple[bytes | None, int]:
    end = at + length
    return (bytes(data[at:end]), end) if len(data) >= end else (None, at)


def _chunks(data: bytes | bytearray, at: int) -> tuple[bytes | None, int]:
    pieces: list[bytes] = []
    while True:
        line, at = _line(data, at)
        if line is None:
            return None, at
        chunk = _CHUNK_LINE.fullmatch(line)
        if chunk is None:
            raise NotStrict(f"chunk line {line[:80]!r}")
        size = int(chunk[1], 16)
        if size == 0:
            trailers, at = _fields(data, at)
            return (None if trailers is None else b"".join(pieces)), at
        after = bytes(data[at + size : at + size + 2])
        if not b"\r\n".startswith(after):
            raise NotStrict("a chunk that does not end where it says")
        if len(after) < 2:
            return None, at
        pieces.append(bytes(data[at : at + size]))
        at += size + 2
