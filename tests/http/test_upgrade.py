"""An offer to switch protocols is ignored: the body arrives, and the connection stays usable."""

import shutil
import subprocess
import time

import pytest

from tests.conftest import Rig
from tests.http.support import GET, PATH, assert_usable, chunked, echoed, send_in_steps
from tests.support.client import request
from tests.support.engine import Conversation, answer

SMUGGLED = b"GET /v1/echo?smuggled HTTP/1.1\r\nHost: a\r\n\r\n"

OFFERS: dict[str, list[tuple[str, str]]] = {
    "h2c": [("Connection", "Upgrade"), ("Upgrade", "h2c")],
    "java": [  # what JDK's HttpClient adds to the first request of a connection
        ("Connection", "Upgrade, HTTP2-Settings"),
        ("HTTP2-Settings", "AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA"),
        ("Upgrade", "h2c"),
    ],
    "any": [("Connection", "keep-alive, upgrade"), ("Upgrade", "TLS/1.3, x/2")],
    "websocket": [
        ("Connection", "Upgrade"), ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"), ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ],
}  # fmt: skip
BODY = b"x" * 40 + SMUGGLED + b"y"
FRAMED = {
    "length": ([("Content-Length", str(len(BODY)))], BODY),
    "chunked": ([("Transfer-Encoding", "chunked")], chunked(BODY[:50], BODY[50:])),
    "trailers": (
        [("Transfer-Encoding", "chunked"), ("Trailer", "X-A")],
        chunked(BODY[:7], BODY[7:], trailer=b"X-A: 1\r\nX-B: GET / HTTP/1.1\r\n"),
    ),
}


@pytest.mark.parametrize("step", [0, 1, 37], ids=["one_packet", "bytes", "pieces"])
@pytest.mark.parametrize("framing", FRAMED)
@pytest.mark.parametrize("offer", OFFERS)
def test_the_declared_body_goes_on(rig: Rig, offer: str, framing: str, step: int) -> None:
    echoed(rig)
    headers, body = FRAMED[framing]
    data = request("POST", PATH, [*OFFERS[offer], *headers]) + body
    with rig.client(5) as client:
        send_in_steps(client, data + data + GET, step)
        for _ in range(2):
            response = client.read_response()
            assert response.status == 200
            assert response.body == b"POST /v1/echo HTTP/1.1\n" + BODY
        assert client.read_response().body == b"GET /v1/echo?next HTTP/1.1\n"
        assert_usable(client)
    assert len(rig.engine.requests) == 4
    for received in rig.engine.requests:
        names = {name.lower() for name, _ in received.headers}
        assert not names & {b"upgrade", b"connection", b"http2-settings", b"trailer"}


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
def test_without_a_body(rig: Rig, offer: str, method: str) -> None:
    echoed(rig)
    with rig.client(5) as client:
        for _ in range(2):
            client.send(request(method, PATH, OFFERS[offer]))
            response = client.read_response()
            assert response.body == f"{method} /v1/echo HTTP/1.1\n".encode()
        assert_usable(client)


@pytest.mark.parametrize("offer", OFFERS)
def test_close_and_an_offer(rig: Rig, offer: str) -> None:
    echoed(rig)
    with rig.client(5) as client:
        client.send(request("POST", PATH, [*OFFERS[offer], ("Connection", "close")], BODY))
        assert client.read_response().body.endswith(BODY)
        assert client.at_end()


def test_an_engine_that_answers_without_reading_gets_no_hidden_request(rig: Rig) -> None:
    """The body of the attacker is no request, and the victim gets its own answer."""

    async def not_found(c: Conversation) -> None:
        await c.send(answer(b"no", "404 Not Found"))
        await c.read_body()

    echoed(rig)
    rig.engine.on("/v1/nothing", not_found, early=True)
    for _ in range(3):
        with rig.client(5) as attacker, rig.client(5) as victim:
            headers = [*OFFERS["h2c"], ("Content-Length", str(len(SMUGGLED)))]
            attacker.send(request("POST", "/v1/nothing", headers))
            assert attacker.read_response().status == 404
            for _ in range(3):
                assert_usable(victim)
            attacker.send(SMUGGLED)
    assert all("smuggled" not in received.request_line for received in rig.engine.requests)


@pytest.mark.parametrize("body", [b"", BODY], ids=["head", "body"])
def test_connect_is_refused_and_nothing_behind_it_is_read(rig: Rig, body: bytes) -> None:
    echoed(rig)
    watch = rig.watch()
    with rig.client(5) as client:
        data = request("CONNECT", "a.test:80", [], body or None, host="a.test:80")
        client.send(GET + data + SMUGGLED)
        assert client.read_response().status == 200
        response = client.read_response()
        assert response.status == 400
        assert b"CONNECT" in response.body
        assert client.at_end()
    assert watch.after(2).outcomes == {"ok": 1, "rejected": 1}
    assert [received.target for received in rig.engine.requests] == ["/v1/echo?next"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_that_offers_http_2(rig: Rig) -> None:
    echoed(rig)
    url = f"http://127.0.0.1:{rig.port}{PATH}"
    command = ["curl", "-sS", "--http2", "-m", "10", "--data-binary", "@-", url, url]
    body = b"{" + b"x" * 100_000
    started = time.monotonic()
    done = subprocess.run(command, input=body, capture_output=True, timeout=20)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (b"POST /v1/echo HTTP/1.1\n" + body) * 2
    assert time.monotonic() - started < 5
