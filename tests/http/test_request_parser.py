"""However a client cuts its bytes, and whatever they are: one reading, and the parser's own."""

import contextlib
import itertools
from dataclasses import dataclass, field

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokgauge.http.error_responses import ErrorResponse
from tokgauge.http.request import Request
from tokgauge.http.request_parser import RequestParser

from tests.http.support import chunked
from tests.http.test_request_lines import BODIES, HEADERS

LIMIT = 2000


@dataclass
class Sink:
    """Takes what is read: requests as (method, target, headers, body), refusals as statuses."""

    requests: list[list[object]] = field(default_factory=list)
    refused: int | None = None
    whole: int = 0
    has_enough: bool = False

    def head_begins(self) -> None: ...

    def request_begins(self, request: Request) -> None:
        if request.refusal is not None:
            self.refused = request.refusal.status
        else:
            headers = [(n, v.strip(b" \t")) for n, v in request.headers]
            self.requests.append([request.method, request.target, headers, b""])

    def request_body(self, data: bytes) -> None:
        assert data
        self.requests[-1][3] += data  # type: ignore[operator]

    def request_ends(self) -> None:
        self.whole += 1

    def body_refused(self, refusal: ErrorResponse) -> None:
        self.refused = refusal.status


def read(data: bytes, cuts: list[int]) -> tuple[Sink, RequestParser]:
    sink = Sink()
    reader = RequestParser(sink, LIMIT)
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, stop in itertools.pairwise(edges):
        reader.feed(data[start:stop])
        while reader.kept:
            reader.resume()
    return sink, reader


class Llhttp:
    """The parser alone, with bodies, as a second reader of the same bytes."""

    def __init__(self, data: bytes) -> None:
        self.requests: list[list[object]] = []
        self.whole = 0
        self._parser = httptools.HttpRequestParser(self)
        with contextlib.suppress(httptools.HttpParserError):  # it does not wait for a line's end
            self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._url, self._headers, self._body, self._in_head = b"", [], b"", True  # type: ignore[var-annotated]

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # not a trailer
            self._headers.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        self._in_head = False
        method = self._parser.get_method().decode()
        self.requests.append([method, self._url, self._headers, b""])

    def on_body(self, body: bytes) -> None:
        self.requests[-1][3] += body  # type: ignore[operator]

    def on_message_complete(self) -> None:
        self.whole += 1


HEAD = b"POST /v1/x HTTP/1.1\r\nHost: a\r\n"
GOOD = [
    b"GET /v1/x?a=b HTTP/1.1\r\nHost: a\r\n\r\n",
    b"\r\nGET / HTTP/1.1\r\nHost:a\r\nX-A:\r\nx-a: \t b c \t\r\n\r\n",
    HEAD + b"Content-Length: 11\r\n\r\nhello\r\n\r\n  ",
    HEAD + b"content-length: 0\r\n\r\n",
    HEAD + b"Content-Length: 36 \r\n\r\nGET /v1/x?a=b HTTP/1.1\r\nHost: a\r\n\r\n ",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(b"hello", b"\r\n0\r\n\r\n", b"x" * 300),
    HEAD + b"Transfer-Encoding: Chunked\r\n\r\n5;a=b\r\nhello\r\n" + chunked(trailer=b"X-T: 1\r\n"),
]
OFFER = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
ODD = [
    *[HEAD + lines + b"\r\n\r\n0\r\n\r\n" for lines in HEADERS.values()],
    *[HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + body for body in BODIES.values()],
    GOOD[0].replace(b"1.1", b"2.0"), GOOD[0].replace(b"HTTP", b"RTSP"), b"\x16\x03\x01\x02\0\x01",
    GOOD[2].replace(b"Host", OFFER + b"Host"), GOOD[5].replace(b"Host", OFFER + b"Host"),
    GOOD[0].replace(b"Host", b"Connection: close\r\nHost"), GOOD[2].replace(b"1.1", b"1.0"),
    b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", HEAD + b"X-A: " + b"a" * 3000 + b"\r\n\r\n",
]  # fmt: skip
ALPHABET = [b"\r\n", b"\r", b"\n", b"\0", b" ", b":", b"0", b"5", b"a", b";", b"\xff", b"HTTP/1.1",
            b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", OFFER, b"Host: b\r\n",
            b"0\r\n\r\n"]  # fmt: skip

edits = st.lists(
    st.tuples(st.integers(0, 2000), st.integers(0, 3), st.sampled_from(ALPHABET)), max_size=3
)
messages = st.lists(st.one_of(st.sampled_from(GOOD), st.sampled_from(ODD)), min_size=1, max_size=4)


def mutated(parts: list[bytes], changes: list[tuple[int, int, bytes]]) -> bytes:
    """The parts one after the other; at places, bytes are taken out and others put in."""
    data = b"".join(parts)
    for at, gone, new in changes:
        place = at % (len(data) + 1)
        data = data[:place] + new + data[place + gone :]
    return data


@settings(max_examples=400, deadline=None, derandomize=True)
@given(messages, edits, st.lists(st.integers(0, 3000), max_size=12))
def test_cuts_change_nothing(
    parts: list[bytes], changes: list[tuple[int, int, bytes]], cuts: list[int]
) -> None:
    data = mutated(parts, changes)
    at_once, _ = read(data, [])
    for way in (cuts, list(range(len(data)))):
        in_pieces, reader = read(data, way)
        if at_once.refused is not None or in_pieces.refused is not None:
            # What was read before it is the same; a part of a broken body may have come, and which
            # of several faults is told may differ.
            assert in_pieces.refused is not None
            assert at_once.refused is not None
            assert reader.ended
            kept = at_once.whole
            assert in_pieces.requests[:kept] == at_once.requests[:kept]
            assert in_pieces.whole == kept
        else:
            assert in_pieces == at_once


@settings(max_examples=800, deadline=None, derandomize=True)
@given(messages, edits)
def test_what_is_accepted_the_parser_reads_alike(
    parts: list[bytes], changes: list[tuple[int, int, bytes]]
) -> None:
    """No request that the parser, or an engine behind it, would see elsewhere or otherwise."""
    data = mutated(parts, changes)
    sink, reader = read(data, [])
    if sink.refused is not None or reader.ended or b"pgrade" in data:
        return  # an offer makes the parser give up the rest, a close both of them
    other = Llhttp(data)
    assert sink.whole == other.whole
    for mine, its in zip(sink.requests[: sink.whole], other.requests, strict=False):
        assert mine[0] == its[0]
        assert mine[2:] == its[2:]


@pytest.mark.parametrize("offer", [b"", OFFER], ids=["plain", "offer"])
@pytest.mark.parametrize("good", GOOD)
def test_an_offer_changes_nothing_else(good: bytes, offer: bytes) -> None:
    with_offer = good.replace(b"Host", offer + b"Host", 1)
    sink, reader = read(with_offer * 3, [])
    assert sink.whole == 3
    assert not reader.ended
    (plain,), _ = read(good, [])[0].requests, None
    assert [request[3] for request in sink.requests] == [plain[3]] * 3


def test_a_flood_of_tiny_chunks_is_read_in_turns() -> None:
    body = b"".join(b"1;a\r\n%c\r\n" % n for n in b"abc" * 2000) + chunked(*[b"d"] * 6000)
    sink = Sink()
    reader = RequestParser(sink, 65536)
    reader.feed(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + body + GOOD[0])
    turns = 0
    while reader.kept:
        before = len(sink.requests[0][3])  # type: ignore[arg-type]
        reader.resume()
        assert len(sink.requests[0][3]) - before < 3000  # type: ignore[arg-type]
        turns += 1
    assert turns > 5
    assert sink.requests[0][3] == b"abc" * 2000 + b"d" * 6000
    assert sink.whole == 2


def test_nothing_begins_while_there_is_enough() -> None:
    sink = Sink(has_enough=True)
    reader = RequestParser(sink, LIMIT)
    reader.feed(GOOD[0] + GOOD[2])
    assert reader.kept
    assert sink.requests == []
    reader.feed(GOOD[5])
    sink.has_enough = False
    reader.resume()
    assert not reader.kept
    assert sink.whole == 3
