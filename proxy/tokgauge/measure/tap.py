"""The border between traffic and measuring.

The relay reports what happens to a `Tap`; every byte of a response goes through `data`, which
returns what goes on to the client. Nothing that fails in here reaches the relay: the first failure
ends the measuring of that exchange, is counted, and is logged once per kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Protocol

from tokgauge.dialects.injection import inject
from tokgauge.dialects.request import RequestParams, read_request
from tokgauge.dialects.routes import READERS
from tokgauge.dialects.usage_filter import UsageEventFilter
from tokgauge.measure.record import Outcome
from tokgauge.measure.timeline import RequestTimeline
from tokgauge.measure.usage_injection import UsageInjection, kind_of
from tokgauge.measure.usage_wish import UsageWish, Verdict


class Registry(Protocol):
    """What all taps share."""

    injection: UsageInjection
    observed_body_bytes: int

    def enter(self, exchange_id: str, method: str, route: str, at: float) -> RequestTimeline:
        """The timeline of an exchange that runs from now on."""

    def forget(self, timeline: RequestTimeline) -> None:
        """It is not measured any longer."""

    def finish(self, timeline: RequestTimeline, at: float, outcome: Outcome) -> None:
        """It has ended."""

    def report(self, where: str, error: Exception) -> None:
        """Measuring failed in a place."""


class Tap:
    """One exchange as the relay reports it. No method raises.

    id: of the exchange, as it stands in the response's `X-Tokgauge-Id`. is_behind: bytes that have
    gone on are still to be read: `catch_up`. It counts from `enter` on, which comes first.
    """

    __slots__ = (
        "_at", "_failed", "_filter", "_id", "_method", "_registry", "_route", "_timeline",
        "_unread", "_wish", "id", "is_behind",
    )  # fmt: skip

    def __init__(
        self, registry: Registry, exchange_id: str, method: str, route: str, at: float
    ) -> None:
        self._registry = registry
        self._method = method
        self._route = route
        self._at = at
        self._timeline: RequestTimeline | None = None
        self._filter: UsageEventFilter | None = None
        self._wish: UsageWish | None = None
        self._failed = False
        self._unread = (0.0, b"")
        self._id = exchange_id
        self.id = exchange_id.encode()
        self.is_behind = False

    def enter(self) -> None:
        """The exchange is one of those that run, until `end`."""
        try:
            self._timeline = self._registry.enter(self._id, self._method, self._route, self._at)
        except Exception as error:  # border: measuring must not harm the traffic
            self._fail("open", error)

    # The request

    @property
    def body_wanted(self) -> int:
        """How many bytes of request body shall be collected before it goes on; 0 for none."""
        if self._failed or self._route not in READERS:
            return 0
        return self._registry.observed_body_bytes

    def request_received(
        self, at: float, body: bytes | None, encoding: bytes | None
    ) -> bytes | None:
        """The request is here completely. Returns the body to send instead, None for the same."""
        timeline = self._timeline
        if timeline is None:
            return None
        try:
            if self._route not in READERS or not body:
                timeline.request_received(at, None, None)
                return None
            params = read_request(body) if not encoding else None
            timeline.request_received(at, params, body)
            return None if params is None else self._wished(body, params)
        except Exception as error:  # border: measuring must not harm the traffic
            self._fail("request", error)
            self._wish = None
            return None

    def _wished(self, body: bytes, params: RequestParams) -> bytes | None:
        """The body with a wish for usage, where the engine is known to bear it."""
        known = self._registry.injection.of(self._route)
        kind = kind_of(params)
        if known is None or known.off or kind in known.unneeded:
            return None
        changed = inject(body, params)
        if changed is None:
            return None
        self._wish = wish = UsageWish(known, kind)
        return None if wish.teaches else changed

    def request_sent(self, at: float | None) -> None:
        """The engine has the whole request; None when it responded before that."""
        timeline = self._timeline
        if timeline is None or at is None:
            return
        try:
            timeline.request_sent(at)
        except Exception as error:  # border: as above
            self._fail("request_sent", error)

    def retried(self) -> None:
        """The request is sent once more."""
        if self._timeline is not None:
            self._timeline.retried = True

    # The response to a changed request, before the client gets any of it

    def judge_head(self, status: int, content: Mapping[str, str]) -> Verdict:
        """Whether the head of the response to a changed request may go to the client."""
        return self._judge(lambda wish: wish.judge_head(status, content))

    def judge_first(self, data: bytes) -> Verdict:
        """The same, when these first bytes of its body are here."""
        return self._judge(lambda wish: wish.judge_first(data))

    def broke_off(self) -> Verdict:
        """The same, when the response has ended before an event of it came."""
        return self._judge(lambda wish: wish.broke_off())

    def _judge(self, judge: Callable[[UsageWish], Verdict]) -> Verdict:
        if self._wish is None:
            return "goes"
        try:
            return judge(self._wish)
        except Exception as error:  # border: as above
            self._fail("injection", error)
            return "goes"

    # The response

    def hides(self, status: int, content: Mapping[str, str]) -> bool:
        """Whether bytes may be taken out of the response with this head."""
        wish = self._wish
        if wish is None:
            return False
        try:
            hides = wish.begins(status, content)
        except Exception as error:  # border: as above
            self._fail("injection", error)
            return False
        self._filter = wish.filter
        return hides

    def response_begins(self, status: int, content: Mapping[str, str]) -> None:
        """The head of the response; `content` has its content headers, names in lower case."""
        timeline = self._timeline
        if timeline is not None:
            try:
                timeline.response_begins(status, content)
            except Exception as error:  # border: as above
                self._fail("response", error)

    def data(self, at: float, body: bytes) -> bytes:
        """Bytes of the response that arrived at `at`; returns what goes to the client now.

        The same object when it goes on as it came. The event of one token, which is nearly all of
        the traffic, is known by its form and counted at once: that costs less than a second look.
        Everything else is read once it has gone: see `catch_up`.
        """
        timeline, hiding = self._timeline, self._filter
        if timeline is not None and (hiding is None or hiding.between):
            try:
                if timeline.token(at, body):
                    return body
            except Exception as error:  # border: as above
                self._fail("data", error)
        self._unread = (at, body)
        self.is_behind = True
        if hiding is None:
            return body
        held = hiding.held
        try:
            return hiding.feed(body)
        except Exception as error:  # border: as above
            self._filter = None
            self._fail("filter", error)
            return held + body

    def catch_up(self) -> None:
        """Read what `data` has not read."""
        at, body = self._unread
        self._unread = (0.0, b"")
        self.is_behind = False
        wish, timeline = self._wish, self._timeline
        if wish is not None and wish.learns:
            try:
                wish.came(body)
            except Exception as error:  # border: as above
                self._fail("injection", error)
        if timeline is not None:
            try:
                timeline.data(at, body)
            except Exception as error:  # border: as above
                self._fail("data", error)

    @property
    def holds_event(self) -> bool:
        """Whether a whole event is held: `release` it when nothing else comes soon."""
        return self._filter is not None and self._filter.holds_event

    def release(self) -> bytes:
        """The event that is held, to go to the client now."""
        hiding = self._filter
        return hiding.release() if hiding is not None else b""

    def rest(self) -> bytes:
        """Bytes that were held back and go to the client before the response ends."""
        return self._filter.held if self._filter is not None else b""

    @property
    def is_over(self) -> bool:
        """Whether the response has said that it is complete."""
        try:
            return self._timeline is not None and self._timeline.is_over
        except Exception as error:  # border: as above
            self._fail("is_over", error)
            return False

    # Its end

    def passed_on(self, seconds: float) -> None:
        """Time that chunks spent inside the proxy."""
        if self._timeline is not None:
            try:
                self._timeline.passed_on(seconds)
            except Exception as error:  # border: as above
                self._fail("passed_on", error)

    def responded_itself(self, status: int) -> None:
        """The proxy responds by itself with `status`."""
        if self._timeline is not None:
            self._timeline.status = status

    def end(self, outcome: Outcome) -> None:
        """The exchange is over."""
        try:
            self._conclude(outcome)
        except Exception as error:  # border: as above
            self._fail("injection", error)
        timeline = self._timeline
        if timeline is None:
            return
        try:
            self._registry.finish(timeline, monotonic(), outcome)
        except Exception as error:  # border: as above
            self._fail("end", error)

    def _conclude(self, outcome: Outcome) -> None:
        cut = outcome == "upstream_incomplete"
        wish = self._wish
        blamed = wish.ends(complete=outcome == "ok", cut=cut) if wish is not None else False
        if (cut and not blamed) or outcome == "upstream_unreachable":
            self._registry.injection.begin_anew()

    def _fail(self, where: str, error: Exception) -> None:
        self._failed = True
        if self._timeline is not None:
            self._registry.forget(self._timeline)
            self._timeline = None
        self._registry.report(where, error)
