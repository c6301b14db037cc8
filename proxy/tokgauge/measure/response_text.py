"""The text of one response: read as its bytes come, streamed or not, encoded or not."""

from __future__ import annotations

from collections.abc import Sequence

from tokgauge.dialects.answer import OUTPUT, AnswerReader
from tokgauge.dialects.encoding import Decoder, TooLargeError, UndecodableError, decoder_for
from tokgauge.dialects.routes import READERS
from tokgauge.dialects.sse import EVENT_LIMIT, EventReader
from tokgauge.dialects.template import RETRY_AFTER, Template, learn
from tokgauge.dialects.usage import NO_USAGE, Usage
from tokgauge.measure.token_times import TokenTimes

_STREAM_BEGINS = (b"data:", b"event:", b"id:", b"retry:", b":")
"""How an event stream begins, whatever its content type."""

_BEFORE_CONTENT = b"\xef\xbb\xbf \t\r\n"
"""Bytes that may come before what tells an event stream from JSON: byte order mark, white space."""


class ResponseText:
    """What a response on one of the routes in `READERS` says.

    kind: its media type. coding: its Content-Encoding. echo: the request's prompt comes first.
    limit: the largest body that is read. empty_is_token: see `AnswerReader`.

    stream: it is an event stream. reader: None as long as it is not clear what it is, and for what
    cannot be read. unread: why parts of it could not be read.
    """

    __slots__ = (
        "_body", "_decoder", "_empty_is_token", "_events", "_first", "_learn_at", "_learned",
        "_limit", "_route", "_says_json", "_template", "echo", "reader", "stream", "times",
        "unread",
    )  # fmt: skip

    def __init__(
        self, route: str, *, kind: str, coding: str, echo: bool, gap_bounds: Sequence[float],
        limit: int, empty_is_token: bool,
    ) -> None:  # fmt: skip
        self._route = route
        self._limit = limit
        self._empty_is_token = empty_is_token
        self.echo = echo
        self.stream = kind == "text/event-stream"
        self.reader: AnswerReader | None = None
        self.times = TokenTimes(gap_bounds)
        self.unread: list[str] = []
        self._events: EventReader | None = None
        self._body: bytearray | None = None
        self._first: bytes | None = None  # what came before it was clear what it is
        self._says_json = kind == "application/json" or kind.endswith("+json")
        self._learned: Template | None = None
        self._template: Template | None = None
        """What was learned, while the next read may be compared with it."""
        self._learn_at = 0
        self._decoder: Decoder | None = decoder_for(coding, limit)
        if self._decoder is None:
            self.unread.append("encoding")
        elif self.stream:
            self._read_events()
        else:
            self._first = b""

    def token(self, at: float, data: bytes) -> bool:
        """Note the next bytes, if they are exactly one event with a token and nothing else to it.

        False: nothing has been noted; it takes `data` to read them.
        """
        template = self._template
        return template is not None and len(data) <= EVENT_LIMIT and template.token(at, data)

    def data(self, at: float, data: bytes) -> None:
        """Any of its bytes, which arrived at `at`."""
        if self._decoder is None:
            return
        try:
            decoded = self._decoder.decode(data)
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
                    self._learn(data, self.reader)
                self._template = self._learned
        elif self._body is not None:
            self._body += decoded
            if len(self._body) > self._limit:
                self._give_up("size")

    def count(self) -> None:
        """Count the token events that have been noted only."""
        learned, last, reader = self._learned, self.times.last, self.reader
        if learned is None or last is None or reader is None or not learned.times:
            return
        times, learned.times = learned.times, []
        reader.token_events += len(times)
        self.times.arrivals += len(times)
        self.times.add_gaps(last, times)

    @property
    def has_begun(self) -> bool:
        """Whether anything has come that tells what it is. True, too, for what is not read."""
        return self._first is None

    def read_rest(self) -> Usage:
        """Read what is left to read; returns the counts that hold for the whole response."""
        reader = self.reader
        if self._events is not None and self._events.overflows:
            self.unread.append("event_size")
        if reader is None:
            return NO_USAGE
        if self._body:
            reader.body(bytes(self._body))
        if reader.unreadable:
            self.unread.append("json")
        usage = reader.usage
        if usage.completion is not None and self.stream and reader.usage_is_contradicted:
            if reader.finished:  # else the right count may have been still to come
                self.unread.append("usage")
            usage = usage._replace(completion=None, reasoning=None)
        return usage

    def _new_reader(self) -> AnswerReader:
        reader = READERS[self._route]()
        reader.empty_is_token = self._empty_is_token
        return reader

    def _read_events(self) -> None:
        self.stream = True
        self.reader = self._new_reader()
        self._events = EventReader()
        if self.echo:
            self.reader.expect_echo()

    def _recognise(self, data: bytes) -> bytes:
        """Find out from the first bytes what it is; returns all of it that has come.

        Nothing is returned while that is not clear.
        """
        begins = ((self._first or b"") + data).lstrip(_BEFORE_CONTENT)
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

    def _learn(self, data: bytes, reader: AnswerReader) -> None:
        """Keep what this read has in common with those to come, if it is one token event."""
        if reader.token_events >= self._learn_at:
            self._learn_at = reader.token_events + min(reader.token_events, RETRY_AFTER)
            self._learned = learn(data, self._new_reader) or self._learned

    def _stream(self, at: float, data: bytes, events: EventReader, reader: AnswerReader) -> bool:
        """Take the events of one read; returns whether a token was among them."""
        self.count()
        arrived = False
        for name, content in events.feed(data):
            marks = reader.event(name, content)
            if marks:
                arrived = True
                self.times.add(at)
                if marks & OUTPUT and self.times.first_output is None:
                    self.times.first_output = at
        self.times.arrivals += arrived
        return arrived

    def _give_up(self, reason: str) -> None:
        self.unread.append(reason)
        self._decoder = None
        self._body = None
        self._first = None
        if not self.stream:
            self.reader = None
