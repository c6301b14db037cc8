"""The border between traffic and measuring.

The relay reports what happens to a `Tap`; every byte of a response goes through `data`, which
returns what goes on to the client. Nothing that fails in here reaches the relay: the first failure
ends the measuring of that exchange, is counted, and is logged once per kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tokgauge.dialects.injection import inject
from tokgauge.dialects.request import RequestParams, read_request
from tokgauge.dialects.routes import READERS
from tokgauge.dialects.usage_filter import UsageEventFilter
from tokgauge.measure.record import Outcome
from tokgauge.measure.timeline import RequestTimeline
from tokgauge.measure.usage_injection import kind_of
from tokgauge.measure.usage_wish import UsageWish, Verdict

if TYPE_CHECKING:
    from tokgauge.measure.taps import Taps

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _border(where: str, otherwise: object = None) -> Callable[[_Method], _Method]:
    """Makes a method of a `Tap` never raise: it ends the measuring, and returns `otherwise`."""

    def decorate(method: _Method) -> _Method:
        @wraps(method)
        def guarded(tap: Tap, *args: Any, **named: Any) -> Any:
            try:
                return method(tap, *args, **named)
            except Exception as error:  # border: measuring must not harm the traffic
                tap.fail(where, error)
                return otherwise

        return cast(_Method, guarded)

    return decorate


class Tap:
    """One exchange as the relay reports it. No method raises.

    id: of the exchange, as it stands in the response's `X-Tokgauge-Id`. is_behind: bytes that have
    gone on are still to be read: `catch_up`. It counts from `enter` on, which comes first.
    """

    __slots__ = (
        "_at", "_failed", "_filter", "_id", "_method", "_route", "_taps", "_timeline", "_unread",
        "_wish", "id", "is_behind",
    )  # fmt: skip

    def __init__(self, taps: Taps, exchange_id: str, method: str, route: str, at: float) -> None:
        self._taps = taps
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

    @_border("open")
    def enter(self) -> None:
        """The exchange is one of those that run, until `end`."""
        self._timeline = self._taps.enter(self._id, self._method, self._route, self._at)

    # The request

    @property
    def body_wanted(self) -> int:
        """How many bytes of request body shall be collected before it goes on; 0 for none."""
        if self._failed or self._route not in READERS:
            return 0
        return self._taps.observed_body_bytes

    @_border("request")
    def request_received(
        self, at: float, body: bytes | None, encoding: bytes | None
    ) -> bytes | None:
        """The request is here completely. Returns the body to send instead, None for the same."""
        timeline = self._timeline
        if timeline is None:
            return None
        if self._route not in READERS or not body:
            timeline.request_received(at, None, None)
            return None
        params = read_request(body) if not encoding else None
        timeline.request_received(at, params, body)
        return None if params is None else self._wished(body, params)

    def _wished(self, body: bytes, params: RequestParams) -> bytes | None:
        """The body with a wish for usage, where the engine is known to bear it."""
        known = self._taps.injection.of(self._route)
        kind = kind_of(params)
        if known is None or known.off or kind in known.unneeded:
            return None
        changed = inject(body, params)
        if changed is None:
            return None
        self._wish = wish = UsageWish(known, kind)
        return None if wish.teaches else changed

    @_border("request_sent")
    def request_sent(self, at: float | None) -> None:
        """The engine has the whole request; None when it responded before that."""
        if self._timeline is not None and at is not None:
            self._timeline.request_sent(at)

    def retried(self) -> None:
        """The request is sent once more."""
        if self._timeline is not None:
            self._timeline.retried = True

    # The response to a changed request, before the client gets any of it

    @_border("injection", "goes")
    def judge_head(self, status: int, content: Mapping[str, str]) -> Verdict:
        """Whether the head of the response to a changed request may go to the client."""
        return self._wish.judge_head(status, content) if self._wish is not None else "goes"

    @_border("injection", "goes")
    def judge_first(self, data: bytes) -> Verdict:
        """The same, when these first bytes of its body are here."""
        return self._wish.judge_first(data) if self._wish is not None else "goes"

    @_border("injection", "goes")
    def broke_off(self) -> Verdict:
        """The same, when the response has ended before an event of it came."""
        return self._wish.broke_off() if self._wish is not None else "goes"

    # The response

    @_border("injection", False)
    def hides(self, status: int, content: Mapping[str, str]) -> bool:
        """Whether bytes may be taken out of the response with this head."""
        wish = self._wish
        if wish is None:
            return False
        hides = wish.begins(status, content)
        self._filter = wish.filter
        return hides

    @_border("response")
    def response_begins(self, status: int, content: Mapping[str, str]) -> None:
        """The head of the response; `content` has its content headers, names in lower case."""
        if self._timeline is not None:
            self._timeline.response_begins(status, content)

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
            except Exception as error:  # border, without a call more for each event
                self.fail("data", error)
        self._unread = (at, body)
        self.is_behind = True
        if hiding is None:
            return body
        held = hiding.held
        try:
            return hiding.feed(body)
        except Exception as error:  # border: nothing that was held may be lost
            self._filter = None
            self.fail("filter", error)
            return held + body

    def catch_up(self) -> None:
        """Read what `data` has not read."""
        at, body = self._unread
        self._unread = (0.0, b"")
        self.is_behind = False
        if self._wish is not None and self._wish.learns:
            self._learn(self._wish, body)
        self._read(at, body)

    @_border("injection")
    def _learn(self, wish: UsageWish, body: bytes) -> None:
        wish.came(body)

    @_border("data")
    def _read(self, at: float, body: bytes) -> None:
        if self._timeline is not None:
            self._timeline.data(at, body)

    @property
    def holds_event(self) -> bool:
        """Whether a whole event is held: `release` it when nothing else comes soon."""
        return self._filter is not None and self._filter.holds_event

    def release(self) -> bytes:
        """The event that is held, to go to the client now."""
        return self._filter.release() if self._filter is not None else b""

    def rest(self) -> bytes:
        """Bytes that were held back and go to the client before the response ends."""
        return self._filter.held if self._filter is not None else b""

    @_border("is_over", False)
    def is_over(self) -> bool:
        """Whether the response has said that it is complete."""
        return self._timeline is not None and self._timeline.is_over

    # Its end

    def responded_itself(self, status: int) -> None:
        """The proxy responds by itself with `status`."""
        if self._timeline is not None:
            self._timeline.status = status

    def end(self, outcome: Outcome, in_proxy: float = 0.0) -> None:
        """The exchange is over. in_proxy: time that chunks spent inside the proxy [s]."""
        self._conclude(outcome)
        self._finish(outcome, in_proxy)

    @_border("injection")
    def _conclude(self, outcome: Outcome) -> None:
        cut = outcome == "upstream_incomplete"
        wish = self._wish
        blamed = wish.ends(complete=outcome == "ok", cut=cut) if wish is not None else False
        if (cut and not blamed) or outcome == "upstream_unreachable":
            self._taps.injection.begin_anew()

    @_border("end")
    def _finish(self, outcome: Outcome, in_proxy: float) -> None:
        timeline = self._timeline
        if timeline is not None:
            timeline.passed_on(in_proxy)
            self._taps.finish(timeline, monotonic(), outcome)

    def fail(self, where: str, error: Exception) -> None:
        """Measuring has failed in a place: it ends here."""
        self._failed = True
        if self._timeline is not None:
            self._taps.forget(self._timeline)
            self._timeline = None
        self._taps.report(where, error)
