"""What an engine can do wrong, times what a client can ask: a table and what it promises.

Each row is a fault; `whole`, `cut` and so on say what the client gets, and then the outcome that is
counted. After each the same connection goes on if its response was whole, the next one on a new
connection gets its own answer, and nothing is left open. `without` names the kinds of request to
which a fault cannot happen, and why.
"""

# ruff: noqa: E501  one fault a line
import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.conftest import Rig
from tests.faults.kinds import (
    KINDS,
    SECOND,
    UPLOADS,
    Kind,
    look,
    right_answer,
    right_body,
    table,
    works,
)
from tests.support.engine import Conversation, Script, answer, send
from tests.support.metrics import wait_until

Act = Callable[[Conversation, Kind], Any]

OK = (200, "whole", "ok")
CUT = (200, "cut", "upstream_incomplete")
UNCLEAR = (502, "whole", "upstream_incomplete")
NO_BODY_TO_BE_EARLY_FOR = dict.fromkeys(
    [kind.name for kind in KINDS if kind.name not in UPLOADS],
    "its body comes with the head, so nothing can be early",
)


@dataclass(frozen=True)
class Fault:
    """act: what the engine does. wanted: status, manner and outcome. early: before the body.

    body: what of the body the client gets, if it is not the right one or a part of it. code: in the
    proxy's own word, where that is what the client gets.
    """

    name: str
    act: Act
    wanted: tuple[int, str, str]
    early: bool = False
    body: bytes | None = None
    code: str = "upstream_malformed"
    without: dict[str, str] = field(default_factory=dict)


def sends(data: bytes, *, closes: bool = False) -> Act:
    async def act(c: Conversation, kind: Kind) -> None:
        await c.send(data)
        if closes:
            c.close()

    return act


def half(data: bytes) -> bytes:
    return data[: len(data) - 60]


async def closes(c: Conversation, kind: Kind) -> None:
    c.close()


async def resets(c: Conversation, kind: Kind) -> None:
    c.reset()


async def half_closes_first(c: Conversation, kind: Kind) -> None:
    c._connection.transport.write_eof()
    await c.until_peer_leaves()


async def half_closes_behind(c: Conversation, kind: Kind) -> None:
    await c.send(right_answer(kind))
    c._connection.transport.write_eof()


async def closes_inside(c: Conversation, kind: Kind) -> None:
    await c.send(half(right_answer(kind)))
    c.close()


async def resets_inside(c: Conversation, kind: Kind) -> None:
    await c.send(half(right_answer(kind)))
    await c.pause(0.02)
    c.reset()


async def half_closes_inside(c: Conversation, kind: Kind) -> None:
    await c.send(half(right_answer(kind)))
    c._connection.transport.write_eof()
    await c.until_peer_leaves()


async def closes_behind(c: Conversation, kind: Kind) -> None:
    await c.send(right_answer(kind))
    c.close()


async def dies_idle(c: Conversation, kind: Kind) -> None:
    await c.send(right_answer(kind))
    asyncio.get_running_loop().call_later(0.005, c.close)


async def byte_by_byte(c: Conversation, kind: Kind) -> None:
    for byte in right_answer(kind):
        await c.send(bytes([byte]))


async def in_pieces(c: Conversation, kind: Kind) -> None:
    data = right_answer(kind)
    for at in range(0, len(data), 97):
        await c.send(data[at : at + 97])
        await c.pause(0.002)


async def surplus(c: Conversation, kind: Kind) -> None:
    await c.send(right_answer(kind) + b"surplus")


async def two_responses(c: Conversation, kind: Kind) -> None:
    await c.send(right_answer(kind) + answer(b"for somebody else"))


async def interim_first(c: Conversation, kind: Kind) -> None:
    await c.send(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" * 3 + right_answer(kind))


async def early_and_then_reads(c: Conversation, kind: Kind) -> None:
    await c.send(right_answer(kind))
    await c.read_body()


async def early_and_closes(c: Conversation, kind: Kind) -> None:
    await c.send(answer(b"too large", "413 Payload Too Large"))
    await c.pause(0.1)
    c.close()


def floods(begin: bytes, piece: bytes) -> Act:
    """`begin` and then for ever, but for 20 MB at most."""

    async def act(c: Conversation, kind: Kind) -> None:
        await c.send(begin)
        for _ in range(20_000_000 // len(piece)):
            if c.peer_gone:
                return
            await c.send(piece)

    return act


OKAY = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OKAY + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n"
K = b"k" * 1000

FAULTS = (
    Fault("closes without a byte", closes, UNCLEAR, code="upstream_closed"),
    Fault("resets without a byte", resets, UNCLEAR, code="upstream_closed"),
    Fault("half-closes without a byte", half_closes_first, UNCLEAR, code="upstream_closed"),
    Fault("closes in the head", sends(OKAY + b"content-le", closes=True), UNCLEAR, code="upstream_closed"),
    Fault("closes in the body", closes_inside, CUT),
    Fault("resets in the body", resets_inside, CUT),
    Fault("half-closes in the body", half_closes_inside, CUT),
    Fault("closes behind the body", closes_behind, OK),
    Fault("half-closes behind the body", half_closes_behind, OK),
    Fault("dies idle", dies_idle, OK),
    Fault("speaks no HTTP", sends(b"SSH-2.0-OpenSSH_9.6\r\n"), UNCLEAR),
    Fault("status 000", sends(b"HTTP/1.1 000 No\r\ncontent-length: 0\r\n\r\n"), UNCLEAR),
    Fault("switches unasked", sends(b"HTTP/1.1 101 Switching\r\nupgrade: x\r\n\r\n"), UNCLEAR),
    Fault("length and chunks", sends(OKAY + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"), UNCLEAR),
    Fault("two lengths", sends(OKAY + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello"), UNCLEAR),
    Fault("another coding", sends(OKAY + b"transfer-encoding: gzip\r\n\r\nhello", closes=True), UNCLEAR),
    Fault("length too long", sends(OKAY + b"content-length: 9\r\n\r\nhello", closes=True), CUT, body=b"hello"),
    Fault("length too short", sends(OKAY + b"content-length: 3\r\n\r\nhello"), OK, body=b"hel"),
    Fault("bad chunk size", sends(CHUNKED + b"zz\r\n"), CUT, body=b"hello"),
    Fault("chunk without an end", sends(CHUNKED[:-2] + b"0\r\n\r\n"), CUT, body=b"hello"),
    Fault("surplus", surplus, OK),
    Fault("two responses", two_responses, OK),
    Fault("interim responses first", interim_first, OK),
    Fault("endless interim responses", floods(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 40), UNCLEAR),
    Fault("endless head", floods(OKAY, b"x-a: %b\r\n" % K), UNCLEAR),
    Fault("endless trailers", floods(CHUNKED + b"0\r\n", b"x-a: %b\r\n" % K), CUT, body=b"hello"),
    Fault("endless chunk extension", floods(CHUNKED + b"5;", K), CUT, body=b"hello"),
    Fault("204 with a body", sends(b"HTTP/1.1 204 No\r\ncontent-length: 5\r\n\r\nhello"), (204, "whole", "ok"), body=b""),
    Fault("500", sends(answer(b'{"error":1}', "500 Oh")), (500, "whole", "upstream_error"), body=b'{"error":1}'),
    Fault("until close", sends(OKAY + b"\r\nhello", closes=True), OK, body=b"hello"),
    Fault("HTTP/1.0", sends(b"HTTP/1.0 200 OK\r\n\r\nhello", closes=True), OK, body=b"hello"),
    Fault("byte by byte", byte_by_byte, OK),
    Fault("in pieces", in_pieces, OK),
    Fault("answers early and reads on", early_and_then_reads, OK, early=True, without=NO_BODY_TO_BE_EARLY_FOR),
    Fault("refuses early", early_and_closes, (413, "whole", "upstream_error"), early=True, body=b"too large", without=NO_BODY_TO_BE_EARLY_FOR),
)  # fmt: skip


def script_of(fault: Fault, kind: Kind) -> Script:
    async def script(c: Conversation) -> None:
        await fault.act(c, kind)

    return script


def prepare(rig: Rig, kind: Kind, script: Script, *, early: bool = False) -> None:
    rig.engine.forget()

    def dropped() -> bool:
        rig.engine.drop_connections()
        return not rig.engine.open_connections

    wait_until(dropped)  # what dies on a fresh connection is not tried again
    rig.engine.drop_connections()  # a turn of its event loop: the sockets are closed, too
    rig.engine.on(kind.path, script, early=early)
    rig.engine.on(SECOND, send(answer(b"second")))
    rig.engine.on("/v1/next", send(answer(b"next")))


def nothing_left(rig: Rig) -> None:
    wait_until(lambda: not rig.proxy.clients, 5, "no client connection is left")
    wait_until(lambda: not rig.scrape().total("requests_in_flight"), 5, "nothing is in flight")


@pytest.mark.parametrize(("fault", "kind"), table(FAULTS))
def test_an_engines_fault(quiet_rig: Rig, fault: Fault, kind: Kind) -> None:
    prepare(quiet_rig, kind, script_of(fault, kind), early=fault.early)
    watch = quiet_rig.watch()
    status, manner, outcome = fault.wanted
    with quiet_rig.client(10) as client:
        client.send(kind.data + kind.more)
        seen = look(client)
        assert (seen.status, seen.manner) == (status, manner)
        assert seen.response is not None
        if status == 502:
            assert f'"code":"{fault.code}"'.encode() in seen.response.body
        elif manner == "cut" and fault.body is None:
            assert right_body(kind).startswith(seen.response.body)
        else:
            assert seen.response.body == (right_body(kind) if fault.body is None else fault.body)
        expected = {outcome: 1}
        if kind.more and manner == "whole":
            assert look(client).response.body == b"second"  # type: ignore[union-attr]
            expected["ok"] = expected.get("ok", 0) + 1
        assert watch.after(sum(expected.values())).outcomes == expected
        assert works(lambda: client) == (manner == "whole"), "the same connection"
    with quiet_rig.client() as another:
        assert works(lambda: another), "a new connection"
    nothing_left(quiet_rig)
    times = sum(one.target == kind.path for one in quiet_rig.engine.requests)
    # What dies as a request goes out may have it twice, but not where that may do harm.
    assert times <= (1 if kind.name in UPLOADS else 2)
