"""Many clients at once, good and bad, before an engine that does what engines should not do.

Every request has a number, which is in all parts of its body and of its answer. A good client
compares what it gets to the byte; the engine books what came up.
"""

import asyncio
import contextlib
import random
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import cast

from tests.ledger.engine import BAD, GOOD, MARK, UNASKED, LedgerEngine, events, text, whole_body
from tests.support.strict import NotStrict, Response, read_response

CLIENTS = 40
_PATIENCE = 60.0
_STREAMS = ("stream", "tiny")


@dataclass
class Exchange:
    """One request: what is sent, what the engine does then, and the body that must come back."""

    number: int
    method: bytes
    deed: str
    data: bytes
    wanted: bytes
    expects: bool = False


@dataclass
class Ledger:
    """What was sent and what became of it.

    good: exchanges of clients that read to the end. wrong: numbers with what is wrong about them.
    others: good exchanges with a body that is not theirs.
    """

    sent: dict[int, Exchange] = field(default_factory=dict)
    good: int = 0
    bad: int = 0
    wrong: list[tuple[int, str]] = field(default_factory=list)
    others: list[tuple[Exchange, bytes]] = field(default_factory=list)
    deeds: Counter[str] = field(default_factory=Counter)


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.got = bytearray()
        self.ended = False
        self.news = asyncio.Event()
        self.last: Exchange | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.got += data
        self.news.set()

    def eof_received(self) -> None:
        self.ended = True
        self.news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        self.news.set()

    async def until(self, met: Callable[[], bool]) -> None:
        while not met() and not self.ended:
            self.news.clear()
            await self.news.wait()

    async def response(self, method: bytes) -> Response | None:
        """The next response, taken off; None when the connection ends before it is whole."""
        whole: Response | None = None

        def met() -> bool:
            nonlocal whole
            whole = read_response(self.got, method=method)
            return whole is not None

        await self.until(met)
        if whole is not None:
            del self.got[: whole.end]
        return whole

    def reset(self) -> None:
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.transport.abort()


class Campaign:
    """engine: in this event loop. port: the proxy's."""

    def __init__(self, engine: LedgerEngine, port: int, seed: int) -> None:
        self.engine = engine
        self.port = port
        self.ledger = Ledger()
        self._chance = random.Random(seed)
        self._numbers = count(1)

    async def run(self, exchanges: int) -> Ledger:
        """About as many exchanges, by `CLIENTS` clients at once."""

        async def client() -> None:
            while len(self.ledger.sent) < exchanges and len(self.ledger.wrong) < 500:
                await self._session()

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        return self.ledger

    def wrong(self, one: Exchange | None, what: str) -> None:
        number, told = (0, "") if one is None else (one.number, f" for {one.data[:300]!r}")
        self.ledger.wrong.append((number, what + told))

    async def _session(self) -> None:
        chance = self._chance
        connection = await self._connect()
        try:
            async with asyncio.timeout(_PATIENCE):
                if chance.random() < 0.6:
                    for _ in range(chance.randrange(1, 5)):
                        if not await self._good(connection):
                            break
                else:
                    await self._bad(connection)
        except NotStrict as error:
            self.wrong(connection.last, f"the client got {error}")
        except TimeoutError:
            self.wrong(connection.last, f"not within {_PATIENCE:g} s")
        finally:
            # What closes in order first sends what it has, and that may never be taken.
            if chance.random() < 0.3 or connection.transport.get_write_buffer_size():
                connection.reset()
            else:
                connection.transport.close()

    async def _connect(self) -> _Connection:
        _, connection = await asyncio.get_running_loop().create_connection(
            _Connection, "127.0.0.1", self.port
        )
        return connection

    # Good clients

    async def _good(self, connection: _Connection) -> bool:
        """One exchange, or several in a pipeline; whether another may follow."""
        chance = self._chance
        pipelined = chance.choice((1, 1, 1, 2, 3))
        asked = [self._new(chance.choice(GOOD), good=True) for _ in range(pipelined)]
        await self._write(connection, asked)
        for one in asked:
            connection.last = one
            if one.expects:
                await connection.until(lambda: b"HTTP/1.1 100 Continue\r\n\r\n" in connection.got)
                connection.transport.write(one.data.partition(b"\r\n\r\n")[2])
            got = await connection.response(one.method)
            self._check(one, got)
            if got is None:
                return False
        if connection.got:
            self.wrong(one, f"more came: {bytes(connection.got)!r}")
        return got is not None and not got.last

    async def _write(self, connection: _Connection, asked: list[Exchange]) -> None:
        chance = self._chance
        if len(asked) == 1 and chance.random() < 0.05 and asked[0].method == b"POST":
            one = asked[0]
            head, end, _ = one.data.partition(b"\r\n\r\n")
            one.data = one.data.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n", 1)
            one.expects = True
            connection.transport.write(head + b"\r\nExpect: 100-continue" + end)
            return
        data = b"".join(one.data for one in asked)
        if chance.random() < 0.3:
            at = chance.randrange(1, len(data))
            connection.transport.write(data[:at])
            await asyncio.sleep(chance.choice((0, 0.001, 0.005)))
            connection.transport.write(data[at:])
        else:
            connection.transport.write(data)

    def _check(self, one: Exchange, got: Response | None) -> None:
        self.ledger.good += 1
        if got is None:
            self.wrong(one, "no whole answer")
            return
        number = got.header(b"x-ledger")
        if got.status != 200 or number != b"%d" % one.number or got.body != one.wanted:
            self.ledger.others.append((one, got.body))
            self.wrong(one, f"got {got}")

    # Bad clients, and good ones of a bad engine

    async def _bad(self, connection: _Connection) -> None:
        chance = self._chance
        one = self._new(chance.choice(GOOD + BAD * 2), good=False)
        connection.last = one
        self.ledger.bad += 1
        how = chance.choice(_WAYS)
        more = b""
        if how == "pipelines":
            more = b"".join(
                self._new(chance.choice(GOOD), good=False, most=40).data for _ in range(2)
            )
        elif how == "spoils":
            more = b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n"
        at = chance.randrange(1, len(one.data)) if how == "leaves in the request" else None
        connection.transport.write(one.data[:at] + more)
        if how == "half-closes":
            connection.transport.write_eof()
        if how == "leaves at once":
            return
        if how == "stops reading":
            connection.transport.pause_reading()
            await asyncio.sleep(chance.uniform(0, 0.05))
        elif how == "leaves when it begins":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await connection.until(lambda: bool(connection.got))
        elif how == "leaves in the request":
            await asyncio.sleep(chance.uniform(0, 0.01))
        else:
            try:
                async with asyncio.timeout(0.3 if one.deed == "silent" else _PATIENCE):
                    await connection.until(lambda: self._is_over(connection, one))
            except TimeoutError:
                if one.deed != "silent":
                    raise
        together = {b"%d" % number for number in range(one.number, one.number + 3)}
        together.update(MARK.findall(UNASKED))  # see `LedgerEngine.raced`
        if not together.issuperset(MARK.findall(connection.got)):
            self.wrong(one, f"got {bytes(connection.got)!r}")

    @staticmethod
    def _is_over(connection: _Connection, one: Exchange) -> bool:
        return read_response(connection.got, method=one.method) is not None

    # Requests

    def _new(self, deed: str, *, good: bool, most: int = 20_000) -> Exchange:
        chance, number = self._chance, next(self._numbers)
        self.ledger.deeds[deed] += 1
        method, target, wanted = b"POST", b"/v1/completions", whole_body(number)
        stream = deed in _STREAMS
        if not good:
            target = b"/v1/embeddings"
        elif stream:
            target = b"/v1/chat/completions"
        elif chance.random() < 0.3 and deed != "early":
            method, target = chance.choice((b"GET", b"GET", b"HEAD")), b"/health"
        if not good and chance.random() < 0.3:
            method, target = b"GET", b"/metrics/x"
        target += b"?ledger-%d-" % number
        if stream and method != b"HEAD":
            wanted = b"".join(events(number))
        if method == b"HEAD":
            wanted = b""
        times = chance.choice((1, 1, 5, 40, 40, 400, 20_000 if chance.random() < 0.1 else 1))
        times = min(times, most)
        body = b""
        if method == b"POST":
            body = b'{"model":"qwen","prompt":"%b","stream":%b}' % (
                text(number, times), b"true" if stream else b"false",
            )  # fmt: skip
        data = self._request(method, target, number, deed, body, times)
        one = self.ledger.sent[number] = Exchange(number, method, deed, data, wanted)
        return one

    def _request(
        self, method: bytes, target: bytes, number: int, deed: str, body: bytes, times: int
    ) -> bytes:
        chance = self._chance
        head = b"%b %b HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n" % (method, target)
        head += b"x-ledger: %d\r\nx-deed: %b\r\nx-size: %d\r\n" % (
            number, deed.encode(), times if body else 0,
        )  # fmt: skip
        if chance.random() < 0.1:
            head += (
                b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAM\r\n"
            )
        if not body:
            return head + b"\r\n"
        if chance.random() < 0.3:
            middle = chance.randrange(1, len(body))
            pieces = (body[:middle], body[middle:])
            framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
            return head + b"Transfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


_WAYS = (
    "reads", "reads", "reads", "pipelines", "spoils", "leaves in the request", "half-closes",
    "leaves at once", "stops reading", "leaves when it begins",
)  # fmt: skip


def twice_wrongly(ledger: Ledger, received: Counter[int], raced: set[int]) -> list[str]:
    """Requests that the engine got too often, or that nobody sent."""
    wrong = []
    for number, times in received.items():
        one = ledger.sent.get(number)
        if one is None:
            wrong.append(f"nobody sent number {number}")
        elif (
            times > 1
            and number not in raced
            and not (times == 2 and one.deed == "closes" and one.method == b"GET")
        ):
            wrong.append(f"{times} times: {one.data[:300]!r}")
    return wrong
