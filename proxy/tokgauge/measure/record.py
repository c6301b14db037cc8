"""What a relay tells the analyst, and the analyst a relay: one frame each, in msgpack.

A `Record` is one exchange that has ended. A `Summary` is what runs at one moment, sent when the
analyst asks for it with a `Report`. Times are of the machine's monotonic clock, in seconds, and so
comparable between processes; None is what is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import msgspec

Outcome = Literal[
    "ok", "client_closed", "upstream_error", "stream_error", "upstream_incomplete",
    "upstream_stalled", "upstream_unreachable", "timeout", "rejected", "proxy_shutdown",
    "proxy_error",
]  # fmt: skip

TokenSource = Literal["usage", "events"]

InjectionState = Literal[
    "learning", "on", "off_unneeded", "off_refused", "off_differs", "off_ignored", "off_setting"
]
"""What has come of asking for usage on behalf of clients, for one route."""
INJECTION_STATES: tuple[InjectionState, ...] = get_args(InjectionState)


class Progress(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far an exchange is.

    opened_at: when its head had come. requested, answered: the model's names as the request and the
    response say. generates: the engine generates text for it. streamed: the response is an event
    stream. decodes_from: when its first token came, or, for a response that is not streamed, when
    the engine had the request; None before that. decoded_to: the last token of a stream that has
    ended, the end of another one; None while it runs. silent_since: the last byte after the first
    token. sequences: how many have shown up (choices, prompts). context_at_most, context_at_least:
    bounds of the tokens of context that they have together. calls_tools: tokens may come without
    events of their own.
    """

    id: str
    opened_at: float
    requested: str | None
    answered: str | None
    generates: bool
    streamed: bool
    decodes_from: float | None
    decoded_to: float | None
    token_events: int
    silent_since: float | None
    sequences: int
    context_at_most: float | None
    context_at_least: float
    calls_tools: bool

    def decode_span(self, now: float) -> tuple[float, float] | None:
        """From when to when it has been decoded, up to `now`; None before it began."""
        if self.decodes_from is None:
            return None
        return self.decodes_from, self.decoded_to if self.decoded_to is not None else now

    def is_stalled(self, now: float, after: float) -> bool:
        """Whether a stream has given a token and then nothing at all for `after` seconds."""
        return self.silent_since is not None and now - self.silent_since > after


class Record(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False, tag="record"):
    """One exchange that has ended, measured. Times in seconds, None for what is not known.

    `stream` says that the response was an event stream, or was asked for as one.
    """

    progress: Progress
    ended_at: float
    id: str
    method: str
    route: str
    stream: bool
    status: int | None
    outcome: Outcome
    retried: bool

    duration: float
    time_to_first_token: float | None
    time_to_first_output: float | None
    silent_wait: float | None
    overhead: float | None

    prompt_tokens: int | None
    cached_prompt_tokens: int | None
    completion_tokens: int | None
    reasoning_tokens: int | None
    token_source: TokenSource | None
    token_events: int
    tokens_per_event: float | None
    sequences: int

    time_per_output_token: float | None
    decode_tokens_per_second: float | None
    gaps: tuple[int, ...]
    """Gaps between token events since the last `Summary`, by bucket; empty when there are none."""
    gaps_total: float
    """Their sum."""

    alone: bool | None
    """No other exchange was generating at the same time: of this relay's, then of all. None: a
    relay does not tell."""
    contention: str | None = None
    """The worst that it met on the engine's GPUs (the analyst's)."""
    ceiling_ratio: float | None = None
    """Its decode steps per second ÷ those of the single-stream ceiling at its own context (the
    analyst's)."""

    finish_reasons: tuple[str, ...]
    truncations: tuple[str | int, ...]
    """For each choice that ended with `length`, what cut it: `request` (its token limit),
    `unknown`, or the tokens of its context, of which only the analyst knows whether they are all
    that the model takes (`context`)."""
    terminated: bool | None
    """Whether the stream said that it is complete (`[DONE]`, `message_stop`, …)."""
    unread: tuple[str, ...]
    """Why parts of the response could not be read for measuring."""


def with_context(record: Record, context_length: int | None) -> Record:
    """The record, saying which responses the model's length has cut. None: it is not known."""
    if not any(isinstance(cut, int) for cut in record.truncations):
        return record
    truncations = tuple(
        cut if isinstance(cut, str) else _cut_by(cut, context_length) for cut in record.truncations
    )
    return msgspec.structs.replace(record, truncations=truncations)


def _cut_by(tokens: int, context_length: int | None) -> str:
    return "context" if context_length is not None and tokens >= context_length else "unknown"


class Gained(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Gaps between token events that running exchanges of one model have shown since last told.

    gaps: counts by bucket. total: their sum [s].
    """

    requested: str | None
    answered: str | None
    gaps: list[int]
    total: float


class Summary(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="summary"):
    """What runs at one moment, and what has been counted since the last one.

    number: of the `Report` that it answers. failures: of the measuring side, by place. lost: frames
    that could not be sent, since the start. up: whether the engine could be reached last, None
    before the first try; up_at: when that was; error: why it could not. injection: route → its
    state, and why.
    """

    number: int
    at: float
    draining: bool
    up: bool | None
    up_at: float
    lost: int
    running: list[Progress]
    gained: list[Gained]
    failures: dict[str, int]
    injection: Mapping[str, tuple[str, str]]
    error: str = ""


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """Who has connected."""

    name: str
    pid: int


class Report(msgspec.Struct, frozen=True, array_like=True, tag="report"):
    """The analyst asks for a `Summary`."""

    number: int


class EngineNews(msgspec.Struct, frozen=True, array_like=True, tag="engine"):
    """What the analyst has found out about the engine.

    up: whether its own questions reach it, None before the first; up_at: when that was. is_vllm:
    known to send an event for each token, with an empty text for a part of a character. started_at:
    its start time as its metrics page tells: another one means that it has been started again.
    """

    up: bool | None
    up_at: float
    is_vllm: bool
    started_at: float | None


Frame = Record | Summary | Hello
"""What a relay sends."""

Message = Report | EngineNews
"""What the analyst sends."""
