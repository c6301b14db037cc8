"""One exchange: a client's request on its way to the engine, and the response on its way back.

Everything happens inside the callbacks in which bytes come, from either side: there is no task and
nothing is waited for. `states.TRANSITIONS` says in which order. What the bytes mean is the tap's
business: every byte of a response goes through `tap.data`, which returns what goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import cast

from tokgauge.http import error_responses as errors
from tokgauge.http.client.connection import EngineConnection
from tokgauge.http.client.failures import (
    ConnectionClosed,
    EngineFailure,
    RequestInvalid,
    ResponseInvalid,
    StreamTimedOut,
)
from tokgauge.http.client.parser import ResponseParser
from tokgauge.http.client_connection import ClientConnection
from tokgauge.http.error_responses import ErrorResponse
from tokgauge.http.headers import Returning
from tokgauge.measure.record import Outcome
from tokgauge.measure.tap import Tap
from tokgauge.relay.last_event import release_later
from tokgauge.relay.request_body import RequestBody
from tokgauge.relay.room import Room
from tokgauge.relay.states import TRANSITIONS, State
from tokgauge.relay.upstream import Upstream

logger = logging.getLogger("tokgauge")

_HELD_LIMIT = 16 * 1024
"""Bytes of a response that are waited for to see its first event."""


class Exchange:
    """One request and its response.

    client: where the request comes from. upstream: where it goes. tap: measures it.
    """

    __slots__ = (
        "_body", "_changed", "_client", "_engine", "_give_up", "_head_sent", "_held", "_in_proxy",
        "_is_refused", "_ready_at", "_repeated", "_room", "_tap", "_timer", "_upstream", "state",
    )  # fmt: skip

    def __init__(self, room: Room, upstream: Upstream, client: ClientConnection, tap: Tap) -> None:
        self.state = State.RECEIVING
        self._room = room
        self._upstream = upstream
        self._client = client
        self._tap = tap
        self._engine: EngineConnection | None = None
        self._give_up: Callable[[], object] | None = None
        self._body = RequestBody(room)
        self._changed: bytes | None = None
        self._repeated = False
        self._held: tuple[ResponseParser, Returning, bytes] | None = None
        """A head, its headers, and what has come behind it."""
        self._timer: asyncio.TimerHandle | None = None
        self._head_sent: str | None = None
        """Media type of the head that the client has got."""
        self._is_refused = False  # the response is an error
        self._in_proxy = 0.0
        self._ready_at = 0.0

    # The client's side

    def start(self) -> None:
        """It is this request's turn."""
        try:
            self._tap.enter()
            refused = self._room.enter() or self._upstream.refuses(self._client.request)
            if refused is not None:
                self._refuse(refused)
                return
            request, wanted = self._client.request, self._tap.body_wanted
            if request.has_body and (not wanted or request.length > wanted):
                self._connect()  # it goes up as it comes
        except Exception as error:  # border: a bug ends this exchange only
            self.broken(error)

    def request_data(self, piece: bytes) -> None:
        """A part of the request's body."""
        try:
            self._request_data(piece)
        except Exception as error:  # border: as in `start`
            self.broken(error)

    def _request_data(self, piece: bytes) -> None:
        body = self._body
        body.received += len(piece)
        if self.state is State.ENDED:
            return
        too_large = self._upstream.refuses_body(body.received)
        if too_large is not None:
            self.request_failed(too_large)
        elif self._engine is not None:
            if self.state is not State.STREAMING or self._engine.sent_at is None:
                self._engine.send_body(piece)
        elif body.is_here:
            body.keep(piece)
            if self.state is State.CONNECTING:
                self._client.pause_reading()
            elif body.received > self._tap.body_wanted or not body.reserve(len(piece)):
                self._connect()

    def request_end(self) -> None:
        """The request has been received completely."""
        try:
            self._request_end()
        except Exception as error:  # border: as in `start`
            self.broken(error)

    def _request_end(self) -> None:
        if self.state is State.ENDED:
            return
        self._body.complete()
        self._client.resume_reading()  # its leaving is seen, however long the engine takes
        encoding = self._client.request.encoding
        if self.state is State.RECEIVING:
            whole = self._body.whole()
            self._changed = self._tap.request_received(monotonic(), whole, encoding)
            self._connect()
            return
        self._tap.request_received(monotonic(), None, encoding)
        if self._engine is not None:
            self._engine.end_body()
            self._tap.request_sent(self._engine.sent_at)

    def request_failed(self, response: ErrorResponse) -> None:
        """The rest of the request will never come, or must not."""
        if self.state is State.ENDED or self._is_refused:
            return  # the engine reads no more of it: what it says about that goes on
        if self._head_sent is not None:
            self._cut("rejected")
        else:
            self._refuse(response)

    def client_left(self) -> None:
        """The client has closed its connection."""
        if self.state is not State.ENDED:
            self._finish("ok" if self._tap.is_over() else "client_closed")

    def client_full(self) -> None:
        """The client takes no more: let the engine wait."""
        if self._engine is not None:
            self._engine.pause_reading()

    def client_ready(self) -> None:
        """The client takes more."""
        self._ready_at = monotonic()
        if self._engine is not None:
            self._engine.resume_reading()

    # To the engine

    def _connect(self, *, fresh: bool = False) -> None:
        self._become(State.CONNECTING)
        connection = None if fresh else self._upstream.pool.take()
        if connection is not None:
            self.connected(connection)
        else:
            self._give_up = self._upstream.pool.connect(self)

    def connected(self, connection: EngineConnection) -> None:
        """There is a connection: send the request, or what is here of it."""
        self._give_up = None
        self._become(State.WAITING)
        self._engine = connection
        try:
            request, body = self._client.request, self._changed
            head = self._upstream.head(request, length=None if body is None else len(body))
            connection.send(
                self, head, self._body.whole() if body is None else body,
                complete=self._body.is_complete, reads_body=self._upstream.reads_body(request),
            )  # fmt: skip
        except RequestInvalid as error:
            self._refuse(errors.malformed(f"The request cannot be sent on: {error}"))
            return
        except Exception as error:  # border: as in `start`
            self.broken(error)
            return
        if self._body.is_complete:
            self._tap.request_sent(connection.sent_at)
        else:
            self._body.drop()
            self._client.resume_reading()

    def engine_full(self) -> None:
        """The engine takes no more of the body: let the client wait."""
        if not self._body.is_complete:
            self._client.pause_reading()

    def engine_ready(self) -> None:
        """The engine takes more."""
        self._client.resume_reading()

    # From the engine

    def response_head(self, head: ResponseParser, *, body_follows: bool) -> None:
        """The head of the response has come."""
        self._upstream.responds()
        headers = Returning(head.headers)
        if self._changed is not None:
            verdict = self._tap.judge_head(head.status, headers.content)
            if verdict == "again":
                self._again()
                return
            if verdict == "waits":
                self._become(State.HOLDING)
                self._held = (head, headers, b"")
                # The same head would come without the change, and the client has it as early.
                self._send_head(head, headers, hides=True, body_follows=body_follows)
                return
        self._begin(head, headers, body_follows=body_follows)

    def _begin(self, head: ResponseParser, headers: Returning, *, body_follows: bool) -> None:
        self._become(State.STREAMING)
        hides = self._tap.hides(head.status, headers.content)
        if self._head_sent is None:
            self._send_head(head, headers, hides=hides, body_follows=body_follows)
        elif head.status != 200 or headers.media_type != self._head_sent:
            # The client has got the head of a response that was given up, and this is another.
            self._cut("upstream_incomplete")
            return
        elif not body_follows:
            self._client.release_head()  # the first response may have ended before it had left
        self._tap.response_begins(head.status, headers.content)

    def _send_head(
        self, head: ResponseParser, headers: Returning, *, hides: bool, body_follows: bool
    ) -> None:
        self._head_sent = headers.media_type
        self._is_refused = head.status >= 400
        out = headers.to_client(exchange_id=self._tap.id or None, length_changes=hides)
        self._client.begin(head.status, out, body_follows=body_follows)

    def response_data(self, at: float, body: bytes, raw: bytes | None) -> None:
        """Bytes of the response's body."""
        if self.state is State.ENDED:
            return
        if self._held is not None:
            self._hold(at, body)
            return
        tap = self._tap
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        onward = tap.data(at, body)
        if onward is body:
            self._client.write(body, raw)
        elif onward:
            self._client.write(onward, None)
        else:
            self._client.release_head()
        # Time that a chunk waited for a slow client is not the proxy's.
        self._in_proxy += monotonic() - (at if at > self._ready_at else self._ready_at)
        if tap.is_behind:
            tap.catch_up()
            if tap.holds_event:
                self._timer = release_later(tap, self._client)

    def response_end(self) -> None:
        """The response is complete."""
        self._engine = None  # it belongs to the pool again
        if self._held is not None and not self._ended_held():
            return
        self._write_rest()
        self._client.finish()
        self._finish("ok")

    def failed(self, failure: EngineFailure) -> None:
        """There is no connection, or the response broke off, or did not come at all."""
        self._give_up = self._engine = None
        if self._held is not None or (
            self._changed is not None  # and that may be why
            and self.state is State.WAITING
            and isinstance(failure, ConnectionClosed | ResponseInvalid)
        ):
            if not self._ended_held():
                return
        elif self._may_be_repeated(failure):
            self._repeated = True
            self._again(fresh=True)
            return
        if self.state is State.STREAMING:
            self._write_rest()
        if self._head_sent is None:
            self._refuse(self._upstream.error_response(failure))
        elif self._room.closing:
            self._cut("proxy_shutdown")
        else:
            stalled = isinstance(failure, StreamTimedOut)
            self._cut("upstream_stalled" if stalled else "upstream_incomplete")

    def _may_be_repeated(self, failure: EngineFailure) -> bool:
        """Whether the request met an engine that had left, and harms nobody if it did not.

        The engine may have left because of the request, or after it had carried it out: a text is
        generated once more then, and reading changes nothing. Anything else may.
        """
        return (
            isinstance(failure, ConnectionClosed)
            and failure.died_idle
            and self.state is State.WAITING
            and not self._repeated
            and self._body.is_here
            and self._upstream.may_repeat(self._client.request)
        )

    def _again(self, *, fresh: bool = False) -> None:
        """Send the request once more, as it came."""
        if self._engine is not None:
            self._engine.close()
        self._engine = self._held = self._changed = None
        self._tap.retried()
        self._connect(fresh=fresh)

    # A response to a changed request, before the client gets any of it

    def _hold(self, at: float, body: bytes) -> None:
        assert self._held is not None  # noqa: S101
        head, headers, held = self._held
        held += body
        self._held = (head, headers, held)
        verdict = self._tap.judge_first(held)
        if verdict == "again":
            self._again()
        elif verdict == "goes" or len(held) > _HELD_LIMIT:
            self._let_go(at)

    def _let_go(self, at: float) -> None:
        assert self._held is not None  # noqa: S101
        (head, headers, held), self._held = self._held, None
        self._begin(head, headers, body_follows=bool(held))
        if held:
            self.response_data(at, held, None)

    def _ended_held(self) -> bool:
        """What is held will not become more; returns False when the request is sent once more."""
        if self._tap.broke_off() == "again":
            self._again()
            return False
        if self._held is not None:
            self._let_go(monotonic())
        return True

    def _write_rest(self) -> None:
        rest = self._tap.rest()
        if rest:
            self._client.write(rest, None)

    # Its end

    def broken(self, error: Exception) -> None:
        """A bug of the proxy: it ends this exchange only."""
        logger.error("an exchange ends by a bug of the proxy", exc_info=error)
        if self._head_sent is not None and self.state is not State.ENDED:
            self._cut("proxy_error")
        elif self.state is not State.ENDED:
            self._refuse(errors.proxy_broke())

    def _refuse(self, response: ErrorResponse) -> None:
        """The proxy's own response, instead of the engine's."""
        self._tap.responded_itself(response.status)
        exchange_id = self._tap.id
        self._client.respond(response, [(b"x-tokgauge-id", exchange_id)] if exchange_id else [])
        self._finish(cast(Outcome, response.outcome))

    def _cut(self, outcome: Outcome) -> None:
        self._client.cut()
        self._finish(outcome)

    def _finish(self, outcome: Outcome) -> None:
        """The only end: what belongs to the exchange is given back, and its measuring ends."""
        self._become(State.ENDED)
        if self._engine is not None:
            self._engine.close()
        if self._give_up is not None:
            self._give_up()
        if self._timer is not None:
            self._timer.cancel()
        self._engine = self._give_up = self._held = None
        self._body.drop()
        self._room.leave()
        self._tap.end(outcome, self._in_proxy)
        self._client.done()

    def _become(self, state: State) -> None:
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(f"an exchange goes from {self.state.name} to {state.name}")
        self.state = state
