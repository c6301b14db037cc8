"""What can go wrong in the proxy itself, or is its own doing, times what a client can ask."""

import threading
from collections.abc import Callable

import pytest
from tokgauge.measure.timeline import RequestTimeline

from tests.conftest import Rig
from tests.faults.kinds import KINDS, Kind, look, right_answer, right_body, works
from tests.faults.test_engine import nothing_left, prepare
from tests.support.engine import Conversation

KIND = pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])

QUIET = {"poll_interval": 3600, "engine_metrics_interval": 3600}


async def answers(c: Conversation, kind: Kind) -> None:
    await c.send(right_answer(kind))


def answering(kind: Kind) -> Callable[[Conversation], object]:
    async def script(c: Conversation) -> None:
        await answers(c, kind)

    return script


@KIND
def test_the_limit_of_requests_at_once(new_rig: Callable[..., Rig], kind: Kind) -> None:
    rig = new_rig(max_in_flight=1, **QUIET)
    go = threading.Event()

    async def script(c: Conversation) -> None:
        await c.until(go)
        await answers(c, kind)

    prepare(rig, kind, script)
    watch = rig.watch()
    with rig.client() as first, rig.client() as second:
        first.send(kind.data)
        rig.engine.wait_requests(1)
        second.send(kind.data)
        refused = look(second)
        assert (refused.status, refused.manner) == (503, "whole")
        go.set()
        seen = look(first)
        assert seen.response is not None
        assert (seen.status, bytes(seen.response.body)) == (200, right_body(kind))
        assert watch.after(2).outcomes == {"ok": 1, "rejected": 1}
        assert works(lambda: first)
    nothing_left(rig)


@KIND
def test_the_limit_of_a_body(new_rig: Callable[..., Rig], kind: Kind) -> None:
    if not kind.has_body:
        pytest.skip("it has no body")
    rig = new_rig(max_body_bytes=20, **QUIET)
    prepare(rig, kind, answering(kind))  # type: ignore[arg-type]
    watch = rig.watch()
    with rig.client() as client:
        client.send(kind.data)
        seen = look(client)
        assert (seen.status, seen.manner) == (413, "whole")
        assert watch.after().outcomes == {"rejected": 1}
    with rig.client() as another:
        assert works(lambda: another)
    nothing_left(rig)


@KIND
@pytest.mark.parametrize(
    "method", ["response_begins", "data", "end", "request_received", "request_sent", "passed_on"]
)
def test_measuring_fails(
    new_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch, kind: Kind, method: str
) -> None:
    rig = new_rig(**QUIET)
    prepare(rig, kind, answering(kind))  # type: ignore[arg-type]

    def fails(*arguments: object, **named: object) -> None:
        raise RuntimeError("made to fail")

    assert hasattr(RequestTimeline, method)
    monkeypatch.setattr(RequestTimeline, method, fails)
    with rig.client() as client:
        client.send(kind.data)
        seen = look(client)
        assert seen.response is not None
        assert (seen.status, seen.manner) == (200, "whole")
        assert seen.response.body == right_body(kind)
        assert works(lambda: client)
    assert (rig.scrape().total("measurement_errors_total") or 0) > 0
    monkeypatch.undo()
    nothing_left(rig)


@KIND
def test_a_drain_lets_what_runs_come_to_its_end(new_rig: Callable[..., Rig], kind: Kind) -> None:
    rig = new_rig(**QUIET)
    go = threading.Event()

    async def script(c: Conversation) -> None:
        data = right_answer(kind)
        await c.send(data[:-50])
        await c.until(go)
        await c.send(data[-50:])

    prepare(rig, kind, script)
    with rig.client() as client:
        client.send(kind.data)
        response = client.read_head()
        rig.proxy.drain()
        go.set()
        client.read_body(response)
        assert response.clean
        assert response.body == right_body(kind)
        assert client.at_end(), "no further request on this connection"
