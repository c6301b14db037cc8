"""Runs one exchange on a way to the scripted engine, direct or through a proxy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from tests.direct.replies import Reply, Request, script, shown_lengths
from tests.direct.sight import PATIENCE, Client, Progress, Reading, Sight
from tests.support.client import fetch
from tests.support.engine import Conversation, ScriptedEngine, json_answer

AFTER = "/after-the-exchange"
_AFTER_ANSWER = b'{"after": true}'

Answers = Callable[[bytes], Reply]
"""What an engine answers to a request's body."""

_TAG = "direct"
"""Tells the engine a test's own request from a proxy's; always the same, as clients' heads are."""


@dataclass(frozen=True)
class Exchange:
    """One line of the corpus.

    engine: its answer, which may depend on the request's body. leaves: pieces of the answer after
    which the client leaves, -1 for before the head. rounds: how often in a row it is run through
    the same proxy. lessons: exchanges that this proxy carries before it. restarts: the engine is
    restarted between those and this one. early: the engine answers when it has the head.
    pipelined: the next request is in the same write.
    """

    name: str
    request: Request
    engine: Answers
    leaves: int | None = None
    leaves_by: str = "close"
    rounds: int = 1
    lessons: tuple[Exchange, ...] = ()
    restarts: bool = False
    early: bool = False
    pipelined: bool = False

    @property
    def own_proxy(self) -> bool:
        """Whether it needs a proxy that has learned nothing from other exchanges."""
        return self.rounds > 1 or bool(self.lessons)

    @property
    def direct(self) -> Reply:
        return self.engine(self.request.body)


class _Engine:
    """The scripted engine's side of one run."""

    def __init__(
        self, engine: ScriptedEngine, exchange: Exchange, sight: Sight, progress: Progress
    ) -> None:
        self.engine = engine
        self.exchange = exchange
        self.sight = sight
        self.progress = progress
        self.over = threading.Event()

    async def answer(self, conversation: Conversation) -> None:
        received = conversation.request
        if received.header("x-exchange") != _TAG.encode():
            await self.engine._background_answer(conversation)  # a proxy's own question
            return
        self.sight.requests.append(received)
        self.progress.arrived.set()
        body = bytes(received.body) if not self.exchange.early else self.exchange.request.body
        reply = self.exchange.engine(body)
        try:
            if not reply.dies:
                await self._send(conversation, reply, body != self.exchange.request.body)
            await self._end(conversation, reply)
        except ConnectionError:
            self.sight.gone = True
        finally:
            self.over.set()

    async def _send(self, conversation: Conversation, reply: Reply, changed: bool) -> None:
        for write in script(reply, self.exchange.direct, changed=changed):
            await conversation.send(write.data)
            if write.pause:
                await conversation.pause(write.pause)
            if (
                write.seen is not None
                and self.sight.late is None
                and not await self.progress.reach(write.seen)
            ):
                self.sight.late = write.seen

    async def _end(self, conversation: Conversation, reply: Reply) -> None:
        if reply.end == "close":
            conversation.close()
        elif reply.end == "reset":
            conversation.reset()
        elif reply.end == "leaves":
            await conversation.until_peer_leaves(PATIENCE)
            self.sight.gone = conversation.peer_gone


async def _after(conversation: Conversation) -> None:
    await conversation.send(json_answer({"after": True}))


def run(exchange: Exchange, engine: ScriptedEngine, port: int) -> Sight:
    """Make the exchange at `port`; `engine` is behind it. Gives what was seen at both ends."""
    sight, progress = Sight(), Progress()
    scripted = _Engine(engine, exchange, sight, progress)
    engine.forget()
    for path in {exchange.request.path, exchange.request.target.split("?", 1)[0]}:
        engine.on(path, scripted.answer, early=exchange.early)
    engine.on(AFTER, _after)
    client = Client(port)
    try:
        writes = exchange.request.writes(_TAG)
        following = Request("GET", AFTER, (), framing="none").writes(_TAG)
        if exchange.pipelined:
            writes[-1] += following[0]
        client.send(writes)
        reading = Reading(sight, to_head=exchange.request.method == "HEAD")
        if exchange.leaves is None:
            client.read(reading, progress)
        else:
            _leave(exchange, client, reading, progress)
        direct_surplus = exchange.direct.surplus if port == engine.port else b""
        if exchange.direct.surplus and not direct_surplus:
            # It must be there before the next request goes, or it would be the answer to that.
            assert scripted.over.wait(PATIENCE)
            for _ in range(3):
                fetch(port, "GET", "/tokgauge/healthz")
        if direct_surplus:
            sight.surplus = direct_surplus  # nobody can use such a connection any more
        elif sight.ending == "whole":
            _try_again(exchange, client, reading, [] if exchange.pipelined else following)
    finally:
        client.close()
    if exchange.leaves is not None:
        assert scripted.over.wait(2 * PATIENCE), "the engine has not noticed that its client left"
    return sight


def _leave(exchange: Exchange, client: Client, reading: Reading, progress: Progress) -> None:
    assert exchange.leaves is not None
    if exchange.leaves < 0:
        assert progress.arrived.wait(PATIENCE), "the request never came"
        reading.sight.ending = "left"
    else:
        lengths = [0, *shown_lengths(exchange.direct)]
        client.read(reading, progress, leaves_at=lengths[exchange.leaves])
    if exchange.leaves_by == "reset":
        client.reset()
    else:
        client.close()


def _try_again(
    exchange: Exchange, client: Client, reading: Reading, following: list[bytes]
) -> None:
    """Make another exchange on the same connection: it shows whether anything was left on it."""
    sight = reading.sight
    sight.surplus = b"" if exchange.pipelined else bytes(reading.rest)
    second = Sight()
    after = Reading(second)
    after.rest += reading.rest if exchange.pipelined else b""
    client.send(following)
    client.read(after, Progress())
    sight.kept = second.ending == "whole"
    if sight.kept and bytes(second.body) != _AFTER_ANSWER:  # the next answer is another's
        sight.surplus = sight.surplus or second.head + bytes(second.body)
