"""Each response of the table reaches its client as it should, and nobody else."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.ambiguous.responses import CASES, Case
from tests.conftest import QUIET, start_proxy
from tests.support.client import RawClient
from tests.support.metrics import wait_until
from tests.support.strict import NotStrict, Request, read_response
from tests.support.strict_engine import EngineConnection, StrictEngine, echo


@dataclass
class Scene:
    """The engine sends `data` to whoever asks for `/case`; `connections` are those that it used."""

    port: int
    engine: StrictEngine
    data: bytes = b""
    size: int = 1
    closes: bool = False
    connections: list[EngineConnection] = field(default_factory=list)

    def answer(self, connection: EngineConnection, request: Request) -> None:
        if request.target != b"/case":
            self.connections.append(connection)
            echo(connection, request)
            return
        self.connections.append(connection)
        pieces = [self.data[at : at + self.size] for at in range(0, len(self.data), self.size)]

        def go_on() -> None:
            if pieces:
                connection.send(pieces.pop(0))
                loop.call_later(0.0002, go_on)
            elif self.closes:
                connection.close()
            else:
                connection.done()

        loop = asyncio.get_running_loop()
        go_on()


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with StrictEngine() as engine, start_proxy(upstream=engine.url, **QUIET) as proxy:
        scene = Scene(proxy.port, engine)
        engine.answering = scene.answer
        yield scene


def probe(port: int, client: RawClient | None = None) -> None:
    own = client or RawClient(port, 5)
    own.send(b"GET /probe HTTP/1.1\r\nHost: a\r\n\r\n")
    response = own.read_response()
    assert (response.status, bytes(response.body)) == (200, b"GET /probe ")
    if client is None:
        own.close()


@pytest.mark.parametrize("size", [1 << 20, 11], ids=["at once", "in pieces"])
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_response_reaches_its_client_as_it_should(scene: Scene, case: Case, size: int) -> None:
    reading = case.reading
    scene.data, scene.closes = case.data, case.closes
    scene.size = max(size, 1 << 17) if len(case.data) > 2000 else size
    scene.connections.clear()
    with RawClient(scene.port, 5) as client:
        client.request(case.method, "/case")
        response = client.read_response(to_head=case.method == "HEAD")
        assert response.status == reading.status
        assert response.clean == reading.whole
        assert b"EVIL" not in response.body
        if reading.status != 502:
            assert response.body == reading.body
        if response.clean:  # what ended well leaves the client's connection as it was
            probe(scene.port, client)
    probe(scene.port)
    wait_until(lambda: len(scene.connections) >= 2, 2)
    used = scene.connections[0]
    served_again = used in scene.connections[1:]
    assert served_again == reading.again or reading.again is None
    assert not scene.engine.faults


NARROWER = {
    "trailer that frames",  # RFC 9110, 6.5.1: could be dropped
    "endless extension",  # limits
    "endless trailers",
    "50,000 times 100",
    "head of 1 MB",
    "status 600",  # RFC 9110, 15: could be read as a 5xx
}
"""What is refused though it could pass."""


def test_the_table_agrees_with_a_strict_reader() -> None:
    """What passes whole is what a strict reader reads; each exception is named."""
    assert len({case.name for case in CASES}) == len(CASES)
    disagree = set()
    for case in CASES:
        try:
            strictly = read_response(case.data, method=case.method.encode(), closed=case.closes)
        except NotStrict:
            strictly = None
        reading = case.reading
        passed = (reading.status, reading.body) if reading.whole and reading.status != 502 else None
        if passed != (None if strictly is None else (strictly.status, strictly.body)):
            disagree.add(case.name)
    assert disagree == NARROWER
