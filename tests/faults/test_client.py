"""What a client can do wrong, times what it can ask: a table and what it promises.

After each the next one on a new connection gets its own answer, and nothing is left open.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.conftest import Rig
from tests.faults.kinds import KINDS, Kind, look, right_answer, right_body, table, works
from tests.faults.test_engine import nothing_left, prepare
from tests.support.client import RawClient
from tests.support.engine import Conversation

Act = Callable[[RawClient, Kind, Rig], None]

LEFT: dict[str, float] = {"client_closed": 1}
REJECTED: dict[str, float] = {"rejected": 1}
NO_BODY = dict.fromkeys([kind.name for kind in KINDS if not kind.has_body], "it has no body")
NOT_CHUNKED = dict.fromkeys(
    [kind.name for kind in KINDS if kind.name != "chunked"], "its body is not in chunks"
)


@dataclass(frozen=True)
class Fault:
    """act: what the client does. outcomes: what is counted, one of them. engine: `answers`,
    `waits` for ever, or `stops` in the body. status: of the answer, 200 being the right one whole.
    """

    name: str
    act: Act
    outcomes: tuple[dict[str, float], ...]
    engine: str = "answers"
    status: int | None = None
    without: dict[str, str] = field(default_factory=dict)


def head_of(kind: Kind) -> tuple[bytes, bytes]:
    head, end, body = kind.data.partition(b"\r\n\r\n")
    return head + end, body


def with_line(kind: Kind, line: bytes) -> bytes:
    return kind.data.replace(b"\r\n", b"\r\n" + line + b"\r\n", 1)


def sends(change: Callable[[Kind], bytes]) -> Act:
    def act(client: RawClient, kind: Kind, rig: Rig) -> None:
        client.send(change(kind))

    return act


def leaves_in_the_head(client: RawClient, kind: Kind, rig: Rig) -> None:
    client.send(kind.data[:30])
    client.close()


def resets_in_the_head(client: RawClient, kind: Kind, rig: Rig) -> None:
    client.send(kind.data[:30])
    client.reset()


def leaves_in_the_body(client: RawClient, kind: Kind, rig: Rig) -> None:
    head, body = head_of(kind)
    client.send(head + body[: len(body) // 2])
    client.close()


def resets_in_the_body(client: RawClient, kind: Kind, rig: Rig) -> None:
    head, body = head_of(kind)
    client.send(head + body[: len(body) // 2])
    client.reset()


def leaves_while_it_waits(client: RawClient, kind: Kind, rig: Rig) -> None:
    client.send(kind.data + kind.more)
    rig.engine.wait_requests(1)[0].wait_complete()
    client.close()


def resets_while_it_waits(client: RawClient, kind: Kind, rig: Rig) -> None:
    client.send(kind.data + kind.more)
    rig.engine.wait_requests(1)[0].wait_complete()
    client.reset()


def leaves_in_the_response(client: RawClient, kind: Kind, rig: Rig) -> None:
    client.send(kind.data + kind.more)
    client.read_body(client.read_head(), at_least=10)
    client.close()


def half_closes(client: RawClient, kind: Kind, rig: Rig) -> None:
    client.send(kind.data)
    client.shutdown_write()


def sends_slowly(client: RawClient, kind: Kind, rig: Rig) -> None:
    size = max(7, len(kind.data) // 40)
    pieces = [kind.data[at : at + size] for at in range(0, len(kind.data), size)]
    client.send(*pieces, gap=0.002)


OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAM"
OK: tuple[dict[str, float], ...] = ({"ok": 1},)
FAULTS = (
    Fault("leaves in the head", leaves_in_the_head, ({},)),
    Fault("resets in the head", resets_in_the_head, ({},)),
    Fault("leaves in the body", leaves_in_the_body, (LEFT,), without=NO_BODY),
    Fault("resets in the body", resets_in_the_body, (LEFT,), without=NO_BODY),
    Fault("leaves while it waits", leaves_while_it_waits, (LEFT,), "waits"),
    Fault("resets while it waits", resets_while_it_waits, (LEFT,), "waits"),
    Fault("leaves in the response", leaves_in_the_response, (LEFT,), "stops"),
    Fault("half-closes", half_closes, ({"ok": 1}, LEFT)),
    Fault("sends slowly", sends_slowly, OK, status=200),
    Fault("offers a switch", sends(lambda kind: with_line(kind, OFFER)), OK, status=200),
    Fault("expects 100", sends(lambda kind: with_line(kind, b"Expect: 100-continue")), OK, status=200),  # noqa: E501
    Fault("asks to close", sends(lambda kind: with_line(kind, b"Connection: close")), OK, status=200),  # noqa: E501
    Fault("two lengths", sends(lambda kind: with_line(kind, b"Content-Length: 1\r\nContent-Length: 2")), (REJECTED,), status=400),  # noqa: E501
    Fault("a blank before a colon", sends(lambda kind: with_line(kind, b"X-A : b")), (REJECTED,), status=400),  # noqa: E501
    Fault("a head that is too large", sends(lambda kind: with_line(kind, b"X-A: " + b"a" * 70_000)), (REJECTED,), status=431),  # noqa: E501
    Fault("a malformed chunk", sends(lambda kind: kind.data.replace(b"\r\nc350\r\n", b"\r\nzz\r\n", 1)), (REJECTED,), status=400, without=NOT_CHUNKED),  # noqa: E501
)  # fmt: skip


@pytest.mark.parametrize(("fault", "kind"), table(FAULTS))
def test_a_clients_fault(quiet_rig: Rig, fault: Fault, kind: Kind) -> None:
    async def script(c: Conversation) -> None:
        if fault.engine == "answers":
            await c.send(right_answer(kind))
            return
        if fault.engine == "stops":
            await c.send(right_answer(kind)[:-60])
        await c.until_peer_leaves()

    prepare(quiet_rig, kind, script)
    watch = quiet_rig.watch()
    with quiet_rig.client(10) as client:
        fault.act(client, kind, quiet_rig)
        if fault.status is not None:
            seen = look(client)
            assert (seen.status, seen.manner) == (fault.status, "whole")
            if fault.status == 200:
                assert seen.response is not None
                assert seen.response.body == right_body(kind)
        if fault.outcomes != ({},):
            assert watch.after().outcomes in fault.outcomes
    with quiet_rig.client() as another:
        assert works(lambda: another), "a new connection"
    nothing_left(quiet_rig)
    for one in quiet_rig.engine.requests:
        if fault.engine != "answers" and one.target == kind.path:
            one.wait_closed()
