"""From numbers to a verdict: is decoding as fast as the hardware allows, and if not, why? Pure.

What is judged is the efficiency: the bandwidth with which decode steps read memory, as a share of
what the cards have (known as MBU, model bandwidth utilisation). 85 to 92 % is as good as hardware
gets. A low share is not a cause; causes are named only with evidence of their own, and evidence
that clears a suspect is shown as well. Sentences are for people, `kind`s for machines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from proxy.gpu.contention import State
from proxy.model.ceiling import Band, band_of

__all__ = [
    "CAUSE_KINDS",
    "LEVELS",
    "NOT_JUDGED_REASONS",
    "Acquittal",
    "Cause",
    "CauseKind",
    "Evidence",
    "Level",
    "NotJudgedReason",
    "Verdict",
    "diagnose",
]

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
    "speculative_decoding",
    "wrong_ceiling_inputs",
    "cached_weights",
]
NotJudgedReason = Literal[
    "too_little_traffic", "prefill_dominated", "no_efficiency", "speculation_unknown"
]

LEVELS: tuple[Level, ...] = get_args(Level)
CAUSE_KINDS: tuple[CauseKind, ...] = get_args(CauseKind)
NOT_JUDGED_REASONS: tuple[NotJudgedReason, ...] = get_args(NotJudgedReason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that is known of one model over one window. None means unknown, never 0.

    Ratios and shares are 0 to 1. Figures of the GPU are those of the worst of the engine's GPUs
    while it worked.
    """

    efficiency: float | None = None
    """Steps per second × bytes per step ÷ bandwidth, over the time with a sequence decoding."""
    efficiency_unknown_because: str | None = None
    """Why there is no efficiency: a plain clause."""
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

    decoded_tokens: int | None = None
    """Tokens decoded in the window."""
    window_seconds: float | None = None
    busy_ratio: float | None = None
    """Share of the window with at least one sequence decoding."""
    enough_traffic: bool | None = None
    """The caller's own judgement, where it knows better than the numbers here."""
    mean_batch: float | None = None
    """Sequences in a step on average, pauses left out."""
    ridge_batch: float | None = None
    """Batch above which computing takes longer than reading."""
    prefill_step_share: float | None = None
    """Share of the steps that (also) computed prompt tokens."""
    prefill_token_share: float | None = None
    """Share of the tokens in the steps that were prompt tokens."""

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
    """Names of proxy.gpu.readings.THROTTLE_REASONS."""
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
    """Median time that people waited without seeing anything."""
    truncated_ratio: float | None = None
    """Share of the answers that a token limit cut off."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why decoding may be slow (or the ratio above 1): what was seen, and what to do about it."""

    kind: CauseKind
    evidence: str
    advice: str


@dataclass(frozen=True, slots=True)
class Acquittal:
    """A suspect that the evidence clears."""

    kind: CauseKind
    evidence: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement. `headline` is one plain sentence with the numbers.

    `causes` come most likely first; `acquitted` are suspects that were cleared; `notes` is what
    else is worth knowing; `advice` what to do, most useful first. `reason` is set when `level` is
    `not_judged`, and only then.
    """

    level: Level
    headline: str
    causes: tuple[Cause, ...] = ()
    acquitted: tuple[Acquittal, ...] = ()
    notes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    reason: NotJudgedReason | None = None


# One answer of a few sentences; below, a pause of the machine weighs as much as the decoding.
_MIN_TOKENS = 64
# Slower than any engine that works, so it is the traffic that is slow.
_MIN_TOKENS_PER_SECOND = 0.1
_MIN_BUSY = 0.1
_AS_GOOD_AS_IT_GETS = 0.85
# STREAM reads reach 97 % on the best card known (H100 NVL): more is no praise but a doubt.
_HARDLY_POSSIBLE = 0.97

_PREFILL_DOMINATES = 0.5
_PREFILL_MATTERS = 0.15
# Tokens alone: a prompt token costs far less time than a decoded one.
_PREFILL_TOKENS_DOMINATE = 0.99
_PREFILL_TOKENS_MATTER = 0.90

# GeForce cards run their memory 2 to 3 % below the maximum whenever they compute.
_FULL_CLOCK = 0.95
_AT_REST = 0.05
_CACHE_FULL = 0.95
_PREEMPTIONS_MATTER = 1 / 60
_GPU_WAITS = 0.80
_ALWAYS_BUSY = 0.90

_BANDWIDTHS_DIFFER = 0.05
_READ_BYTES_DIFFER = 0.15
_MEASURED_DIFFERS = 0.15

_MANY_UNSTREAMED = 0.2
_MANY_TRUNCATED = 0.05

# No byte count, clock or rate of one engine comes near; a share may exceed 1 by rounding only.
_LARGEST = 1e15
_LARGEST_SHARE = 1.001
_SHARES = frozenset(
    {
        "busy_ratio",
        "prefill_step_share",
        "prefill_token_share",
        "neighbour_sm_ratio",
        "gpu_utilization",
        "kv_cache_usage",
        "measured_ratio",
        "unstreamed_ratio",
        "truncated_ratio",
    }
)

_THERMAL = {"sw_thermal_slowdown", "hw_thermal_slowdown"}

_TITLES: dict[CauseKind, str] = {
    "active_neighbour": "somebody else is computing on the engine's GPU",
    "thermal_throttling": "the GPU is too hot and slows down",
    "power_throttling": "the GPU slows down to save power",
    "hardware_slowdown": "the GPU's hardware slows it down",
    "memory_clock_low": "the GPU's memory runs below its full clock",
    "preemption": "the engine interrupts running requests for want of KV cache",
    "kv_cache_full": "the KV cache is full",
    "long_prefills": "long prompts are computed between the decode steps",
    "compute_bound": "the batch is so large that computing is the limit, not memory",
    "cpu_bound": "the GPU waits for the engine's CPU between steps",
    "speculative_decoding": "speculative decoding gives several tokens per step",
    "wrong_ceiling_inputs": "the bandwidth or the bytes behind the ceiling are wrong",
    "cached_weights": "a part of the weights stays in the GPU's cache",
}

_CHECK_INPUTS = (
    "Run `tokgauge check` to see where the bandwidth and the bytes of the weights come from, "
    "and set the right ones."
)

_TELL_TOKENS_PER_STEP = (
    "Let tokgauge read the engine's /metrics, where drafts and accepted tokens are counted."
)


def diagnose(evidence: Evidence) -> Verdict:
    """The verdict on this evidence.

    Numbers that cannot be (negative, not finite, shares above 1) count as unknown.
    """
    e = _sane(evidence)
    refusal = _too_little(e) or _prefill_dominates(e)
    if refusal is not None:
        return _not_judged(e, refusal)
    if e.efficiency is None:
        return _not_judged(e, _no_efficiency(e))
    band = band_of(e.efficiency)
    if band == "above":
        return _above(e, e.efficiency)
    if e.speculative and _speculation_is_open(e):
        return _not_judged(e, _speculation_unknown(e))
    if band == "healthy":
        return _healthy(e, e.efficiency)
    return _low(e, band)


def _sane(evidence: Evidence) -> Evidence:
    wrong: dict[str, Any] = {}
    for item in fields(evidence):
        value = getattr(evidence, item.name)
        largest = _LARGEST_SHARE if item.name in _SHARES else _LARGEST
        # Written so that NaN is outside, too.
        if isinstance(value, int | float) and not 0 <= value <= largest:
            wrong[item.name] = None
    return replace(evidence, **wrong)


# --- whether to judge at all ---------------------------------------------------------------------


_Refusal = tuple[NotJudgedReason, str, str]
"""Reason, the sentence about it, and advice (may be empty)."""


def _not_judged(e: Evidence, refusal: _Refusal) -> Verdict:
    reason, why, advice = refusal
    return Verdict(
        level="not_judged",
        headline=f"Not judged: {why}{_queue(e)}.",
        acquitted=_cleared_neighbours(e),
        notes=tuple(_notes(e)),
        advice=(*((advice,) if advice else ()), *_advice_on_feelings(e)),
        reason=reason,
    )


def _too_little(e: Evidence) -> _Refusal | None:
    reason: NotJudgedReason = "too_little_traffic"
    advice = "Ask again while answers are being written, or take a longer window."
    window = "" if e.window_seconds is None else f" in {_seconds(e.window_seconds)}"
    if e.decoded_tokens == 0:
        return reason, f"nothing was decoded{window}", ""
    if e.decoded_tokens is not None:
        seen = f"{_count(e.decoded_tokens, 'token')} decoded{window}"
        slow = (
            e.window_seconds is not None
            and e.decoded_tokens < _MIN_TOKENS_PER_SECOND * e.window_seconds
        )
        if e.decoded_tokens < _MIN_TOKENS or slow:
            return reason, f"only {seen}, too little to tell", advice
    if e.busy_ratio is not None and e.busy_ratio < _MIN_BUSY:
        busy = f"the engine decoded during only {_plain(e.busy_ratio)} of the time"
        return reason, f"{busy}, too little to tell", advice
    if e.enough_traffic is False:
        return reason, "there was too little traffic to tell", advice
    low = e.efficiency is not None and band_of(e.efficiency) in ("watch", "suspect")
    if low and e.mean_batch is not None and e.mean_batch < _ALWAYS_BUSY:
        # Fewer than one sequence in a step: the average, and so the efficiency, holds pauses.
        idle = f"{e.mean_batch:.2f} sequences ran on average, so the figures include pauses"
        return reason, idle, advice
    return None


def _prefill_dominates(e: Evidence) -> _Refusal | None:
    share = _prefill_time_share(e)
    if share is not None:
        dominated = share >= _PREFILL_DOMINATES
    else:
        tokens = e.prefill_token_share
        dominated = tokens is not None and tokens >= _PREFILL_TOKENS_DOMINATE
    if not dominated:
        return None
    why = f"{_prefill_seen(e)}, and the ceiling holds for decoding only"
    return "prefill_dominated", why, "Judge it in a window with longer answers or fewer prompts."


def _no_efficiency(e: Evidence) -> _Refusal:
    why = "the share of the hardware's ceiling is not known"
    if e.efficiency_unknown_because is not None:
        why += f": {e.efficiency_unknown_because}"
    if e.request_ratio is not None:
        why += (
            f" (single requests ran at {_plain(e.request_ratio)} of the ceiling of a stream that is"
            " alone, which says nothing about a shared GPU)"
        )
    advice = (
        "Run `tokgauge check`: it says which of bandwidth, bytes of the weights and step rate is"
        " missing."
    )
    return "no_efficiency", why, advice


def _speculation_unknown(e: Evidence) -> _Refusal:
    why = (
        f"{_share(e)}, but speculative decoding is on and the tokens per step are not known, so"
        " several tokens of one step may have been counted as several steps"
    )
    return "speculation_unknown", why, _TELL_TOKENS_PER_STEP


def _speculation_is_open(e: Evidence) -> bool:
    """True when tokens may have been taken for steps."""
    return e.steps_source != "engine" and e.tokens_per_step is None


# --- levels --------------------------------------------------------------------------------------


def _above(e: Evidence, ratio: float) -> Verdict:
    seen = f"{_percent(ratio)} of the ceiling"
    inputs = _wrong_inputs(e, -1)
    doubts = [] if inputs is None else [inputs.evidence]
    if e.basis == "checkpoint":
        doubts.append("the whole checkpoint is counted, and a step reads less than that")
    plain = f"{seen} is more than one read of these bytes per step allows"
    causes = [
        Cause("wrong_ceiling_inputs", "; ".join(doubts) or plain, _CHECK_INPUTS),
        Cause(
            "cached_weights",
            plain,
            "Only possible for weights of a few hundred MB on a card with a large L2 cache:"
            " compare their size with it.",
        ),
    ]
    if _speculation_is_open(e) and e.speculative is not False:
        told = (
            "speculative decoding is on and its tokens per step are not known"
            if e.speculative
            else f"{seen}, and whether the engine decodes speculatively is not known"
        )
        first = e.speculative or not doubts
        causes.insert(0 if first else 1, Cause("speculative_decoding", told, _TELL_TOKENS_PER_STEP))
    if doubts or e.speculative:
        because = f"most likely because {_TITLES[causes[0].kind]}"
    else:
        because = f"either {', or '.join(_TITLES[cause.kind] for cause in causes)}"
    return Verdict(
        level="above_ceiling",
        headline=f"Above the ceiling: {_share(e)}{_speed(e)}; {because}{_queue(e)}.",
        causes=tuple(causes),
        acquitted=_cleared_neighbours(e),
        notes=(*_notes(e), *(text for sign, text in _disagreements(e) if sign > 0)),
        advice=(*(cause.advice for cause in causes), *_advice_on_feelings(e)),
    )


def _healthy(e: Evidence, ratio: float) -> Verdict:
    grade, advice = "", []
    if ratio > _HARDLY_POSSIBLE:
        grade = ", more than hardware usually gives"
        advice.append(_CHECK_INPUTS)
    elif ratio >= _AS_GOOD_AS_IT_GETS:
        grade = ", as good as hardware gets"
    if e.waiting:
        advice.append(
            "The engine works at full speed and has more to do than it can: only more or faster"
            " GPUs, a larger batch limit or fewer requests shorten the queue."
        )
    return Verdict(
        level="healthy",
        headline=f"Healthy: {_share(e)}{_speed(e)}{grade}{_queue(e)}.",
        acquitted=(*_cleared_neighbours(e), *_cleared_power_cap(e)),
        notes=(*_notes(e), *_notes_on_health(e)),
        advice=(*advice, *_advice_on_feelings(e)),
    )


def _low(e: Evidence, band: Band) -> Verdict:
    causes = tuple(cause for find in _SUSPECTS if (cause := find(e)) is not None)
    acquitted = (
        *_cleared_neighbours(e),
        *_cleared_power_cap(e),
        *_cleared_clock(e),
        *_cleared_cache(e),
        *_cleared_prefill(e),
        *_cleared_batch(e),
        *_cleared_cpu(e),
    )
    level: Level = "watch" if band == "watch" else "suspect"
    opening = "Worth watching" if level == "watch" else "Slow"
    if causes:
        because = f"most likely because {_TITLES[causes[0].kind]}"
    else:
        because = "no cause stands out" if level == "watch" else "cause unknown"
    advice = tuple(cause.advice for cause in causes) or (_where_to_look(e, acquitted),)
    return Verdict(
        level=level,
        headline=f"{opening}: {_share(e)}{_speed(e)}; {because}{_queue(e)}.",
        causes=causes,
        acquitted=acquitted,
        notes=(*_notes(e), *(text for sign, text in _disagreements(e) if sign < 0)),
        advice=(*advice, *_advice_on_feelings(e)),
    )


# --- suspects: a cause, if the evidence names it -------------------------------------------------


def _active_neighbour(e: Evidence) -> Cause | None:
    if e.contention != "active_neighbours":
        return None
    return Cause(
        "active_neighbour",
        _neighbours_run(e),
        "Move that work to another GPU or time, or stop it; nvidia-smi shows the processes.",
    )


def _throttling(e: Evidence) -> Cause | None:
    """Heat, power, other hardware reasons, or a low memory clock without any: one of them.

    A software power cap is normal on a loaded card: it lowers the core clock, which decoding
    hardly feels. It counts only when the memory clock drops as well.
    """
    reasons = e.throttle_reasons or frozenset()
    low = _memory_clock_is_low(e)
    kind: CauseKind
    if reasons & _THERMAL:
        kind, blamed = "thermal_throttling", reasons & _THERMAL
        advice = "Look at fans, airflow and inlet temperature."
    elif "hw_power_brake_slowdown" in reasons:
        kind, blamed = "power_throttling", reasons & {"hw_power_brake_slowdown", "sw_power_cap"}
        advice = "Look at the power supply of the server: it asks the card to brake."
    elif low and "sw_power_cap" in reasons:
        kind, blamed = "power_throttling", reasons & {"sw_power_cap"}
        advice = "Raise the power limit (nvidia-smi -pl) as far as the card and supply allow."
    elif "hw_slowdown" in reasons:
        kind, blamed = "hardware_slowdown", reasons & {"hw_slowdown"}
        advice = "Look at the cooling and at the power cables and supply of the card."
    elif low:
        kind, blamed = "memory_clock_low", reasons & {"applications_clocks_setting"}
        advice = "See whether clocks are locked, and release them (nvidia-smi -rmc, -rac)."
    else:
        return None
    parts = [f"the driver reports {', '.join(sorted(blamed))}"] if blamed else []
    if clock := _clock(e):
        parts.append(clock)
    if e.power_watts is not None and kind == "power_throttling":
        parts.append(f"the card draws {e.power_watts:,.0f} W")
    return Cause(kind, "; ".join(parts), advice)


def _cache_pressure(e: Evidence) -> Cause | None:
    usage = "" if e.kv_cache_usage is None else f"the KV cache is {_plain(e.kv_cache_usage)} full"
    rate = e.preemptions_per_second
    if rate is not None and rate >= _PREEMPTIONS_MATTER:
        seen = f"{_per_time(rate)} interrupted and computed again later"
        return Cause(
            "preemption",
            f"{seen}; {usage}" if usage else seen,
            "Give the KV cache more room (more GPU memory for it, an fp8 KV cache, a smaller"
            " max_model_len) or lower the batch limit (max_num_seqs).",
        )
    if e.kv_cache_usage is not None and e.kv_cache_usage >= _CACHE_FULL and e.waiting:
        return Cause(
            "kv_cache_full",
            f"{usage} and {_wait(e.waiting)}",
            "Give the KV cache more room (more GPU memory for it, an fp8 KV cache, a smaller"
            " max_model_len).",
        )
    return None


def _long_prefills(e: Evidence) -> Cause | None:
    share = _prefill_time_share(e)
    if share is not None:
        matters = share >= _PREFILL_MATTERS
    else:
        tokens = e.prefill_token_share
        matters = tokens is not None and tokens >= _PREFILL_TOKENS_MATTER
    if not matters:
        return None
    return Cause(
        "long_prefills",
        _prefill_seen(e),
        "Use prefix caching for prompts that repeat, smaller prefill chunks"
        " (max_num_batched_tokens), or a second engine for prefill.",
    )


def _compute_bound(e: Evidence) -> Cause | None:
    if e.mean_batch is None or e.ridge_batch is None or e.mean_batch < e.ridge_batch:
        return None
    return Cause(
        "compute_bound",
        f"{e.mean_batch:,.0f} sequences run together; from {e.ridge_batch:,.0f} on this GPU"
        " computes longer than it reads",
        "This is no fault: the card's arithmetic is in full use. For more speed per stream lower"
        " the batch limit (max_num_seqs), for more throughput add GPUs.",
    )


def _cpu_bound(e: Evidence) -> Cause | None:
    if e.gpu_utilization is None or e.gpu_utilization >= _GPU_WAITS or not _work_all_the_time(e):
        return None
    return Cause(
        "cpu_bound",
        f"the GPU is busy {_plain(e.gpu_utilization)} of the time although requests run all"
        " the while",
        "Look at the engine's CPU: cores given to it, --enforce-eager (switch it off, so that"
        " CUDA graphs are used), guided decoding, logging, other work on the host.",
    )


def _wrong_inputs_low(e: Evidence) -> Cause | None:
    return _wrong_inputs(e, 1)


def _wrong_inputs(e: Evidence, direction: int) -> Cause | None:
    seen = [text for sign, text in _disagreements(e) if sign == direction]
    if not seen:
        return None
    return Cause("wrong_ceiling_inputs", "; ".join(seen), _CHECK_INPUTS)


_SUSPECTS: tuple[Callable[[Evidence], Cause | None], ...] = (
    _active_neighbour,
    _throttling,
    _cache_pressure,
    _long_prefills,
    _compute_bound,
    _cpu_bound,
    _wrong_inputs_low,
)
"""Most likely first."""


# --- acquittals ----------------------------------------------------------------------------------


def _cleared_neighbours(e: Evidence) -> tuple[Acquittal, ...]:
    if e.contention == "idle_neighbours":
        held = (
            ""
            if e.neighbour_memory_bytes is None
            else f" ({e.neighbour_memory_bytes / 1024**2:,.0f} MiB)"
        )
        one = e.neighbours == 1
        who = "other processes" if e.neighbours is None else _count(e.neighbours, "other process")
        verb = "only holds" if one else "only hold"
        text = f"{who} on the GPU {verb} memory{held} and {'does' if one else 'do'} not compute"
        return (Acquittal("active_neighbour", text),)
    if e.contention == "none":
        return (Acquittal("active_neighbour", "nobody else uses the engine's GPU"),)
    return ()


def _cleared_power_cap(e: Evidence) -> tuple[Acquittal, ...]:
    if "sw_power_cap" not in (e.throttle_reasons or ()) or _memory_clock_is_low(e) is not False:
        return ()
    text = f"the power cap is active, which is normal under load: {_clock(e)}"
    return (Acquittal("power_throttling", text),)


def _cleared_clock(e: Evidence) -> tuple[Acquittal, ...]:
    told = _cleared_power_cap(e) or _throttling(e) is not None
    if told or _memory_clock_is_low(e) is not False:
        return ()
    return (Acquittal("memory_clock_low", _clock(e)),)


def _cleared_cache(e: Evidence) -> tuple[Acquittal, ...]:
    usage, rate = e.kv_cache_usage, e.preemptions_per_second
    if usage is None or rate is None or rate >= _PREEMPTIONS_MATTER:
        return ()
    full = f"the KV cache is {_plain(usage)} full"
    if usage < _CACHE_FULL:
        text = f"{full} and hardly any request is interrupted"
    elif e.waiting == 0:
        # vLLM keeps old prefixes for as long as nobody needs the room.
        text = f"{full}, but nobody waits and hardly any request is interrupted"
    else:
        return ()
    return (Acquittal("kv_cache_full", text),)


def _cleared_prefill(e: Evidence) -> tuple[Acquittal, ...]:
    share = _prefill_time_share(e)
    if share is None or share >= _PREFILL_MATTERS:
        return ()
    return (Acquittal("long_prefills", _prefill_seen(e)),)


def _cleared_batch(e: Evidence) -> tuple[Acquittal, ...]:
    if e.mean_batch is None or e.ridge_batch is None or e.mean_batch >= e.ridge_batch:
        return ()
    text = (
        f"{_sequences(e.mean_batch)} a step; computing becomes the limit from"
        f" {e.ridge_batch:,.0f} on"
    )
    return (Acquittal("compute_bound", text),)


def _cleared_cpu(e: Evidence) -> tuple[Acquittal, ...]:
    # A neighbour's kernels would hide that the engine leaves the GPU waiting.
    alone = e.contention in ("none", "idle_neighbours")
    if e.gpu_utilization is None or e.gpu_utilization < _GPU_WAITS or not alone:
        return ()
    text = f"the GPU is busy {_plain(e.gpu_utilization)} of the time"
    return (Acquittal("cpu_bound", text),)


# --- what else is worth saying -------------------------------------------------------------------


def _notes(e: Evidence) -> Iterator[str]:
    if e.tokens_per_step is not None and e.tokens_per_step > 1:
        yield f"speculative decoding: {e.tokens_per_step:.1f} tokens per step, divided out"
    if e.unstreamed_ratio is not None and e.unstreamed_ratio >= _MANY_UNSTREAMED:
        wait = (
            ""
            if e.silent_wait_seconds is None
            else f"; half of the people waited longer than {_seconds(e.silent_wait_seconds)}"
            " before they saw anything"
        )
        yield f"{_plain(e.unstreamed_ratio)} of the answers were not streamed{wait}"
    if e.truncated_ratio is not None and e.truncated_ratio >= _MANY_TRUNCATED:
        yield f"{_plain(e.truncated_ratio)} of the answers were cut off by a token limit"


def _notes_on_health(e: Evidence) -> Iterator[str]:
    if e.contention == "active_neighbours":
        yield f"{_neighbours_run(e)}; the engine is fast all the same"
    if (
        e.request_ratio is not None
        and e.mean_batch is not None
        and e.mean_batch >= 2
        and band_of(e.request_ratio) in ("watch", "suspect")
    ):
        yield (
            f"a stream gets {_plain(e.request_ratio)} of what it would get alone, because"
            f" {e.mean_batch:,.0f} sequences share each step: that is normal"
        )
    for _, text in _disagreements(e):
        yield text


def _advice_on_feelings(e: Evidence) -> Iterator[str]:
    """For what is felt as slow and has nothing to do with the GPU."""
    if e.unstreamed_ratio is not None and e.unstreamed_ratio >= _MANY_UNSTREAMED:
        yield "Let the clients stream (`stream: true`): the first words come at once."
    if e.truncated_ratio is not None and e.truncated_ratio >= _MANY_TRUNCATED:
        yield "Let the clients ask for more tokens (max_tokens) where answers are cut off."


def _where_to_look(e: Evidence, acquitted: tuple[Acquittal, ...]) -> str:
    """Advice when nothing is accused: first what could not be checked."""
    cleared = {item.kind for item in acquitted}
    unknown = [
        text
        for known, text in (
            ("active_neighbour" in cleared, "whether others compute on the GPU (nvidia-smi)"),
            (_memory_clock_is_low(e) is not None, "the memory clock (nvidia-smi -q -d CLOCK)"),
            (e.throttle_reasons is not None, "throttling (nvidia-smi -q -d PERFORMANCE)"),
            ("kv_cache_full" in cleared, "KV cache and preemptions (the engine's /metrics)"),
            ("long_prefills" in cleared, "how much of the time goes into prefill"),
            ("compute_bound" in cleared, "whether the batch is compute-bound"),
            ("cpu_bound" in cleared, "whether the GPU waits for the CPU (nvidia-smi dmon)"),
        )
        if not known
    ]
    if unknown:
        return f"Not known here and worth a look: {'; '.join(unknown)}."
    return f"The usual causes are ruled out. {_CHECK_INPUTS} Then profile the engine."


def _disagreements(e: Evidence) -> Iterator[tuple[int, str]]:
    """Second opinions that differ: +1 when they make the efficiency higher than ours, else -1."""
    if e.bandwidth_ratio is not None and _differs(e.bandwidth_ratio, _BANDWIDTHS_DIFFER):
        off = e.bandwidth_ratio - 1
        yield (
            -1 if off > 0 else 1,
            f"the other source of the bandwidth says {_off(off)} than the one in use",
        )
    if e.engine_read_ratio is not None and _differs(e.engine_read_ratio, _READ_BYTES_DIFFER):
        off = e.engine_read_ratio - 1
        yield (
            1 if off > 0 else -1,
            f"the engine's own estimate of the bytes read is {_off(off)} than ours",
        )
    if e.measured_ratio is None or e.efficiency is None:
        return
    off = e.measured_ratio - e.efficiency
    # More may be a neighbour's reading, less may be the pauses.
    believed = (
        e.contention in ("none", "idle_neighbours")
        if off > 0
        else e.busy_ratio is not None and e.busy_ratio >= _ALWAYS_BUSY
    )
    if believed and abs(off) > _MEASURED_DIFFERS:
        yield (
            1 if off > 0 else -1,
            f"the card itself measures {_plain(e.measured_ratio)} of its bandwidth in use,"
            f" {_plain(e.efficiency)} is what the tokens explain",
        )


# --- small figures -------------------------------------------------------------------------------


def _prefill_time_share(e: Evidence) -> float | None:
    """Share of the time that went into prefill, as well as the evidence tells; None if it cannot.

    A decode step takes as long as computing `ridge_batch` prompt tokens, and there are
    1 / `mean_batch` of them per decoded token: so tokens can be weighed. That is an upper bound,
    since prompt tokens that share a step with decoded ones cost less. The share of the steps is the
    second choice: there a step with one short prompt counts as much as one with a long one.
    """
    tokens = e.prefill_token_share
    if tokens is None or not e.ridge_batch or not e.mean_batch:
        return e.prefill_step_share
    # Beyond the ridge, computing sets the time of a step, for both kinds of tokens alike.
    weight = max(e.ridge_batch / e.mean_batch, 1.0)
    return tokens / (tokens + (1 - tokens) * weight)


def _prefill_seen(e: Evidence) -> str:
    share = _prefill_time_share(e)
    if share is not None and share == e.prefill_step_share:
        return f"{_plain(share)} of the steps computed prompts"
    tokens = f"{_plain(e.prefill_token_share or 0)} of the computed tokens were prompt tokens"
    if share is None:
        return tokens
    return f"{tokens}, {'' if share < 0.005 else 'up to '}{_plain(share)} of the time"


def _work_all_the_time(e: Evidence) -> bool:
    if e.busy_ratio is not None:
        return e.busy_ratio >= _ALWAYS_BUSY
    return e.mean_batch is not None and e.mean_batch >= 1


def _memory_clock_is_low(e: Evidence) -> bool | None:
    """None when not known, or when the card was looked at while it rested."""
    if e.memory_clock_mhz is None or not e.max_memory_clock_mhz:
        return None
    if e.gpu_utilization is not None and e.gpu_utilization < _AT_REST:
        return None
    return e.memory_clock_mhz < _FULL_CLOCK * e.max_memory_clock_mhz


def _clock(e: Evidence) -> str:
    low = _memory_clock_is_low(e)
    if low is None or e.memory_clock_mhz is None or not e.max_memory_clock_mhz:
        return ""
    share = e.memory_clock_mhz / e.max_memory_clock_mhz
    clock = f"the memory clock is {e.memory_clock_mhz:,.0f} of {e.max_memory_clock_mhz:,.0f} MHz"
    return f"{clock} ({_plain(share)})"


def _neighbours_run(e: Evidence) -> str:
    share = (
        ""
        if e.neighbour_sm_ratio is None
        else f" with {_plain(e.neighbour_sm_ratio)} of the GPU's SM time"
    )
    # How many of them compute is not known here, so nobody is counted as guilty.
    among = "" if not e.neighbours else f" ({_count(e.neighbours, 'other process')} on the GPU)"
    return f"others compute beside the engine{share}{among}"


def _share(e: Evidence) -> str:
    ratio = 0.0 if e.efficiency is None else e.efficiency
    basis = {"streamed": " (streamed bytes)", "checkpoint": " (whole checkpoint)", None: ""}[
        e.basis
    ]
    if e.basis == "streamed" and e.checkpoint_efficiency is not None:
        other = _percent(e.checkpoint_efficiency)
        basis = f" (streamed bytes; {other} by the rule of thumb, the whole checkpoint)"
    return f"decoding reaches {_percent(ratio)} of the hardware's ceiling{basis}"


def _speed(e: Evidence) -> str:
    if e.tokens_per_second is None:
        return ""
    total = f", {_rate(e.tokens_per_second)} tok/s"
    if e.mean_batch is None or e.mean_batch < 1.5:
        return total
    each = e.tokens_per_second / e.mean_batch
    return f"{total} over {e.mean_batch:,.0f} sequences ({_rate(each)} each)"


def _queue(e: Evidence) -> str:
    return f"; {_wait(e.waiting)}" if e.waiting else ""


def _wait(waiting: int) -> str:
    return f"{_count(waiting, 'request')} {'waits' if waiting == 1 else 'wait'} in the queue"


def _count(number: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def _sequences(batch: float) -> str:
    return f"{batch:,.0f} {'sequence' if round(batch) == 1 else 'sequences'}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _per_time(rate: float) -> str:
    return (
        f"{rate:.1f} requests a second are"
        if rate >= 1
        else f"{rate * 60:.0f} requests a minute are"
    )


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 20 else f"{value:.1f} s"


def _plain(share: float) -> str:
    if 0 < share < 0.005:
        return "less than 1 %"
    return f"{share * 100:.0f} %"


def _percent(ratio: float) -> str:
    """Like `_plain`, but never rounded into another band: 0.6999 is 69.9 %, not 70 %."""
    rounded = round(ratio * 100)
    if band_of(rounded / 100) == band_of(ratio):
        return _plain(ratio)
    tenths = ratio * 1000
    return f"{(math.ceil(tenths) if rounded < ratio * 100 else math.floor(tenths)) / 10:.1f} %"


def _differs(ratio: float, tolerance: float) -> bool:
    # Rounded, so that a difference of exactly the tolerance is not one because of binary fractions.
    return round(abs(ratio - 1), 9) > tolerance


def _off(difference: float) -> str:
    return f"{_plain(abs(difference))} {'more' if difference > 0 else 'less'}"
