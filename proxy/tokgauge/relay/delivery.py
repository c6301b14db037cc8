"""Passes an answer on to the client, inside the callbacks in which it comes from the engine.

The bytes go first; what they mean is for the `Observation` to find out afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

import httpx2

from tokgauge.http.client import EngineStream, Passage, ResponseReader
from tokgauge.http.headers import content_headers, to_client
from tokgauge.http.server import Client
from tokgauge.measure.tap import Observation

_WITHHELD_LIMIT = 16 * 1024
"""Bytes of a response that are waited for to see its first event."""

_FOLLOWS_WITHIN = 1.0
"""Seconds for which the last event waits for the usage event, which engines send in one go."""


class InjectionRefused(Exception):  # noqa: N818 - a finding, not an error
    """The engine may refuse what was added to the request; the client's own shall be sent."""


class UnlikeItsHead(httpx2.RemoteProtocolError):
    """The client has got the head of an answer that was given up, and this one has another."""


class Delivery:
    """The `Listener` of one answer.

    injected: the request was changed, so the answer is looked at before the client gets any of it,
    and may be given up for that to the client's own request. answers: called when the head has
    come. settled: called once, in the end, with what the stream ended in, or with InjectionRefused.

    begun: nothing else can be sent instead any more. head_sent: the media type of the head that
    the client has got, perhaps of an answer that was given up for this one; None for no head.
    stream: to be set when the request has been sent.
    """

    __slots__ = (
        "_answers", "_client", "_content", "_in_proxy", "_injected", "_observation", "_pass_on",
        "_ready_at", "_release_timer", "_settled", "_withheld", "_withheld_head", "_write", "begun",
        "head_sent", "stream", "take",
    )  # fmt: skip

    take: Callable[[float, bytes], bool]

    def __init__(
        self, client: Client, observation: Observation, *, injected: bool,
        answers: Callable[[int], None], settled: Callable[[Exception | None], None],
        head_sent: str | None = None,
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
        self._withheld_head: ResponseReader | None = None
        self._withheld = b""
        self._release_timer: asyncio.TimerHandle | None = None
        self.head_sent = head_sent
        self.begun = head_sent is not None
        self.stream: EngineStream | None = None

    def answered(self, head: ResponseReader, *, body_follows: bool) -> bool:
        self._answers(head.status)
        if self._injected:
            verdict = self._observation.judge_head(head.status, content_headers(head.headers))
            if verdict == "again":
                return self._send_again()
            if verdict == "waits":
                self._withheld_head = head
                self.take = self._take_withheld
                # The same head would come without the wish, and the client has it as early.
                return self._send_head(head, hides=True, body_follows=body_follows) or self._wait()
        return self._begin(head, body_follows=body_follows)

    def ended(self, error: Exception | None) -> None:
        if self._injected and not self.begun:
            may_repeat = error is None or _says_nothing_else(error)
            if may_repeat and self._observation.broke_off() == "again":
                self._send_again()
                return
            self._let_go()
        observation = self._observation
        if self.begun:
            if self.stream is not None:
                observation.request_sent(self.stream.sent_at)
            self._stop_waiting()
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
        self._stop_waiting()
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
        if self.head_sent is None:
            keeps_up = self._send_head(head, hides=hides, body_follows=body_follows)
        elif status == 200 and _media_type(content.get("content-type", "")) == self.head_sent:
            keeps_up = True
        else:
            raise UnlikeItsHead(f"an answer of status {status} to a request that is sent again")
        if body_follows:
            self._content = (status, content)
            self.take = self._take_first
            return True
        self.take = self._take
        self._pass_on = self._client.chunk_writer(self._client_is_full)
        observation.answer_begins(status, content)
        return keeps_up or self._wait()

    def _send_head(self, head: ResponseReader, *, hides: bool, body_follows: bool) -> bool:
        content_type = content_headers(head.headers).get("content-type", "")
        self.head_sent = _media_type(content_type)
        onward = to_client(
            head.headers,
            exchange_id=self._observation.id,
            event_stream=content_type.startswith("text/event-stream"),
            length_changes=hides,
        )
        return self._client.begin(head.status, onward, body_follows=body_follows)

    def _take_first(self, at: float, data: bytes) -> bool:
        self.take = self._take
        onward = self._observation.onward(data)
        # What is cut out of an answer may be all that has come of it.
        keeps_up = self._write(onward) if onward else self._client.release_head()
        self._pass_on = self._client.chunk_writer(self._client_is_full)
        if self._observation.holds_event:
            self._wait_for_usage()
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
        if self._release_timer is not None:
            self._stop_waiting()
        onward = self._observation.onward(data)
        keeps_up = not onward or self._write(onward)
        if self._observation.holds_event:
            self._wait_for_usage()
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

    # A last event that waits for the usage event

    def _wait_for_usage(self) -> None:
        loop = asyncio.get_running_loop()
        self._release_timer = loop.call_later(_FOLLOWS_WITHIN, self._release)

    def _stop_waiting(self) -> None:
        timer, self._release_timer = self._release_timer, None
        if timer is not None:
            timer.cancel()

    def _release(self) -> None:
        self._release_timer = None
        held = self._observation.release()
        if held and not self._write(held) and self.stream is not None:
            self._wait()
            self.stream.pause()

    # The answer to a changed request, before the client gets any of it

    def _take_withheld(self, at: float, data: bytes) -> bool:
        self._withheld += data
        verdict = self._observation.judge_first(self._withheld)
        if verdict == "waits" and len(self._withheld) <= _WITHHELD_LIMIT:
            return True
        return self._send_again() if verdict == "again" else self._let_go(at)

    def _send_again(self) -> bool:
        self._withheld_head = None
        self.stop()
        self._settled(InjectionRefused())
        return True

    def _let_go(self, at: float | None = None) -> bool:
        head, self._withheld_head = self._withheld_head, None
        if head is None:
            return True
        data, self._withheld = self._withheld, b""
        keeps_up = self._begin(head, body_follows=bool(data))
        return self.take(at or monotonic(), data) if data else keeps_up


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _says_nothing_else(error: Exception) -> bool:
    """Whether an engine that ends an exchange like this may do so because of the request."""
    return isinstance(error, httpx2.ReadError | httpx2.RemoteProtocolError)


def _drop(at: float, data: bytes) -> bool:
    return True
