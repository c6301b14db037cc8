"""Each client gets what is its own, whatever others asked or got before it."""

from tests.conftest import Rig
from tests.http.support import PATH, echoed
from tests.support.chat import whole_answer
from tests.support.client import request
from tests.support.engine import LAST_CHUNK, Conversation, answer


def test_keys_and_bodies_are_never_mixed_up(rig: Rig) -> None:
    async def repeat(c: Conversation) -> None:
        await c.send(answer(c.request.head + bytes(c.request.body), content_type="text/plain"))

    rig.engine.on("/v1/x", repeat)
    with rig.client(5) as kept:
        for number in [*range(100), *range(100)]:
            key, body = f"Bearer sk-{number % 70}", b"body %d" % number
            raw = request("POST", "/v1/x", [("Authorization", key)], body)
            with rig.client(5) as fresh:
                for client in (kept, fresh):
                    response = client.send(raw).read_response()
                    assert f"\r\nauthorization: {key}\r\n".encode() in response.body
                    assert response.body.endswith(b"\r\n\r\n" + body)


def test_each_client_gets_its_own_cookie(rig: Rig) -> None:
    async def cookie(c: Conversation) -> None:
        key = c.request.header("authorization") or b""
        await c.send(answer(key, extra=[("Set-Cookie", f"key={key.decode()}")]))

    rig.engine.on("/v1/x", cookie)
    with rig.client(5) as first, rig.client(5) as second:
        for number in range(60):
            keys = (f"first-{number % 3}", f"second-{number % 5}")
            for client, key in zip((first, second), keys, strict=True):
                client.send(request("POST", "/v1/x", [("Authorization", key)], b"{}"))
            for client, key in zip((first, second), keys, strict=True):
                response = client.read_response()
                assert response.values("set-cookie") == [f"key={key}".encode()]
                assert response.body == key.encode()


def test_answers_to_head_and_to_http_1_0_are_not_those_to_others(rig: Rig) -> None:
    events = b"".join(whole_answer("a", "b"))

    async def script(c: Conversation) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
        head += b"transfer-encoding: chunked\r\n\r\n"
        if c.request.method == "HEAD":
            await c.send(head)
        else:
            await c.send(head, b"%x\r\n%b\r\n" % (len(events), events), LAST_CHUNK)

    rig.engine.on("/v1/x", script)
    for _ in range(2):
        with rig.client(5) as client:
            for method in ("GET", "HEAD", "GET"):
                client.send(request(method, "/v1/x"))
                response = client.read_response(to_head=method == "HEAD")
                assert response.clean
                assert response.body == (b"" if method == "HEAD" else events)
        with rig.client(5) as client:
            client.send(request("GET", "/v1/x", version="HTTP/1.0"))
            response = client.read_response()
            assert response.framing == "close"
            assert response.body == events


def test_a_request_inside_a_body_is_a_body(rig: Rig) -> None:
    echoed(rig)
    inner = request("GET", PATH + "?smuggled")
    with rig.client(5) as client:
        for _ in range(3):
            client.send(request("POST", PATH, [], inner), request("POST", PATH, [], inner * 3))
            assert client.read_response().body == b"POST /v1/echo HTTP/1.1\n" + inner
            assert client.read_response().body == b"POST /v1/echo HTTP/1.1\n" + inner * 3
    assert {received.target for received in rig.engine.requests} == {PATH}
