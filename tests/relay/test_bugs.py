"""A bug of the proxy's own in the middle of an exchange ends that exchange, and nothing else."""

from collections.abc import Callable

import pytest
from tokgauge.relay.exchange import Exchange

from tests.conftest import Rig
from tests.faults.kinds import KINDS, Kind, look, right_answer, works
from tests.faults.test_engine import nothing_left, prepare
from tests.support.engine import Conversation

QUIET = {"poll_interval": 3600, "engine_metrics_interval": 3600}
CALLS = ["start", "request_end", "response_head", "response_data", "response_end"]


class _BugError(Exception):
    pass


@pytest.mark.parametrize("kind", KINDS[:3], ids=[kind.name for kind in KINDS[:3]])
@pytest.mark.parametrize("call", CALLS)
def test_a_bug_ends_its_own_exchange_only(
    new_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch, call: str, kind: Kind
) -> None:
    rig = new_rig(**QUIET)

    async def script(c: Conversation) -> None:
        await c.send(right_answer(kind))

    prepare(rig, kind, script)
    watch = rig.watch()
    inside = {"start": "_connect", "request_end": "_request_end"}.get(call, call)
    if call == "start" and kind.name not in ("upload", "chunked"):
        inside = "_request_end"

    def fails(*_: object, **__: object) -> None:
        raise _BugError("inside the relay")

    with monkeypatch.context() as broken, rig.client() as client:
        broken.setattr(Exchange, inside, fails)
        client.send(kind.data)
        seen = look(client)
        # All bytes that a length promised have gone when only the end is missing.
        by_length = call == "response_end" and not kind.streams
        assert by_length or seen.manner != "whole" or seen.status == 500
    after = watch.after(1).outcomes
    assert set(after) == {"proxy_error"}, after
    with rig.client() as another:
        assert works(lambda: another)
    nothing_left(rig)
