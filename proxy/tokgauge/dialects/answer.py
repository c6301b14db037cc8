"""What an answer means, whatever its dialect: the state that every dialect's reader fills."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import msgspec

from tokgauge.dialects.lenient import LenientDecoder, PartlyReadError
from tokgauge.dialects.usage import NO_USAGE, RawUsage, interpret, merge

TOKEN = 1
"""Mark of an event: it carries a token of the model (reasoning included)."""

OUTPUT = 2
"""Mark of an event: it carries something that a person gets to see (reasoning does not count)."""

FINISH_REASONS = frozenset(
    {"stop", "length", "tool_calls", "function_call", "content_filter", "abort", "error",
     "repetition"}
)  # fmt: skip
"""The finish reasons that keep their name; any other is reported as `other`."""

_T = TypeVar("_T", bound=msgspec.Struct)

UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeError)
"""What decoding somebody else's JSON may raise (deep nesting exhausts the decoder's stack)."""


class AnswerReader:
    """Reads one answer, streamed event by event or as one body.

    `event` and `body` never raise on content that they cannot read: they count it in `unreadable`.
    `token_events` counts pairs of event and choice that carried a token. `empty_is_token`: the
    engine is known to send a token that is only a part of a character as an empty text.
    """

    __slots__ = ("calls", "done", "empty_is_token", "error", "finish_reasons", "first_event_tokens",
                 "model", "sequence_events", "skip_first_of_sequence", "token_events",
                 "unreadable", "usage", "usage_events")  # fmt: skip

    def __init__(self) -> None:
        self.done = False
        self.error = False
        self.model: str | None = None
        self.finish_reasons: dict[int, str] = {}
        self.token_events = 0
        self.sequence_events: dict[int, int] = {}  # of choices other than the first
        self.unreadable = 0
        self.usage = NO_USAGE
        """The last counts that the engine gave."""
        self.usage_events = 0  # token events up to the last count of them
        self.calls = False  # tools were called: a parser may have held tokens back
        self.empty_is_token = False
        self.first_event_tokens: int | None = None
        self.skip_first_of_sequence: set[int] | None = None

    def event(self, name: bytes, data: bytes) -> int:
        """Take one event; return its marks (`TOKEN`, `OUTPUT`), 0 for any other event."""
        raise NotImplementedError

    def body(self, data: bytes) -> None:
        """Take the whole body of an answer that was not streamed."""
        raise NotImplementedError

    @property
    def sequences(self) -> int:
        """How many sequences have shown up so far (choices, prompts)."""
        others, ended = len(self.sequence_events), len(self.finish_reasons)
        return ended if ended > others else 1 + others

    @property
    def usage_is_contradicted(self) -> bool:
        """Whether the tokens that came show that the last count is not that of the answer.

        Tokens came after it, or more events of one sequence than it counts tokens. An event may
        well carry several tokens; of one token, only a parser of tool calls makes several events.
        """
        if self.token_events > self.usage_events:
            return True
        counted = self.usage.completion
        if counted is None or self.calls:
            return False
        others = self.sequence_events
        return counted < max(self.events_of(0), *others.values() if others else (0,))

    @property
    def finished(self) -> bool:
        """Whether the engine said that the answer is complete."""
        return self.done or bool(self.finish_reasons)

    @property
    def saw_one_plain_token(self) -> bool:
        """Whether all that has come is one token event of choice 0 that says nothing else."""
        return self.token_events == 1 and not (
            self.sequence_events or self.finish_reasons or self.done or self.error
            or self.unreadable or self.calls or self.usage is not NO_USAGE
        )  # fmt: skip

    def events_of(self, index: int) -> int:
        """Token events of one choice."""
        if index == 0:
            return self.token_events - sum(self.sequence_events.values())
        return self.sequence_events.get(index, 0)

    def expect_echo(self) -> None:
        """The first event of each sequence repeats the prompt (`echo: true`): no token."""
        self.skip_first_of_sequence = set()

    def _count(self, index: int) -> bool:
        """Count a token event of choice `index`; False when it only repeats the prompt."""
        echoed = self.skip_first_of_sequence
        if echoed is not None and index not in echoed:
            echoed.add(index)
            return False
        self.token_events += 1
        if index:
            self.sequence_events[index] = self.sequence_events.get(index, 0) + 1
        return True

    def _take_usage(self, usage: RawUsage) -> None:
        """Take the counts of an event whose own tokens have been counted."""
        self.usage = merge(self.usage, interpret(usage))
        if usage.completion_tokens is not None or usage.output_tokens is not None:
            self.usage_events = self.token_events

    def _decode(self, decoder: LenientDecoder[_T], data: bytes) -> _T | None:
        try:
            return decoder.strict(data)
        except UNREADABLE:
            return self._salvage(decoder, data)

    def _salvage(self, decoder: LenientDecoder[_T], data: bytes) -> _T | None:
        try:
            return decoder.salvage(data)
        except PartlyReadError as error:
            self.unreadable += 1
            return cast(_T, error.rest)
        except UNREADABLE:
            self.unreadable += 1
            return None

    def _finish(self, index: int, reason: Any) -> None:
        if isinstance(reason, str) and reason:
            self.finish_reasons[index] = reason if reason in FINISH_REASONS else "other"
