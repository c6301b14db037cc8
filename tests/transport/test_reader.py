"""The response reader without sockets: the cutting of the bytes never changes the body."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokgauge.http.client.reader import ResponseReader

from tests.support.odd_responses import CASES, Odd

bodies = st.lists(st.binary(min_size=1, max_size=300), max_size=8)
cuts = st.lists(st.integers(0, 3_000), max_size=40)


def cut_up(raw: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(raw), *(place for place in places if place < len(raw))})
    return [raw[a:b] for a, b in pairwise(edges)]


def read(reader: ResponseReader, parts: list[bytes]) -> bytes:
    return b"".join([reader.feed(part) for part in parts])


def new_reader() -> ResponseReader:
    return ResponseReader(head_request=False, limit=65_536)


@settings(deadline=None)
@given(bodies, cuts, st.sampled_from(["", ";name=value", ';a="b c"']))
def test_chunked(chunks: list[bytes], places: list[int], extension: str) -> None:
    raw = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    for chunk in chunks:
        raw += b"%x%b\r\n%b\r\n" % (len(chunk), extension.encode(), chunk)
    raw += b"0\r\nTrailer: value\r\n\r\n"
    reader = new_reader()
    assert read(reader, cut_up(raw, places)) == b"".join(chunks)
    assert reader.complete
    assert reader.keep_alive
    assert not reader.surplus
    assert reader.fault is None
    assert reader.headers == [(b"transfer-encoding", b"chunked")]
    assert reader.reason == b"OK"


@settings(deadline=None)
@given(bodies, cuts)
def test_length(chunks: list[bytes], places: list[int]) -> None:
    body = b"".join(chunks)
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    reader = new_reader()
    assert read(reader, cut_up(raw, places)) == body
    assert reader.complete
    assert reader.keep_alive
    assert not reader.surplus


@settings(deadline=None)
@given(bodies, cuts)
def test_until_eof(chunks: list[bytes], places: list[int]) -> None:
    body = b"".join(chunks)
    reader = new_reader()
    assert read(reader, cut_up(b"HTTP/1.0 200 OK\r\n\r\n" + body, places)) == body
    assert not reader.complete
    reader.feed_eof()
    assert reader.complete
    assert not reader.keep_alive


@settings(deadline=None)
@given(bodies.filter(bool), cuts, st.integers(0, 10_000))
def test_any_cut_short_is_incomplete(chunks: list[bytes], places: list[int], end: int) -> None:
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    for chunk in chunks:
        raw += b"%x\r\n%b\r\n" % (len(chunk), chunk)
    raw += b"0\r\n\r\n"
    reader = new_reader()
    assert b"".join(chunks).startswith(read(reader, cut_up(raw[: end % len(raw)], places)))
    reader.feed_eof()
    assert not reader.complete
    assert reader.fault is None


@settings(deadline=None)
@given(st.binary(max_size=400), cuts)
def test_any_bytes_end_in_a_state(raw: bytes, places: list[int]) -> None:
    reader = new_reader()
    for part in cut_up(b"HTTP/1.1 200 OK\r\n" + raw, places):
        reader.feed(part)
        if reader.fault is not None:
            assert reader.news
            assert not reader.complete
            break


def verdict(case: Odd, parts: list[bytes]) -> tuple[object, ...]:
    """All that matters of a response; after a fault, or behind its end, no more is read."""
    reader = ResponseReader(head_request=case.method == "HEAD", limit=65_536)
    body = b""
    for part in parts:
        body += reader.feed(part)
        if reader.fault is not None:
            break
    if case.then == "close" and reader.fault is None:
        reader.feed_eof()
    return (
        reader.status, reader.headers, body, reader.complete, reader.surplus,
        reader.complete and not reader.surplus and reader.keep_alive, reader.fault is None,
    )  # fmt: skip


SHORT = [case for case in CASES if sum(map(len, case.pieces)) < 1000]


@pytest.mark.parametrize("case", SHORT, ids=[case.name for case in SHORT])
def test_where_the_reads_are_cut_changes_nothing(case: Odd) -> None:
    raw = b"".join(case.pieces)
    told = verdict(case, [raw])
    for at in range(1, len(raw)):
        assert verdict(case, [raw[:at], raw[at:]]) == told, at
    assert verdict(case, [raw[at : at + 1] for at in range(len(raw))]) == told
