"""The timeline of one exchange: what came when.

Fed with bytes and monotonic times (seconds), it ends in one `Record`; while it runs,
`progress` is its live view. It knows neither sockets nor Prometheus.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokgauge.dialects.answer import AnswerReader
from tokgauge.dialects.request import RequestParams
from tokgauge.dialects.routes import READERS
from tokgauge.measure.conclusion import conclude
from tokgauge.measure.media_type import media_type
from tokgauge.measure.record import Outcome, Progress, Record
from tokgauge.measure.response_text import ResponseText

_TEMPLATE_TOKENS = 1024
"""More than the chat templates of known models add to a request."""

_UNBOUNDED = (b'"image', b'"input_image', b'"audio', b'"input_audio', b'"video', b'_id"', b'"file')
"""Parts of a request that stand for more tokens than they have bytes."""

_NOTHING_ASKED = RequestParams()


class RequestTimeline:
    """One request and its response as they happen.

    alone: no other exchange was generating at the same time (kept by `Taps`). text: what the
    response says, where that is read. in_proxy: time that chunks spent inside the proxy.
    """

    __slots__ = (
        "_empty_is_token", "_gap_bounds", "_last_byte_at", "_limit", "_request_bytes", "alone",
        "asked", "ended_at", "id", "in_proxy", "method", "opened_at", "received_at", "retried",
        "route", "sent_at", "status", "stream", "text",
    )  # fmt: skip

    def __init__(
        self, *, exchange_id: str, method: str, route: str, opened_at: float,
        gap_bounds: Sequence[float], observed_body_bytes: int, empty_is_token: bool = False,
    ) -> None:  # fmt: skip
        """empty_is_token: see `AnswerReader`."""
        self.id = exchange_id
        self.method = method
        self.route = route
        self.opened_at = opened_at
        self.asked = _NOTHING_ASKED
        self.retried = False
        self.alone = True
        self.status: int | None = None
        self.stream = False
        self.text: ResponseText | None = None
        self.received_at: float | None = None
        self.sent_at: float | None = None
        self.ended_at: float | None = None
        self.in_proxy = 0.0
        self._last_byte_at: float | None = None
        self._request_bytes: int | None = None
        self._gap_bounds = gap_bounds
        self._limit = observed_body_bytes
        self._empty_is_token = empty_is_token

    @property
    def reader(self) -> AnswerReader | None:
        """Who reads the response, once it is clear what it is."""
        return self.text.reader if self.text is not None else None

    @property
    def token_events(self) -> int:
        """Token events so far."""
        text = self.text
        if text is None or text.reader is None:
            return 0
        text.count()
        return text.reader.token_events

    def take_gaps(self) -> tuple[list[int], float]:
        """The gaps between token events since the last call: see `TokenTimes.take_gaps`."""
        text = self.text
        if text is None:
            return [], 0.0
        text.count()
        return text.times.take_gaps()

    @property
    def generates(self) -> bool:
        """Whether the engine generates text for it (and has not refused to)."""
        return self.route in READERS and (self.status is None or self.status < 400)

    @property
    def is_over(self) -> bool:
        """Whether a stream has said that it is complete."""
        return self.stream and (reader := self.reader) is not None and reader.done

    def progress(self) -> Progress:
        """How far it is now."""
        text, reader, last = self.text, None, None
        token_events = 0
        if text is not None and (reader := text.reader) is not None:
            text.count()
            token_events, last = reader.token_events, text.times.last
        decodes_from = decoded_to = silent_since = None
        if self.asked.stream or self.stream:
            if text is not None:
                decodes_from, decoded_to = text.times.first, last
        elif self.sent_at is not None:
            decodes_from, decoded_to = self.sent_at, self.ended_at
        if last is not None and self._last_byte_at is not None:
            silent_since = max(last, self._last_byte_at)
        sequences = reader.sequences if reader is not None else 1
        prompt = reader.usage.prompt if reader is not None else None
        return Progress(
            id=self.id,
            opened_at=self.opened_at,
            requested=self.asked.model,
            answered=reader.model if reader is not None else None,
            generates=self.generates,
            streamed=self.stream,
            decodes_from=decodes_from,
            decoded_to=decoded_to if self.ended_at is not None else None,
            token_events=token_events,
            silent_since=silent_since,
            sequences=sequences,
            context_at_most=self._context_at_most(prompt, sequences, token_events),
            context_at_least=float(prompt or 0),
            calls_tools=reader is not None and reader.calls,
        )

    def _context_at_most(
        self, prompt: int | None, sequences: int, token_events: int
    ) -> float | None:
        """The most tokens that the context of its sequences can have together; None: no bound.

        A token is at least one byte of the request, besides what a chat template adds; what is
        only named by an address or stored at the server has no bound.
        """
        if prompt is None:
            if self._request_bytes is None:
                return None
            prompt = self._request_bytes + _TEMPLATE_TOKENS
        return float(prompt * sequences + token_events)

    # what happens, in order

    def request_received(
        self, at: float, asked: RequestParams | None, body: bytes | None = None
    ) -> None:
        """The request is here completely; `asked` is None when its body was not read."""
        self.received_at = at
        if asked is not None:
            self.asked = asked
        if body is None:
            return
        for word in _UNBOUNDED:
            if body.find(word) >= 0:
                return
        self._request_bytes = len(body)

    def request_sent(self, at: float) -> None:
        """The engine has the request completely."""
        self.sent_at = at

    def response_begins(self, status: int, headers: Mapping[str, str]) -> None:
        """The head of the response; `headers` with names in lower case."""
        self.status = status
        kind = media_type(headers)
        self.stream = kind == "text/event-stream"
        if self.route in READERS and (self.stream or 200 <= status < 300):
            self.text = ResponseText(
                self.route, kind=kind, coding=headers.get("content-encoding", ""),
                echo=self.asked.echo, gap_bounds=self._gap_bounds, limit=self._limit,
                empty_is_token=self._empty_is_token,
            )  # fmt: skip

    def token(self, at: float, data: bytes) -> bool:
        """See `ResponseText.token`."""
        return self.text is not None and self.text.token(at, data)

    def data(self, at: float, data: bytes) -> None:
        """Any bytes of the response that arrived at `at`."""
        self._last_byte_at = at
        if self.text is not None:
            self.text.data(at, data)
            self.stream = self.stream or self.text.stream

    def passed_on(self, seconds: float) -> None:
        """Time that chunks spent inside the proxy."""
        self.in_proxy += seconds

    def end(self, at: float, outcome: Outcome) -> Record:
        """Close the exchange; `outcome` is what the relay saw, `ok` for a complete response."""
        self.ended_at = at
        return conclude(self, at, outcome)
