"""What is known of one model over one window, and what follows from it without a judgement."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from tokgauge.diagnosis.expected_time import Band, Normal, SlowPart
from tokgauge.diagnosis.work import NoEfficiency
from tokgauge.gpu.contention import State

ALWAYS_BUSY = 0.90
"""Share of the window above which pauses do not matter."""

# GeForce cards run their memory 2 to 3 % below the maximum whenever they compute.
_FULL_CLOCK = 0.95
_AT_REST = 0.05

# No byte count, clock or rate of one engine comes near; a share may exceed 1 by rounding only.
_LARGEST = 1e15
_LARGEST_SHARE = 1.001
_SHARES = frozenset(
    {
        "busy_ratio",
        "prefill_share",
        "others_prefill_share",
        "neighbour_sm_ratio",
        "gpu_utilization",
        "kv_cache_usage",
        "measured_ratio",
        "unstreamed_ratio",
        "truncated_ratio",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that is known of one model over one window. None means unknown, never 0.

    Ratios and shares are 0 to 1. Figures of the GPU are those of the worst of the engine's GPUs
    while it worked.
    """

    efficiency: float | None = None
    """Steps per second × bytes per step ÷ bandwidth, over the time with a sequence decoding. None
    also where prompts took much of that time."""
    normal: Normal | None = None
    """The time that the work took beside the time that it should take."""
    no_efficiency: NoEfficiency | None = None
    """Why there is no efficiency."""
    basis: Literal["streamed", "checkpoint"] | None = None
    """What the bytes of the weights are: those that a step reads, or those of the whole file."""
    checkpoint_efficiency: float | None = None
    """The same with the bytes of the whole checkpoint, where `basis` is `streamed`: only shown."""
    steps_source: Literal["engine", "streams"] | None = None
    """Who counted the steps: the engine itself, or the token rate of the streams told them."""
    request_ratio: float | None = None
    """Decode rate of the median request ÷ ceiling of one stream alone. Never judged: shown."""
    tokens_per_second: float | None = None
    """Output of all sequences together."""
    sequence_tokens_per_second: float | None = None
    """Output of one sequence: steps per second × tokens that it gains per step."""

    decoded_tokens: int | None = None
    """Tokens decoded in the window."""
    window_seconds: float | None = None
    busy_ratio: float | None = None
    """Share of the window with at least one sequence decoding."""
    mean_batch: float | None = None
    """Sequences in a step on average, pauses left out."""
    ridge_batch: float | None = None
    """Batch from which on computing takes longer than reading; infinite where it never does."""
    prefill_share: float | None = None
    """About which share of the expected time goes into prefills."""
    others_prefill_share: float | None = None
    """Share of the time of decoding in which somebody waited for a first token: prefills take no
    more of it. Only where nobody tells how many prompt tokens were computed."""

    contention: State = "unknown"
    neighbours: int | None = None
    """Processes of others on the engine's GPUs."""
    neighbour_memory_bytes: int | None = None
    neighbour_sm_ratio: float | None = None
    """SM time of all neighbours together."""
    gpu_utilization: float | None = None
    """Share of the time in which at least one kernel ran."""
    memory_clock_mhz: float | None = None
    max_memory_clock_mhz: float | None = None
    throttle_reasons: frozenset[str] | None = None
    """Names of tokgauge.gpu.readings.THROTTLE_REASONS."""
    power_watts: float | None = None

    waiting: int | None = None
    """Requests in the engine's queue."""
    kv_cache_usage: float | None = None
    preemptions_per_second: float | None = None
    speculative: bool | None = None
    """Whether the engine decodes speculatively."""
    tokens_per_step: float | None = None
    """Tokens that a sequence gains per step, already divided out of `efficiency`."""

    engine_read_ratio: float | None = None
    """Bytes read by the engine's own estimate ÷ bytes by ours."""
    bandwidth_ratio: float | None = None
    """Bandwidth from the other source (card table or NVML) ÷ the one in use."""
    measured_ratio: float | None = None
    """NVML's own figure of the DRAM bandwidth in use (GPM metric 10), neighbours included."""

    unstreamed_ratio: float | None = None
    """Share of the answers that were not streamed."""
    silent_wait_seconds: float | None = None
    """Median time that people waited for answers that were not streamed."""
    truncated_ratio: float | None = None
    """Share of the answers that a token limit cut off."""


def sane(evidence: Evidence) -> Evidence:
    """The evidence with None for numbers that cannot be."""
    wrong: dict[str, Any] = {}
    for item in fields(evidence):
        value = getattr(evidence, item.name)
        if item.name == "ridge_batch" and value == math.inf:
            continue
        largest = _LARGEST_SHARE if item.name in _SHARES else _LARGEST
        # Written so that NaN is outside, too.
        if isinstance(value, int | float) and not 0 <= value <= largest:
            wrong[item.name] = None
    return replace(evidence, **wrong)


def band(e: Evidence) -> Band | None:
    """Where the speed lies beside what is normal; None where nothing tells."""
    if e.efficiency is not None and e.efficiency > 1:
        return "above"
    return e.normal.band if e.normal is not None else None


def is_slow(e: Evidence) -> bool:
    """Whether it is below what is normal."""
    return band(e) in ("watch", "suspect")


def slow_parts(e: Evidence) -> frozenset[SlowPart] | None:
    """What costs more than it should; None where the traffic does not tell."""
    return e.normal.slow_parts if e.normal is not None else None


def has_the_gpu_alone(e: Evidence) -> bool:
    """Whether nobody else is known to compute on the engine's GPUs."""
    return e.contention in ("none", "idle_neighbours")


def works_all_the_time(e: Evidence) -> bool:
    """Whether at least one sequence is decoding (nearly) always."""
    if e.busy_ratio is not None:
        return e.busy_ratio >= ALWAYS_BUSY
    return e.mean_batch is not None and e.mean_batch >= 1


def memory_clock_is_low(e: Evidence) -> bool | None:
    """None when not known, or when the card was looked at while it rested."""
    if e.memory_clock_mhz is None or not e.max_memory_clock_mhz:
        return None
    if e.gpu_utilization is not None and e.gpu_utilization < _AT_REST:
        return None
    return e.memory_clock_mhz < _FULL_CLOCK * e.max_memory_clock_mhz


def speculation_is_open(e: Evidence) -> bool:
    """True when tokens may have been taken for steps."""
    return e.steps_source != "engine" and e.tokens_per_step is None
