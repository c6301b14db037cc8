"""Responses that two readers may read in two ways, each with the reading that is right.

The references are sections of RFC 9112 where no other is named.
"""

# ruff: noqa: E501  one case a line
from dataclasses import dataclass


@dataclass(frozen=True)
class Reading:
    """What the client gets: `status` with `body`, whole, or cut at the end of `body`.

    again: whether the engine's connection may carry another exchange; None where both are right.
    """

    status: int
    body: bytes = b""
    whole: bool = True
    again: bool | None = True


@dataclass(frozen=True)
class Case:
    """closes: the engine ends the connection behind the bytes. method: of the request."""

    name: str
    section: str
    data: bytes
    reading: Reading
    closes: bool = False
    method: str = "GET"


def passes(body: bytes = b"hello", status: int = 200, again: bool | None = True) -> Reading:
    return Reading(status, body, again=again)


REFUSED = Reading(502, again=False)
"""Nothing of it reaches the client but the proxy's own word."""


def cut(body: bytes = b"hello") -> Reading:
    return Reading(200, body, whole=False, again=False)


def ok(*lines: bytes, body: bytes = b"", first: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return b"".join(line + b"\r\n" for line in (first, *lines, b"")) + body


def counted(*lines: bytes, body: bytes = b"hello", first: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return ok(b"Content-Length: %d" % len(body), *lines, body=body, first=first)


def chunked(body: bytes, *lines: bytes) -> bytes:
    return ok(b"Transfer-Encoding: chunked", *lines, body=body)


FIVE = b"5\r\nhello\r\n"
END = b"0\r\n\r\n"
EVIL = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nEVIL"

FRAMING = [
    Case("length", "6.2", counted(), passes()),
    Case("length 0", "6.2", counted(body=b""), passes(b"")),
    Case("chunks", "7.1", chunked(FIVE + END), passes()),
    Case("until close", "6.3", ok(body=b"hello"), passes(again=False), closes=True),
    Case("length and chunked", "6.3", ok(b"Content-Length: 5", b"Transfer-Encoding: chunked", body=FIVE + END), REFUSED),
    Case("chunked and length", "6.3", ok(b"Transfer-Encoding: chunked", b"Content-Length: 3", body=FIVE + END), REFUSED),
    Case("two lengths that differ", "6.3", ok(b"Content-Length: 5", b"Content-Length: 3", body=b"hello"), REFUSED),
    Case("two lengths alike", "6.3", ok(b"Content-Length: 5", b"Content-Length: 5", body=b"hello"), REFUSED),
    Case("a list of lengths", "6.3", ok(b"Content-Length: 5, 5", body=b"hello"), REFUSED),
    Case("length with a plus", "RFC 9110 8.6", ok(b"Content-Length: +5", body=b"hello"), REFUSED),
    Case("length with a minus", "RFC 9110 8.6", ok(b"Content-Length: -5", body=b"hello"), REFUSED),
    Case("length in hexadecimal", "RFC 9110 8.6", ok(b"Content-Length: 0x5", body=b"hello"), REFUSED),
    Case("length empty", "RFC 9110 8.6", ok(b"Content-Length:", body=b"hello"), REFUSED),
    Case("length above 64 bits", "6.3", ok(b"Content-Length: 18446744073709551621", body=b"hello"), REFUSED),
    Case("length with a blank before the colon", "5.1", ok(b"Content-Length : 5", body=b"hello"), REFUSED),
    Case("length with zeros before it", "RFC 9110 8.6", ok(b"Content-Length: 005", body=b"hello"), passes()),
    Case("length without a blank", "5.1", ok(b"Content-Length:5", body=b"hello"), passes()),
    Case("length in capitals", "RFC 9110 5.1", ok(b"CONTENT-LENGTH: 5", body=b"hello"), passes()),
    Case("less than the length says", "6.3", ok(b"Content-Length: 50", body=b"hello"), cut(), closes=True),
    Case("nothing of what the length says", "6.3", ok(b"Content-Length: 50"), cut(b""), closes=True),
    Case("more than the length says", "6.3", ok(b"Content-Length: 5", body=b"helloEVIL"), passes(again=False)),
    Case("a response behind the length", "6.3", counted() + EVIL, passes(again=False)),
    Case("two responses behind the length", "6.3", counted() + EVIL + EVIL, passes(again=False)),
    Case("a response behind length 0", "6.3", counted(body=b"") + EVIL, passes(b"", again=False)),
    Case("line end behind the length", "2.2", counted() + b"\r\n", passes(again=None)),
    Case("a response behind the chunks", "7.1", chunked(FIVE + END) + EVIL, passes(again=False)),
    Case("more chunks behind the last", "7.1", chunked(FIVE + END + b"4\r\nEVIL\r\n0\r\n\r\n"), passes(again=False)),
    Case("two responses in chunks", "7.1", chunked(FIVE + END) + chunked(b"4\r\nEVIL\r\n" + END), passes(again=False)),
    Case("half a response behind the chunks", "7.1", chunked(FIVE + END) + b"HTTP/1.1 200", passes(again=False)),
    Case("one byte behind the length", "6.3", counted() + b"H", passes(again=False)),
    Case("an interim response behind the length", "RFC 9110 15.2", counted() + b"HTTP/1.1 100 Continue\r\n\r\n", passes(again=False)),
    Case("chunked and gzip", "6.3", ok(b"Transfer-Encoding: chunked, gzip", body=FIVE + END), REFUSED, closes=True),
    Case("gzip, chunked", "6.1", ok(b"Transfer-Encoding: gzip, chunked", body=FIVE + END), REFUSED, closes=True),
    Case("gzip", "6.3", ok(b"Transfer-Encoding: gzip", body=b"hello"), REFUSED, closes=True),
    Case("identity", "6.3", ok(b"Transfer-Encoding: identity", body=b"hello"), REFUSED, closes=True),
    Case("identity and a length", "6.3", ok(b"Transfer-Encoding: identity", b"Content-Length: 5", body=b"hello"), REFUSED),
    Case("chunked twice", "6.1", ok(b"Transfer-Encoding: chunked, chunked", body=FIVE + END), REFUSED),
    Case("chunked in two lines", "6.1", ok(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=FIVE + END), REFUSED),
    Case("xchunked", "6.3", ok(b"Transfer-Encoding: xchunked", body=FIVE + END), REFUSED, closes=True),
    Case("chunked before a vertical tab", "RFC 9110 5.5", ok(b"Transfer-Encoding: chunked\x0b", body=FIVE + END), REFUSED, closes=True),
    Case("chunked with a blank before the colon", "5.1", ok(b"Transfer-Encoding : chunked", body=FIVE + END), REFUSED),
    Case("chunked in capitals", "RFC 9110 10.1.4", ok(b"TRANSFER-ENCODING: CHUNKED", body=FIVE + END), passes()),
    Case("chunked in HTTP/1.0", "6.1", ok(b"Transfer-Encoding: chunked", body=FIVE + END, first=b"HTTP/1.0 200 OK"), passes(again=False)),
]  # fmt: skip

CHUNKS = [
    Case("size in capitals, with zeros", "7.1", chunked(b"000A\r\n0123456789\r\n" + END), passes(b"0123456789")),
    Case("extension", "7.1.1", chunked(b"5;a=b\r\nhello\r\n" + END), passes()),
    Case("extension in quotes", "7.1.1", chunked(b'5;a="b"\r\nhello\r\n' + END), passes()),
    Case("trailer", "7.1.2", chunked(FIVE + b"0\r\nX-A: b\r\n\r\n"), passes()),
    Case("trailer that frames", "RFC 9110 6.5.1", chunked(FIVE + b"0\r\nX-A: b\r\nContent-Length: 9\r\n\r\n"), cut()),
    Case("trailer folded", "5.2", chunked(FIVE + b"0\r\nX-A: b\r\n c\r\n\r\n"), cut()),
    Case("size no number", "7.1", chunked(FIVE + b"zz\r\nEVIL\r\n" + END), cut()),
    Case("size with 0x", "7.1", chunked(FIVE + b"0x4\r\nEVIL\r\n" + END), cut()),
    Case("size with a plus", "7.1", chunked(FIVE + b"+4\r\nEVIL\r\n" + END), cut()),
    Case("size with a minus", "7.1", chunked(FIVE + b"-4\r\nEVIL\r\n" + END), cut()),
    Case("size above 64 bits", "7.1", chunked(FIVE + b"10000000000000004\r\nEVIL\r\n" + END), cut()),
    Case("size that is too small", "7.1", chunked(FIVE + b"2\r\nEVIL\r\n" + END), cut(b"helloEV")),
    Case("size that is too large", "7.1", chunked(FIVE + b"ff\r\nmore"), cut(b"hellomore"), closes=True),
    Case("chunk without an end", "7.1", chunked(b"5\r\nhello0\r\n\r\n"), cut()),
    Case("chunk ends in a line feed", "7.1", chunked(b"5\r\nhello\n" + END), cut()),
    Case("size ends in a line feed", "7.1", chunked(FIVE + b"4\nEVIL\r\n" + END), cut()),
    Case("last chunk is missing", "7.1", chunked(FIVE), cut(), closes=True),
    Case("last empty line is missing", "7.1", chunked(FIVE + b"0\r\n"), cut(), closes=True),
    Case("half a size", "7.1", chunked(FIVE + b"1"), cut(), closes=True),
    Case("endless extension", "7.1.1", chunked(FIVE + b"4;a=" + b"b" * 1_000_000 + b"\r\nEVIL\r\n" + END), cut()),
    Case("endless trailers", "7.1.2", chunked(FIVE + b"0\r\n" + b"X-A: %b\r\n" % (b"b" * 1000) * 1000 + b"\r\n"), cut()),
]  # fmt: skip

NO_BODY = [
    Case("204", "6.3", ok(first=b"HTTP/1.1 204 No Content"), passes(b"", 204)),
    Case("204 with a length", "6.3", ok(b"Content-Length: 4", body=b"EVIL", first=b"HTTP/1.1 204 No Content"), passes(b"", 204, again=False)),
    Case("204 with a response behind it", "6.3", ok(first=b"HTTP/1.1 204 No Content") + EVIL, passes(b"", 204, again=False)),
    Case("304 with a length", "6.3", ok(b"Content-Length: 50", first=b"HTTP/1.1 304 Not Modified"), passes(b"", 304)),
    Case("304 with chunked", "6.3", ok(b"Transfer-Encoding: chunked", first=b"HTTP/1.1 304 Not Modified"), passes(b"", 304, again=None)),
    Case("304 with a body", "6.3", ok(b"Content-Length: 4", body=b"EVIL", first=b"HTTP/1.1 304 Not Modified"), passes(b"", 304, again=False)),
    Case("HEAD", "6.3", ok(b"Content-Length: 50"), passes(b""), method="HEAD"),
    Case("HEAD with chunked", "6.3", ok(b"Transfer-Encoding: chunked"), passes(b"", again=None), method="HEAD"),
    Case("HEAD without a length", "6.3", ok(), passes(b"", again=None), method="HEAD"),
    Case("HEAD with a body", "6.3", counted(body=b"EVIL"), passes(b"", again=False), method="HEAD"),
    Case("HEAD with a body in chunks", "6.3", chunked(b"4\r\nEVIL\r\n" + END), passes(b"", again=False), method="HEAD"),
    Case("HEAD with a response behind it", "6.3", ok(b"Content-Length: 50") + EVIL, passes(b"", again=False), method="HEAD"),
    Case("205 with a body", "RFC 9110 15.3.6", counted(first=b"HTTP/1.1 205 Reset Content"), passes(status=205)),
]  # fmt: skip

INTERIM = [
    Case("100 first", "RFC 9110 15.2", ok(first=b"HTTP/1.1 100 Continue") + counted(), passes()),
    Case("102 first", "RFC 9110 15.2", ok(first=b"HTTP/1.1 102 Processing") + counted(), passes()),
    Case("103 with headers first", "RFC 8297", ok(b"Link: </a>", first=b"HTTP/1.1 103 Early Hints") + counted(), passes()),
    Case("several of them first", "RFC 9110 15.2", ok(first=b"HTTP/1.1 100 Continue") * 20 + counted(), passes()),
    Case("103 with a length", "RFC 9110 15.2", ok(b"Content-Length: 5", first=b"HTTP/1.1 103 Early Hints") + counted(), passes()),
    Case("101 unasked", "RFC 9110 15.2.2", ok(b"Upgrade: h2c", b"Connection: upgrade", first=b"HTTP/1.1 101 Switching Protocols") + b"EVIL", REFUSED),
    Case("101 and a response", "RFC 9110 15.2.2", ok(first=b"HTTP/1.1 101 Switching Protocols") + counted(), REFUSED),
    Case("100 alone", "RFC 9110 15.2", ok(first=b"HTTP/1.1 100 Continue"), REFUSED, closes=True),
    Case("50,000 times 100", "RFC 9110 15.2", ok(first=b"HTTP/1.1 100 Continue") * 50_000 + counted(), REFUSED),
]  # fmt: skip

HEADS = [
    Case("HTTP/1.0 with a length", "9.3", counted(first=b"HTTP/1.0 200 OK"), passes(again=False)),
    Case("HTTP/1.0 until close", "6.3", ok(body=b"hello", first=b"HTTP/1.0 200 OK"), passes(again=False), closes=True),
    Case("HTTP/1.0 with keep-alive", "9.3", counted(b"Connection: keep-alive", first=b"HTTP/1.0 200 OK"), passes(again=None)),
    Case("close", "9.6", counted(b"Connection: close"), passes(again=False)),
    Case("close in a list", "9.6", counted(b"Connection: x, CLOSE"), passes(again=False)),
    Case("upgrade offered", "RFC 9110 7.8", counted(b"Connection: upgrade", b"Upgrade: h2c"), passes(again=None)),
    Case("upgrade offered, and chunks", "RFC 9110 7.8", chunked(FIVE + END, b"Connection: upgrade", b"Upgrade: h2c"), passes(again=None)),
    Case("no reason phrase", "4", counted(first=b"HTTP/1.1 200"), passes()),
    Case("empty reason phrase", "4", counted(first=b"HTTP/1.1 200 "), passes()),
    Case("status nobody knows", "RFC 9110 15", counted(first=b"HTTP/1.1 299 Hm"), passes(status=299)),
    Case("status 599", "RFC 9110 15", counted(first=b"HTTP/1.1 599 Hm"), passes(status=599)),
    Case("status 000", "4", counted(first=b"HTTP/1.1 000 Hm"), REFUSED),
    Case("status 099", "4", counted(first=b"HTTP/1.1 099 Hm"), REFUSED),
    Case("status 99", "4", counted(first=b"HTTP/1.1 99 Hm"), REFUSED),
    Case("status 600", "RFC 9110 15", counted(first=b"HTTP/1.1 600 Hm"), REFUSED),
    Case("status 1000", "4", counted(first=b"HTTP/1.1 1000 Hm"), REFUSED),
    Case("status -200", "4", counted(first=b"HTTP/1.1 -200 Hm"), REFUSED),
    Case("status 2x0", "4", counted(first=b"HTTP/1.1 2x0 Hm"), REFUSED),
    Case("no status", "4", counted(first=b"HTTP/1.1"), REFUSED),
    Case("HTTP/0.9", "2.3", b"hello", REFUSED, closes=True),
    Case("HTTP/2.0", "2.3", counted(first=b"HTTP/2.0 200 OK"), REFUSED),
    Case("HTTP/1.2", "2.3", counted(first=b"HTTP/1.2 200 OK"), REFUSED),
    Case("another protocol", "2.3", b"SSH-2.0-OpenSSH_9.6\r\n", REFUSED, closes=True),
    Case("http in small letters", "2.3", counted(first=b"http/1.1 200 OK"), REFUSED),
    Case("line feeds only", "2.2", b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", REFUSED),
    Case("line feed after a header", "2.2", b"HTTP/1.1 200 OK\r\nX-A: b\nContent-Length: 5\r\n\r\nhello", REFUSED),
    Case("carriage return in a value", "2.2", counted(b"X-A: b\rSet-Cookie: c"), REFUSED),
    Case("NUL in a value", "RFC 9110 5.5", counted(b"X-A: b\x00c"), REFUSED),
    Case("control in a value", "RFC 9110 5.5", counted(b"X-A: b\x01c"), REFUSED),
    Case("folded value", "5.2", counted(b"X-A: b\r\n c"), REFUSED),
    Case("length behind a fold", "5.2", ok(b"X-A: b\r\n Content-Length: 50", b"Content-Length: 5", body=b"hello"), REFUSED),
    Case("blank in a name", "5.1", counted(b"X A: b"), REFUSED),
    Case("blank after a name", "5.1", counted(b"X-A : b"), REFUSED),
    Case("no colon", "5", counted(b"X-A"), REFUSED),
    Case("no name", "5.1", counted(b": b"), REFUSED),
    Case("high bytes in a value", "RFC 9110 5.5", counted(b"X-A: \xe9"), passes()),
    Case("carriage return in the reason", "4", counted(first=b"HTTP/1.1 200 O\rK"), REFUSED),
    Case("head of 1 MB", "RFC 6585 5", counted(b"X-A: " + b"b" * 1_000_000), REFUSED),
    Case("half a head", "4", b"HTTP/1.1 200 OK\r\nContent-Le", REFUSED, closes=True),
    Case("half a status line", "4", b"HTTP/1.", REFUSED, closes=True),
    Case("nothing", "4", b"", REFUSED, closes=True),
    Case("line end before the response", "2.2", b"\r\n" + counted(), passes(again=None)),
    Case("length named by Connection", "RFC 9110 7.6.1", counted(b"Connection: content-length"), passes()),
    Case("400 with a length", "RFC 9110 15.5.1", counted(first=b"HTTP/1.1 400 Bad Request"), passes(status=400)),
]  # fmt: skip

CASES = [*FRAMING, *CHUNKS, *NO_BODY, *INTERIM, *HEADS]
