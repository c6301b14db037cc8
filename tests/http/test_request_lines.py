"""What the head of a request may be, and as what it goes on."""

import contextlib
from collections.abc import Callable

import pytest

from tests.conftest import Rig
from tests.http.support import GET, PATH, assert_usable, chunked, echoed
from tests.support.client import RawClient, Response, fetch, request
from tests.support.engine import send


def one(rig: Rig, data: bytes, *, expected: int = 1) -> Response:
    """What one connection gets for `data`, whose requests are counted."""
    watch = rig.watch()
    with rig.client(5) as client:
        client.send(data)
        response = client.read_response()
    watch.after(expected)
    return response


@pytest.mark.parametrize(
    "written", ["5", "5 ", "5\t", " 5", "  5 \t ", "\t5", "05", "0000000005", "000000000000000005"]
)
def test_a_length_with_blanks_is_one_number(rig: Rig, written: str) -> None:
    echoed(rig)
    with rig.client(5) as client:
        for _ in range(3):
            client.send(request("POST", PATH, [("Content-Length", written)]) + b"hello" + GET)
            assert client.read_response().body == b"POST /v1/echo HTTP/1.1\nhello"
            assert client.read_response().body == b"GET /v1/echo?next HTTP/1.1\n"
    for received in rig.engine.requests[::2]:
        line = received.head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        assert line.strip(b" ").isdigit()
        assert line == line.rstrip()


@pytest.mark.parametrize(
    "written",
    ["", "+5", "-5", "5,5", "5, 5", "0x5", "5 5", "5.0", "five", "٥", "9" * 19, "9" * 60, "5;a"],
)
def test_what_is_no_length_is_refused(rig: Rig, written: str) -> None:
    echoed(rig)
    head = (
        request("POST", PATH).decode().replace("\r\n\r\n", f"\r\nContent-Length: {written}\r\n\r\n")
    )
    assert one(rig, head.encode() + b"hello" + GET).status == 400
    assert rig.engine.requests == []


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET /v1/echo", 400),
        ("GET /v1/echo HTTP/0.9", 505),
        ("GET /v1/echo HTTP/1.2", 505),
        ("GET /v1/echo HTTP/2.0", 505),
        ("GET /v1/echo HTTP/2", 505),
        ("PRI * HTTP/2.0", 505),
        ("GET /v1/echo HTTP/3.0", 505),
        ("GET /v1/echo HTTP/11.1", 505),
        ("GET /v1/echo RTSP/1.0", 400),
        ("OPTIONS * RTSP/1.0", 400),
        ("DESCRIBE rtsp://a/v1/echo RTSP/1.0", 400),
        ("SOURCE /v1/echo ICE/1.0", 400),
        ("GET /v1/echo http/1.1", 400),
        ("GET /v1/echo HTTPS/1.1", 400),
        ("GET /v1/echo HTTP/1.1 ", 400),
        ("GET /v1/echo  HTTP/1.1", 400),
        ("GET  /v1/echo HTTP/1.1", 400),
        (" GET /v1/echo HTTP/1.1", 400),
        ("GET /v1/e cho HTTP/1.1", 400),
        ("GET http://a/v1/e cho HTTP/1.1", 400),
        ("GET\t/v1/echo HTTP/1.1", 400),
        ("get /v1/echo HTTP/1.1", 400),
        ("G\0T /v1/echo HTTP/1.1", 400),
        ("GET /v1/\0echo HTTP/1.1", 400),
        ("GET /v1/echo\x7f HTTP/1.1", 400),
        ("GET v1/echo HTTP/1.1", 400),
        ("GET HTTP/1.1", 400),
        ("HTTP/1.1 200 OK", 400),
    ],
)
def test_other_protocols_and_odd_lines_are_refused(rig: Rig, line: str, status: int) -> None:
    echoed(rig)
    for head in (f"{line}\r\nHost: a\r\n\r\n", f"\r\n{line}\r\nHost: a\r\n\r\n"):
        assert one(rig, head.encode("latin-1") + GET).status == status
    assert rig.engine.requests == []


@pytest.mark.parametrize("line", ["GET /v1/echo", "GET /v1/echo HTTP/2.0", "GET /v1/echo RTSP/1.0"])
def test_a_line_of_another_protocol_is_refused_before_its_head_ends(rig: Rig, line: str) -> None:
    assert one(rig, line.encode() + b"\r\n").status in (400, 505)


HEADERS: dict[str, bytes] = {
    "folded": b"X-A: 1\r\n 2",
    "folded_by_tab": b"X-A: 1\r\n\t2",
    "folded_when_empty": b"X-A:\r\n 2",
    "folded_first": b" X-A: 1",
    "bare_cr": b"X-A: 1\rX-B: 2",
    "bare_cr_at_the_end": b"X-A: 1\r",
    "bare_lf": b"X-A: 1\nX-B: 2",
    "bare_lf_and_empty_line": b"X-A: 1\n\nGET / HTTP/1.1",
    "cr_cr_lf": b"X-A: 1\r\r\nX-B: 2",
    "nul": b"X-A: 1\0",
    "nul_in_a_name": b"X-\0A: 1",
    "control": b"X-A: \x01",
    "delete": b"X-A: \x7f",
    "space_before_the_colon": b"X-A : 1",
    "tab_before_the_colon": b"X-A\t: 1",
    "no_colon": b"X-A",
    "no_name": b": 1",
    "space_in_a_name": b"X A: 1",
    "quote_in_a_name": b'X"A: 1',
    "parentheses_in_a_name": b"X(A): 1",
    "high_byte_in_a_name": b"X-\xe9: 1",
    "two_hosts": b"Host: b",
    "two_hosts_alike": b"Host: a",
    "length_and_chunks": b"Content-Length: 3\r\nTransfer-Encoding: chunked",
    "chunks_and_length": b"Transfer-Encoding: chunked\r\nContent-Length: 3",
    "two_lengths": b"Content-Length: 3\r\nContent-Length: 4",
    "two_lengths_alike": b"Content-Length: 3\r\nContent-Length: 3",
    "two_lengths_zero": b"Content-Length: 0\r\nContent-Length: 3",
    "coding_identity": b"Transfer-Encoding: identity",
    "coding_gzip": b"Transfer-Encoding: gzip",
    "codings": b"Transfer-Encoding: gzip, chunked",
    "chunked_identity": b"Transfer-Encoding: chunked, identity",
    "chunked_twice": b"Transfer-Encoding: chunked, chunked",
    "chunked_in_two_lines": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    "identity_in_another_line": b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
    "chunked_with_a_parameter": b"Transfer-Encoding: chunked;a=b",
    "chunked_quoted": b'Transfer-Encoding: "chunked"',
    "coding_empty": b"Transfer-Encoding:",
    "coding_empty_and_length": b"Transfer-Encoding:\r\nContent-Length: 3",
    "chunked_with_a_vertical_tab": b"Transfer-Encoding: \x0bchunked",
    "chunked_and_a_comma": b"Transfer-Encoding: chunked,",
    "coding_with_an_offer": b"Transfer-Encoding: gzip\r\nConnection: Upgrade\r\nUpgrade: h2c",
    "both_with_an_offer": b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n"
    b"Connection: Upgrade\r\nUpgrade: h2c",
    "lengths_with_an_offer": b"Content-Length: 3\r\nContent-Length: 4\r\n"
    b"Connection: Upgrade\r\nUpgrade: h2c",
}  # fmt: skip
"""Header lines that make a request one that could be read in two ways, or in none."""


def assert_refused(rig: Rig, data: bytes, byte_by_byte: bool) -> None:
    """Once and with 400, and nothing behind it is read."""
    watch = rig.watch()
    with rig.client(5) as client:
        with contextlib.suppress(ConnectionError):  # refused before the end
            client.send(*([bytes([b]) for b in data] if byte_by_byte else [data]))
        response = client.read_response()
        assert response.status == 400
        assert client.at_end()
    assert watch.after().outcomes == {"rejected": 1}


@pytest.mark.parametrize("byte_by_byte", [False, True], ids=["whole", "bytes"])
@pytest.mark.parametrize("name", HEADERS)
def test_odd_headers_are_refused(rig: Rig, name: str, byte_by_byte: bool) -> None:
    echoed(rig)
    data = b"POST /v1/echo HTTP/1.1\r\nHost: a\r\n" + HEADERS[name] + b"\r\n\r\n0\r\n\r\n" + GET
    assert_refused(rig, data, byte_by_byte)
    assert rig.engine.requests == []


BODIES: dict[str, bytes] = {
    "no_size": b"\r\nabc\r\n0\r\n\r\n",
    "no_hex": b"g\r\nabc\r\n",
    "plus": b"+3\r\nabc\r\n",
    "minus": b"-3\r\nabc\r\n",
    "prefix": b"0x3\r\nabc\r\n",
    "underscore": b"1_0\r\n0123456789abcdef\r\n",
    "space_before": b" 3\r\nabc\r\n",
    "space_behind": b"3 \r\nabc\r\n",
    "overflow": b"ffffffffffffffff3\r\nabc\r\n",
    "overflow_by_one": b"10000000000000003\r\nabc\r\n",
    "bare_lf": b"3\nabc\r\n",
    "bare_lf_behind": b"3\r\nabc\n0\r\n\r\n",
    "bare_cr": b"3\rabc\r\n",
    "lf_in_an_extension": b"3;a=\nb\r\nabc\r\n",
    "cr_in_an_extension": b"3;a=\rb\r\nabc\r\n",
    "nul_in_an_extension": b"3;a=\0\r\nabc\r\n",
    "no_semicolon": b"3 a=b\r\nabc\r\n",
    "too_long": b"3\r\nabcd\r\n0\r\n\r\n",
    "too_short": b"3\r\nab\r\n0\r\n\r\n",
    "json": b'{"a": 1}',
    "folded_trailer": b"0\r\nX-A: 1\r\n 2\r\n\r\n",
    "trailer_without_colon": b"0\r\nX-A\r\n\r\n",
    "bare_lf_in_a_trailer": b"0\r\nX-A: 1\n\r\n\r\n",
    "bare_cr_in_a_trailer": b"0\r\nX-A: 1\rX: 2\r\n\r\n",
    "nul_in_a_trailer": b"0\r\nX-A: \0\r\n\r\n",
    "cr_for_the_end": b"0\r\n\rGET",
    "lf_for_the_end": b"0\r\n\nGET",
}


@pytest.mark.parametrize("byte_by_byte", [False, True], ids=["whole", "bytes"])
@pytest.mark.parametrize("offer", [False, True], ids=["plain", "offer"])
@pytest.mark.parametrize("name", BODIES)
def test_odd_chunks_are_refused(rig: Rig, name: str, offer: bool, byte_by_byte: bool) -> None:
    echoed(rig)
    headers = [("Transfer-Encoding", "chunked")]
    if offer:
        headers += [("Connection", "Upgrade"), ("Upgrade", "h2c")]
    assert_refused(rig, request("POST", PATH, headers) + BODIES[name] + GET, byte_by_byte)
    for received in rig.engine.requests:
        assert received.complete_at is None, "half a body was dressed up as a whole one"


@pytest.mark.parametrize("name", ["3", "03", "0000000000003", "3;a", "3;a=b", '3;a="x y"', "3;"])
def test_the_ways_to_write_a_size(rig: Rig, name: str) -> None:
    echoed(rig)
    for written in (name, name.upper()):
        with rig.client(5) as client:
            client.send(request("POST", PATH, [("Transfer-Encoding", "Chunked ")]))
            client.send(written.encode() + b"\r\nabc\r\n" + chunked(b"de"))
            assert client.read_response().body == b"POST /v1/echo HTTP/1.1\nabcde"
            assert_usable(client)
    assert rig.engine.requests[0].values("transfer-encoding") == [b"chunked"]


@pytest.mark.parametrize("value", ["100-continue", "100-Continue", "100-continue ", "200-ok", ""])
@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/1.0"])
def test_expect(rig: Rig, version: str, value: str) -> None:
    """HTTP/1.0 knows no interim answers; other expectations are none that a proxy could meet."""
    echoed(rig)
    with rig.client(5) as client:
        expect = [("Expect", value), ("Content-Length", "5")]
        client.send(request("POST", PATH, expect, version=version))
        if version == "HTTP/1.1" and value.strip().lower() == "100-continue":
            assert client._head() == b"HTTP/1.1 100 Continue\r\n\r\n"
        response = client.send(b"hello").read_response()
        assert response.interim == []
        assert response.body == b"POST /v1/echo HTTP/1.1\nhello"
    assert rig.engine.requests[0].values("expect") == []


def test_expect_of_a_body_that_is_here_needs_no_word(rig: Rig) -> None:
    echoed(rig)
    with rig.client(5) as client:
        client.send(request("POST", PATH, [("Expect", "100-continue")], b"hello"))
        response = client.read_response()
        assert response.interim == []
        assert response.body.endswith(b"hello")
        client.send(request("GET", PATH, [("Expect", "100-continue")]))
        assert client.read_response().interim == []
        assert_usable(client)


def test_refused_before_its_body_was_asked_for(new_rig: Callable[..., Rig]) -> None:
    """Whether the body comes now, only the client knows: the connection ends."""
    rig = echoed(new_rig(max_body_bytes=10))
    headers = [("Expect", "100-continue"), ("Content-Length", str(len(GET)))]
    with rig.client(5) as client:
        client.send(request("POST", PATH, headers))
        assert client.read_response().status == 413
        client.send(GET)
        assert client.at_end()
    assert rig.engine.requests == []


def test_http_1_0_and_chunks(rig: Rig) -> None:
    """A length that HTTP/1.0 does not know: some read it as a body, some as the next request."""
    echoed(rig)
    chunks = [("Transfer-Encoding", "chunked")]
    for headers in (chunks, [*chunks, ("Connection", "keep-alive")]):
        data = request("POST", PATH, headers, version="HTTP/1.0") + chunked(b"abc") + GET
        assert one(rig, data).status == 400
    assert rig.engine.requests == []


def test_http_1_0_carries_one_request(rig: Rig) -> None:
    echoed(rig)
    with rig.client(5) as client:
        data = request("POST", PATH, [("Connection", "keep-alive")], b"abc", version="HTTP/1.0")
        client.send(data + GET)
        assert client.read_response().body == b"POST /v1/echo HTTP/1.1\nabc"
        assert client.at_end()
    assert len(rig.engine.requests) == 1


def test_nothing_is_read_behind_a_close(rig: Rig) -> None:
    echoed(rig)
    with rig.client(5) as client:
        client.send(request("POST", PATH, [("Connection", "close")], b"abc") + GET * 2)
        assert client.read_response().body == b"POST /v1/echo HTTP/1.1\nabc"
        assert client.at_end()
    assert len(rig.engine.requests) == 1


@pytest.mark.parametrize(
    ("target", "sent"),
    [
        ("http://b.test/v1/echo?a", "/v1/echo?a"),
        ("http://b.test:99999/v1/echo", "/v1/echo"),
        ("http://b.test?/v1/echo", "/?/v1/echo"),
        ("http://user@b.test/v1/echo", "/v1/echo"),
        ("/v1/echo?http://b.test/", "/v1/echo?http://b.test/"),
        ("//b.test/v1/echo", "//b.test/v1/echo"),
    ],
)
def test_the_target_is_a_path_of_the_one_engine(rig: Rig, target: str, sent: str) -> None:
    echoed(rig)
    rig.engine.on(sent.split("?")[0], *[script for script, _ in rig.engine._scripts[PATH]])
    response = fetch(rig.port, "GET", target)
    assert response.body == f"GET {sent} HTTP/1.1\n".encode()


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE", "PUT", "PATCH", "PROPFIND"])
def test_any_method_may_have_a_body(rig: Rig, method: str, framing: str) -> None:
    rig.engine.on("/v1/x", send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"))
    echoed(rig)
    inner = request("GET", "/v1/x?smuggled")
    if framing == "length":
        data = request(method, "/v1/x", [], inner)
    else:
        data = request(method, "/v1/x", [("Transfer-Encoding", "chunked")]) + chunked(inner)
    with rig.client(5) as client:
        client.send(data * 2 + GET)
        for _ in range(2):
            assert client.read_response(to_head=method == "HEAD").status == 200
        assert client.read_response().body == b"GET /v1/echo?next HTTP/1.1\n"
    assert [received.method for received in rig.engine.requests] == [method, method, "GET"]
    assert [received.body for received in rig.engine.requests] == [inner, inner, b""]


def half_closed(rig: Rig, data: bytes) -> list[bytes]:
    with RawClient(rig.port, 5) as client:
        client.send(data)
        client.shutdown_write()
        while client._more():
            pass
        return bytes(client._buffer).split(b"\r\n\r\n")


@pytest.mark.parametrize(
    "data",
    [b"", GET, GET[:20], request("POST", PATH, [("Content-Length", "10")]) + b"123", GET * 3],
    ids=["nothing", "a_request", "half_a_head", "half_a_body", "three"],
)
def test_a_half_close_ends_the_connection_and_nothing_else(rig: Rig, data: bytes) -> None:
    echoed(rig)
    half_closed(rig, data)
    assert_usable_anew(rig)
    for received in rig.engine.requests:
        assert received.method == "GET" or received.complete_at is None


def assert_usable_anew(rig: Rig) -> None:
    with rig.client(5) as client:
        assert_usable(client)
