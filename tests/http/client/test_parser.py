"""The response parser without sockets: the cutting of the bytes never changes the body."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokgauge.http.client.parser import ResponseParser

from tests.support.odd_responses import CASES, Odd

pytestmark = pytest.mark.socketless

bodies = st.lists(st.binary(min_size=1, max_size=300), max_size=8)
cuts = st.lists(st.integers(0, 3_000), max_size=40)


def cut_up(raw: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(raw), *(place for place in places if place < len(raw))})
    return [raw[a:b] for a, b in pairwise(edges)]


def read(parser: ResponseParser, parts: list[bytes]) -> bytes:
    return b"".join([parser.feed(part) for part in parts])


def new_parser() -> ResponseParser:
    return ResponseParser(head_request=False, limit=65_536)


@settings(deadline=None)
@given(bodies, cuts, st.sampled_from(["", ";name=value", ';a="b c"']))
def test_chunked(chunks: list[bytes], places: list[int], extension: str) -> None:
    raw = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    for chunk in chunks:
        raw += b"%x%b\r\n%b\r\n" % (len(chunk), extension.encode(), chunk)
    raw += b"0\r\nTrailer: value\r\n\r\n"
    parser = new_parser()
    assert read(parser, cut_up(raw, places)) == b"".join(chunks)
    assert parser.complete
    assert parser.keep_alive
    assert not parser.surplus
    assert parser.fault is None
    assert parser.headers == [(b"transfer-encoding", b"chunked")]
    assert parser.reason == b"OK"


@settings(deadline=None)
@given(bodies, cuts)
def test_length(chunks: list[bytes], places: list[int]) -> None:
    body = b"".join(chunks)
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    parser = new_parser()
    assert read(parser, cut_up(raw, places)) == body
    assert parser.complete
    assert parser.keep_alive
    assert not parser.surplus


@settings(deadline=None)
@given(bodies, cuts)
def test_until_eof(chunks: list[bytes], places: list[int]) -> None:
    body = b"".join(chunks)
    parser = new_parser()
    assert read(parser, cut_up(b"HTTP/1.0 200 OK\r\n\r\n" + body, places)) == body
    assert not parser.complete
    parser.feed_eof()
    assert parser.complete
    assert not parser.keep_alive


@settings(deadline=None)
@given(bodies.filter(bool), cuts, st.integers(0, 10_000))
def test_any_cut_short_is_incomplete(chunks: list[bytes], places: list[int], end: int) -> None:
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    for chunk in chunks:
        raw += b"%x\r\n%b\r\n" % (len(chunk), chunk)
    raw += b"0\r\n\r\n"
    parser = new_parser()
    assert b"".join(chunks).startswith(read(parser, cut_up(raw[: end % len(raw)], places)))
    parser.feed_eof()
    assert not parser.complete
    assert parser.fault is None


@settings(deadline=None)
@given(st.binary(max_size=400), cuts)
def test_any_bytes_end_in_a_state(raw: bytes, places: list[int]) -> None:
    parser = new_parser()
    for part in cut_up(b"HTTP/1.1 200 OK\r\n" + raw, places):
        parser.feed(part)
        if parser.fault is not None:
            assert not parser.complete
            break


def verdict(case: Odd, parts: list[bytes]) -> tuple[object, ...]:
    """All that matters of a response; after a fault, or behind its end, no more is read."""
    parser = ResponseParser(head_request=case.method == "HEAD", limit=65_536)
    body = b""
    for part in parts:
        body += parser.feed(part)
        if parser.fault is not None:
            break
    if case.then == "close" and parser.fault is None:
        parser.feed_eof()
    return (
        parser.status, parser.headers, body, parser.complete, parser.surplus,
        parser.complete and not parser.surplus and parser.keep_alive, parser.fault is None,
    )  # fmt: skip


SHORT = [case for case in CASES if sum(map(len, case.pieces)) < 1000]


@pytest.mark.parametrize("case", SHORT, ids=[case.name for case in SHORT])
def test_where_the_reads_are_cut_changes_nothing(case: Odd) -> None:
    raw = b"".join(case.pieces)
    told = verdict(case, [raw])
    for at in range(1, len(raw)):
        assert verdict(case, [raw[:at], raw[at:]]) == told, at
    assert verdict(case, [raw[at : at + 1] for at in range(len(raw))]) == told
