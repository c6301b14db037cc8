"""Requests that two readers may read in two ways, each with the reading that is right.

The references are sections of RFC 9112 where no other is named.
"""

# ruff: noqa: E501  one case a line
from dataclasses import dataclass

One = tuple[bytes, bytes, bytes]
"""Method, target and body as the engine must get them."""


@dataclass(frozen=True)
class Reading:
    """What is to be made of the bytes.

    requests: what the engine gets, and the client an answer to, in this order. status: then a
    refusal with one of these. then: `open` when another request may follow on the connection,
    `closed`, or `waits` when the bytes are no whole request yet. Where something was refused, the
    connection may be closed in any case; and where it comes behind a good request, the end of the
    connection says enough.
    """

    requests: tuple[One, ...] = ()
    status: tuple[int, ...] = ()
    then: str = "open"


@dataclass(frozen=True)
class Case:
    name: str
    section: str
    data: bytes
    reading: Reading


def refused(*status: int, then: str = "closed") -> Reading:
    return Reading(status=status or (400,), then=then)


def reads(*requests: One, then: str = "open") -> Reading:
    return Reading(requests, then=then)


def reads_then_refuses(*requests: One, status: tuple[int, ...] = (400,)) -> Reading:
    return Reading(requests, status=status, then="closed")


WAITS = Reading(then="waits")

A: One = (b"GET", b"/a", b"")
B: One = (b"GET", b"/b", b"")
HELLO: One = (b"POST", b"/a", b"hello")
EMPTY: One = (b"POST", b"/a", b"")
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n"


def get(*lines: bytes, first: bytes = b"GET /a HTTP/1.1") -> bytes:
    """A request without a body; without a Host line of its own it gets one."""
    named = any(line.lower().startswith(b"host") for line in lines)
    return b"".join(line + b"\r\n" for line in (first, *(() if named else (b"Host: a",)), *lines, b""))  # fmt: skip


def post(*lines: bytes, body: bytes = b"", first: bytes = b"POST /a HTTP/1.1") -> bytes:
    return get(*lines, first=first) + body


def chunked(body: bytes, *lines: bytes) -> bytes:
    """A POST with a body in the chunked coding as given."""
    return post(b"Transfer-Encoding: chunked", *lines, body=body)


FIVE = b"5\r\nhello\r\n"
END = b"0\r\n\r\n"

LENGTHS = [
    Case("length and chunked (CL.TE)", "6.3", post(b"Content-Length: 6", b"Transfer-Encoding: chunked", body=END + b"G"), refused()),
    Case("chunked and length (TE.CL)", "6.3", post(b"Transfer-Encoding: chunked", b"Content-Length: 3", body=b"8\r\nSMUGGLED\r\n" + END), refused()),
    Case("length 0 and chunked", "6.3", post(b"Content-Length: 0", b"Transfer-Encoding: chunked", body=END + HIDDEN), refused()),
    Case("length and chunked on GET", "6.3", get(b"Content-Length: 5", b"Transfer-Encoding: chunked") + END + HIDDEN, refused()),
    Case("two lengths that differ", "6.3", post(b"Content-Length: 5", b"Content-Length: 0", body=b"hello"), refused()),
    Case("two lengths alike", "6.3", post(b"Content-Length: 5", b"Content-Length: 5", body=b"hello"), refused()),
    Case("a list of lengths alike", "6.3", post(b"Content-Length: 5, 5", body=b"hello"), refused()),
    Case("a list of lengths that differ", "6.3", post(b"Content-Length: 5, 6", body=b"hello"), refused()),
    Case("length with a plus", "RFC 9110 8.6", post(b"Content-Length: +5", body=b"hello"), refused()),
    Case("length with a minus", "RFC 9110 8.6", post(b"Content-Length: -5", body=b"hello"), refused()),
    Case("length minus zero", "RFC 9110 8.6", post(b"Content-Length: -0", body=HIDDEN), refused()),
    Case("length in hexadecimal", "RFC 9110 8.6", post(b"Content-Length: 0x5", body=b"hello"), refused()),
    Case("length with a point", "RFC 9110 8.6", post(b"Content-Length: 5.0", body=b"hello"), refused()),
    Case("length with an exponent", "RFC 9110 8.6", post(b"Content-Length: 5e0", body=b"hello"), refused()),
    Case("length with an underscore", "RFC 9110 8.6", post(b"Content-Length: 1_0", body=b"helloworld"), refused()),
    Case("length in words", "RFC 9110 8.6", post(b"Content-Length: five", body=b"hello"), refused()),
    Case("length empty", "RFC 9110 8.6", post(b"Content-Length:", body=HIDDEN), refused()),
    Case("length of a blank", "RFC 9110 8.6", post(b"Content-Length: ", body=HIDDEN), refused()),
    Case("length in two words", "RFC 9110 8.6", post(b"Content-Length: 5 0", body=b"hello"), refused()),
    Case("length with a comma at its end", "RFC 9110 8.6", post(b"Content-Length: 5,", body=b"hello"), refused()),
    Case("length in Arabic digits", "RFC 9110 8.6", post("Content-Length: ٥".encode(), body=b"hello"), refused()),
    Case("length in quotes", "RFC 9110 8.6", post(b'Content-Length: "5"', body=b"hello"), refused()),
    Case("length above 64 bits", "6.3", post(b"Content-Length: 18446744073709551621", body=b"hello"), refused()),
    Case("length of a hundred digits", "6.3", post(b"Content-Length: " + b"9" * 100, body=b"hello"), refused()),
    Case("length with zeros before it", "RFC 9110 8.6", post(b"Content-Length: 005", body=b"hello"), reads(HELLO)),
    Case("length with blanks around it", "5.1", post(b"Content-Length:  5  ", body=b"hello"), reads(HELLO)),
    Case("length with a tab after it", "5.1", post(b"Content-Length: 5\t", body=b"hello"), reads(HELLO)),
    Case("length without a blank", "5.1", post(b"Content-Length:5", body=b"hello"), reads(HELLO)),
    Case("length in capitals", "RFC 9110 5.1", post(b"CONTENT-LENGTH: 5", body=b"hello"), reads(HELLO)),
    Case("length with a blank before the colon", "5.1", post(b"Content-Length : 5", body=b"hello"), refused()),
    Case("length with an underscore in its name", "RFC 9110 5.1", post(b"Content_Length: 33", body=HIDDEN), reads(EMPTY, (b"GET", b"/hidden", b""))),
    Case("body of a GET", "6", get(b"Content-Length: 5") + b"hello", reads((b"GET", b"/a", b"hello"))),
    Case("body of a GET that looks like a request (CL.0)", "6", get(b"Content-Length: %d" % len(HIDDEN)) + HIDDEN, reads((b"GET", b"/a", HIDDEN))),
    Case("body of a POST that looks like a request (CL.0)", "6", post(b"Content-Length: %d" % len(HIDDEN), body=HIDDEN), reads((b"POST", b"/a", HIDDEN))),
    Case("body of a DELETE", "6", post(b"Content-Length: 5", body=b"hello", first=b"DELETE /a HTTP/1.1"), reads((b"DELETE", b"/a", b"hello"))),
    Case("body of an OPTIONS", "6", post(b"Content-Length: 5", body=b"hello", first=b"OPTIONS /a HTTP/1.1"), reads((b"OPTIONS", b"/a", b"hello"))),
    Case("POST without a length", "6.3", post(), reads(EMPTY)),
    Case("POST without a length, and a request behind it", "6.3", post() + HIDDEN, reads(EMPTY, (b"GET", b"/hidden", b""))),
    Case("more than the length says", "6.3", post(b"Content-Length: 5", body=b"hello") + get(first=b"GET /b HTTP/1.1"), reads(HELLO, B)),
    Case("more than the length says, and no request", "6.3", post(b"Content-Length: 5", body=b"hello") + b"world!!\r\n\r\n", reads_then_refuses(HELLO)),
    Case("less than the length says", "6.3", post(b"Content-Length: 6", body=b"hello"), WAITS),
]  # fmt: skip

CODINGS = [
    Case("chunked", "7.1", chunked(FIVE + END), reads(HELLO)),
    Case("chunked in capitals", "RFC 9110 10.1.4", post(b"TRANSFER-ENCODING: CHUNKED", body=FIVE + END), reads(HELLO)),
    Case("chunked on GET", "6.1", get(b"Transfer-Encoding: chunked") + FIVE + END, reads((b"GET", b"/a", b"hello"))),
    Case("chunked twice in one line", "6.1", post(b"Transfer-Encoding: chunked, chunked", body=FIVE + END), refused(400, 501)),
    Case("chunked twice in two lines", "6.1", post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=FIVE + END), refused(400, 501)),
    Case("chunked and then identity", "6.3", post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", body=FIVE + END), refused(400, 501)),
    Case("identity and then chunked", "6.1", post(b"Transfer-Encoding: identity", b"Transfer-Encoding: chunked", body=FIVE + END), refused(400, 501, then="open")),
    Case("identity", "6.1", post(b"Transfer-Encoding: identity", b"Content-Length: 5", body=b"hello"), refused(400, 501)),
    Case("identity alone", "6.3", post(b"Transfer-Encoding: identity", body=HIDDEN), refused(400, 501)),
    Case("gzip, chunked", "6.1", post(b"Transfer-Encoding: gzip, chunked", body=FIVE + END), refused(400, 501, then="open")),
    Case("gzip", "6.3", post(b"Transfer-Encoding: gzip", body=HIDDEN), refused(400, 501)),
    Case("chunked, gzip", "6.3", post(b"Transfer-Encoding: chunked, gzip", body=FIVE + END), refused(400, 501)),
    Case("xchunked", "6.3", post(b"Transfer-Encoding: xchunked", body=FIVE + END), refused(400, 501)),
    Case("chunkedx", "6.3", post(b"Transfer-Encoding: chunkedx", body=FIVE + END), refused(400, 501)),
    Case("xchunked and a length (TE.TE)", "6.3", post(b"Transfer-Encoding: xchunked", b"Content-Length: 5", body=b"hello"), refused(400, 501)),
    Case("chunk", "6.3", post(b"Transfer-Encoding: chunk", body=FIVE + END), refused(400, 501)),
    Case("chunked in quotes", "6.3", post(b'Transfer-Encoding: "chunked"', body=FIVE + END), refused(400, 501)),
    Case("chunked with a parameter", "6.3", post(b"Transfer-Encoding: chunked;q=1", body=FIVE + END), refused(400, 501)),
    Case("chunked with a comma before it", "6.3", post(b"Transfer-Encoding: ,chunked", body=FIVE + END), refused(400, 501, then="open")),
    Case("chunked with a comma after it", "6.3", post(b"Transfer-Encoding: chunked,", body=FIVE + END), refused(400, 501)),
    Case("an empty coding", "6.3", post(b"Transfer-Encoding:", body=HIDDEN), refused(400, 501)),
    Case("an empty coding and a length", "6.3", post(b"Transfer-Encoding:", b"Content-Length: 5", body=b"hello"), refused(400, 501)),
    Case("chunked with a blank before the colon", "5.1", post(b"Transfer-Encoding : chunked", body=FIVE + END), refused()),
    Case("chunked with a tab before the colon", "5.1", post(b"Transfer-Encoding\t: chunked", body=FIVE + END), refused()),
    Case("chunked without a blank", "5.1", post(b"Transfer-Encoding:chunked", body=FIVE + END), reads(HELLO)),
    Case("chunked after a tab", "5.1", post(b"Transfer-Encoding:\tchunked", body=FIVE + END), reads(HELLO)),
    Case("chunked before a blank", "5.1", post(b"Transfer-Encoding: chunked ", body=FIVE + END), reads(HELLO)),
    Case("chunked after a vertical tab", "RFC 9110 5.5", post(b"Transfer-Encoding: \x0bchunked", body=FIVE + END), refused(400, 501)),
    Case("chunked before a vertical tab", "RFC 9110 5.5", post(b"Transfer-Encoding: chunked\x0b", body=FIVE + END), refused(400, 501)),
    Case("chunked after a form feed", "RFC 9110 5.5", post(b"Transfer-Encoding: \x0cchunked", body=FIVE + END), refused(400, 501)),
    Case("chunked after a no-break space", "RFC 9110 5.5", post(b"Transfer-Encoding: \xa0chunked", body=FIVE + END), refused(400, 501)),
    Case("chunked before NUL", "RFC 9110 5.5", post(b"Transfer-Encoding: chunked\x00", body=FIVE + END), refused(400, 501)),
    Case("chunked on a folded line", "5.2", post(b"Transfer-Encoding:\r\n chunked", body=FIVE + END), refused()),
    Case("chunked behind a folded line", "5.2", post(b"X-A: b\r\n Transfer-Encoding: chunked", b"Content-Length: 5", body=b"hello"), refused()),
    Case("a blank before the name", "5.2", post(b" Transfer-Encoding: chunked", b"Content-Length: 5", body=b"hello"), refused()),
    Case("a blank before the first name", "2.2", b"POST /a HTTP/1.1\r\n Transfer-Encoding: chunked\r\nHost: a\r\n\r\n" + FIVE + END, refused()),
    Case("Transfer_Encoding", "RFC 9110 5.1", post(b"Transfer_Encoding: chunked", b"Content-Length: 5", body=b"hello"), reads(HELLO)),
    Case("chunked from HTTP/1.0", "6.1", post(b"Transfer-Encoding: chunked", body=FIVE + END, first=b"POST /a HTTP/1.0"), refused()),
    Case("chunked named by Connection", "RFC 9110 7.6.1", chunked(FIVE + END, b"Connection: transfer-encoding"), reads(HELLO)),
    Case("length named by Connection", "RFC 9110 7.6.1", post(b"Connection: content-length", b"Content-Length: 5", body=b"hello"), reads(HELLO)),
    Case("host named by Connection", "RFC 9110 7.6.1", get(b"Connection: host"), reads(A)),
    Case("chunked behind a carriage return", "2.2", post(b"X: y\rTransfer-Encoding: chunked", b"Content-Length: 5", body=b"hello"), refused()),
    Case("chunked behind a line feed", "2.2", post(b"X: y\nTransfer-Encoding: chunked", b"Content-Length: 5", body=b"hello"), refused()),
]  # fmt: skip

CHUNKS = [
    Case("size in capitals", "7.1", chunked(b"A\r\n0123456789\r\n" + END), reads((b"POST", b"/a", b"0123456789"))),
    Case("size with zeros before it", "7.1", chunked(b"0005\r\nhello\r\n" + END), reads(HELLO)),
    Case("last chunk of many zeros", "7.1", chunked(FIVE + b"00000\r\n\r\n"), reads(HELLO)),
    Case("size with 0x", "7.1", chunked(b"0x5\r\nhello\r\n" + END), refused()),
    Case("size with a plus", "7.1", chunked(b"+5\r\nhello\r\n" + END), refused()),
    Case("size with a minus", "7.1", chunked(b"-5\r\nhello\r\n" + END), refused()),
    Case("size empty", "7.1", chunked(b"\r\nhello\r\n" + END), refused()),
    Case("size no number", "7.1", chunked(b"zz\r\nhello\r\n" + END), refused()),
    Case("size with an underscore", "7.1", chunked(b"1_0\r\nhello\r\n" + END), refused()),
    Case("size above 64 bits", "7.1", chunked(b"10000000000000005\r\nhello\r\n" + END), refused()),
    Case("size of 64 bits, all set", "7.1", chunked(b"FFFFFFFFFFFFFFFF\r\nhello\r\n" + END), refused()),
    Case("size that is too small", "7.1", chunked(b"4\r\nhello\r\n" + END), refused()),
    Case("size that is too large", "7.1", chunked(b"6\r\nhello\r\n" + END), refused()),
    Case("blank before the size", "7.1", chunked(b" 5\r\nhello\r\n" + END), refused()),
    Case("blank after the size", "7.1.1", chunked(b"5 \r\nhello\r\n" + END), refused()),
    Case("tab after the size", "7.1.1", chunked(b"5\t\r\nhello\r\n" + END), refused()),
    Case("size ends in a line feed", "7.1", chunked(b"5\nhello\r\n" + END), refused()),
    Case("size ends in a carriage return", "7.1", chunked(b"5\rhello\r\n" + END), refused()),
    Case("chunk ends in a line feed", "7.1", chunked(b"5\r\nhello\n" + END), refused()),
    Case("chunk without an end", "7.1", chunked(b"5\r\nhello" + END), refused()),
    Case("chunk ends in something else", "7.1", chunked(b"5\r\nhelloXX" + END), refused()),
    Case("last chunk ends in a line feed", "7.1", chunked(FIVE + b"0\n\r\n"), refused()),
    Case("last chunk and line feeds", "7.1", chunked(FIVE + b"0\r\n\n"), refused()),
    Case("last chunk is missing", "7.1", chunked(FIVE), WAITS),
    Case("last empty line is missing", "7.1", chunked(FIVE + b"0\r\n"), WAITS),
    Case("extension", "7.1.1", chunked(b"5;a=b\r\nhello\r\n" + END), reads(HELLO)),
    Case("extension without a value", "7.1.1", chunked(b"5;a\r\nhello\r\n" + END), reads(HELLO)),
    Case("extension in quotes", "7.1.1", chunked(b'5;a="b c"\r\nhello\r\n' + END), reads(HELLO)),
    Case("extension on the last chunk", "7.1.1", chunked(FIVE + b"0;a=b\r\n\r\n"), reads(HELLO)),
    Case("extension with a line feed", "7.1.1", chunked(b"5;a\nxx\r\nhello\r\n" + END), refused()),
    Case("extension with a carriage return", "7.1.1", chunked(b"5;a\rxx\r\nhello\r\n" + END), refused()),
    Case("extension with an open quote", "7.1.1", chunked(b'5;a="b\r\nhello\r\n' + END), reads(HELLO)),
    Case("extension with a line end in quotes", "7.1.1", chunked(b'5;a="\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\n\r\n"\r\nhello\r\n' + END), refused()),
    Case("extension without a name", "7.1.1", chunked(b"5;\r\nhello\r\n" + END), reads(HELLO)),
    Case("extension of 100 kB", "7.1.1", chunked(b"5;a=" + b"b" * 100_000 + b"\r\nhello\r\n" + END), refused(400, 413, 431)),
    Case("trailer", "7.1.2", chunked(FIVE + b"0\r\nX-A: b\r\n\r\n"), reads(HELLO)),
    Case("trailer that frames", "RFC 9110 6.5.1", chunked(FIVE + b"0\r\nContent-Length: 50\r\n\r\n") + HIDDEN, reads(HELLO, (b"GET", b"/hidden", b""))),
    Case("trailer that codes", "RFC 9110 6.5.1", chunked(FIVE + b"0\r\nTransfer-Encoding: chunked\r\n\r\n") + HIDDEN, reads(HELLO, (b"GET", b"/hidden", b""))),
    Case("trailer that names a host", "RFC 9110 6.5.1", chunked(FIVE + b"0\r\nHost: b\r\n\r\n"), reads(HELLO)),
    Case("trailer with a line feed", "7.1.2", chunked(FIVE + b"0\r\nX-A: b\nX: c\r\n\r\n"), refused()),
    Case("trailer folded", "5.2", chunked(FIVE + b"0\r\nX-A: b\r\n c\r\n\r\n"), refused()),
    Case("trailer without a colon", "7.1.2", chunked(FIVE + b"0\r\nnothing\r\n\r\n"), refused()),
    Case("trailers of 200 kB", "7.1.2", chunked(FIVE + b"0\r\n" + b"X-A: %b\r\n" % (b"b" * 1000) * 200 + b"\r\n"), refused(400, 413, 431)),
    Case("request behind the last chunk", "7.1", chunked(FIVE + END) + get(first=b"GET /b HTTP/1.1"), reads(HELLO, B)),
    Case("line end behind the last chunk", "2.2", chunked(FIVE + END) + b"\r\n" + get(first=b"GET /b HTTP/1.1"), reads(HELLO, B)),
    Case("request in a chunk", "7.1", chunked(b"%x\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)), reads((b"POST", b"/a", HIDDEN))),
]  # fmt: skip

LINES = [
    Case("line feeds only", "2.2", b"GET /a HTTP/1.1\nHost: a\n\n", refused()),
    Case("line feed after the request line", "2.2", b"GET /a HTTP/1.1\nHost: a\r\n\r\n", refused()),
    Case("line feed after a header", "2.2", b"GET /a HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", refused()),
    Case("line feed for the last line", "2.2", b"GET /a HTTP/1.1\r\nHost: a\r\n\n", refused()),
    Case("carriage return in a value", "2.2", get(b"X-A: b\rc"), refused()),
    Case("carriage return twice", "2.2", b"GET /a HTTP/1.1\r\nHost: a\r\r\n\r\n", refused()),
    Case("carriage returns only", "2.2", b"GET /a HTTP/1.1\rHost: a\r\r", refused()),
    Case("carriage return in the request line", "2.2", b"GET /a\r HTTP/1.1\r\nHost: a\r\n\r\n", refused()),
    Case("NUL in a value", "RFC 9110 5.5", get(b"X-A: b\x00c"), refused()),
    Case("NUL in a name", "RFC 9110 5.1", get(b"X\x00A: b"), refused()),
    Case("NUL in the target", "3.2", get(first=b"GET /a\x00b HTTP/1.1"), refused()),
    Case("control in a value", "RFC 9110 5.5", get(b"X-A: b\x01c"), refused()),
    Case("DEL in a value", "RFC 9110 5.5", get(b"X-A: b\x7fc"), refused()),
    Case("escape in a value", "RFC 9110 5.5", get(b"X-A: b\x1bc"), refused()),
    Case("high bytes in a value", "RFC 9110 5.5", get(b"X-A: \xe9\xff"), reads(A)),
    Case("high bytes in a name", "RFC 9110 5.1", get(b"X-\xe9: b"), refused()),
    Case("blank in a name", "5.1", get(b"X A: b"), refused()),
    Case("blank after a name", "5.1", get(b"X-A : b"), refused()),
    Case("tab after a name", "5.1", get(b"X-A\t: b"), refused()),
    Case("no name", "5.1", get(b": b"), refused()),
    Case("no colon", "5", get(b"X-A"), refused()),
    Case("parenthesis in a name", "5.1", get(b"X(A): b"), refused()),
    Case("at sign in a name", "5.1", get(b"X@A: b"), refused()),
    Case("slash in a name", "5.1", get(b"X/A: b"), refused()),
    Case("folded value", "5.2", get(b"X-A: b\r\n c"), refused()),
    Case("folded with a tab", "5.2", get(b"X-A: b\r\n\tc"), refused()),
    Case("folded host", "5.2", b"GET /a HTTP/1.1\r\nHost:\r\n a\r\n\r\n", refused()),
    Case("line of a blank", "5.2", b"GET /a HTTP/1.1\r\nHost: a\r\n \r\n\r\n", refused()),
    Case("empty value", "5", get(b"X-A:"), reads(A)),
    Case("colon in a value", "5", get(b"X-A: b: c"), reads(A)),
    Case("empty lines before the request", "2.2", b"\r\n" + get(), reads(A)),
    Case("line feed before the request", "2.2", b"\n" + get(), reads(A)),
    Case("blank before the request", "2.2", b" " + get(), refused()),
    Case("NUL before the request", "2.2", b"\x00" + get(), refused()),
    Case("BOM before the request", "2.2", b"\xef\xbb\xbf" + get(), refused()),
]  # fmt: skip

TARGETS = [
    Case("two blanks before the target", "3", get(first=b"GET  /a HTTP/1.1"), refused()),
    Case("two blanks before the version", "3", get(first=b"GET /a  HTTP/1.1"), refused()),
    Case("tab for a blank", "3", get(first=b"GET\t/a HTTP/1.1"), refused()),
    Case("blank after the version", "3", get(first=b"GET /a HTTP/1.1 "), refused()),
    Case("blank in the target", "3.2", get(first=b"GET /a b HTTP/1.1"), refused()),
    Case("blank in the target, with a version", "3.2", get(first=b"GET /a HTTP/1.1 HTTP/1.1"), refused()),
    Case("no target", "3", get(first=b"GET HTTP/1.1"), refused()),
    Case("HTTP/0.9", "3", b"GET /a\r\n\r\n", refused(400, 505)),
    Case("HTTP/0.9 in words", "2.3", get(first=b"GET /a HTTP/0.9"), refused(400, 505)),
    Case("HTTP/1.2", "2.3", get(first=b"GET /a HTTP/1.2"), refused(400, 505)),
    Case("HTTP/2.0", "2.3", get(first=b"GET /a HTTP/2.0"), refused(400, 505)),
    Case("HTTP/2 preface", "RFC 9113 3.4", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", refused(400, 505)),
    Case("HTTP/3.0", "2.3", get(first=b"GET /a HTTP/3.0"), refused(400, 505)),
    Case("HTTP/1.10", "2.3", get(first=b"GET /a HTTP/1.10"), refused(400, 505)),
    Case("HTTP/11", "2.3", get(first=b"GET /a HTTP/11"), refused(400, 505)),
    Case("HTTP/1", "2.3", get(first=b"GET /a HTTP/1"), refused(400, 505)),
    Case("HTTP/01.1", "2.3", get(first=b"GET /a HTTP/01.1"), refused(400, 505)),
    Case("http in small letters", "2.3", get(first=b"GET /a http/1.1"), refused(400, 505)),
    Case("another protocol", "2.3", get(first=b"GET /a XTTP/1.1"), refused(400, 505)),
    Case("RTSP", "2.3", get(first=b"DESCRIBE /a RTSP/1.0"), refused(400, 505)),
    Case("ICE", "2.3", get(first=b"SOURCE /a ICE/1.0"), refused(400, 505)),
    Case("method in small letters", "3.1", get(first=b"get /a HTTP/1.1"), refused(400, 405, 501)),
    Case("method that nobody knows", "3.1", get(first=b"HELLO /a HTTP/1.1"), refused(400, 405, 501)),
    Case("method with a parenthesis", "3.1", get(first=b"G(T /a HTTP/1.1"), refused()),
    Case("CONNECT", "3.2.3", get(first=b"CONNECT a:443 HTTP/1.1"), refused(400, 405, 501)),
    Case("CONNECT with a request behind it", "3.2.3", get(first=b"CONNECT a:443 HTTP/1.1") + HIDDEN, refused(400, 405, 501)),
    Case("asterisk", "3.2.4", get(first=b"OPTIONS * HTTP/1.1"), reads((b"OPTIONS", b"*", b""))),
    Case("absolute form", "3.2.2", get(first=b"GET http://a/a HTTP/1.1"), reads(A)),
    Case("absolute form of another host", "3.2.2", get(first=b"GET http://elsewhere/a HTTP/1.1"), reads(A)),
    Case("absolute form with a user", "3.2.2", get(first=b"GET http://u:p@elsewhere/a HTTP/1.1"), reads(A)),
    Case("absolute form without a path", "3.2.2", get(first=b"GET http://a HTTP/1.1"), reads((b"GET", b"/", b""))),
    Case("absolute form with a query only", "3.2.2", get(first=b"GET http://a?b HTTP/1.1"), reads((b"GET", b"/?b", b""))),
    Case("two slashes", "3.2.1", get(first=b"GET //elsewhere/a HTTP/1.1"), reads((b"GET", b"//elsewhere/a", b""))),
    Case("dots in the path", "3.2.1", get(first=b"GET /x/../a HTTP/1.1"), reads((b"GET", b"/x/../a", b""))),
    Case("coded line end in the path", "3.2.1", get(first=b"GET /a%0d%0aHost:%20b HTTP/1.1"), reads((b"GET", b"/a%0d%0aHost:%20b", b""))),
    Case("backslash in the path", "3.2.1", get(first=b"GET /a\\b HTTP/1.1"), reads((b"GET", b"/a\\b", b""))),
    Case("high bytes in the path", "3.2.1", get(first=b"GET /\xc3\xa9 HTTP/1.1"), refused()),
    Case("fragment", "3.2.1", get(first=b"GET /a#b HTTP/1.1"), reads((b"GET", b"/a#b", b""))),
    Case("no host", "3.2", b"GET /a HTTP/1.1\r\n\r\n", refused(then="open")),
    Case("two hosts", "3.2", get(b"Host: a", b"Host: b"), refused(then="open")),
    Case("two hosts alike", "3.2", get(b"Host: a", b"Host: a"), refused(then="open")),
    Case("empty host", "3.2", get(b"Host:"), reads(A)),
    Case("host with a blank", "3.2", get(b"Host: a b"), refused(then="open")),
    Case("host with a path", "3.2", get(b"Host: a/b"), refused(then="open")),
    Case("host with a user", "3.2", get(b"Host: u@a"), refused(then="open")),
    Case("host with a comma", "3.2", get(b"Host: a, b"), refused(then="open")),
    Case("host of IPv6", "3.2", get(b"Host: [::1]:80"), reads(A)),
    Case("host with a blank before the colon", "5.1", get(b"Host : a"), refused()),
]  # fmt: skip

H2C = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__")
CONNECTIONS = [
    Case("upgrade with a length", "RFC 9110 7.8", post(*H2C, b"Content-Length: 5", body=b"hello"), reads(HELLO)),
    Case("upgrade with chunks", "RFC 9110 7.8", chunked(FIVE + END, *H2C), reads(HELLO)),
    Case("upgrade without a body", "RFC 9110 7.8", get(*H2C), reads(A)),
    Case("upgrade whose body is a request", "RFC 9110 7.8", post(*H2C, b"Content-Length: %d" % len(HIDDEN), body=HIDDEN), reads((b"POST", b"/a", HIDDEN))),
    Case("upgrade and a request behind it", "RFC 9110 7.8", get(*H2C) + get(first=b"GET /b HTTP/1.1"), reads(A, B)),
    Case("upgrade with length and chunked", "6.3", post(*H2C, b"Content-Length: 5", b"Transfer-Encoding: chunked", body=FIVE + END), refused()),
    Case("upgrade to nothing known", "RFC 9110 7.8", post(b"Connection: upgrade", b"Upgrade: x/1", b"Content-Length: 5", body=b"hello"), reads(HELLO)),
    Case("upgrade to TLS", "RFC 2817", get(b"Connection: Upgrade", b"Upgrade: TLS/1.0"), reads(A)),
    Case("upgrade that Connection does not name", "RFC 9110 7.8", post(b"Upgrade: h2c", b"Content-Length: 5", body=b"hello"), reads(HELLO)),
    Case("upgrade from HTTP/1.0", "RFC 9110 7.8", post(b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Length: 5", body=b"hello", first=b"POST /a HTTP/1.0"), reads(HELLO, then="closed")),
    Case("close", "9.6", get(b"Connection: close"), reads(A, then="closed")),
    Case("close and a request behind it", "9.6", get(b"Connection: close") + HIDDEN, reads(A, then="closed")),
    Case("close in capitals", "9.6", get(b"Connection: CLOSE"), reads(A, then="closed")),
    Case("close in a list", "9.6", get(b"Connection: x, close"), reads(A, then="closed")),
    Case("close in a second line", "9.6", get(b"Connection: x", b"Connection: close"), reads(A, then="closed")),
    Case("close and keep-alive", "9.6", get(b"Connection: keep-alive, close"), reads(A, then="closed")),
    Case("keep-alive", "9.3", get(b"Connection: keep-alive"), reads(A)),
    Case("HTTP/1.0", "9.3", b"GET /a HTTP/1.0\r\n\r\n", reads(A, then="closed")),
    Case("HTTP/1.0 and a request behind it", "9.3", b"GET /a HTTP/1.0\r\n\r\n" + HIDDEN, reads(A, then="closed")),
    Case("HTTP/1.0 with keep-alive", "9.3", get(b"Connection: keep-alive", first=b"GET /a HTTP/1.0"), reads(A, then="closed")),
    Case("HTTP/1.0 with a body", "9.3", post(b"Content-Length: 5", body=b"hello", first=b"POST /a HTTP/1.0"), reads(HELLO, then="closed")),
    Case("expectation", "RFC 9110 10.1.1", post(b"Expect: 100-continue", b"Content-Length: 5", body=b"hello"), reads(HELLO)),
    Case("expectation without a body", "RFC 9110 10.1.1", get(b"Expect: 100-continue"), reads(A)),
    Case("expectation from HTTP/1.0", "RFC 9110 10.1.1", post(b"Expect: 100-continue", b"Content-Length: 5", body=b"hello", first=b"POST /a HTTP/1.0"), reads(HELLO, then="closed")),
    Case("expectation and a request behind it", "RFC 9110 10.1.1", post(b"Expect: 100-continue", b"Content-Length: 5", body=b"hello") + HIDDEN, reads(HELLO, (b"GET", b"/hidden", b""))),
    Case("two requests", "9.3.2", get() + get(first=b"GET /b HTTP/1.1"), reads(A, B)),
    Case("HEAD and GET", "9.3.2", get(first=b"HEAD /a HTTP/1.1") + get(first=b"GET /b HTTP/1.1"), reads((b"HEAD", b"/a", b""), B)),
    Case("a good request and a bad one", "9.3.2", get() + b"bad\r\n\r\n", reads_then_refuses(A)),
    Case("a good request, a bad and a hidden one", "9.3.2", get() + get(b"X : y") + HIDDEN, reads_then_refuses(A)),
    Case("a good request and a bad body", "9.3.2", get() + chunked(b"zz\r\n"), reads_then_refuses(A)),
    Case("a good body and a bad one", "9.3.2", chunked(FIVE + END) + chunked(FIVE + b"zz\r\n") + HIDDEN, reads_then_refuses(HELLO)),
    Case("two good requests and a bad body", "9.3.2", get() + get(first=b"GET /b HTTP/1.1") + chunked(b"5\r\nhelloX"), reads_then_refuses(A, B)),
    Case("a good request and two lengths", "9.3.2", get() + post(b"Content-Length: 5", b"Content-Length: 6", body=b"hello") + HIDDEN, reads_then_refuses(A)),
    Case("a good request and HTTP/2", "9.3.2", get() + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Reading((A,), (400, 505), "closed")),
    Case("a bad request and a good one behind it", "9.3.2", get(b"X : y") + HIDDEN, refused()),
    Case("a head that is too large", "RFC 6585 5", get(b"X-A: " + b"b" * 70_000), refused(431, then="open")),
    Case("a good request and a head that is too large", "RFC 6585 5", get() + get(b"X-A: " + b"b" * 70_000), Reading((A,), (431,))),
    Case("half a request line", "3", b"GET /a HT", WAITS),
    Case("half a head", "5", b"GET /a HTTP/1.1\r\nHost: a\r\n", WAITS),
]  # fmt: skip

CASES = [*LENGTHS, *CODINGS, *CHUNKS, *LINES, *TARGETS, *CONNECTIONS]
