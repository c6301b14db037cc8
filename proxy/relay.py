"""Carries one request to the engine and its answer back: bytes, back-pressure, errors, departures.

Knows neither JSON nor Prometheus: what the bytes mean is for the `Observation` to find out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import Any, Protocol

import httpx2

from proxy import errors
from proxy.errors import Refusal
from proxy.headers import Incoming, content_headers, to_client
from proxy.measurement import Outcome
from proxy.observation import Observation, Observer
from proxy.protocol import CLIENT, HEAD_TOO_LARGE, TARGET, Client
from proxy.settings import Settings
from proxy.transport import Answer, EngineStream, died_idle
from proxy.upstream import Upstream

_REFUSAL_LIMIT = 64 * 1024


class Receive(Protocol):
    """ASGI's receive."""

    async def __call__(self) -> Any: ...


class Send(Protocol):
    """ASGI's send."""

    async def __call__(self, message: Any) -> None: ...


class _ClientLeft(Exception):  # noqa: N818 - an event, not an error
    """The client has closed its connection."""


class _BodyTooLarge(Exception):  # noqa: N818 - an event, not an error
    """The request body has grown beyond the limit."""


class _Refused(Exception):  # noqa: N818 - carries the answer
    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal


class _Departure:
    """Watches for the client to leave and then interrupts whatever the exchange waits for.

    Starts when nobody else reads from the client any more: when the request is here, or when the
    engine has answered without wanting the rest of it.
    """

    __slots__ = ("_reader", "_receive", "_task", "_watches", "happened")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._task = asyncio.current_task()
        self._reader: asyncio.Task[None] | None = None
        self._watches = False
        self.happened = False

    def watch(self, client: Client) -> None:
        """The whole request has been received."""
        if not self._watches:
            self._watches = True
            client.when_left(self._left)

    def read_on(self) -> None:
        """The rest of the request is read, because the client may send all of it, and dropped."""
        if not self._watches:
            self._watches = True
            self._reader = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._left()

    def _left(self) -> None:
        self.happened = True
        if self._task is not None:
            self._task.cancel()

    def stop(self) -> None:
        self._task = None
        if self._reader is not None:
            self._reader.cancel()


class _Upload(httpx2.AsyncByteStream):
    """A request body on its way up, as the client sends it; `completed` is called at its end.

    `taken` says that bytes have gone which cannot be sent again.
    """

    def __init__(
        self, received: bytes, receive: Receive, limit: int | None, completed: Callable[[], None]
    ) -> None:
        self._received = received
        self._receive = receive
        self._limit = limit
        self._total = len(received)
        self._completed = completed
        self.taken = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.taken = True
        if self._received:
            yield self._received
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise _ClientLeft
            piece = message.get("body", b"")
            self._total += len(piece)
            if self._limit is not None and self._total > self._limit:
                raise _BodyTooLarge
            more = message.get("more_body", False)
            if not more:
                self._completed()
            if piece:
                yield piece


class _Outlet:
    """Passes the bytes of an answer on to the client as they come from the engine."""

    __slots__ = ("_in_proxy", "_observation", "_ready_at", "_write")

    def __init__(self, observation: Observation, write: Callable[[bytes], bool]) -> None:
        self._observation = observation
        self._write = write
        self._in_proxy = 0.0
        self._ready_at = 0.0

    def take(self, at: float, data: bytes) -> bool:
        """Pass on what came at `at`; returns whether the client keeps up."""
        write = self._write  # as a local: calling a slot's value through `self` is slower
        data = self._observation.chunk(at, data)
        keeps_up = not data or write(data)
        # Time that a chunk waited for a slow client is not the proxy's.
        since = at if at > self._ready_at else self._ready_at
        self._in_proxy += monotonic() - since
        return keeps_up

    async def pour(self, stream: EngineStream, send: Send) -> None:
        """Pass on the whole answer; raises what the stream raises."""
        try:
            while not await stream.pour(self.take):
                await send(_part(b""))  # waits until the client takes more
                self._ready_at = monotonic()
        finally:
            self._observation.passed_on(self._in_proxy)


class Relay:
    """The ASGI application for everything that is the engine's."""

    def __init__(self, upstream: Upstream, observer: Observer, settings: Settings) -> None:
        self._upstream = upstream
        self._observer = observer
        self._settings = settings
        self.in_flight = 0

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Carry one exchange. An answer that is cut is left unfinished: the server closes it."""
        observation = self._observer.open(scope["method"], scope["raw_path"], monotonic())
        self.in_flight += 1
        outcome: Outcome = "proxy_shutdown"
        try:
            outcome = await self._carry(scope, receive, send, observation)
        except _ClientLeft:
            outcome = "client_closed"
        except _Refused as refused:
            outcome = refused.refusal.outcome
            observation.refused(refused.refusal.status)
            await _refuse(refused.refusal, observation, send)
        finally:
            self.in_flight -= 1
            observation.end(outcome)

    async def _carry(
        self, scope: Any, receive: Receive, send: Send, observation: Observation
    ) -> Outcome:
        headers = Incoming(scope["headers"])
        self._admit(scope, headers)
        limit = self._settings.max_body_bytes
        if limit is not None and headers.length > limit:
            raise _Refused(errors.body_too_large(limit))

        client: Client = scope["extensions"][CLIENT]
        departure = _Departure(receive)
        body: bytes | None = b""
        upload: _Upload | None = None
        if headers.length or headers.codings:
            wanted = observation.body_wanted
            body = client.whole_body() if 0 < headers.length <= wanted else None
            if body is None:
                body, pieces = await self._collect(receive, wanted, headers.length)
            if body is None:

                def completed() -> None:
                    observation.request_received(monotonic(), None, None)
                    departure.watch(client)

                upload = _Upload(pieces, receive, limit, completed)
        changed = None
        if body is not None:
            changed = observation.request_received(monotonic(), body, headers.encoding)
            departure.watch(client)
        try:
            return await self._exchange(
                scope, send, observation, departure, headers, body or b"", changed, upload
            )
        except asyncio.CancelledError:
            if departure.happened:
                raise _ClientLeft from None
            raise
        finally:
            departure.stop()

    def _admit(self, scope: Any, headers: Incoming) -> None:
        """Refuse what must not go on."""
        if scope["extensions"][HEAD_TOO_LARGE]:
            raise _Refused(errors.headers_too_large(self._settings.max_header_bytes))
        most = self._settings.max_in_flight
        if most is not None and self.in_flight > most:
            raise _Refused(errors.too_many_requests(most))
        if scope["method"] == "CONNECT":
            raise _Refused(errors.malformed("CONNECT is not supported: this is a reverse proxy."))
        codings = headers.codings
        if codings and [value.strip().lower() for value in codings] != [b"chunked"]:
            raise _Refused(errors.malformed("The only Transfer-Encoding accepted is chunked."))
        if headers.hosts > 1 or (headers.hosts == 0 and scope["http_version"] == "1.1"):
            raise _Refused(errors.malformed("The request must have exactly one Host header."))

    async def _collect(
        self, receive: Receive, wanted: int, length: int
    ) -> tuple[bytes | None, bytes]:
        """Read the body up to `wanted` bytes.

        Returns the whole body, or None and the part of it that has been read.
        """
        limit = self._settings.max_body_bytes
        pieces: list[bytes] = []
        size = 0
        if length <= wanted and wanted:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _ClientLeft
                pieces.append(message.get("body", b""))
                size += len(pieces[-1])
                if limit is not None and size > limit:
                    raise _Refused(errors.body_too_large(limit))
                if not message.get("more_body", False):
                    return b"".join(pieces), b""
                if size > wanted:
                    break
        return None, b"".join(pieces)

    async def _exchange(
        self, scope: Any, send: Send, observation: Observation, departure: _Departure,
        headers: Incoming, body: bytes, changed: bytes | None, upload: _Upload | None,
    ) -> Outcome:  # fmt: skip
        answer = await self._ask(scope, headers, observation, body, changed, upload)
        prefix = b""
        try:
            if changed is not None and observation.may_be_refused(answer.status):
                prefix = await _collect_refusal(answer.stream)
                if observation.injection_refused(prefix):
                    answer.stream.close()
                    observation.retried()
                    prefix = b""
                    answer = await self._ask(scope, headers, observation, body, None, None)
            if answer.status >= 400:
                departure.read_on()  # an engine that refuses no longer reads the body
            observation.request_sent(answer.stream.sent_at)
            client: Client = scope["extensions"][CLIENT]
            return await self._pass_on(answer, prefix, client, send, observation)
        finally:
            answer.stream.close()

    async def _ask(
        self, scope: Any, incoming: Incoming, observation: Observation, body: bytes,
        changed: bytes | None, upload: _Upload | None,
    ) -> Answer:  # fmt: skip
        """Send the request; return the engine's answer or raise the proxy's own."""
        upstream = self._upstream
        host = upstream.host
        if host is None and not incoming.hosts:
            host = upstream.own_host  # HTTP/1.0 knows no Host, HTTP/1.1 requires one
        method, target = scope["method"], scope["extensions"][TARGET]
        headers = incoming.to_engine(
            host=host,
            body_length=len(changed) if changed is not None and not incoming.codings else None,
            identity=changed is not None,
        )
        sent = upload or (body if changed is None else changed)
        # The exact moment comes with the answer; until then, and an answer that is not streamed
        # may take long, this one tells since when the engine has been busy with it.
        observation.request_sent(monotonic())
        try:
            try:
                return await upstream.exchange(method, target, headers, sent)
            except httpx2.TransportError as error:
                if not died_idle(error) or (upload is not None and upload.taken):
                    raise
                observation.retried()
                return await upstream.exchange(method, target, headers, sent)
        except httpx2.ConnectTimeout as error:
            seconds = self._settings.connect_timeout
            raise _Refused(errors.connect_timed_out(upstream.address, seconds)) from error
        except httpx2.ConnectError as error:
            raise _Refused(errors.engine_unreachable(upstream.address, str(error))) from error
        except httpx2.ReadTimeout as error:
            seconds = self._settings.first_byte_timeout or self._settings.stream_idle_timeout
            raise _Refused(errors.first_byte_timed_out(upstream.address, seconds)) from error
        except httpx2.LocalProtocolError as error:
            raise _Refused(errors.malformed(f"The request cannot be sent on: {error}")) from error
        except httpx2.TransportError as error:
            raise _Refused(errors.engine_broke_off(upstream.address, str(error))) from error
        except _BodyTooLarge as error:
            limit = self._settings.max_body_bytes or 0
            raise _Refused(errors.body_too_large(limit)) from error

    async def _pass_on(
        self, answer: Answer, prefix: bytes, client: Client, send: Send, observation: Observation
    ) -> Outcome:
        stream = answer.stream
        content = content_headers(answer.headers)
        hides = observation.answer_begins(answer.status, content)
        headers = to_client(
            answer.headers,
            exchange_id=observation.id,
            event_stream=content.get("content-type", "").startswith("text/event-stream"),
            length_changes=hides,
        )
        # What is cut out of an answer may be all that has come of it.
        body_follows = (bool(prefix) or stream.waiting) and not hides
        if not client.begin(answer.status, headers, body_follows=body_follows):
            await send(_part(b""))  # waits until the client takes more
        outcome: Outcome = "ok"
        if prefix:
            await send(_part(observation.chunk(stream.arrived_at, prefix)))
        try:
            await _Outlet(observation, client.write).pour(stream, send)
        except httpx2.ReadTimeout:
            outcome = "upstream_stalled"
        except httpx2.TransportError:
            outcome = "upstream_incomplete"
        except _ClientLeft:
            raise
        except _BodyTooLarge:
            outcome = "rejected"
        observation.request_sent(stream.sent_at)
        rest = observation.answer_ends()
        if rest and not client.write(rest):
            await send(_part(b""))
        if outcome == "ok":
            client.finish()
        return outcome


def _part(data: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": True}


async def _collect_refusal(stream: EngineStream) -> bytes:
    """The first bytes of an error answer, enough to see what it is about."""
    collected = b""
    try:
        async for piece in stream:
            collected += piece
            if len(collected) > _REFUSAL_LIMIT:
                break
    except httpx2.TransportError:
        pass  # the stream raises it again for whoever passes the answer on
    return collected


async def _refuse(refusal: Refusal, observation: Observation, send: Send) -> None:
    headers = [*refusal.headers(), (b"x-tokgauge-id", observation.id)]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": refusal.body(), "more_body": False})
