"""Causes of slow decoding: named where the evidence shows them, ruled out where it clears them."""

from __future__ import annotations

from collections.abc import Callable

from tokgauge.diagnosis.cross_checks import disagreements
from tokgauge.diagnosis.evidence import (
    Evidence,
    has_the_gpu_alone,
    memory_clock_is_low,
    slow_parts,
    works_all_the_time,
)
from tokgauge.diagnosis.expected_time import SlowPart
from tokgauge.diagnosis.verdict import CauseKind
from tokgauge.diagnosis.waiting import CACHE_FULL, PREEMPTIONS_MATTER

THERMAL = frozenset({"sw_thermal_slowdown", "hw_thermal_slowdown"})
POWER_BRAKE = "hw_power_brake_slowdown"
POWER_CAP = "sw_power_cap"

_ENGINE: frozenset[CauseKind] = frozenset(("cpu_bound", "slow_engine"))
_ONLY_ENGINE: frozenset[SlowPart] = frozenset(("engine",))
_OF_THE_GPU: frozenset[CauseKind] = frozenset(
    ("thermal_throttling", "power_throttling", "hardware_slowdown", "memory_clock_low")
)

_PREFILL_MATTERS = 0.15
"""Share of the time that prompts take which nobody has counted."""
_GPU_WAITS = 0.80


def causes_of(e: Evidence) -> tuple[CauseKind, ...]:
    """What the evidence names, most likely first."""
    found = dict.fromkeys(cause for find in _FINDERS if (cause := find(e)) is not None)
    if _ENGINE & found.keys() and slow_parts(e) == _ONLY_ENGINE:
        # The GPU's own work explains none of it, however low its clock.
        return tuple(sorted(found, key=lambda cause: cause in _OF_THE_GPU))
    return tuple(found)


def ruled_out_by(e: Evidence) -> tuple[CauseKind, ...]:
    """What the evidence clears."""
    return (
        *neighbours_ruled_out(e),
        *power_cap_ruled_out(e),
        *(kind for kind, clears in _CLEARERS if clears(e)),
    )


def neighbours_ruled_out(e: Evidence) -> tuple[CauseKind, ...]:
    """Nobody else computes on the engine's GPUs."""
    return ("active_neighbour",) if has_the_gpu_alone(e) else ()


def power_cap_ruled_out(e: Evidence) -> tuple[CauseKind, ...]:
    """A power cap that leaves the memory clock alone."""
    if POWER_CAP not in (e.throttle_reasons or ()) or memory_clock_is_low(e) is not False:
        return ()
    return ("power_throttling",)


def _active_neighbour(e: Evidence) -> CauseKind | None:
    return "active_neighbour" if e.contention == "active_neighbours" else None


def _throttling(e: Evidence) -> CauseKind | None:
    """Heat, power, other hardware reasons, or a low memory clock without any: one of them.

    A software power cap is normal on a loaded card: it lowers the core clock, which decoding
    hardly feels. It counts only when the memory clock drops as well.
    """
    reasons = e.throttle_reasons or frozenset()
    low = memory_clock_is_low(e)
    if reasons & THERMAL:
        return "thermal_throttling"
    if POWER_BRAKE in reasons or (low and POWER_CAP in reasons):
        return "power_throttling"
    if "hw_slowdown" in reasons:
        return "hardware_slowdown"
    return "memory_clock_low" if low else None


def _cache_pressure(e: Evidence) -> CauseKind | None:
    rate = e.preemptions_per_second
    if rate is not None and rate >= PREEMPTIONS_MATTER:
        return "preemption"
    if cache_is_full(e) and e.waiting:
        return "kv_cache_full"
    return None


def _long_prefills(e: Evidence) -> CauseKind | None:
    """Prompts that were counted are part of the expected time, and so no cause."""
    if e.others_prefill_share is None or e.others_prefill_share < _PREFILL_MATTERS:
        return None
    return "long_prefills"


def _compute_bound(e: Evidence) -> CauseKind | None:
    if e.mean_batch is None or e.ridge_batch is None or e.mean_batch < e.ridge_batch:
        return None
    return "compute_bound"


def _cpu_bound(e: Evidence) -> CauseKind | None:
    """A GPU that waits in a slow window; with short steps some of that is usual."""
    if e.gpu_utilization is None or e.gpu_utilization >= _GPU_WAITS or not works_all_the_time(e):
        return None
    told = slow_parts(e)
    return "cpu_bound" if told is None or "engine" in told else None


def _slow_engine(e: Evidence) -> CauseKind | None:
    return "slow_engine" if "engine" in (slow_parts(e) or ()) else None


def _slow_card(e: Evidence) -> CauseKind | None:
    return "slow_card" if "card" in (slow_parts(e) or ()) else None


def _slow_prefill(e: Evidence) -> CauseKind | None:
    return "slow_prefill" if "prefill" in (slow_parts(e) or ()) else None


def _wrong_bandwidth(e: Evidence) -> CauseKind | None:
    """It explains all of it, where the other source of the bandwidth is right."""
    explains = e.normal is not None and e.normal.normal_by_the_other_bandwidth
    return "wrong_ceiling_inputs" if explains and _wrong_inputs(e) else None


def _wrong_inputs(e: Evidence) -> CauseKind | None:
    return "wrong_ceiling_inputs" if disagreements(e, "higher") else None


_FINDERS: tuple[Callable[[Evidence], CauseKind | None], ...] = (
    _active_neighbour,
    _throttling,
    _wrong_bandwidth,
    _cache_pressure,
    _long_prefills,
    _compute_bound,
    _cpu_bound,
    _slow_engine,
    _wrong_inputs,
    _slow_card,
    _slow_prefill,
)


def _clears_clock(e: Evidence) -> bool:
    told = power_cap_ruled_out(e) or _throttling(e) is not None
    return not told and memory_clock_is_low(e) is False


def _clears_cache(e: Evidence) -> bool:
    usage, rate = e.kv_cache_usage, e.preemptions_per_second
    if usage is None or rate is None or rate >= PREEMPTIONS_MATTER:
        return False
    # vLLM keeps old prefixes for as long as nobody needs the room: full is no want then.
    return not cache_is_full(e) or e.waiting == 0


def cache_is_full(e: Evidence) -> bool:
    """Whether hardly any room is left in the KV cache."""
    return e.kv_cache_usage is not None and e.kv_cache_usage >= CACHE_FULL


def _clears_prefill(e: Evidence) -> bool:
    share = e.prefill_share if e.others_prefill_share is None else e.others_prefill_share
    return share is not None and share < _PREFILL_MATTERS


def _clears_engine(e: Evidence) -> bool:
    told = slow_parts(e)
    return told is not None and "engine" not in told


def _clears_card(e: Evidence) -> bool:
    told = slow_parts(e)
    return told is not None and "card" not in told


def _clears_batch(e: Evidence) -> bool:
    return e.mean_batch is not None and e.ridge_batch is not None and e.mean_batch < e.ridge_batch


def _clears_cpu(e: Evidence) -> bool:
    # A neighbour's kernels would hide that the engine leaves the GPU waiting.
    busy = e.gpu_utilization is not None and e.gpu_utilization >= _GPU_WAITS
    return busy and has_the_gpu_alone(e)


_CLEARERS: tuple[tuple[CauseKind, Callable[[Evidence], bool]], ...] = (
    ("memory_clock_low", _clears_clock),
    ("kv_cache_full", _clears_cache),
    ("long_prefills", _clears_prefill),
    ("compute_bound", _clears_batch),
    ("cpu_bound", _clears_cpu),
    ("slow_engine", _clears_engine),
    ("slow_card", _clears_card),
)
