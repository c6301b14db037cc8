"""Heads of answers that have been seen: read, and passed on, as if each came for the first time."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.client_request import ClientRequest
from proxy.onward import begin_answer, content_of
from proxy.protocol import render_head
from proxy.transport.heads import SeenAnswers
from proxy.transport.reader import ResponseReader

ID = b"the-id"


class Begun:
    """In the place of a client: the head that it gets."""

    keep_alive = True

    def __init__(self, method: str = "POST", version: str = "1.1") -> None:
        host = [(b"host", b"a")]
        self.request = ClientRequest(
            method, b"/v1/x", version, host, keep_alive=True, too_large=False
        )
        self.got: tuple[bytes, bytes, bool] | None = None

    def begin(self, status: int, headers: Any, *, body_follows: bool) -> bool:
        framing, head = render_head(status, headers, self.request, keep_alive=self.keep_alive)
        return self.begin_rendered(framing, head, body_follows=body_follows)

    def begin_rendered(self, framing: bytes, head: bytes, *, body_follows: bool) -> bool:
        self.got = framing, head, body_follows
        return True


def read(
    pieces: list[bytes], seen: SeenAnswers | None, *, hides: bool, to_head: bool = False,
    version: str = "1.1",
) -> dict[str, Any]:  # fmt: skip
    """Everything that a connection, and then a client, gets to know of one answer."""
    reader = ResponseReader(head_request=to_head, limit=65536, seen_answers=seen)
    known: dict[str, Any] = {"body": b"", "head_after": None}
    for number, piece in enumerate(pieces):
        if reader.fault is not None or reader.surplus:
            break
        body = reader.feed(piece) if number else reader.feed_first(piece)
        known["body"] += body
        if reader.head_done and known["head_after"] is None:
            known["head_after"] = number
            client = Begun("HEAD" if to_head else "POST", version)
            known["content"] = content_of(reader)
            begin_answer(
                client, reader, exchange_id=ID, hides=hides, body_follows=bool(body)  # type: ignore[arg-type]
            )  # fmt: skip
            known["onward"] = client.got
    reader.feed_eof()
    for name in (
        "begun", "complete", "head_done", "headers", "keep_alive", "reason", "status", "surplus",
        "until_eof", "version",
    ):  # fmt: skip
        known[name] = getattr(reader, name)
    known["fault"] = reader.fault is not None
    reader.release()
    return known


def all_alike(answers: list[list[bytes]], **how: Any) -> SeenAnswers:
    """Read these answers, remembering and not: all must be the same."""
    seen = SeenAnswers()
    for pieces in answers:
        for hides in (False, True):
            assert read(pieces, seen, hides=hides, **how) == read(pieces, None, hides=hides, **how)
    return seen


DATE = b"date: Mon, 30 Nov 2026 12:00:00 GMT"
LATER = b"date: Mon, 30 Nov 2026 12:00:01 GMT"
EVENTS = b"content-type: text/event-stream"
JSON = b"content-type: application/json"


def head(*lines: bytes, first: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return b"\r\n".join([first, *lines]) + b"\r\n\r\n"


def length(number: int) -> bytes:
    return b"content-length: %d" % number


def whole(body: bytes, *lines: bytes, first: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return head(*lines, length(len(body)), first=first) + body


STREAM = head(DATE, b"server: uvicorn", EVENTS, b"transfer-encoding: chunked")
CHUNK = b"5\r\nhello\r\n"
END = b"0\r\n\r\n"


def test_a_head_that_has_been_seen_is_not_parsed_again() -> None:
    seen = SeenAnswers()
    for body in (b"", b"x", b"hello" * 100):
        for date in (DATE, LATER):
            got = read([whole(body, date, JSON)], seen, hides=False)
            assert got["complete"]
            assert got["body"] == body
            assert got["headers"][0][1] == date[6:]
            read([STREAM.replace(DATE, date), CHUNK + END], seen, hides=True)
    assert len(seen._seen) == 2


TRANSFER = b"Transfer-Encoding: chunked"
ANSWERS: dict[str, list[bytes]] = {
    "no_date": [whole(b"hello", JSON)],
    "no_date_stream": [head(EVENTS, TRANSFER), CHUNK + END],
    "upper_names": [head(b"Date: " + DATE[6:], b"Content-Length: 5") + b"hello"],
    "odd_names": [head(b"DATE: " + DATE[6:], b"CONTENT-LENGTH: 5") + b"hello"],
    "length_first": [head(length(5), b"x-a: 1", DATE) + b"hello"],
    "date_last": [head(EVENTS, TRANSFER, DATE), CHUNK, END],
    "short_date": [whole(b"hello", b"date: now")],
    "long_date": [whole(b"hello", DATE + b" and more")],
    "empty_date": [whole(b"hello", b"date:")],
    "date_of_another_form": [whole(b"hello", b"date: Monday, 30-Nov-26 12:00:00 GMT")],
    "date_of_29_letters": [whole(b"hello", b"date: " + b"x" * 29)],
    "date_with_percent": [whole(b"hello", b"date: " + b"%b" * 14 + b"%")],
    "date_with_nul": [whole(b"hello", DATE.replace(b"12:00", b"12\x0000"))],
    "date_with_del": [whole(b"hello", DATE.replace(b"12:00", b"12\x7f00"))],
    "date_with_high_bytes": [whole(b"hello", DATE.replace(b"12:00", b"12\xff00"))],
    "date_with_cr": [whole(b"hello", DATE.replace(b"12:00", b"12\r00"))],
    "date_with_lf": [whole(b"hello", DATE.replace(b"12:00", b"12\n00"))],
    "date_shorter_with_space": [whole(b"hello", DATE[:-1] + b" ")],
    "date_after_two_spaces": [whole(b"hello", DATE.replace(b"date: ", b"date:  ")[:-1])],
    "date_after_tab": [whole(b"hello", DATE.replace(b"date: ", b"date: \t")[:-1])],
    "date_no_space": [whole(b"hello", DATE.replace(b": ", b":", 1))],
    "two_dates": [whole(b"hello", DATE, LATER)],
    "two_dates_apart": [head(DATE, length(5), b"Date: " + LATER[6:]) + b"hello"],
    "date_in_a_value": [whole(b"hello", b"x-a: " + DATE, DATE)],
    "length_with_zeros": [head(DATE, b"content-length: 005") + b"hello"],
    "length_with_space": [head(DATE, b"content-length: 5 ") + b"hello"],
    "length_of_fourteen": [head(DATE, b"content-length: 00000000000005") + b"hello"],
    "length_of_fifteen": [head(DATE, b"content-length: 000000000000005") + b"hello"],
    "length_of_twenty": [head(DATE, b"content-length: 00000000000000000005") + b"hello"],
    "length_plus": [head(DATE, b"content-length: +5") + b"hello"],
    "length_empty": [head(DATE, b"content-length: ") + b"hello"],
    "length_list": [head(DATE, b"content-length: 5, 5") + b"hello"],
    "length_huge": [head(DATE, b"content-length: 99999999999999999999999") + b"hello"],
    "length_twice": [head(DATE, length(5), length(5)) + b"hello"],
    "length_twice_other": [head(DATE, length(5), length(4)) + b"hello"],
    "length_and_chunked": [head(DATE, length(5), TRANSFER) + CHUNK + END],
    "length_zero": [whole(b"", DATE)],
    "length_zero_surplus": [whole(b"", DATE) + b"x"],
    "another_reason": [whole(b"hello", DATE, first=b"HTTP/1.1 200 Fine indeed")],
    "no_reason": [whole(b"hello", DATE, first=b"HTTP/1.1 200 ")],
    "no_reason_no_space": [whole(b"hello", DATE, first=b"HTTP/1.1 200")],
    "reason_with_percent": [whole(b"hello", DATE, first=b"HTTP/1.1 200 100% %b")],
    "http_1_0": [whole(b"hello", DATE, first=b"HTTP/1.0 200 OK")],
    "http_1_0_kept": [whole(b"hello", b"connection: keep-alive", first=b"HTTP/1.0 200 OK")],
    "created": [whole(b"hello", DATE, first=b"HTTP/1.1 201 Created")],
    "no_content": [head(DATE, first=b"HTTP/1.1 204 No Content")],
    "not_modified": [head(DATE, length(5), first=b"HTTP/1.1 304 Not Modified")],
    "error": [whole(b"{}", DATE, JSON, first=b"HTTP/1.1 400 Bad Request")],
    "interim": [head(first=b"HTTP/1.1 103 Early Hints") + whole(b"hello", DATE)],
    "interim_apart": [head(first=b"HTTP/1.1 100 Continue"), whole(b"hello", DATE)],
    "close": [whole(b"hello", DATE, b"connection: close")],
    "close_stream": [head(DATE, EVENTS, TRANSFER, b"Connection: close"), CHUNK, END],
    "close_surplus": [whole(b"hello", DATE, b"connection: close") + b"more"],
    "names_date": [whole(b"hello", DATE, b"connection: date, keep-alive")],
    "names_length": [whole(b"hello", DATE, b"connection: content-length, x-a", b"x-a: 1")],
    "named": [whole(b"hello", DATE, b"connection: x-a", b"x-a: gone", b"keep-alive: timeout=5")],
    "cookies": [whole(b"hello", DATE, b"set-cookie: a=1", b"Set-Cookie: b=2")],
    "percent": [whole(b"hello", DATE, b"x-a: 100% %b %d %s %%")],
    "percent_name": [whole(b"hello", DATE, b"x%b: 1")],
    "own_id": [whole(b"hello", DATE, b"X-Tokgauge-Id: mine")],
    "buffering": [head(DATE, EVENTS, b"x-accel-buffering: yes", TRANSFER), CHUNK, END],
    "high_bytes": [whole(b"hello", DATE, b"x-a: \xff\xe9")],
    "nul": [whole(b"hello", DATE, b"x-a: \0")],
    "folded": [whole(b"hello", DATE, b"x-a: 1\r\n 2")],
    "only_lf": [whole(b"hello", DATE).replace(b"\r\n", b"\n")],
    "one_lf": [whole(b"hello", DATE).replace(b"GMT\r\n", b"GMT\n")],
    "leading_line_end": [b"\r\n" + whole(b"hello", DATE)],
    "until_close": [head(DATE, JSON) + b"hello"],
    "identity": [head(DATE, b"transfer-encoding: identity") + b"hello"],
    "gzip_until_close": [head(DATE, b"transfer-encoding: gzip") + b"hello"],
    "gzip_chunked": [head(DATE, b"transfer-encoding: gzip, chunked") + CHUNK + END],
    "chunked_twice": [head(DATE, TRANSFER, TRANSFER) + CHUNK + END],
    "chunked_odd_case": [head(DATE, b"Transfer-Encoding: Chunked") + CHUNK + END],
    "xchunked": [head(DATE, b"transfer-encoding: xchunked") + CHUNK + END],
    "trailers": [STREAM, CHUNK + b"0\r\nx-sum: 1\r\ndate: never\r\n\r\n"],
    "extension": [STREAM + b"5;a=b\r\nhello\r\n" + END],
    "end_with_head": [STREAM + END],
    "bad_chunk": [STREAM + b"zz\r\nhello\r\n"],
    "surplus": [whole(b"hello", DATE) + b"HTTP/1.1 200 OK\r\n\r\n"],
    "two_in_one": [whole(b"hello", DATE) * 2],
    "short": [whole(b"hello", DATE)[:-2]],
    "encoded": [whole(b"hello", DATE, b"content-encoding: gzip", JSON)],
    "switching": [head(b"connection: upgrade", b"upgrade: x", first=b"HTTP/1.1 101 Switch")],
    "upgrade": [whole(b"hello", DATE, b"connection: upgrade", b"upgrade: x")],
    "long": [whole(b"hello", DATE, b"x-a: " + b"a" * 5000)],
    "nonsense": [b"SSH-2.0-OpenSSH_9.6\r\n\r\n"],
}  # fmt: skip
USUAL = [[whole(b"usual", DATE)], [STREAM, CHUNK, END], [whole(b"usual", DATE, JSON)]]


@pytest.mark.parametrize("how", [{}, {"to_head": True}, {"version": "1.0"}], ids=str)
@pytest.mark.parametrize("name", ANSWERS)
def test_each_head_is_read_as_if_it_came_for_the_first_time(name: str, how: Any) -> None:
    pieces = ANSWERS[name]
    data = b"".join(pieces)
    at = data.find(b"\r\n\r\n") + 4
    apart = [piece for piece in (data[:at], data[at:]) if piece]
    later = [piece.replace(DATE, LATER) for piece in pieces]
    many = [pieces, pieces, later, apart, [data], [data[:9], data[9:]], pieces]
    usual = [] if how.get("to_head") else USUAL
    all_alike([*usual, *many, *usual, *many, *USUAL], **how)


def test_a_date_that_the_parser_refuses_is_refused_when_the_rest_is_known() -> None:
    seen = SeenAnswers()
    read([whole(b"hello", DATE)], seen, hides=False)
    odd = read([whole(b"hello", DATE.replace(b"12:00", b"12\x0000"))], seen, hides=False)
    assert odd["fault"]
    assert not odd["head_done"]


def test_few_answers_are_kept() -> None:
    seen = SeenAnswers()
    for number in range(100):
        cookie = b"set-cookie: session=%d" % number
        got = read([whole(b"hello", DATE, cookie)], seen, hides=False)
        assert (b"set-cookie", b"session=%d" % number) in got["headers"]
    assert len(seen._seen) == 8


@pytest.mark.parametrize("usual_in_between", [True, False])
def test_heads_that_never_come_again_drive_out_no_others(usual_in_between: bool) -> None:
    seen = SeenAnswers()
    usual = [whole(b"usual", DATE), whole(b"usual", DATE, JSON), STREAM + CHUNK + END]
    for data in usual * 3:
        read([data], seen, hides=False)
    for number in range(200):
        read([whole(b"hello", DATE, b"x-request-id: %d" % number)], seen, hides=False)
        if usual_in_between:
            assert seen.find(usual[number % 3]) is not None
    assert all(seen.find(data) is not None for data in usual)


def test_after_many_heads_that_never_come_again_few_are_kept() -> None:
    seen = SeenAnswers()
    kept = set()
    for number in range(1000):
        read([whole(b"hello", DATE, b"x-request-id: %d" % number)], seen, hides=False)
        kept |= set(seen._seen) if number > 100 else set()
    assert len(kept) < 50
    usual = whole(b"usual", DATE)
    for _ in range(40):
        read([usual], seen, hides=False)
    assert seen.find(usual) is not None, "what comes again is kept all the same"


values = st.sampled_from([b"1", b"2", b"%b", b"100%", b"", b"a, b"]) | st.binary(max_size=4).filter(
    lambda value: not set(value) & {0, 10, 13}
)
lines = st.sampled_from(
    [DATE, LATER, b"Date: " + DATE[6:], length(5), length(7), length(0), b"Content-Length: 5",
     TRANSFER, b"transfer-encoding: chunked", b"connection: close", b"connection: date, x-a",
     EVENTS, JSON, b"date: x", b"transfer-encoding: identity", b"server: uvicorn"]
) | st.builds(lambda value: b"x-a: " + value, values)  # fmt: skip
answers = st.builds(
    lambda first, some, body: head(*some, first=first) + body,
    first=st.sampled_from([b"HTTP/1.1 200 OK"] * 6 + [b"HTTP/1.1 200 Yes", b"HTTP/1.1 404 No",
                                                      b"HTTP/1.0 200 OK"]),
    some=st.lists(lines, max_size=4),
    body=st.sampled_from([b"hello", b"hello" + END, CHUNK + END, b"", CHUNK, b"hello, ", END]),
)  # fmt: skip
DATES = st.binary(min_size=28, max_size=30) | st.text("GMT:, 0123", min_size=29, max_size=29).map(
    str.encode
)


@st.composite
def cut_answers(draw: st.DrawFn) -> list[list[bytes]]:
    made = []
    pool = draw(st.lists(answers, min_size=1, max_size=3))
    for _ in range(draw(st.integers(2, 8))):
        data = draw(st.sampled_from(pool))
        if draw(st.integers(0, 4)) == 0:
            data = data.replace(DATE[6:], draw(DATES))
        places = draw(st.lists(st.integers(0, len(data)), max_size=2))
        ends = sorted({0, *places, len(data)})
        made.append([data[a:b] for a, b in pairwise(ends)])
    return made


@settings(deadline=None, max_examples=600)
@given(made=cut_answers())
def test_any_answers_in_any_cutting_are_read_as_if_nothing_were_remembered(
    made: list[list[bytes]],
) -> None:
    all_alike(made)
