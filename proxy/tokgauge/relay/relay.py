"""Carries one request to the engine and its answer back: bytes, back-pressure, errors, departures.

Knows neither JSON nor Prometheus: what the bytes mean is for the `Observation` to find out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Protocol

import httpx2

from tokgauge.dialects.routes import READERS, classify
from tokgauge.http import error_responses as errors
from tokgauge.http.client import INLINE_BODY, died_idle, engine_left
from tokgauge.http.error_responses import Refusal, Refused
from tokgauge.http.request import REQUEST, ClientRequest
from tokgauge.http.server import CLIENT, Client
from tokgauge.measure.record import Outcome
from tokgauge.measure.tap import Observation, Observer
from tokgauge.relay.delivery import Delivery, InjectionRefused
from tokgauge.relay.upload import (
    ClientLeft,
    Departure,
    Held,
    Receive,
    UnfinishedBodies,
    Upload,
    collect,
)
from tokgauge.relay.upstream import Upstream
from tokgauge.settings import Settings


class Send(Protocol):
    """ASGI's send."""

    async def __call__(self, message: Any) -> None: ...


class Relay:
    """The ASGI application for everything that is the engine's."""

    def __init__(self, upstream: Upstream, observer: Observer, settings: Settings) -> None:
        self.upstream = upstream
        self.settings = settings
        self.closing = False
        """What ends from now on is ended by the proxy."""
        self.in_flight = 0
        self.unfinished = UnfinishedBodies(settings.unfinished_bodies_bytes)
        self._observer = observer

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Carry one exchange. An answer that is cut is left unfinished: the server closes it."""
        request: ClientRequest = scope["extensions"][REQUEST]
        observation = self._observer.open(request.method, request.path, monotonic())
        observation.enter()
        self.in_flight += 1
        carriage = Carriage(self, request, scope["extensions"][CLIENT], observation)
        await self.conclude(carriage.carry(receive), observation, send)

    def carry_at_once(self, client: Client) -> bool:
        """Carry the exchange of a client whose request is here, without a task where that can be.

        Returns False for a request that is not as simple as that: then nothing has happened.
        """
        request, settings = client.request, self.settings
        length = request.length
        if (
            request.refusal is not None
            or request.incoming.codings
            or length > INLINE_BODY
            or (settings.max_body_bytes is not None and length > settings.max_body_bytes)
            or (settings.max_in_flight is not None and self.in_flight >= settings.max_in_flight)
        ):
            return False
        body = client.whole_body()
        if body is None:
            return False
        self.in_flight += 1
        observation = self._observer.open(request.method, request.path, monotonic())
        Carriage(self, request, client, observation, body).begin_at_once()
        return True

    async def conclude(
        self, work: Awaitable[Outcome], observation: Observation, send: Send
    ) -> None:
        """Wait for how an exchange ends, and say so."""
        outcome: Outcome = "proxy_error"  # unless it is known better
        try:
            outcome = await work
        except asyncio.CancelledError:
            outcome = "proxy_shutdown"
            raise
        except ClientLeft:
            outcome = "client_closed"
        except Refused as refused:
            outcome = refused.refusal.outcome
            observation.refused(refused.refusal.status)
            await _refuse(refused.refusal, observation, send)
        finally:
            self.in_flight -= 1
            observation.end(outcome)


class Carriage:
    """One exchange on its way.

    body: the request's body, as far as it is in memory. changed: what is sent instead. upload: the
    body, when it is not in memory.
    """

    __slots__ = (
        "_body", "_changed", "_client", "_delivery", "_departure", "_observation", "_relay",
        "_request", "_upload",
    )  # fmt: skip

    def __init__(
        self, relay: Relay, request: ClientRequest, client: Client, observation: Observation,
        body: bytes = b"",
    ) -> None:  # fmt: skip
        self._relay = relay
        self._request = request
        self._client = client
        self._observation = observation
        self._body = body
        self._changed: bytes | None = None
        self._upload: Upload | None = None
        self._delivery: Delivery | None = None
        self._departure: Departure | None = None

    # Without a task

    def begin_at_once(self) -> None:
        """Send the request if there is a connection for it; all else follows from callbacks."""
        observation, request = self._observation, self._request
        received_at = monotonic()
        body = self._body
        wanted = body and len(body) <= observation.body_wanted
        self._changed = changed = observation.request_received(
            received_at, body if wanted else None, request.encoding
        )
        delivery = self._delivery = self._new_delivery(self._settled)
        failure: Exception | None = None
        try:
            delivery.stream = self._relay.upstream.exchange_at_once(
                request, body if changed is None else changed, delivery,
                changed=changed is not None,
            )  # fmt: skip
        except httpx2.LocalProtocolError as error:
            failure = error
        observation.enter()
        if delivery.stream is None:
            self._go_on(failure)
            return
        observation.request_sent(delivery.stream.sent_at)
        self._client.when_left(self._left)

    def _left(self) -> None:
        self._drop_delivery()
        self._end("client_closed")

    def _settled(self, error: Exception | None) -> None:
        if error is None:
            self._end("ok")
        elif self._delivery is not None and self._delivery.begun:
            outcome = self._outcome(error)
            if outcome is None:
                self._go_on(error)
            else:
                self._end(outcome)
        else:
            self._go_on(error)

    def _end(self, outcome: Outcome) -> None:
        self._delivery = None
        self._relay.in_flight -= 1
        self._client.end()
        self._observation.end(outcome)

    def _go_on(self, error: Exception | None) -> None:
        """Leave the rest to a task. error: what the first try ended in, None for no try yet."""

        async def rest(scope: Any, receive: Receive, send: Send) -> None:
            await self._relay.conclude(self._see_through(receive, error), self._observation, send)

        # Until the task runs, a client that leaves is noted only: the task ends the exchange.
        self._client.when_left(_nothing)
        self._client.hand_over(rest)

    async def _see_through(self, receive: Receive, error: Exception | None) -> Outcome:
        self._departure = Departure(receive)
        self._departure.watch(self._client)
        return await self._unless_left(error)

    # In a task

    async def carry(self, receive: Receive) -> Outcome:
        """Carry the exchange; returns how it ended. Raises ClientLeft and Refused."""
        self._admit()
        self._departure = Departure(receive)
        held = Held(self._relay.unfinished)
        try:
            if self._request.has_body:
                await self._take_body(receive, held)
            if self._upload is None:
                self._changed = self._observation.request_received(
                    monotonic(), self._body, self._request.encoding
                )
                self._departure.watch(self._client)
            return await self._unless_left(None)
        finally:
            held.release()

    async def _take_body(self, receive: Receive, held: Held) -> None:
        """Collect the body if it is to be read, or as much of it as there is room for."""
        length, limit = self._request.length, self._relay.settings.max_body_bytes
        wanted = self._observation.body_wanted
        body = self._client.whole_body() if 0 < length <= wanted else None
        pieces = b""
        if body is None and wanted and length <= wanted:
            body, pieces = await collect(receive, wanted, limit, self._relay.unfinished, held)
        if body is None:
            self._upload = Upload(pieces, held, receive, limit, self._uploaded)
        else:
            self._body = body

    def _uploaded(self) -> None:
        self._observation.request_received(monotonic(), None, None)
        if self._departure is not None:
            self._departure.watch(self._client)

    def _admit(self) -> None:
        """Refuse what must not go on."""
        request, settings = self._request, self._relay.settings
        if request.refusal is not None:
            raise Refused(request.refusal)
        most = settings.max_in_flight
        if most is not None and self._relay.in_flight > most:
            raise Refused(errors.too_many_requests(most))
        limit = settings.max_body_bytes
        if limit is not None and request.length > limit:
            raise Refused(errors.body_too_large(limit))

    async def _unless_left(self, error: Exception | None) -> Outcome:
        departure = self._departure
        assert departure is not None  # noqa: S101
        try:
            return await self._until_answered(error)
        except asyncio.CancelledError:
            if departure.happened:
                raise ClientLeft from None
            raise
        finally:
            departure.stop()
            self._drop_delivery()

    async def _until_answered(self, error: Exception | None) -> Outcome:
        """Send the request until there is an answer that goes to the client."""
        observation = self._observation
        tried_again = False
        if error is None:
            error = await self._attempt()
        while error is not None and not (self._delivery is not None and self._delivery.begun):
            if isinstance(error, InjectionRefused):
                self._changed = None
            elif not tried_again and self._may_be_repeated(error):
                tried_again = True
            else:
                raise self._refused(error)
            observation.retried()
            # Where one idle connection was dead, others may be.
            error = await self._attempt(fresh=tried_again)
        if error is None:
            return "ok"
        outcome = self._outcome(error)
        if outcome is None:
            raise error
        return outcome

    def _may_be_repeated(self, error: Exception) -> bool:
        """Whether the request met an engine that had left, and harms nobody if it did not.

        The engine may have left because of the request, or after it had carried it out: a text is
        generated once more then, and reading changes nothing. Anything else may.
        """
        request, upload = self._request, self._upload
        return (
            isinstance(error, httpx2.TransportError)
            and died_idle(error)
            and (upload is None or not upload.taken)
            and (
                request.method in ("GET", "HEAD", "OPTIONS")
                or classify(request.method, request.path) in READERS
            )
        )

    async def _attempt(self, *, fresh: bool = False) -> Exception | None:
        """Send the request and pass the answer on; returns what that ended in."""
        request, changed = self._request, self._changed
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

        def settled(error: Exception | None) -> None:
            if delivery.begun and self._departure is not None:
                self._departure.stop()  # after the end of the answer nobody leaves too early
            if not done.done():
                done.set_result(error)

        head_sent = self._delivery.head_sent if self._delivery is not None else None
        self._drop_delivery()
        delivery = self._delivery = self._new_delivery(settled, head_sent)
        # The exact moment comes with the answer; until then, and an answer that is not streamed
        # may take long, this one tells since when the engine has been busy with it.
        self._observation.request_sent(monotonic())
        try:
            delivery.stream = await self._relay.upstream.exchange(
                request, self._upload or (self._body if changed is None else changed), delivery,
                changed=changed is not None, fresh=fresh,
            )  # fmt: skip
        except httpx2.TransportError as error:
            return error
        return await done

    def _new_delivery(
        self, settled: Callable[[Exception | None], None], head_sent: str | None = None
    ) -> Delivery:
        return Delivery(
            self._client, self._observation, injected=self._changed is not None,
            answers=self._answers, settled=settled, head_sent=head_sent,
        )  # fmt: skip

    def _answers(self, status: int) -> None:
        self._relay.upstream.answers()
        departure, delivery = self._departure, self._delivery
        if departure is not None and delivery is not None and delivery.stream is not None:
            self._observation.request_sent(delivery.stream.sent_at)
            if status >= 400:
                departure.read_on(self._client)  # an engine that refuses no longer reads the body

    def _drop_delivery(self) -> None:
        delivery, self._delivery = self._delivery, None
        if delivery is not None:
            delivery.stop()

    def _outcome(self, error: Exception) -> Outcome | None:
        """How an exchange has ended whose answer had begun; None when it is not for its ends."""
        if isinstance(error, ClientLeft):
            return "client_closed"
        if isinstance(error, Refused):
            return error.refusal.outcome
        if not isinstance(error, httpx2.TransportError):
            return None
        if self._relay.closing:
            return "proxy_shutdown"
        stalled = isinstance(error, httpx2.ReadTimeout)
        return "upstream_stalled" if stalled else "upstream_incomplete"

    def _refused(self, error: Exception) -> Exception:
        """What the client is told when the engine has not answered."""
        settings, address = self._relay.settings, self._relay.upstream.address
        refusal: Refusal
        match error:
            case httpx2.ConnectTimeout():
                refusal = errors.connect_timed_out(address, settings.connect_timeout)
            case httpx2.ConnectError():
                refusal = errors.engine_unreachable(address, str(error))
            case httpx2.ReadTimeout():
                seconds = settings.first_byte_timeout or settings.stream_idle_timeout
                refusal = errors.first_byte_timed_out(address, seconds)
            case httpx2.LocalProtocolError():
                refusal = errors.malformed(f"The request cannot be sent on: {error}")
            case httpx2.RemoteProtocolError() if not engine_left(error):
                refusal = errors.not_a_response(address, str(error))
            case httpx2.TransportError():
                refusal = errors.engine_broke_off(address, str(error))
            case _:
                return error
        return Refused(refusal)


async def _refuse(refusal: Refusal, observation: Observation, send: Send) -> None:
    headers = [*refusal.headers(), (b"x-tokgauge-id", observation.id)]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": refusal.body(), "more_body": False})


def _nothing() -> None:
    """Whoever comes next looks whether the client has left."""
