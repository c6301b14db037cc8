"""Each request of the table is read as it should be, at once and in pieces."""

import contextlib
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.ambiguous.requests import CASES, Case
from tests.conftest import QUIET, start_proxy
from tests.support.client import RawClient
from tests.support.metrics import wait_until
from tests.support.strict import read_requests
from tests.support.strict_engine import StrictEngine


class Pair:
    """A proxy and the strict engine behind it."""

    def __init__(self, engine: StrictEngine, port: int) -> None:
        self.engine = engine
        self.port = port
        self.probes = 0

    def probe(self, client: RawClient) -> tuple[bytes, bytes, bytes]:
        """A good request gets its own answer; returns it as the engine should see it."""
        self.probes += 1
        target = b"/probe/%d" % self.probes
        client.send(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % target)
        response = client.read_response()
        assert (response.status, bytes(response.body)) == (200, b"GET %b " % target)
        return b"GET", target, b""


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with StrictEngine() as engine, start_proxy(upstream=engine.url, **QUIET) as proxy:
        yield Pair(engine, proxy.port)


def names(cases: list[Case]) -> list[str]:
    return [case.name for case in cases]


@pytest.mark.parametrize("size", [1 << 20, 7], ids=["at once", "in pieces"])
@pytest.mark.parametrize("case", CASES, ids=names(CASES))
def test_a_request_is_read_as_it_should_be(pair: Pair, case: Case, size: int) -> None:
    engine, reading = pair.engine, case.reading
    before = engine.seen.copy()
    engine.faults.clear()
    expected: Counter[tuple[bytes, bytes, bytes]] = Counter(reading.requests)
    with RawClient(pair.port, 5) as client:
        if len(case.data) > 2000:
            size = max(size, 4096)
        with contextlib.suppress(ConnectionError):  # refused before all of it was sent
            client.send(*(case.data[at : at + size] for at in range(0, len(case.data), size)))
        for method, target, body in reading.requests:
            response = client.read_response(to_head=method == b"HEAD")
            assert response.status == 200
            if method != b"HEAD":
                assert response.body == b"%b %b %b" % (method, target, body)
        over = False
        if reading.status:
            over = bool(reading.requests) and client.at_end(0.05)
            if not over:
                refusal = client.read_response()
                assert refusal.status in reading.status
                assert refusal.clean
                over = client.at_end(0.02 if reading.then == "open" else 5)
        if reading.then == "closed":
            assert over or client.at_end()
        elif reading.then == "waits":
            assert not client.at_end(0.05)
        elif not over:
            expected[pair.probe(client)] += 1
    with RawClient(pair.port, 5) as another:
        expected[pair.probe(another)] += 1
    wait_until(lambda: engine.seen - before == expected, 2, f"the engine saw {expected}")
    assert not engine.faults, "what went up is not strictly HTTP"


WIDER = {
    "absolute form",  # RFC 9112, 3.2.2: goes on in origin form
    "absolute form of another host",
    "absolute form with a user",
    "absolute form without a path",
    "absolute form with a query only",
}
"""What is accepted though it could be refused."""

NARROWER = {
    "extension of 100 kB",  # limits
    "trailers of 200 kB",
    "chunked with a comma before it",  # RFC 9110, 5.6.1.2: empty members could be left out
    "chunked with a comma after it",
    "a head that is too large",
    "a good request and a head that is too large",
    "method that nobody knows",  # the parser's list
    "method in small letters",
}
"""What is refused though it could be accepted."""


def test_the_table_agrees_with_a_strict_reader() -> None:
    """What is accepted is what a strict reader reads; each exception is named."""
    assert len({case.name for case in CASES}) == len(CASES)
    disagree = {
        case.name
        for case in CASES
        if [
            (one.method, one.target, one.body)
            for one in read_requests(case.data)
            if not one.refusable
        ]
        != list(case.reading.requests)
    }
    assert disagree == WIDER | NARROWER
