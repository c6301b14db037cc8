"""What an engine may send, rightly or wrongly, in answer to one request, and what that must become.

`hello` is the body that a client may see of it; `EVIL` is what nobody may ever see.
"""

from dataclasses import dataclass

OK = b"HTTP/1.1 200 OK\r\n"
FIVE = b"Content-Length: 5\r\n"
HELLO = FIVE + b"\r\nhello"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
IN_CHUNKS = b"\r\n5\r\nhello\r\n0\r\n\r\n"
EVIL = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nEVIL"
EVIL_CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nEVIL\r\n0\r\n\r\n"
ENDLESS = 200_000
"""Bytes that are more than any limit on what is not body."""


@dataclass(frozen=True)
class Odd:
    """pieces: what comes, in as many writes. status: what the client gets, 502 for an envelope.

    body: of a response that passes or is cut. whole: it ends well. again: the connection may carry
    another request. then: what the engine does after the pieces. method: of the request.
    """

    name: str
    pieces: tuple[bytes, ...]
    status: int = 502
    body: bytes = b""
    whole: bool = True
    again: bool = False
    then: str = "stay"
    method: str = "GET"


def passes(
    name: str, *pieces: bytes, status: int = 200, body: bytes = b"hello", again: bool = True,
    then: str = "stay", method: str = "GET",
) -> Odd:  # fmt: skip
    return Odd(name, pieces, status, body, again=again, then=then, method=method)


def surplus(
    name: str, *pieces: bytes, status: int = 200, body: bytes = b"hello", method: str = "GET"
) -> Odd:
    return Odd(name, pieces, status, body, method=method)


def refused(name: str, *pieces: bytes, then: str = "stay") -> Odd:
    return Odd(name, pieces, then=then)


def cut(name: str, *pieces: bytes, body: bytes = b"hello", then: str = "stay") -> Odd:
    return Odd(name, pieces, 200, body, whole=False, then=then)


def status_line(line: bytes) -> bytes:
    return line + b"\r\n" + HELLO


def with_header(line: bytes) -> bytes:
    return OK + line + b"\r\n" + HELLO


def coded(value: bytes) -> bytes:
    return OK + b"Transfer-Encoding: " + value + b"\r\n" + IN_CHUNKS


def long(value: bytes) -> bytes:
    return OK + b"Content-Length: " + value + b"\r\n\r\nhello"


def chunks(rest: bytes) -> bytes:
    return OK + CHUNKED + b"\r\n5\r\nhello\r\n" + rest


STATUS_LINES = [
    refused("status 000", status_line(b"HTTP/1.1 000 Zero")),
    refused("status 099", status_line(b"HTTP/1.1 099 Low")),
    refused("status 600", status_line(b"HTTP/1.1 600 High")),
    refused("status 999", status_line(b"HTTP/1.1 999 Denied")),
    refused("status of two digits", status_line(b"HTTP/1.1 99 Short")),
    refused("status of four digits", status_line(b"HTTP/1.1 2000 Long")),
    refused("status with a letter", status_line(b"HTTP/1.1 2x0 Odd")),
    refused("status with a sign", status_line(b"HTTP/1.1 -20 Odd")),
    refused("no status", status_line(b"HTTP/1.1 OK")),
    refused("no blank after the status", status_line(b"HTTP/1.1 200OK")),
    refused("two blanks before the status", status_line(b"HTTP/1.1  200 OK")),
    refused("a tab before the status", status_line(b"HTTP/1.1\t200 OK")),
    refused("HTTP/2.0", status_line(b"HTTP/2.0 200 OK")),
    refused("HTTP/1.2", status_line(b"HTTP/1.2 200 OK")),
    refused("HTTP/0.9", status_line(b"HTTP/0.9 200 OK")),
    refused("HTTP/11.1", status_line(b"HTTP/11.1 200 OK")),
    refused("RTSP", status_line(b"RTSP/1.0 200 OK")),
    refused("ICE", status_line(b"ICE/1.0 200 OK")),
    refused("ICY", status_line(b"ICY 200 OK")),
    refused("lower case", status_line(b"http/1.1 200 OK")),
    refused("a blank first", status_line(b" HTTP/1.1 200 OK")),
    refused("NUL in the reason", status_line(b"HTTP/1.1 200 O\0K")),
    refused("CR in the reason", status_line(b"HTTP/1.1 200 O\rK")),
    refused("LF after the status line", b"HTTP/1.1 200 OK\n" + HELLO),
    passes("no reason", status_line(b"HTTP/1.1 200 ")),
    passes("no reason, no blank", status_line(b"HTTP/1.1 200")),
    passes("high bytes in the reason", status_line(b"HTTP/1.1 200 \xe4\xf6")),
    passes("418", status_line(b"HTTP/1.1 418 Short And Stout"), status=418),
    passes("599", status_line(b"HTTP/1.1 599 Last"), status=599),
]
HEADERS = [
    refused("NUL in a value", with_header(b"A: b\0c")),
    refused("NUL in a name", with_header(b"A\0: b")),
    refused("control in a value", with_header(b"A: b\x01c")),
    refused("DEL in a value", with_header(b"A: b\x7fc")),
    refused("vertical tab in a value", with_header(b"A: \x0bc")),
    refused("CR in a value", with_header(b"A: b\rContent-Length: 9")),
    refused("CR at the end of a value", with_header(b"A: b\r")),
    refused("LF in a value", with_header(b"A: b\nContent-Length: 9")),
    refused("LF only", (OK + HELLO).replace(b"\r\n", b"\n")),
    refused("folded line", with_header(b"A: b\r\n c")),
    refused("line folded with a tab", with_header(b"A: b\r\n\tc")),
    refused("folded length", OK + b"Content-Length:\r\n 5\r\n\r\nhello"),
    refused("blank before the colon", with_header(b"A : b")),
    refused("tab before the colon", with_header(b"A\t: b")),
    refused("blank before the colon of a length", OK + b"Content-Length : 5\r\n\r\nhello"),
    refused("blank before the first name", with_header(b" A: b")),
    refused("no colon", with_header(b"nothing")),
    refused("no name", with_header(b": b")),
    refused("name with a parenthesis", with_header(b"A(): b")),
    refused("name with high bytes", with_header(b"\xe4: b")),
    passes("high bytes in a value", with_header(b"A: \xe4\xff")),
    passes("empty value", with_header(b"A:")),
    passes("tabs around a value", with_header(b"A:\t b\t ")),
    passes("200 that offers a switch", with_header(b"Connection: upgrade\r\nUpgrade: h2c")),
]
LENGTHS = [
    refused("length and chunked", OK + FIVE + CHUNKED + IN_CHUNKS),
    refused("chunked and length", OK + CHUNKED + FIVE + IN_CHUNKS),
    refused("length and gzip", OK + FIVE + b"Transfer-Encoding: gzip\r\n\r\nhello"),
    refused("two lengths", OK + FIVE + b"Content-Length: 9\r\n\r\nhello"),
    refused("one length twice", OK + FIVE + HELLO),
    refused("list of lengths", long(b"5, 9")),
    refused("list of one length", long(b"5, 5")),
    refused("length with a plus", long(b"+5")),
    refused("length with a minus", long(b"-5")),
    refused("length in hex", long(b"0x5")),
    refused("length with a point", long(b"5.0")),
    refused("length with an underscore", long(b"0_5")),
    refused("length with a blank inside", long(b"5 5")),
    refused("length with letters", long(b"5x")),
    refused("no length in it", long(b"")),
    refused("length beyond 64 bits", long(b"18446744073709551616")),
    passes("length with blanks", long(b"  5 ")),
    passes("length with a tab", long(b"\t5\t")),
    passes("length with zeros", long(b"005")),
    passes("length of 18 digits", long(b"0" * 17 + b"5 ")),
    refused("length of 19 digits", long(b"0" * 18 + b"5")),
    refused("length with 5,000 zeros", long(b"0" * 5000 + b"5")),
    passes("length of another name", OK + b"Content_Length: 9\r\n" + HELLO),
    passes("length 0", OK + b"Content-Length: 0\r\n\r\n", body=b""),
    refused("length of 64 bits", long(b"18446744073709551615")),
    cut("huge length", long(b"999999999999999999"), then="close"),
]
CODINGS = [
    refused("gzip", coded(b"gzip")),
    refused("gzip, chunked", coded(b"gzip, chunked")),
    refused("gzip,chunked", coded(b"gzip,chunked")),
    refused("chunked, gzip", coded(b"chunked, gzip")),
    refused("chunked, chunked", coded(b"chunked, chunked")),
    refused("gzip, then chunked", coded(b"gzip\r\nTransfer-Encoding: chunked")),
    refused("chunked, then gzip", coded(b"chunked\r\nTransfer-Encoding: gzip")),
    refused("chunked twice", coded(b"chunked\r\nTransfer-Encoding: chunked")),
    refused("chunked, then nothing", coded(b"chunked\r\nTransfer-Encoding:")),
    refused("comma after chunked", coded(b"chunked,")),
    refused("comma before chunked", coded(b",chunked")),
    refused("tab after chunked", coded(b"chunked\t")),
    refused("parameter of chunked", coded(b"chunked;q=1")),
    refused("chunked in quotes", coded(b'"chunked"')),
    refused("xchunked", coded(b"xchunked")),
    refused("vertical tab before chunked", coded(b"\x0bchunked")),
    refused("identity", coded(b"identity")),
    refused("no coding in it", coded(b"")),
    passes("chunked in capitals", coded(b"CHUNKED")),
    passes("blank after chunked", coded(b"chunked ")),
    passes("tab before chunked", coded(b"\tchunked")),
]
VERSIONS = [
    passes("1.0 with a length", b"HTTP/1.0 200 OK\r\n" + HELLO, again=False),
    passes("1.0 to the end", b"HTTP/1.0 200 OK\r\n\r\nhello", again=False, then="close"),
    passes("1.0 that stays", b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n" + HELLO),
    passes(
        "1.0 that says so without a length",
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\nhello",
        again=False,
        then="close",
    ),
    passes("1.0 in chunks", b"HTTP/1.0 200 OK\r\n" + CHUNKED + IN_CHUNKS, again=False),
    passes(
        "1.0 in chunks that stays",
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n" + CHUNKED + IN_CHUNKS,
        again=False,
    ),
    passes("1.1 to the end", OK + b"\r\nhello", again=False, then="close"),
    cut("1.1 to a reset", OK + b"\r\nhello", then="reset"),
    passes("close", OK + b"Connection: close\r\n" + HELLO, again=False),
    passes("close in capitals", OK + b"CONNECTION: CLOSE\r\n" + HELLO, again=False),
    passes("keep-alive, close", OK + b"Connection: keep-alive, close\r\n" + HELLO, again=False),
    passes(
        "close, then keep-alive",
        OK + b"Connection: close\r\nConnection: keep-alive\r\n" + HELLO,
        again=False,
    ),
    passes("close in chunks", OK + b"Connection: close\r\n" + CHUNKED + IN_CHUNKS, again=False),
    passes("Proxy-Connection: close", OK + b"Proxy-Connection: close\r\n" + HELLO, again=False),
    passes("not a close", OK + b"Connection: closed, x-close\r\n" + HELLO),
]
INTERIM = [
    passes("100", b"HTTP/1.1 100 Continue\r\n\r\n", OK + HELLO),
    passes(
        "100 twice and 103",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 2,
        b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n",
        OK + HELLO,
    ),
    passes(
        "100 that says close", b"HTTP/1.1 100 Continue\r\nConnection: close\r\n\r\n" + OK + HELLO
    ),
    passes("100 in 1.0", b"HTTP/1.0 100 Continue\r\n\r\n" + OK + HELLO),
    passes("103 with a length", b"HTTP/1.1 103 Hints\r\n" + FIVE + b"\r\n" + OK + HELLO),
    passes("104 with a length", b"HTTP/1.1 104 Odd\r\n" + FIVE + b"\r\n" + OK + HELLO),
    passes("104 in chunks", b"HTTP/1.1 104 Odd\r\n" + CHUNKED + b"\r\n" + OK + HELLO),
    passes("102 before chunks", b"HTTP/1.1 102 Wait\r\n\r\n", OK + CHUNKED + IN_CHUNKS),
    refused("103 with a body", b"HTTP/1.1 103 Hints\r\n" + FIVE + b"\r\nEVIL!" + OK + HELLO),
    refused("104 with a body", b"HTTP/1.1 104 Odd\r\n" + FIVE + b"\r\nEVIL!" + OK + HELLO),
    refused("100 and no more", b"HTTP/1.1 100 Continue\r\n\r\n", then="close"),
    refused("100 and a bad head", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 20 OK\r\n\r\n"),
    refused("101", b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\nEVIL"),
    refused("101 without a word", b"HTTP/1.1 101 Switching\r\n\r\n" + EVIL),
    refused("100 without end", b"HTTP/1.1 100 Continue\r\n\r\n" * (ENDLESS // 25)),
]
NOTHING = [
    refused("closed", then="close"),
    refused("reset", then="reset"),
    refused("half a head, closed", OK + b"Content-Le", then="close"),
    refused("half a head, reset", OK + b"Content-Le", then="reset"),
    refused("another protocol", b"SSH-2.0-OpenSSH_9.6\r\n"),
    refused("a TLS alert", b"\x15\x03\x01\x00\x02\x02\x28", then="close"),
    refused("HTML", b"<html><body>502 Bad Gateway</body></html>\r\n\r\n", then="close"),
    refused("an HTTP/2 frame", b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64"),
    refused("one endless header", OK + b"A: " + b"a" * ENDLESS),
    refused("endless headers", OK + b"A: b\r\n" * (ENDLESS // 6)),
    refused("a head of 100 kB", OK + b"A: " + b"a" * 100_000 + b"\r\n" + HELLO),
    refused("endless line ends", b"\r\n" * (ENDLESS // 2)),
    refused("an endless reason", b"HTTP/1.1 200 " + b"a" * ENDLESS),
    surplus("line ends first", b"\r\n\r\n" + OK + HELLO),
    surplus("line ends between", b"HTTP/1.1 100 Continue\r\n\r\n\r\n" + OK + HELLO),
]
BODILESS = [
    passes("204", b"HTTP/1.1 204 No\r\n\r\n", status=204, body=b""),
    passes("304 with a length", b"HTTP/1.1 304 Same\r\n" + FIVE + b"\r\n", status=304, body=b""),
    passes("204 with a length", b"HTTP/1.1 204 No\r\n" + FIVE + b"\r\n", status=204, body=b""),
    passes("HEAD with a length", OK + FIVE + b"\r\n", body=b"", method="HEAD"),
    passes("HEAD in chunks", OK + CHUNKED + b"\r\n", body=b"", method="HEAD"),
    surplus(
        "204 with a body", b"HTTP/1.1 204 No\r\n" + FIVE + b"\r\n", b"EVIL!", status=204, body=b""
    ),
    surplus("204 in chunks", b"HTTP/1.1 204 No\r\n" + CHUNKED, IN_CHUNKS, status=204, body=b""),
    surplus("204 and more", b"HTTP/1.1 204 No\r\n\r\n", EVIL, status=204, body=b""),
    surplus(
        "304 with a body", b"HTTP/1.1 304 Same\r\n" + FIVE + b"\r\n", b"EVIL!", status=304, body=b""
    ),
    surplus("304 and more", b"HTTP/1.1 304 Same\r\n\r\n", EVIL, status=304, body=b""),
    surplus("HEAD with a body", OK + FIVE + b"\r\n", b"EVIL!", body=b"", method="HEAD"),
    surplus(
        "HEAD with chunks", OK + CHUNKED, b"\r\n4\r\nEVIL\r\n0\r\n\r\n", body=b"", method="HEAD"
    ),
    surplus("HEAD and more", OK + FIVE + b"\r\n", EVIL, body=b"", method="HEAD"),
]
SURPLUS = [
    surplus("a second response", OK + HELLO, EVIL),
    surplus("a second one in chunks", OK + HELLO, EVIL_CHUNKS),
    surplus("half a second one", OK + HELLO, EVIL[:20]),
    surplus("three responses", OK + HELLO, EVIL, EVIL),
    surplus("a second error", OK + HELLO, b"HTTP/1.1 500 No\r\nContent-Length: 4\r\n\r\nEVIL"),
    surplus("an interim one after it", OK + HELLO, b"HTTP/1.1 100 Continue\r\n\r\n" + EVIL),
    surplus("more than the length", OK + HELLO, b"EVIL"),
    surplus("a byte more than the length", OK + HELLO, b"!"),
    surplus("a line end after the length", OK + HELLO, b"\r\n"),
    surplus("an LF after the length", OK + HELLO, b"\n"),
    surplus("a NUL after the length", OK + HELLO, b"\0"),
    surplus(
        "what the body ends in once more",
        OK + b"Content-Length: 2\r\n\r\n\n\n",
        b"\n\n",
        body=b"\n\n",
    ),
    surplus("one after an empty body", OK + b"Content-Length: 0\r\n\r\n", EVIL, body=b""),
    surplus("a line end after an empty body", OK + b"Content-Length: 0\r\n\r\n", b"\r\n", body=b""),
    surplus("one after chunks", OK + CHUNKED + IN_CHUNKS, EVIL),
    surplus("one in chunks after chunks", OK + CHUNKED + IN_CHUNKS, EVIL_CHUNKS),
    surplus("chunks after the last chunk", OK + CHUNKED + IN_CHUNKS, b"4\r\nEVIL\r\n0\r\n\r\n"),
    surplus("a second last chunk", OK + CHUNKED + IN_CHUNKS, b"0\r\n\r\n"),
    surplus("a line end after the last chunk", OK + CHUNKED + IN_CHUNKS, b"\r\n"),
    surplus("an LF after the last chunk", OK + CHUNKED + IN_CHUNKS, b"\n"),
    surplus("two line ends after the last chunk", OK + CHUNKED + IN_CHUNKS, b"\r\n\r\n"),
    surplus("a byte after the last chunk", OK + CHUNKED + IN_CHUNKS, b"!"),
    surplus("one after trailers", chunks(b"0\r\nA: b\r\n\r\n"), EVIL),
    surplus("one after a close", OK + b"Connection: close\r\n" + HELLO, EVIL),
    surplus("bytes after a close", OK + b"Connection: close\r\n" + HELLO, b"EVIL"),
    surplus("one after 1.0", b"HTTP/1.0 200 OK\r\n" + HELLO, EVIL),
    surplus(
        "one after a 1.0 that stays", b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n" + HELLO, EVIL
    ),
    surplus("one after an error", b"HTTP/1.1 503 Busy\r\n" + HELLO, EVIL, status=503),
    surplus(
        "one after events",
        OK + CHUNKED + b"\r\n",
        b"9\r\ndata: x\n\n\r\n",
        b"9\r\ndata: y\n\n\r\n",
        b"0\r\n\r\n",
        EVIL_CHUNKS,
        body=b"data: x\n\ndata: y\n\n",
    ),
    surplus(
        "one with the last event",
        OK + CHUNKED + b"\r\n",
        b"9\r\ndata: x\n\n\r\n",
        b"9\r\ndata: y\n\n\r\n0\r\n\r\n" + EVIL_CHUNKS,
        body=b"data: x\n\ndata: y\n\n",
    ),
]
CHUNKS = [
    passes("chunks", OK + CHUNKED + IN_CHUNKS),
    passes("size with zeros", chunks(b"000\r\n\r\n")),
    passes("extension", OK + CHUNKED + b"\r\n5;a=b;c\r\nhello\r\n0;d\r\n\r\n"),
    passes("trailers", chunks(b"0\r\nA: b\r\nConnection: close\r\n\r\n")),
    cut("no size", chunks(b"\r\nEVIL")),
    cut("size that is none", chunks(b"zz\r\nEVIL")),
    cut("size with a prefix", chunks(b"0x4\r\nEVIL\r\n0\r\n\r\n")),
    cut("size with a sign", chunks(b"+4\r\nEVIL\r\n0\r\n\r\n")),
    cut("blank before a size", chunks(b" 4\r\nEVIL\r\n0\r\n\r\n")),
    cut("blank after a size", chunks(b"4 \r\nEVIL\r\n0\r\n\r\n")),
    cut("blank before an extension", chunks(b"4 ;a\r\nEVIL\r\n0\r\n\r\n")),
    cut("LF after a size", chunks(b"4\nEVIL\r\n0\r\n\r\n")),
    cut("CR in an extension", chunks(b"4;\rx\r\nEVIL\r\n0\r\n\r\n")),
    cut("line break in a quoted extension", chunks(b'4;a="\r\n"\r\nEVIL\r\n0\r\n\r\n')),
    cut("size beyond 64 bits", chunks(b"10000000000000000\r\nEVIL")),
    cut("LF after a chunk", OK + CHUNKED + b"\r\n5\r\nhello\n0\r\n\r\n"),
    cut("no line end after a chunk", OK + CHUNKED + b"\r\n5\r\nhello0\r\n\r\n"),
    cut("chunk longer than its size", OK + CHUNKED + b"\r\n5\r\nhelloEVIL\r\n0\r\n\r\n"),
    cut("LF after the last chunk's size", chunks(b"0\n\n")),
    cut("LF for the last line", chunks(b"0\r\n\n")),
    cut("LF in the trailers", chunks(b"0\r\nA: b\n\r\n")),
    cut("NUL in the trailers", chunks(b"0\r\nA: \0\r\n\r\n")),
    cut("folded trailer", chunks(b"0\r\nA: b\r\n c\r\n\r\n")),
    cut("length in the trailers", chunks(b"0\r\nContent-Length: 4\r\n\r\nEVIL")),
    cut("response for trailers", chunks(b"0\r\n" + EVIL)),
    cut("endless extension", chunks(b"4;" + b"a" * ENDLESS)),
    cut("endless trailer", chunks(b"0\r\nA: " + b"a" * ENDLESS)),
    cut("endless trailers", chunks(b"0\r\n" + b"A: b\r\n" * (ENDLESS // 6))),
    cut("endless zeros", chunks(b"0" * ENDLESS)),
    cut("closed between chunks", chunks(b""), then="close"),
    cut("closed in a size", chunks(b"5"), then="close"),
    cut("closed in a chunk", OK + CHUNKED + b"\r\n9\r\nhello", then="close"),
    cut("closed after a chunk's bytes", OK + CHUNKED + b"\r\n5\r\nhello", then="close"),
    cut("closed in the last chunk", chunks(b"0\r\n"), then="close"),
    cut("closed in the last line", chunks(b"0\r\n\r"), then="close"),
    cut("closed in the trailers", chunks(b"0\r\nA: b\r\n"), then="close"),
    cut("reset between chunks", chunks(b""), then="reset"),
    cut("closed in the length", OK + b"Content-Length: 9\r\n\r\nhello", then="close"),
    cut("reset in the length", OK + b"Content-Length: 9\r\n\r\nhello", then="reset"),
    cut("closed before the length", OK + b"Content-Length: 9\r\n\r\n", body=b"", then="close"),
]

CASES = [
    *STATUS_LINES,
    *HEADERS,
    *LENGTHS,
    *CODINGS,
    *VERSIONS,
    *INTERIM,
    *NOTHING,
    *BODILESS,
    *SURPLUS,
    *CHUNKS,
]
