"""The border between traffic and measuring.

The relay reports what happens to an `Observation`; nothing that fails in here reaches it. The first
failure ends the measuring of that exchange, is counted, and is logged once per kind.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from time import monotonic

from tokgauge.dialects.injection import inject
from tokgauge.dialects.request import Asked, read_request
from tokgauge.dialects.routes import READERS, classify
from tokgauge.dialects.usage_filter import UsageEventFilter
from tokgauge.engine.facts import EngineFacts
from tokgauge.measure.record import Measurement, Outcome
from tokgauge.measure.timeline import Exchange
from tokgauge.measure.usage_injection import kind_of
from tokgauge.measure.usage_wish import UsageWish, Verdict
from tokgauge.settings import Settings

logger = logging.getLogger("tokgauge")


class Observer:
    """Opens an `Observation` for each exchange and hands on what it measured.

    `record` receives each finished exchange with its measurement; `failed` the name of each place
    that failed; `later` calls what it is given soon, when there is time.
    """

    def __init__(
        self, settings: Settings, facts: EngineFacts,
        record: Callable[[Exchange, Measurement], None], failed: Callable[[str], None],
        later: Callable[[Callable[[], None]], object] = lambda flush: flush(),
    ) -> None:  # fmt: skip
        self.facts = facts
        facts.injection.enabled = settings.inject_usage
        self.live: set[Exchange] = set()
        self._generating: set[Exchange] = set()
        self._settings = settings
        self._record = record
        self._failed = failed
        self._later = later
        self._ended: list[tuple[Exchange, float, Outcome]] = []
        self._logged: set[tuple[str, str]] = set()
        self._ids = _random_ids()

    def open(self, method: str, path: bytes, at: float) -> Observation:
        """Begin to observe an exchange whose head has been received at `at`."""
        return Observation(self, next(self._ids), method, classify(method, path), at)

    def enter(self, exchange_id: str, method: str, route: str, at: float) -> Exchange:
        """The exchange of an observation, which runs from now on."""
        exchange = Exchange(
            exchange_id=exchange_id,
            method=method,
            route=route,
            opened_at=at,
            gap_bounds=self._settings.duration_buckets,
            observed_body_bytes=self._settings.observed_body_bytes,
            empty_is_token=self.facts.is_vllm,
        )
        self._admit(exchange)
        return exchange

    def _admit(self, exchange: Exchange) -> None:
        self.live.add(exchange)
        if not exchange.generates:
            return
        if self._generating:
            exchange.alone = False
            if len(self._generating) == 1:  # with more of them, none was alone any longer
                next(iter(self._generating)).alone = False
        self._generating.add(exchange)

    def forget(self, exchange: Exchange) -> None:
        """The exchange no longer runs."""
        self.live.discard(exchange)
        self._generating.discard(exchange)

    @property
    def observed_body_bytes(self) -> int:
        """Largest request body that is read."""
        return self._settings.observed_body_bytes

    def finish(self, exchange: Exchange, at: float, outcome: Outcome) -> None:
        """An exchange has ended: it stays in the live set until `flush`, which comes soon."""
        self._generating.discard(exchange)
        self._ended.append((exchange, at, outcome))
        if len(self._ended) == 1:
            self._later(self.flush)

    def flush(self) -> None:
        """Hand on the measurements of what has ended. Never raises."""
        ended, self._ended = self._ended, []
        for exchange, at, outcome in ended:
            self.live.discard(exchange)
            try:
                context_length = self.facts.context_length(*exchange.model_names)
                self._record(exchange, exchange.end(at, outcome, context_length))
            except Exception as error:  # border: measuring must not harm the traffic
                self.report("end", error)

    def report(self, where: str, error: Exception) -> None:
        """Count a failure of the measuring side and log the first of its kind."""
        kind = (where, type(error).__name__)
        if kind not in self._logged and len(self._logged) < 100:
            self._logged.add(kind)
            logger.error(
                "measuring failed in %s; the traffic is not affected, and this is logged once",
                where, exc_info=error,
            )  # fmt: skip
        try:
            self._failed(where)
        except Exception:  # border: even the counter may be what is broken
            logger.debug("the failure could not be counted", exc_info=True)


def _random_ids() -> Iterator[str]:
    """Identifiers that nobody can guess, 96 bits each; the kernel is asked for many at once."""
    while True:
        block = secrets.token_hex(12 * 64)
        for start in range(0, len(block), 24):
            yield block[start : start + 24]


class Observation:
    """One exchange as the relay reports it. No method raises.

    It counts from `enter` on, which the relay calls once, before an answer can come.
    """

    __slots__ = (
        "_at", "_exchange", "_failed", "_filter", "_id", "_method", "_observer", "_received",
        "_route", "_wish", "id",
    )  # fmt: skip

    def __init__(
        self, observer: Observer, exchange_id: str, method: str, route: str, at: float
    ) -> None:
        self._observer = observer
        self._method = method
        self._route = route
        self._at = at
        self._received: tuple[float, Asked | None, bytes | None] | None = None
        self._exchange: Exchange | None = None
        self._filter: UsageEventFilter | None = None
        self._failed = False
        self._wish: UsageWish | None = None
        self._id = exchange_id
        self.id = exchange_id.encode()

    @property
    def body_wanted(self) -> int:
        """How many bytes of request body shall be collected before it goes on; 0 for none."""
        if self._failed or self._route not in READERS:
            return 0
        return self._observer.observed_body_bytes

    def enter(self) -> None:
        """The exchange is one of those that run, until `end`."""
        if self._failed:
            return
        try:
            self._exchange = exchange = self._observer.enter(
                self._id, self._method, self._route, self._at
            )
            if self._received is not None:
                exchange.request_received(*self._received)
        except Exception as error:  # border: measuring must not harm the traffic
            self._fail("open", error)

    def request_received(
        self, at: float, body: bytes | None, encoding: bytes | None
    ) -> bytes | None:
        """The request is here completely. Returns the body to send instead, None for the same."""
        if self._failed:
            return None
        try:
            asked = read_request(body) if body and not encoding else None
            if self._exchange is not None:
                self._exchange.request_received(at, asked, body)
            else:
                self._received = (at, asked, body)
            return None if asked is None or body is None else self._wished(body, asked)
        except Exception as error:  # border: measuring must not harm the traffic
            self._fail("request", error)
            self._wish = None
            return None

    def _wished(self, body: bytes, asked: Asked) -> bytes | None:
        """The body with a wish for usage, where the engine is known to bear it."""
        known = self._observer.facts.injection.of(self._route)
        kind = kind_of(asked)
        if known is None or known.off or kind in known.unneeded:
            return None
        changed = inject(body, asked)
        if changed is None:
            return None
        self._wish = wish = UsageWish(known, kind)
        return None if wish.teaches else changed

    def request_sent(self, at: float | None) -> None:
        """The engine has the whole request; None when it answered before that."""
        exchange = self._exchange
        if exchange is None or at is None:
            return
        try:
            exchange.request_sent(at)
        except Exception as error:  # border: measuring must not harm the traffic
            self._fail("request_sent", error)

    def retried(self) -> None:
        """The request is sent once more."""
        if self._exchange is not None:
            self._exchange.retried = True

    def judge_head(self, status: int, content: Mapping[str, str]) -> Verdict:
        """Whether the head of the answer to a changed request may go to the client."""
        return self._judge(lambda wish: wish.judge_head(status, content))

    def judge_first(self, data: bytes) -> Verdict:
        """The same, when these first bytes of its body are here."""
        return self._judge(lambda wish: wish.judge_first(data))

    def broke_off(self) -> Verdict:
        """The same, when the answer to a changed request has ended before an event of it came."""
        return self._judge(lambda wish: wish.broke_off())

    def _judge(self, judge: Callable[[UsageWish], Verdict]) -> Verdict:
        if self._wish is None:
            return "goes"
        try:
            return judge(self._wish)
        except Exception as error:  # border: measuring must not harm the traffic
            self._fail("injection", error)
            return "goes"

    def hides(self, status: int, content: Mapping[str, str]) -> bool:
        """Whether bytes may be cut out of the answer with this head: then all go by `onward`."""
        wish = self._wish
        if wish is None:
            return False
        try:
            hides = wish.begins(status, content)
        except Exception as error:  # border: measuring must not harm the traffic
            self._fail("injection", error)
            return False
        self._filter = wish.filter
        return hides

    def answer_begins(self, status: int, headers: Mapping[str, str]) -> None:
        """The head of the answer."""
        exchange = self._exchange
        if exchange is not None:
            try:
                exchange.answer_begins(status, headers)
            except Exception as error:  # border: measuring must not harm the traffic
                self._fail("answer", error)

    def token(self, at: float, data: bytes) -> bool:
        """Count bytes of the answer that arrived at `at`, when they are an event known by its form.

        True: they go to the client as they are, and that was all. This costs less than what a
        second look costs after the bytes have left.
        """
        exchange, hiding = self._exchange, self._filter
        if exchange is None or (hiding is not None and not hiding.between):
            return False
        try:
            return exchange.token(at, data)
        except Exception as error:  # border: measuring must not harm the traffic
            self._fail("chunk", error)
            return False

    def token_counter(self) -> Callable[[float, bytes], bool]:
        """`token` with as few checks as a short event needs, until another method gets bytes.

        What is returned may raise, unlike all else here: call `token_counter_failed` then.
        """
        exchange, hiding = self._exchange, self._filter
        if exchange is None or (hiding is not None and not hiding.between):
            return self.token
        try:
            return exchange.token_counter()
        except Exception as error:  # border: measuring must not harm the traffic
            self._fail("chunk", error)
            return self.token

    def token_counter_failed(self, error: Exception) -> None:
        """The token counter raised `error`."""
        self._fail("chunk", error)

    def onward(self, data: bytes) -> bytes:
        """What of these bytes of the answer goes to the client now."""
        hiding = self._filter
        if hiding is None:
            return data
        held = hiding.held
        try:
            return hiding.feed(data)
        except Exception as error:  # border: measuring must not harm the traffic
            self._filter = None
            self._fail("filter", error)
            return held + data

    @property
    def holds_event(self) -> bool:
        """Whether a whole event is held: `release` it when nothing else comes soon."""
        return self._filter is not None and self._filter.holds_event

    def release(self) -> bytes:
        """The event that is held, to go to the client now."""
        hiding = self._filter
        return hiding.release() if hiding is not None else b""

    def chunk(self, at: float, data: bytes) -> None:
        """Any other bytes of the answer that arrived at `at`; the client has got them."""
        if self._wish is not None and self._wish.learns:
            try:
                self._wish.came(data)
            except Exception as error:  # border: measuring must not harm the traffic
                self._fail("injection", error)
        exchange = self._exchange
        if exchange is not None:
            try:
                exchange.chunk(at, data)
            except Exception as error:  # border: measuring must not harm the traffic
                self._fail("chunk", error)

    def passed_on(self, seconds: float) -> None:
        """Time that chunks spent inside the proxy."""
        if self._exchange is not None:
            self._exchange.passed_on(seconds)

    def answer_ends(self) -> bytes:
        """Bytes that were held back and go to the client before the answer ends."""
        return self._filter.held if self._filter is not None else b""

    def end(self, outcome: Outcome) -> None:
        """The exchange is over."""
        try:
            self._judge_end(outcome)
        except Exception as error:  # border: measuring must not harm the traffic
            self._fail("injection", error)
        exchange = self._exchange
        if exchange is None:
            return
        try:
            self._observer.finish(exchange, monotonic(), outcome)
        except Exception as error:  # border: measuring must not harm the traffic
            self._fail("end", error)

    def _judge_end(self, outcome: Outcome) -> None:
        cut = outcome == "upstream_incomplete"
        wish = self._wish
        blamed = wish.ends(complete=outcome == "ok", cut=cut) if wish is not None else False
        if (cut and not blamed) or outcome == "upstream_unreachable":
            self._observer.facts.injection.begin_anew()

    def refused(self, status: int) -> None:
        """The proxy answers by itself with `status`."""
        if self._exchange is not None:
            self._exchange.status = status

    def _fail(self, where: str, error: Exception) -> None:
        self._failed = True
        if self._exchange is not None:
            self._observer.forget(self._exchange)
            self._exchange = None
        self._observer.report(where, error)
