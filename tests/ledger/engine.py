"""The ledger's engine: books every request by its number, and does what the request tells it."""

import asyncio
import re
from collections import Counter

from tests.support.strict import Request
from tests.support.strict_engine import EngineConnection, StrictEngine, answer

MARK = re.compile(rb"ledger-(\d+)-")
_NUMBER = re.compile(rb"x-ledger: (\d+)\r\n", re.IGNORECASE)
_DEED = re.compile(rb"x-deed: (\S+)\r\n", re.IGNORECASE)
_USAGE = b'"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}'

UNASKED = b"ledger-888888888-"
"""What is said on an idle connection."""

GOOD = (
    "length", "length", "chunked", "stream", "stream", "slow", "tiny", "closing", "until-close",
    "interim", "trailers", "early", "dies-idle", "surplus", "second", "late-surplus",
)  # fmt: skip
"""What an engine does that costs no client its answer."""

BAD = ("cut", "cut-chunk", "reset", "no-head", "garbage", "refuses-early", "silent", "closes")
"""What costs the client its answer."""


def text(number: int, times: int) -> bytes:
    """A body that says of each of its parts whose it is."""
    return b"ledger-%d-" % number * times


def whole_body(number: int) -> bytes:
    """The body of an answer that is not streamed, as its client must get it."""
    return b'{"object":"text_completion","choices":[],"of":"%b"}' % text(number, 9)


def events(number: int) -> list[bytes]:
    """The events of a stream as its client must get them."""
    begin = (
        b'data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"qwen","choices":'
    )
    choice = b'[{"index":0,"delta":{"content":"%b"},"logprobs":null,"finish_reason":%b}]}\n\n'
    mark = text(number, 1)
    last = begin + choice % (mark, b'"stop"')
    return [*(begin + choice % (mark, b"null") for _ in range(4)), last, b"data: [DONE]\n\n"]


class LedgerEngine(StrictEngine):
    """received: how often each number came. mixed: what should never have come.

    raced: numbers that came on a connection on which the engine had just said something unasked.
    Nobody can tell that from an answer when the request is already on its way.
    """

    def __init__(self) -> None:
        super().__init__(self._do)
        self.received: Counter[int] = Counter()
        self.mixed: list[str] = []
        self.raced: set[int] = set()
        self._spoiled: set[EngineConnection] = set()
        self._early: set[EngineConnection] = set()

    def left(self, connection: EngineConnection) -> None:
        self._early.discard(connection)
        self._spoiled.discard(connection)

    def take(self, connection: EngineConnection, request: Request) -> None:
        super().take(connection, request)
        self.requests.clear()
        self.seen.clear()

    def early(self, connection: EngineConnection) -> None:
        """Some answers come before the body is here."""
        head, found, _ = bytes(connection.buffer).partition(b"\r\n\r\n")
        if not found or connection in self._early:
            return
        deed, number = _DEED.search(head + b"\r\n"), _NUMBER.search(head + b"\r\n")
        if deed is None or number is None:
            return
        if connection in self._spoiled:
            self.raced.add(int(number[1]))
            connection.buffer.clear()
            connection.reset()  # an answer would come to the next one
        elif deed[1] == b"early":
            self._early.add(connection)
            connection.send(self._whole(int(number[1])))
        elif deed[1] == b"refuses-early":
            self.received[int(number[1])] += 1
            connection.buffer.clear()
            connection.send(self._whole(int(number[1]), b"HTTP/1.1 413 Too Large"))
            connection.close()

    def still_open(self) -> list[str]:
        """What open connections are busy with, but for the analyst's own, which is kept."""
        return [
            f"{one.last!r} then {bytes(one.buffer[:200])!r}"
            for one in self.open
            if one.last is None or one.last.target not in (b"/metrics", b"/v1/models")
        ]

    def _whole(self, number: int, head: bytes = b"HTTP/1.1 200 OK") -> bytes:
        return answer(whole_body(number), head + b"\r\nx-ledger: %d" % number)

    def _do(self, connection: EngineConnection, request: Request) -> None:
        number = int(request.header(b"x-ledger") or -1)
        deed = (request.header(b"x-deed") or b"").decode()
        size = int(request.header(b"x-size") or 0)
        marks = set(MARK.findall(request.target + request.body))
        if marks != {b"%d" % number} or request.body.count(b"ledger-") != size:
            self.mixed.append(f"{request.method!r} {request.target!r} {request.body[:300]!r}")
        self.received[number] += 1
        if connection in self._early:
            self._early.discard(connection)
            connection.done()
            return
        asyncio.get_running_loop().create_task(self._tell(connection, request, number, deed))

    async def _tell(
        self, connection: EngineConnection, request: Request, number: int, deed: str
    ) -> None:
        send, whole = connection.send, self._whole(number)
        head = b"HTTP/1.1 200 OK\r\nx-ledger: %d\r\n" % number
        chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
        body = whole_body(number)
        if request.method == b"HEAD":
            send(whole[: -len(body)])
        elif deed in ("stream", "tiny"):
            await self._stream(connection, request, number, tiny=deed == "tiny")
        elif deed in ("chunked", "trailers"):
            trailer = b"x-ledger: %d\r\n" % number if deed == "trailers" else b""
            send(chunked + _chunk(body[:20]))
            await asyncio.sleep(0)
            send(_chunk(body[20:]) + b"0\r\n%b\r\n" % trailer)
        elif deed == "slow":
            for at in range(0, len(whole), 40):
                send(whole[at : at + 40])
                await asyncio.sleep(0.002)
        elif deed == "until-close":
            send(head + b"\r\n" + body)
            connection.close()
        elif deed == "closing":
            send(whole.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
            connection.close()
        elif deed == "interim":
            send(b"HTTP/1.1 102 Processing\r\n\r\n" * 3 + whole)
        elif deed in ("surplus", "second"):
            evil = b"ledger-999999999-"
            send(whole + (answer(evil) if deed == "second" else evil))
        else:
            await self._otherwise(connection, number, deed)
        if not connection.gone and not connection.transport.is_closing():
            connection.done()

    async def _otherwise(self, connection: EngineConnection, number: int, deed: str) -> None:
        send, whole = connection.send, self._whole(number)
        if deed in ("length", "early", "dies-idle", "late-surplus"):
            send(whole)
            later = asyncio.get_running_loop().call_later
            if deed == "dies-idle":
                later(number % 7 / 1000, self._leave_idle, connection)
            elif deed == "late-surplus":
                later(number % 5 / 1000, self._speak_idle, connection)
        elif deed == "cut":
            send(whole[:-11])
            connection.close()
        elif deed == "cut-chunk":
            send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\n" + text(number, 2))
            connection.close()
        elif deed == "reset":
            send(whole[:-11])
            await asyncio.sleep(0.001)
            connection.reset()
        elif deed == "no-head":
            send(whole[:20])
            connection.close()
        elif deed == "garbage":
            send(b"\x16\x03\x01" + text(number, 3))
        elif deed == "closes":
            connection.close()
        elif deed == "silent":
            while not connection.gone:
                await asyncio.sleep(0.02)

    def _leave_idle(self, connection: EngineConnection) -> None:
        if not connection.busy:
            connection.close()

    def _speak_idle(self, connection: EngineConnection) -> None:
        if not connection.busy and not connection.gone:
            self._spoiled.add(connection)
            connection.send(answer(UNASKED))

    async def _stream(
        self, connection: EngineConnection, request: Request, number: int, *, tiny: bool
    ) -> None:
        told = events(number)
        if b'"include_usage":true' in request.body.replace(b" ", b""):
            usage = b'data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"qwen",'
            told.insert(-1, usage + b'"choices":[],' + _USAGE + b"}\n\n")
        connection.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nx-ledger: %d\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n" % number
        )
        for event in told:
            chunk = _chunk(event)
            pieces = [chunk[at : at + 50] for at in range(0, len(chunk), 50)] if tiny else [chunk]
            for piece in pieces:
                connection.send(piece)
                await asyncio.sleep(0.0005 if tiny else 0)
        connection.send(b"0\r\n\r\n")


def _chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)
