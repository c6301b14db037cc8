"""Causes of slow decoding: named where the evidence shows them, ruled_out where it clears them."""

from __future__ import annotations

import math
from collections.abc import Callable

from tokgauge.diagnosis.cross_checks import disagreements
from tokgauge.diagnosis.evidence import (
    Evidence,
    memory_clock_is_low,
    works_all_the_time,
)
from tokgauge.diagnosis.verdict import Cause, CauseKind, RuledOut
from tokgauge.diagnosis.wording import (
    CHECK_INPUTS,
    count,
    memory_clock,
    neighbours_run,
    per_time,
    percent,
    prefill_seen,
    sequences,
    waiting,
)

_PREFILL_MATTERS = 0.15
_CACHE_FULL = 0.95
_PREEMPTIONS_MATTER = 1 / 60
_GPU_WAITS = 0.80

_THERMAL = {"sw_thermal_slowdown", "hw_thermal_slowdown"}


def causes_of(e: Evidence) -> tuple[Cause, ...]:
    """What the evidence names, most likely first."""
    return tuple(cause for find in _FINDERS if (cause := find(e)) is not None)


def ruled_out_by(e: Evidence) -> tuple[RuledOut, ...]:
    """What the evidence clears."""
    return (
        *cleared_neighbours(e),
        *cleared_power_cap(e),
        *_cleared_clock(e),
        *_cleared_cache(e),
        *_cleared_prefill(e),
        *_cleared_batch(e),
        *_cleared_cpu(e),
    )


def _active_neighbour(e: Evidence) -> Cause | None:
    if e.contention != "active_neighbours":
        return None
    return Cause(
        "active_neighbour",
        neighbours_run(e),
        "Move that work to another GPU or time, or stop it; nvidia-smi shows the processes.",
    )


def _throttling(e: Evidence) -> Cause | None:
    """Heat, power, other hardware reasons, or a low memory clock without any: one of them.

    A software power cap is normal on a loaded card: it lowers the core clock, which decoding
    hardly feels. It counts only when the memory clock drops as well.
    """
    reasons = e.throttle_reasons or frozenset()
    low = memory_clock_is_low(e)
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
    if clock := memory_clock(e):
        parts.append(clock)
    if e.power_watts is not None and kind == "power_throttling":
        parts.append(f"the card draws {e.power_watts:,.0f} W")
    return Cause(kind, "; ".join(parts), advice)


def _cache_pressure(e: Evidence) -> Cause | None:
    usage = "" if e.kv_cache_usage is None else f"the KV cache is {percent(e.kv_cache_usage)} full"
    rate = e.preemptions_per_second
    if rate is not None and rate >= _PREEMPTIONS_MATTER:
        seen = f"{per_time(rate)} interrupted and computed again later"
        return Cause(
            "preemption",
            f"{seen}; {usage}" if usage else seen,
            "Give the KV cache more room (more GPU memory for it, an fp8 KV cache, a smaller"
            " max_model_len) or lower the batch limit (max_num_seqs).",
        )
    if e.kv_cache_usage is not None and e.kv_cache_usage >= _CACHE_FULL and e.waiting:
        return Cause(
            "kv_cache_full",
            f"{usage} and {waiting(e.waiting)}",
            "Give the KV cache more room (more GPU memory for it, an fp8 KV cache, a smaller"
            " max_model_len).",
        )
    return None


def _long_prefills(e: Evidence) -> Cause | None:
    if e.prefill_share is None or e.prefill_share < _PREFILL_MATTERS:
        return None
    return Cause(
        "long_prefills",
        prefill_seen(e.prefill_share),
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
    if e.gpu_utilization is None or e.gpu_utilization >= _GPU_WAITS or not works_all_the_time(e):
        return None
    return Cause(
        "cpu_bound",
        f"the GPU is busy {percent(e.gpu_utilization)} of the time although requests run all"
        " the while",
        "Look at the engine's CPU: cores given to it, --enforce-eager (switch it off, so that"
        " CUDA graphs are used), guided decoding, logging, other work on the host.",
    )


def _wrong_inputs_low(e: Evidence) -> Cause | None:
    return wrong_inputs(e, 1)


def wrong_inputs(e: Evidence, direction: int) -> Cause | None:
    """+1: cross-checks by which the efficiency is higher than ours; -1: lower."""
    seen = [text for sign, text in disagreements(e) if sign == direction]
    if not seen:
        return None
    return Cause("wrong_ceiling_inputs", "; ".join(seen), CHECK_INPUTS)


_FINDERS: tuple[Callable[[Evidence], Cause | None], ...] = (
    _active_neighbour,
    _throttling,
    _cache_pressure,
    _long_prefills,
    _compute_bound,
    _cpu_bound,
    _wrong_inputs_low,
)


def cleared_neighbours(e: Evidence) -> tuple[RuledOut, ...]:
    """Nobody else computes on the engine's GPUs."""
    if e.contention == "idle_neighbours":
        held = (
            ""
            if e.neighbour_memory_bytes is None
            else f" ({e.neighbour_memory_bytes / 1024**2:,.0f} MiB)"
        )
        one = e.neighbours == 1
        who = "other processes" if e.neighbours is None else count(e.neighbours, "other process")
        verb = "only holds" if one else "only hold"
        text = f"{who} on the GPU {verb} memory{held} and {'does' if one else 'do'} not compute"
        return (RuledOut("active_neighbour", text),)
    if e.contention == "none":
        return (RuledOut("active_neighbour", "nobody else uses the engine's GPU"),)
    return ()


def cleared_power_cap(e: Evidence) -> tuple[RuledOut, ...]:
    """A power cap that leaves the memory clock alone."""
    if "sw_power_cap" not in (e.throttle_reasons or ()) or memory_clock_is_low(e) is not False:
        return ()
    text = f"the power cap is active, which is normal under load: {memory_clock(e)}"
    return (RuledOut("power_throttling", text),)


def _cleared_clock(e: Evidence) -> tuple[RuledOut, ...]:
    told = cleared_power_cap(e) or _throttling(e) is not None
    if told or memory_clock_is_low(e) is not False:
        return ()
    return (RuledOut("memory_clock_low", memory_clock(e)),)


def _cleared_cache(e: Evidence) -> tuple[RuledOut, ...]:
    usage, rate = e.kv_cache_usage, e.preemptions_per_second
    if usage is None or rate is None or rate >= _PREEMPTIONS_MATTER:
        return ()
    full = f"the KV cache is {percent(usage)} full"
    if usage < _CACHE_FULL:
        text = f"{full} and hardly any request is interrupted"
    elif e.waiting == 0:
        # vLLM keeps old prefixes for as long as nobody needs the room.
        text = f"{full}, but nobody waits and hardly any request is interrupted"
    else:
        return ()
    return (RuledOut("kv_cache_full", text),)


def _cleared_prefill(e: Evidence) -> tuple[RuledOut, ...]:
    if e.prefill_share is None or e.prefill_share >= _PREFILL_MATTERS:
        return ()
    return (RuledOut("long_prefills", prefill_seen(e.prefill_share)),)


def _cleared_batch(e: Evidence) -> tuple[RuledOut, ...]:
    if e.mean_batch is None or e.ridge_batch is None or e.mean_batch >= e.ridge_batch:
        return ()
    limit = (
        "with contexts as long as these, reading stays the limit"
        if e.ridge_batch == math.inf
        else f"computing becomes the limit from {e.ridge_batch:,.0f} on"
    )
    return (RuledOut("compute_bound", f"{sequences(e.mean_batch)} a step; {limit}"),)


def _cleared_cpu(e: Evidence) -> tuple[RuledOut, ...]:
    # A neighbour's kernels would hide that the engine leaves the GPU waiting.
    alone = e.contention in ("none", "idle_neighbours")
    if e.gpu_utilization is None or e.gpu_utilization < _GPU_WAITS or not alone:
        return ()
    text = f"the GPU is busy {percent(e.gpu_utilization)} of the time"
    return (RuledOut("cpu_bound", text),)
