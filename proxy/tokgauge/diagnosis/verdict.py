"""What a verdict says, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Level = Literal["healthy", "watch", "suspect", "above_ceiling", "not_judged"]
CauseKind = Literal[
    "active_neighbour",
    "thermal_throttling",
    "power_throttling",
    "hardware_slowdown",
    "memory_clock_low",
    "preemption",
    "kv_cache_full",
    "long_prefills",
    "compute_bound",
    "cpu_bound",
    "slow_engine",
    "slow_card",
    "slow_prefill",
    "speculative_decoding",
    "wrong_ceiling_inputs",
    "cached_weights",
]
WaitingCause = Literal[
    "engine_down",
    "preemption",
    "kv_cache_full",
    "queue",
    "slow_first_tokens",
    "queue_or_prefills",
    "long_prefills",
]
AnswersCause = Literal[
    "engine_unreachable",
    "engine_errors",
    "broken_off",
    "proxy_errors",
    "cut_by_context",
    "cut_by_request_limit",
    "cut_by_unknown_limit",
    "clients_leave",
    "not_streamed",
]
NotJudgedReason = Literal[
    "too_little_traffic", "range_too_wide", "no_efficiency", "speculation_unknown"
]

LEVELS: tuple[Level, ...] = get_args(Level)
CAUSE_KINDS: tuple[CauseKind, ...] = get_args(CauseKind)
NOT_JUDGED_REASONS: tuple[NotJudgedReason, ...] = get_args(NotJudgedReason)


@dataclass(frozen=True, slots=True)
class Cause:
    """Why it is not as it should be: what was seen, and what to do about it."""

    kind: CauseKind | WaitingCause | AnswersCause
    evidence: str
    advice: str


@dataclass(frozen=True, slots=True)
class RuledOut:
    """A cause that the evidence rules out."""

    kind: CauseKind
    evidence: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judgement in words. `headline` is one plain sentence with the numbers.

    `causes` come most likely first; `ruled_out` are those that the evidence clears; `notes` is what
    else is worth knowing; `advice` what to do, most useful first. `reason` is set when `level` is
    `not_judged`, and only then.
    """

    level: Level
    headline: str
    causes: tuple[Cause, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()
    notes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    reason: NotJudgedReason | None = None
