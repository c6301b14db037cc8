"""An engine that repeats what it got, and requests that show which of them is answered."""

import time

from tests.conftest import Rig
from tests.support.client import RawClient, Response
from tests.support.engine import Conversation, answer

PATH = "/v1/echo"
GET = b"GET /v1/echo?next HTTP/1.1\r\nHost: a\r\n\r\n"


async def echo(c: Conversation) -> None:
    """Answer with the request line and the body as they came."""
    body = c.request.request_line.encode() + b"\n" + bytes(c.request.body)
    await c.send(answer(body, content_type="text/plain"))


def echoed(rig: Rig) -> Rig:
    rig.engine.on(PATH, echo)
    return rig


def chunked(*pieces: bytes, trailer: bytes = b"") -> bytes:
    """A chunked body."""
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return chunks + b"0\r\n" + trailer + b"\r\n"


def assert_usable(client: RawClient) -> None:
    """The connection carries another request."""
    response = client.send(GET).read_response()
    assert response.body == b"GET /v1/echo?next HTTP/1.1\n"


def read_all(client: RawClient) -> list[Response]:
    """All responses until the proxy closes."""
    responses = []
    while client._buffer or client._more():
        responses.append(client.read_response())
    return responses


def send_in_steps(client: RawClient, data: bytes, step: int) -> None:
    """Send `step` bytes at a time, each in a packet of its own; 0 for all at once."""
    if not step:
        client.send(data)
        return
    for at in range(0, len(data), step):
        client.send(data[at : at + step])
        time.sleep(0)
