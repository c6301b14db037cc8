"""The analyst's end of what relays send: frames over a Unix socket.

Relays are asked for what runs whenever somebody wants to know (`refresh`). What they send comes in
order, so their answer brings with it all that has ended before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import cast

import msgspec

from tokgauge.measure.record import Frame, Hello, Message, Record, Report, Summary
from tokgauge.relay.outlet import frames

_decode = msgspec.msgpack.Decoder(Frame).decode
_encode = msgspec.msgpack.Encoder().encode


class RelayLink(asyncio.Protocol):
    """The connection of one relay, as long as it lasts.

    name: as the relay calls itself. pid: its process. summary: what it told last of what runs.
    """

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._unread = bytearray()
        self._transport: asyncio.Transport | None = None
        self.name = ""
        self.pid = 0
        self.summary: Summary | None = None
        self._questions: dict[int, asyncio.Future[None]] = {}

    def ask(self, number: int) -> asyncio.Future[None]:
        """Ask what runs; the future is done when it has told, or is gone."""
        question = self._questions[number] = asyncio.get_running_loop().create_future()
        self.tell(_encode(Report(number)))
        return question

    def tell(self, frame: bytes) -> None:
        """Send something to the relay."""
        if self._transport is not None:
            self._transport.write(len(frame).to_bytes(4, "little") + frame)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._intake.came(self)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        for frame in frames(self._unread):
            self._intake.take(self, frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for number in list(self._questions):
            self.has_told(number)
        self._intake.left(self)

    def has_told(self, number: int) -> None:
        """It has told what runs, because of the question of this number."""
        question = self._questions.pop(number, None)
        if question is not None and not question.done():
            question.set_result(None)


class Intake:
    """All relays.

    record: receives each exchange that has ended. summed: is called when a relay has told what
    runs. failed: is told of what cannot be taken in. message: what each new relay is told.
    """

    def __init__(
        self, record: Callable[[RelayLink, Record], None], summed: Callable[[RelayLink], None],
        came: Callable[[RelayLink], None], left: Callable[[RelayLink], None],
        failed: Callable[[str, Exception], None],
        message: Callable[[], Message],
    ) -> None:  # fmt: skip
        self.relays: set[RelayLink] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._asked = 0
        self._record = record
        self._summed = summed
        self._came = came
        self._left = left
        self._failed = failed
        self._message = message

    def link(self) -> RelayLink:
        """A new connection of a relay."""
        return RelayLink(self)

    async def refresh(self, patience: float) -> None:
        """Take in what has ended and what runs now; waits `patience` seconds for it at most."""
        self._asked = number = self._asked + 1
        questions = [relay.ask(number) for relay in self.relays]
        if questions:
            await asyncio.wait(questions, timeout=patience)
            for relay in self.relays:
                relay.has_told(number)  # one that hangs is not waited for any longer

    async def all_left(self, patience: float) -> None:
        """Wait until all relays have gone, and so have told all; `patience` seconds at most."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), patience)

    def tell(self, message: Message) -> None:
        """Tell all relays what has become known of the engine."""
        frame = _encode(message)
        for relay in self.relays:
            relay.tell(frame)

    # The links' side

    def came(self, relay: RelayLink) -> None:
        self.relays.add(relay)
        self._empty.clear()
        self._came(relay)
        relay.tell(_encode(self._message()))

    def left(self, relay: RelayLink) -> None:
        self.relays.discard(relay)
        if not self.relays:
            self._empty.set()
        self._left(relay)

    def take(self, relay: RelayLink, frame: bytes) -> None:
        """Take in one frame. Never raises: what fails is counted."""
        try:
            told = _decode(frame)
            if isinstance(told, Record):
                self._record(relay, told)
            elif isinstance(told, Summary):
                relay.summary = told
                self._summed(relay)
                relay.has_told(told.number)
            elif isinstance(told, Hello):
                relay.name, relay.pid = told.name, told.pid
        except Exception as error:  # border: one frame must not cost the others
            self._failed("intake", error)
