"""Passes an answer on to the client, inside the callbacks in which it comes from the engine.

The bytes go first; what they mean is for the `Observation` to find out afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from proxy.headers import content_headers, to_client
from proxy.observation import Observation
from proxy.protocol import Client
from proxy.transport import EngineStream, Passage, ResponseReader

_REFUSAL_LIMIT = 64 * 1024
"""Bytes of an error answer that are enough to see what it is about."""


class InjectionRefused(Exception):  # noqa: N818 - a finding, not an error
    """The engine refuses what was added to the request; the client's own shall be sent."""


class Delivery:
    """The `Listener` of one answer.

    injected: the request was changed, so an error answer may be about that and is looked at before
    the client gets it. answers: called when the head has come. settled: called once, in the end,
    with what the stream ended in, or with InjectionRefused.

    begun: the client has got the head. stream: to be set when the request has been sent.
    """

    __slots__ = (
        "_answers", "_client", "_content", "_in_proxy", "_injected", "_observation", "_pass_on",
        "_ready_at", "_refusal", "_refused_head", "_settled", "_write", "begun", "stream", "take",
    )  # fmt: skip

    take: Callable[[float, bytes], bool]

    def __init__(
        self, client: Client, observation: Observation, *, injected: bool,
        answers: Callable[[int], None], settled: Callable[[Exception | None], None],
    ) -> None:  # fmt: skip
        self._client = client
        self._observation = observation
        self._injected = injected
        self._answers = answers
        self._settled = settled
        self._write = client.write
        self._pass_on: Callable[[bytes], object] | None = None
        self._in_proxy = 0.0
        self._ready_at = 0.0
        self._refused_head: ResponseReader | None = None
        self._refusal = b""
        self.begun = False
        self.stream: EngineStream | None = None

    def answered(self, head: ResponseReader, *, body_follows: bool) -> bool:
        self._answers(head.status)
        if self._injected and self._observation.may_be_refused(head.status):
            self._refused_head = head
            self.take = self._take_refusal
            return True
        return self._begin(head, body_follows=body_follows)

    def ended(self, error: Exception | None) -> None:
        if self._refused_head is not None and not self._look_at_refusal(
            self._refused_head, monotonic()
        ):
            return
        observation = self._observation
        if self.begun:
            if self.stream is not None:
                observation.request_sent(self.stream.sent_at)
            rest = observation.answer_ends()
            if rest:
                self._write(rest)
            if error is None:
                self._client.finish()
        self.stop()
        self._settled(error)

    def stop(self) -> None:
        """Pass nothing more on and leave the engine. May be called at any time, repeatedly."""
        self.take = _drop  # the bound method there refers back to this object
        self._pass_on = None
        stream = self.stream
        if stream is not None:
            stream.close()
            self._in_proxy += stream.in_passage
            stream.in_passage = 0.0
        self._observation.passed_on(self._in_proxy)
        self._in_proxy = 0.0

    def _begin(self, head: ResponseReader, *, body_follows: bool) -> bool:
        observation = self._observation
        status, content = head.status, content_headers(head.headers)
        hides = observation.hides(status, content)
        self.begun = True
        onward = to_client(
            head.headers,
            exchange_id=observation.id,
            event_stream=content.get("content-type", "").startswith("text/event-stream"),
            length_changes=hides,
        )
        keeps_up = self._client.begin(status, onward, body_follows=body_follows)
        if body_follows:
            self._content = (status, content)
            self.take = self._take_first
            return True
        self.take = self._take
        self._pass_on = self._client.chunk_writer(self._client_is_full)
        observation.answer_begins(status, content)
        return keeps_up or self._wait()

    def _take_first(self, at: float, data: bytes) -> bool:
        self.take = self._take
        onward = self._observation.onward(data)
        # What is cut out of an answer may be all that has come of it.
        keeps_up = self._write(onward) if onward else self._client.release_head()
        self._pass_on = self._client.chunk_writer(self._client_is_full)
        self._in_proxy += monotonic() - at
        self._observation.answer_begins(*self._content)
        self._observation.chunk(at, data)
        return keeps_up or self._wait()

    def passage(self) -> Passage | None:
        pass_on = self._pass_on
        return (self._observation.token_counter(), pass_on) if pass_on is not None else None

    def passage_failed(self, error: Exception) -> None:
        self._observation.token_counter_failed(error)

    def _client_is_full(self) -> None:
        if self.stream is not None:
            self._wait()
            self.stream.pause()

    def _take(self, at: float, data: bytes) -> bool:
        if self._observation.token(at, data):
            keeps_up = self._write(data)
            # Time that a chunk waited for a slow client is not the proxy's.
            self._in_proxy += monotonic() - (at if at > self._ready_at else self._ready_at)
        else:
            keeps_up = self._take_unknown(at, data)
        return keeps_up or self._wait()

    def _take_unknown(self, at: float, data: bytes) -> bool:
        onward = self._observation.onward(data)
        keeps_up = not onward or self._write(onward)
        self._in_proxy += monotonic() - max(at, self._ready_at)
        self._observation.chunk(at, data)
        return keeps_up

    def _wait(self) -> bool:
        self._client.when_ready(self._go_on)
        return False

    def _go_on(self) -> None:
        self._ready_at = monotonic()
        if self.stream is not None:
            self.stream.resume()

    def _take_refusal(self, at: float, data: bytes) -> bool:
        self._refusal += data
        if len(self._refusal) > _REFUSAL_LIMIT and self._refused_head is not None:
            self._look_at_refusal(self._refused_head, at)
        return True

    def _look_at_refusal(self, head: ResponseReader, at: float) -> bool:
        """Pass the error answer on, unless it is about what was added to the request."""
        self._refused_head = None
        if self._observation.injection_refused(self._refusal):
            self.stop()
            self._settled(InjectionRefused())
            return False
        self._begin(head, body_follows=bool(self._refusal))
        if self._refusal:
            self.take(at, self._refusal)
        return True


def _drop(at: float, data: bytes) -> bool:
    return True
