"""Mutated connections on both sides of a proxy, and a look whether anybody else is harmed.

Connections come in batches. What the engine gets must be, to the byte, what a strict reader finds
in the bytes that were sent; what a client gets must be an answer to what it sent. After each batch
good clients, as many as the engine has open connections and two more, get exactly their own.
"""

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import uvloop

from tests.conftest import QUIET, start_proxy
from tests.fuzz.mutations import Mutated, mutated_requests, mutated_response
from tests.support.strict import NotStrict, Request, read_request, read_requests, read_response
from tests.support.strict_engine import EngineConnection, StrictEngine, answer, echo

BATCH = 40
_QUIET = 0.012
_MISSED = 0.3
_LATE = 5.0
_PROBE = 15.0
_PIECES = 0.002
_HOP_BY_HOP = {
    b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding",
    b"upgrade", b"proxy-authenticate", b"proxy-authorization", b"content-length",
}  # fmt: skip
_OURS = {b"x-tokgauge-id", b"x-accel-buffering"}


@dataclass
class Figures:
    """What a campaign has found. wrong: seed and what is wrong with it."""

    connections: int = 0
    accepted: int = 0
    probes: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.connections} mutated connections, {self.accepted} messages accepted, "
            f"{self.probes} good ones, {len(self.wrong)} wrong"
        )


class _Client(asyncio.Protocol):
    def __init__(self, campaign: "Campaign") -> None:
        self._campaign = campaign
        self.got = bytearray()
        self.ended = asyncio.Event()
        self.news = asyncio.Event()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.got += data
        self.news.set()
        self._campaign.stirred()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()
        self.news.set()
        self._campaign.stirred()


class _Engine(StrictEngine):
    """Answers mutated requests, mutates answers, and holds the answers to good ones together."""

    def __init__(self, campaign: "Campaign") -> None:
        super().__init__(self._answer)
        self.campaign = campaign
        self.mutated: dict[bytes, Mutated] = {}
        self.probes: list[tuple[EngineConnection, Request]] = []
        self.probes_wanted = 0

    def take(self, connection: EngineConnection, request: Request) -> None:
        super().take(connection, request)
        self.requests.clear()

    def early(self, connection: EngineConnection) -> Request | None:
        """Every second connection answers before it has read the body, as many engines do.

        Not to good clients: their body may come a moment after the head, and they would get that
        answer, rightly, instead of their own.
        """
        if (
            b"\r\n\r\n" in connection.buffer
            and connection.number % 2
            and not connection.buffer.startswith(b"POST /probe/")
            and read_request(connection.buffer) is None
        ):
            connection.buffer.clear()
            connection.send(answer(b"{}", b"HTTP/1.1 404 Not Found"))
            connection.transport.close()
        return None

    def _answer(self, connection: EngineConnection, request: Request) -> None:
        self.campaign.stirred()
        if request.target.startswith(b"/probe/"):
            self.probes.append((connection, request))
            if len(self.probes) >= self.probes_wanted:
                self.release()
            return
        mutated = self.mutated.get(request.target)
        if mutated is None:
            echo(connection, request)
        else:
            self._send(connection, list(mutated.pieces), mutated.closes)

    def _send(self, connection: EngineConnection, pieces: list[bytes], closes: bool) -> None:
        self.campaign.stirred()
        if connection.buffer:
            connection.close()  # what is left would be taken for the answer to the next request
            return
        connection.send(pieces.pop(0))
        if pieces:
            asyncio.get_running_loop().call_later(_PIECES, self._send, connection, pieces, closes)
        elif closes:
            connection.close()
        else:
            connection.done()

    def release(self) -> None:
        held, self.probes = self.probes, []
        for connection, request in held:
            echo(connection, request)


class Campaign:
    """One campaign, whose engine and clients are in one event loop."""

    def __init__(self) -> None:
        self.figures = Figures()
        self.engine = _Engine(self)
        self.port = 0
        self._last = 0.0
        self._sent: deque[Counter[tuple[bytes, bytes, bytes]]] = deque(maxlen=3)
        self._numbers = iter(range(1 << 60))

    def stirred(self) -> None:
        self._last = time.monotonic()

    async def run(self, start: Callable[[str], int], side: str, seeds: Sequence[int]) -> Figures:
        """start: gives the port of a proxy before the engine at the URL that it is given."""
        await self.engine.listen()
        self.port = await asyncio.to_thread(start, self.engine.url)
        batch = self._requests if side == "requests" else self._responses
        try:
            for at in range(0, len(seeds), BATCH):
                await batch(seeds[at : at + BATCH])
                await self._probe(seeds[at])
                if len(self.figures.wrong) > 20:
                    break
        finally:
            self.engine.stop_listening()
        return self.figures

    def wrong(self, seed: int, what: str) -> None:
        self.figures.wrong.append(f"seed {seed}: {what}")

    async def _requests(self, seeds: Sequence[int]) -> None:
        mutated = [mutated_requests(seed) for seed in seeds]
        strictly = [read_requests(one.data) for one in mutated]
        self._sent.append(
            Counter(_key(one) for many in strictly for one in many if not one.refusable)
        )
        clients = await self._exchange(
            [one.pieces for one in mutated],
            lambda client, number: client.got.count(b"HTTP/1.1 ") >= len(strictly[number]),
            _MISSED,
        )
        for one, requests, client in zip(mutated, strictly, clients, strict=True):
            self._look_at_answers(one, requests, client)
        self._look_at_engine(seeds[0])

    def _look_at_answers(self, one: Mutated, requests: list[Request], client: _Client) -> None:
        certain = [asked for asked in requests if not asked.refusable]
        # Who writes on when the connection has been closed may not see what was said before.
        if (
            not client.got
            and len(one.pieces) == 1
            and requests[:1] == certain[:1] != []
            and client.ended.is_set()
        ):
            self.wrong(one.seed, f"no word to {one.data!r}")
        at = number = 0
        while at < len(client.got):
            asked = requests[number] if number < len(requests) else None
            method = asked.method if asked is not None else b"GET"
            try:
                got = read_response(client.got, at, method=method, closed=client.ended.is_set())
            except NotStrict as error:
                if number == 0 or not client.ended.is_set():
                    self.wrong(one.seed, f"the client got {error} for {one.data!r}")
                return  # behind the refusal of what could have been a HEAD, its body
            if got is None:
                refusal = read_response(client.got, at, method=b"HEAD")
                # Behind a refusal there may be the body that a HEAD would not have.
                if (
                    client.ended.is_set()
                    and number == 0
                    and (refusal is None or refusal.status < 400)
                ):
                    self.wrong(one.seed, f"half a response, {bytes(client.got)!r} for {one.data!r}")
                return
            if got.status < 400:
                self.figures.accepted += 1
                if asked is None or (method != b"HEAD" and got.body != b"%b %b %b" % _key(asked)):
                    self.wrong(one.seed, f"{got.status} {got.body[:200]!r} for {one.data!r}")
            at = got.end
            number += 1

    def _look_at_engine(self, seed: int) -> None:
        seen, self.engine.seen = self.engine.seen, Counter()
        for key in list(seen):
            if key[1].startswith(b"/probe/"):
                del seen[key]
        for key in seen:
            # A request may be sent twice when its connection dies idle.
            if not any(key in sent for sent in self._sent):
                self.wrong(seed, f"or one of the {BATCH} from there: the engine got {key!r}")
        if len(seen) and max(seen.values()) > 2:
            self.wrong(seed, f"a request came three times: {seen.most_common(1)}")
        for fault in self.engine.faults:
            self.wrong(seed, f"or one of the {BATCH} from there: the engine got {fault}")
        self.engine.faults.clear()

    async def _responses(self, seeds: Sequence[int]) -> None:
        mutated = [mutated_response(seed) for seed in seeds]
        self.engine.mutated = {b"/%d" % one.seed: one for one in mutated}
        asked = [
            b"%b /%d HTTP/1.1\r\nHost: a\r\n%b\r\n"
            % (one.method, one.seed, b"Content-Length: 0\r\n" if one.method == b"POST" else b"")
            for one in mutated
        ]
        self._sent.append(Counter((one.method, b"/%d" % one.seed, b"") for one in mutated))
        clients = await self._exchange(
            [(one,) for one in asked],
            lambda client, number: (
                not mutated[number].closes or _whole(client, mutated[number].method)
            ),
            _LATE,
        )
        for one, client in zip(mutated, clients, strict=True):
            self._look_at_response(one, client)
        self._look_at_engine(seeds[0])

    def _look_at_response(self, one: Mutated, client: _Client) -> None:
        closed = client.ended.is_set()
        told = f"for {one.pieces!r}{' and the end' if one.closes else ''}"
        try:
            got = read_response(client.got, method=one.method, closed=False)
        except NotStrict as error:
            self.wrong(one.seed, f"the client got {error} {told}")
            return
        if got is None:
            if not closed and one.closes:
                self.wrong(one.seed, f"the end did not come to the client {told}")
            return  # it was cut, and the client can tell, or more may come
        if got.end < len(client.got):
            self.wrong(one.seed, f"more than a response: {bytes(client.got)!r} {told}")
        if got.status in (502, 504) and got.header(b"x-for") is None:
            return
        self.figures.accepted += 1
        try:
            sent = read_response(one.data, method=one.method, closed=one.closes)
        except NotStrict as error:
            self.wrong(one.seed, f"passed although {error}: {bytes(client.got)!r} {told}")
            return
        if sent is None or (got.status, got.body) != (sent.status, sent.body):
            self.wrong(one.seed, f"another response: {bytes(client.got)!r} {told}")
            return
        dropped = _HOP_BY_HOP | {
            option.strip().lower()
            for name, value in sent.headers
            if name.lower() == b"connection"
            for option in value.split(b",")
        } - {b"host", b"content-type"}
        onward = [pair for pair in sent.headers if pair[0].lower() not in dropped]
        arrived = [pair for pair in got.headers if pair[0].lower() not in dropped | _OURS]
        if onward != arrived:
            self.wrong(one.seed, f"other headers: {arrived} for {onward} {told}")

    async def _exchange(
        self, connections: Sequence[Sequence[bytes]], over: Callable[[_Client, int], bool],
        at_most: float,
    ) -> list[_Client]:  # fmt: skip
        """Write each connection's pieces, wait until nothing stirs, and leave.

        over: whether a connection, by its number, has got all that must come; it is waited for
        that for `at_most` seconds.
        """
        clients = [await self._connect() for _ in connections]
        self.figures.connections += len(clients)
        most = max(map(len, connections))
        for number in range(most):
            for client, pieces in zip(clients, connections, strict=True):
                if number < len(pieces) and not client.ended.is_set():
                    client.transport.write(pieces[number])
            if number + 1 < most:
                await asyncio.sleep(_PIECES)
        began = self._last = time.monotonic()
        while (now := time.monotonic()) - began < at_most:
            await asyncio.sleep(_QUIET / 3)
            if now - self._last > _QUIET and all(
                client.ended.is_set() or over(client, number)
                for number, client in enumerate(clients)
            ):
                break
        for client in clients:
            client.transport.abort()
        return clients

    async def _connect(self) -> _Client:
        _, client = await asyncio.get_running_loop().create_connection(
            lambda: _Client(self), "127.0.0.1", self.port
        )
        return client

    async def _probe(self, seed: int) -> None:
        """Good clients at once, so that each has an engine connection of its own."""
        count = min(len(self.engine.open) + 2, BATCH)
        self.engine.probes_wanted = count
        self.figures.probes += count
        late = asyncio.get_running_loop().call_later(1.0, self.engine.release)
        await asyncio.gather(*(self._probe_once(seed) for _ in range(count)))
        late.cancel()
        self.engine.probes_wanted = 0
        self.engine.release()

    async def _probe_once(self, seed: int) -> None:
        client = await self._connect()
        target = b"/probe/%d" % next(self._numbers)
        body = b"good %b" % target
        head = b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
        client.transport.write(head % (target, len(body)) + body)
        wanted = b"POST %b %b" % (target, body)
        why = f"after one of the {BATCH} from there a good client got"
        try:
            async with asyncio.timeout(_PROBE):
                while True:
                    await client.news.wait()
                    client.news.clear()
                    got = read_response(client.got, method=b"POST")
                    if got is not None or client.ended.is_set():
                        break
        except (TimeoutError, NotStrict) as error:
            self.wrong(seed, f"{why} {error!r}, {bytes(client.got)!r}")
            return
        finally:
            client.transport.abort()
        if got is None or got.status != 200 or got.body != wanted or got.end != len(client.got):
            self.wrong(seed, f"{why} {bytes(client.got)!r} instead of {wanted!r}")
        if self.engine.seen[b"POST", target, body] not in (1, 2):
            self.wrong(seed, f"{why} through, but the engine did not get {wanted!r}")


def run_campaign(side: str, seeds: Sequence[int]) -> Figures:
    """Run one before a proxy in this process. side: `requests` or `responses`."""
    with contextlib.ExitStack() as stack:

        def start(url: str) -> int:
            proxy = start_proxy(upstream=url, log_level="error", **QUIET)
            return stack.enter_context(proxy).port

        return uvloop.run(Campaign().run(start, side, seeds))


def _whole(client: _Client, method: bytes) -> bool:
    try:
        return read_response(client.got, method=method) is not None
    except NotStrict:
        return True


def _key(request: Request) -> tuple[bytes, bytes, bytes]:
    return request.method, request.target, request.body
