"""What is known of one exchange when it has ended."""

from __future__ import annotations

from typing import Literal

import msgspec

Outcome = Literal[
    "ok", "client_closed", "upstream_error", "stream_error", "upstream_incomplete",
    "upstream_stalled", "upstream_unreachable", "timeout", "rejected", "proxy_shutdown",
    "proxy_error",
]  # fmt: skip

TokenSource = Literal["usage", "events"]


class Measurement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One exchange, measured. Times in seconds, None for what is not known.

    `stream` says that the answer was an event stream. `truncations` holds, for each choice that
    ended with `length`, what cut it: `request` (its token limit), `context` (the model's length) or
    `unknown`.
    """

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

    alone: bool
    """No other exchange of this process was generating at the same time."""
    contention: str | None
    """The worst that it met on the engine's GPUs: see `tokgauge.gpu.contention.State`."""
    ceiling_ratio: float | None
    """Its decode steps per second ÷ those of the single-stream ceiling at its own context."""

    finish_reasons: tuple[str, ...]
    truncations: tuple[str, ...]
    terminated: bool | None
    """Whether the stream said that it is complete (`[DONE]`, `message_stop`, …)."""
    unread: tuple[str, ...]
    """Why parts of the answer could not be read for measuring."""
