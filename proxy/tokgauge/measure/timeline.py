"""The timeline of one exchange: what came when, and what follows from it.

Fed with bytes and monotonic times (seconds), it ends in one `Record`; while it runs,
`progress` is its live view. It knows neither sockets nor Prometheus.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from tokgauge.dialects.answer import OUTPUT, AnswerReader
from tokgauge.dialects.encoding import Decoder, TooLargeError, UndecodableError, decoder_for
from tokgauge.dialects.request import RequestParams
from tokgauge.dialects.routes import READERS
from tokgauge.dialects.sse import EVENT_LIMIT, EventReader
from tokgauge.dialects.template import RETRY_AFTER, Template, learn
from tokgauge.dialects.usage import Usage
from tokgauge.measure.media_type import media_type
from tokgauge.measure.record import Outcome, Progress, Record, TokenSource

MIN_TOKENS_FOR_RATE = 16
"""Below this many tokens of a sequence a decode rate says more about jitter than about speed."""

MIN_ARRIVALS_FOR_RATE = 8
"""Below this many separate arrivals the tokens were held back somewhere: the span is not theirs."""

MOST_TOKENS_PER_CALL_EVENT = 1.05
"""Tokens per event of an answer that calls tools, above which a parser has held tokens back."""

_STREAM_BEGINS = (b"data:", b"event:", b"id:", b"retry:", b":")
"""How an event stream begins, whatever its content type."""

_BEFORE_CONTENT = b"\xef\xbb\xbf \t\r\n"
"""Bytes that may come before what tells an event stream from JSON: byte order mark, white space."""

_TEMPLATE_TOKENS = 1024
"""More than the chat templates of known models add to a request."""

_UNBOUNDED = (b'"image', b'"input_image', b'"audio', b'"input_audio', b'"video', b'_id"', b'"file')
"""Parts of a request that stand for more tokens than they have bytes."""


_NOTHING_ASKED = RequestParams()
_NO_USAGE = Usage()

_NOT_CARRIED = ("upstream_unreachable", "timeout", "rejected")
"""Outcomes of requests that the engine may never have had."""


class Gaps:
    """Gaps between token events as counts per histogram bucket, so that each costs no lock."""

    __slots__ = ("_bounds", "_counts")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts: list[int] | None = None

    def add(self, last: float, times: Sequence[float]) -> None:
        """Count the gaps between `last` and `times`, all in seconds, one after the other."""
        counts, bounds = self.counts, self._bounds
        above = up_to = -1.0
        bucket = alike = 0
        for at in times:
            gap = at - last
            last = at
            if above < gap <= up_to:  # most likely it belongs where the last one did
                alike += 1
                continue
            counts[bucket] += alike
            alike = 1
            bucket = bisect_left(bounds, gap)
            above = bounds[bucket - 1] if bucket else -1.0
            up_to = bounds[bucket] if bucket < len(bounds) else math.inf
        counts[bucket] += alike

    @property
    def counts(self) -> list[int]:
        """`counts[i]` is the number of gaps up to the i-th bound and above the bound before; the
        last entry counts those above every bound.
        """
        if self._counts is None:
            self._counts = [0] * (len(self._bounds) + 1)
        return self._counts

    def take(self) -> list[int]:
        """The counts, which then begin at nothing again."""
        counts = self.counts
        self._counts = None
        return counts


class RequestTimeline:
    """One request and its answer as they happen."""

    __slots__ = (
        "_body", "_body_limit", "_counted", "_counted_up_to", "_decoder", "_empty_is_token",
        "_ended_at", "_events", "_first", "_first_output_at", "_first_token_at", "_in_proxy",
        "_last_byte_at", "_learn_at", "_learned", "_received_at", "_says_json", "_sent_at",
        "_taken_up_to", "_template", "_together", "_unread", "alone",
        "asked", "gaps", "id", "method", "opened_at", "reader", "request_bytes", "retried",
        "route", "status", "stream",
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
        """No other exchange was generating at the same time (kept by the observer)."""
        self.request_bytes: int | None = None
        self.status: int | None = None
        self.stream = False
        self.reader: AnswerReader | None = None
        self.gaps = Gaps(gap_bounds)
        self._counted = 0
        self._counted_up_to: float | None = None
        self._empty_is_token = empty_is_token
        self._body_limit = observed_body_bytes
        self._received_at: float | None = None
        self._sent_at: float | None = None
        self._first_token_at: float | None = None
        self._first_output_at: float | None = None
        self._last_byte_at: float | None = None
        self._ended_at: float | None = None
        self._together = 0  # token events that came in one read with an earlier one
        self._in_proxy = 0.0
        self._events: EventReader | None = None
        self._decoder: Decoder | None = None
        self._body: bytearray | None = None
        self._first: bytes | None = None  # what came before it was clear what it is
        self._says_json = False
        self._unread: list[str] = []
        self._learned: Template | None = None
        self._template: Template | None = None
        """What was learned, while the next read may be compared with it."""
        self._learn_at = 0
        self._taken_up_to: float | None = None

    @property
    def answered_model(self) -> str | None:
        """The model's name as the answer says."""
        return self.reader.model if self.reader is not None else None

    @property
    def calls_tools(self) -> bool:
        """Whether it calls tools: then tokens may come without events of their own."""
        return self.reader is not None and self.reader.calls

    @property
    def token_events(self) -> int:
        """Token events so far."""
        self._count()
        return self._counted

    @property
    def _last_token_at(self) -> float | None:
        self._count()
        return self._counted_up_to

    def _count(self) -> None:
        """Count the token events that the template has noted."""
        learned, last = self._learned, self._counted_up_to
        if learned is None or last is None or not learned.times:
            return
        times, learned.times = learned.times, []
        self.gaps.add(last, times)
        self._counted += len(times)
        self._counted_up_to = times[-1]

    @property
    def arrivals(self) -> int:
        """Reads that brought a token."""
        return self.token_events - self._together

    def take_gaps(self) -> tuple[list[int], float]:
        """The gaps since the last call, see `Gaps.counts`, and their sum in seconds."""
        since = self._taken_up_to if self._taken_up_to is not None else self._first_token_at
        self._taken_up_to = last = self._last_token_at
        total = last - since if last is not None and since is not None else 0.0
        return self.gaps.take(), total

    @property
    def generates(self) -> bool:
        """Whether the engine generates text for it (and has not refused to)."""
        return self.route in READERS and (self.status is None or self.status < 400)

    @property
    def sequences(self) -> int:
        """How many sequences have shown up so far (choices, prompts)."""
        reader = self.reader
        if reader is None:
            return 1
        others, ended = len(reader.sequence_events), len(reader.finish_reasons)
        return ended if ended > others else 1 + others

    @property
    def context_at_most(self) -> float | None:
        """The most tokens that the context of its sequences can have together; None: no bound.

        A token is at least one byte of the request, besides what a chat template adds; what is
        only named by an address or stored at the server has no bound.
        """
        if self.reader is not None and (prompt := self.reader.usage.prompt) is not None:
            return float(prompt * self.sequences + self.token_events)
        if self.request_bytes is None:
            return None
        return float((self.request_bytes + _TEMPLATE_TOKENS) * self.sequences + self.token_events)

    @property
    def context_at_least(self) -> float:
        """The fewest tokens that their contexts have together: the prompt, once it is counted."""
        prompt = self.reader.usage.prompt if self.reader is not None else None
        return float(prompt or 0)

    def _decoded(self) -> tuple[float | None, float | None]:
        """From when to when it has been decoded: see `Progress`."""
        if self.asked.stream or self.stream:
            last = self._last_token_at
            return self._first_token_at, None if self._ended_at is None else last
        return (None, None) if self._sent_at is None else (self._sent_at, self._ended_at)

    @property
    def is_over(self) -> bool:
        """Whether a stream has said that it is complete."""
        return self.stream and self.reader is not None and self.reader.done

    def progress(self) -> Progress:
        """How far it is now."""
        decodes_from, decoded_to = self._decoded()
        last_token, last_byte = self._last_token_at, self._last_byte_at
        silent_since = None
        if last_token is not None and last_byte is not None:
            silent_since = max(last_token, last_byte)
        return Progress(
            id=self.id,
            opened_at=self.opened_at,
            requested=self.asked.model,
            answered=self.answered_model,
            generates=self.generates,
            streamed=self.stream,
            decodes_from=decodes_from,
            decoded_to=decoded_to,
            token_events=self.token_events,
            silent_since=silent_since,
            sequences=self.sequences,
            context_at_most=self.context_at_most,
            context_at_least=self.context_at_least,
            calls_tools=self.calls_tools,
        )

    # what happens, in order

    def request_received(
        self, at: float, asked: RequestParams | None, body: bytes | None = None
    ) -> None:
        """The request is here completely; `asked` is None when its body was not read."""
        self._received_at = at
        if asked is not None:
            self.asked = asked
        if body is None:
            return
        for word in _UNBOUNDED:
            if body.find(word) >= 0:
                return
        self.request_bytes = len(body)

    def request_sent(self, at: float) -> None:
        """The engine has the request completely."""
        self._sent_at = at

    def response_begins(self, status: int, headers: Mapping[str, str]) -> None:
        """The head of the answer; `headers` with names in lower case."""
        self.status = status
        content_type = media_type(headers)
        self.stream = content_type == "text/event-stream"
        if self.route not in READERS or not (self.stream or 200 <= status < 300):
            return
        self._decoder = decoder_for(headers.get("content-encoding", ""), self._body_limit)
        if self._decoder is None:
            self._unread.append("encoding")
        elif self.stream:
            self._read_events()
        else:
            self._says_json = content_type == "application/json" or content_type.endswith("+json")
            self._first = b""

    def token(self, at: float, data: bytes) -> bool:
        """Count the next bytes, if they are exactly one event with a token and nothing else to it.

        False: nothing has been counted; it takes `chunk` to read them.
        """
        template = self._template
        return template is not None and len(data) <= EVENT_LIMIT and template.token(at, data)

    def data(self, at: float, data: bytes) -> None:
        """Any bytes of the answer that arrived at `at`."""
        self._last_byte_at = at
        if self._decoder is not None:
            self._read(at, data, self._decoder)

    def passed_on(self, seconds: float) -> None:
        """Time that chunks spent inside the proxy."""
        self._in_proxy += seconds

    def _new_reader(self) -> AnswerReader:
        reader = READERS[self.route]()
        reader.empty_is_token = self._empty_is_token
        return reader

    def _read_events(self) -> None:
        self.stream = True
        self.reader = self._new_reader()
        self._events = EventReader()
        if self.asked.echo:
            self.reader.expect_echo()

    def _recognise(self, data: bytes) -> bytes:
        """Find out from the first bytes what the answer is; returns all of it that has come.

        Nothing is returned while that is not clear.
        """
        assert self._first is not None  # noqa: S101
        begins = (self._first + data).lstrip(_BEFORE_CONTENT)
        if begins.startswith(_STREAM_BEGINS):
            self._read_events()
        elif not begins or any(mark.startswith(begins) for mark in _STREAM_BEGINS):
            self._first = begins
            return b""
        elif self._says_json or begins.startswith(b"{"):
            self.reader = self._new_reader()
            self._body = bytearray()
        else:
            self._decoder = None
        self._first = None
        return begins

    def _read(self, at: float, data: bytes, decoder: Decoder) -> None:
        try:
            decoded = decoder.decode(data)
        except UndecodableError:
            self._give_up("encoding")
            return
        except TooLargeError:
            self._give_up("size")
            return
        if self._first is not None:
            decoded = self._recognise(decoded)
        if self._events is not None and self.reader is not None:
            arrived = self._stream(at, decoded, self._events, self.reader)
            self._template = None
            if self._events.between and decoded is data:
                if arrived:
                    self._learn(data)
                self._template = self._learned
        elif self._body is not None:
            self._body += decoded
            if len(self._body) > self._body_limit:
                self._give_up("size")

    def _learn(self, data: bytes) -> None:
        """Keep what this read has in common with those to come, if it is one token event."""
        if self.token_events >= self._learn_at:
            self._learn_at = self.token_events + min(self.token_events, RETRY_AFTER)
            self._learned = learn(data, self._new_reader) or self._learned

    def _stream(self, at: float, data: bytes, events: EventReader, reader: AnswerReader) -> bool:
        """Take the events of one read; returns whether a token was among them."""
        arrived = False
        reader.token_events = before = self.token_events
        for name, content in events.feed(data):
            marks = reader.event(name, content)
            if not marks:
                continue
            arrived = True
            if self._counted_up_to is None:
                self._first_token_at = at
            else:
                self.gaps.add(self._counted_up_to, (at,))
            self._counted_up_to = at
            if marks & OUTPUT and self._first_output_at is None:
                self._first_output_at = at
        if arrived:
            self._counted = reader.token_events
            self._together += self.token_events - before - 1
        return arrived

    def _give_up(self, reason: str) -> None:
        self._unread.append(reason)
        self._decoder = None
        self._body = None
        self._first = None
        if self.reader is not None and not self.stream:
            self.reader = None

    # what follows from it

    def end(self, at: float, outcome: Outcome) -> Record:
        """Close the exchange; `outcome` is what the relay saw, `ok` for a complete answer."""
        self._ended_at = at
        reader = self.reader
        usage = _NO_USAGE
        finish_reasons: tuple[str, ...] = ()
        if reader is not None:
            usage = self._read_all(reader)
            finish_reasons = tuple(reader.finish_reasons.values())
        started = self._received_at if self._received_at is not None else self.opened_at
        completion, source = self._completion_tokens(usage.completion)
        duration = max(0.0, at - started)
        first_token = first_output = tpot = per_event = None
        if self.token_events:
            first_token = _since(started, self._first_token_at)
            first_output = _since(started, self._first_output_at)
            tpot = self._time_per_output_token(completion, source)
            if completion is not None and source == "usage":
                per_event = completion / self.token_events
        gaps, gaps_total = self.take_gaps()
        return Record(
            progress=self.progress(),
            ended_at=at,
            gaps=tuple(gaps) if any(gaps) else (),
            gaps_total=gaps_total,
            id=self.id,
            method=self.method,
            route=self.route,
            stream=self.stream or self.asked.stream,
            status=self.status,
            outcome=self._outcome(outcome),
            retried=self.retried,
            duration=duration,
            time_to_first_token=first_token,
            time_to_first_output=first_output,
            silent_wait=self._silent_wait(first_token, duration),
            overhead=self._overhead(started, outcome),
            prompt_tokens=usage.prompt,
            cached_prompt_tokens=usage.cached_prompt,
            completion_tokens=completion,
            reasoning_tokens=usage.reasoning,
            token_source=source,
            token_events=self.token_events,
            tokens_per_event=per_event,
            sequences=self.sequences,
            time_per_output_token=tpot,
            decode_tokens_per_second=1.0 / tpot if tpot else None,
            finish_reasons=finish_reasons,
            truncations=(self._truncations(completion) if "length" in finish_reasons else ()),
            alone=self.alone,
            terminated=reader.done if reader is not None and self.stream else None,
            unread=tuple(self._unread),
        )

    def _read_all(self, reader: AnswerReader) -> Usage:
        """Read what is left to read; returns the counts that hold for the whole answer."""
        reader.token_events = self.token_events
        if self._body:
            reader.body(bytes(self._body))
        if self._events is not None and self._events.overflows:
            self._unread.append("event_size")
        if reader.unreadable:
            self._unread.append("json")
        usage = reader.usage
        if usage.completion is not None and self.stream and reader.usage_is_contradicted:
            if reader.finished:  # else the right count may have been still to come
                self._unread.append("usage")
            usage = usage._replace(completion=None, reasoning=None)
        return usage

    def _outcome(self, seen: Outcome) -> Outcome:
        reader = self.reader
        if seen == "client_closed" and self.stream and reader is not None and reader.done:
            seen = "ok"  # it had got all of the answer
        if seen != "ok":
            return seen
        if self.status is not None and self.status >= 400:
            return "upstream_error"
        if reader is not None and reader.error:
            return "stream_error"
        return "ok" if self._is_whole else "upstream_incomplete"

    @property
    def _is_whole(self) -> bool:
        """Whether an answer of text is here to its end, as far as it could be read."""
        reader = self.reader
        if self._first is not None:
            return self.status != 200  # nothing has come, or white space only
        if reader is None:
            return True
        return reader.finished or (self.stream and bool(self._unread))

    def _completion_tokens(self, counted: int | None) -> tuple[int | None, TokenSource | None]:
        reader = self.reader
        if reader is None or (reader.error and not self.token_events):
            return None, None
        if counted is not None:
            return counted, "usage"
        # A finish without a token event is no count of 0: a parser of tool calls may hold all back.
        if self.stream and "event_size" not in self._unread and self.token_events:
            return self.token_events, "events"
        return None, None

    def _time_per_output_token(
        self, tokens: int | None, source: TokenSource | None
    ) -> float | None:
        """Seconds per token of one sequence, from its first token event to its last.

        The first event's tokens belong to the prefill. Continuous usage tells how many they are;
        else it is one a sequence, as engines emit the prefill's token by itself. Parsers of tool
        calls hold tokens back, also before the first event: then the span is not that of the
        tokens.
        """
        reader = self.reader
        if tokens is None or reader is None or self._first_token_at is None:
            return None
        sequences = self.sequences
        if tokens < MIN_TOKENS_FOR_RATE * sequences or self.arrivals < MIN_ARRIVALS_FOR_RATE:
            return None
        if self.calls_tools and (
            source == "events" or tokens > MOST_TOKENS_PER_CALL_EVENT * self.token_events
        ):
            return None
        assert self._last_token_at is not None  # noqa: S101
        elapsed = self._last_token_at - self._first_token_at
        decoded = tokens - (reader.first_event_tokens or sequences)
        if elapsed <= 0 or decoded <= 0:
            return None
        return elapsed * sequences / decoded

    def _silent_wait(self, first_token: float | None, duration: float) -> float | None:
        if self.route not in READERS or self.status is None or self.status >= 400:
            return None
        if self.stream:
            return first_token
        return duration if self.reader is not None and self.reader.finished else None

    def _overhead(self, started: float, outcome: Outcome) -> float | None:
        if self._sent_at is None or outcome in _NOT_CARRIED:
            return None
        return max(0.0, self._sent_at - started) + self._in_proxy

    def _truncations(self, tokens: int | None) -> tuple[str | int, ...]:
        reader = self.reader
        if reader is None:
            return ()
        cut = [index for index, reason in reader.finish_reasons.items() if reason == "length"]
        return tuple(self._cut_by(index, tokens) for index in cut)

    def _cut_by(self, index: int, tokens: int | None) -> str | int:
        reader = self.reader
        assert reader is not None  # noqa: S101
        own = tokens if self.sequences == 1 else reader.events_of(index)
        if self.sequences > 1 and tokens != reader.token_events:
            own = None  # events are not tokens here, so one choice's share is not known
        if own is None:
            every = len(reader.finish_reasons) == list(reader.finish_reasons.values()).count(
                "length"
            )
            limit = self.asked.max_tokens
            if every and limit is not None and tokens == limit * self.sequences:
                return "request"
            return "unknown"
        if self.asked.max_tokens is not None and own >= self.asked.max_tokens:
            return "request"
        prompt = reader.usage.prompt
        return "unknown" if prompt is None else prompt + own


def _since(start: float, moment: float | None) -> float | None:
    return None if moment is None else max(0.0, moment - start)
