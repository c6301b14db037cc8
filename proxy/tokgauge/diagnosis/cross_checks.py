"""Other sources of the bandwidth and of the bytes, and the doubts that they raise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tokgauge.diagnosis.evidence import ALWAYS_BUSY, Evidence, has_the_gpu_alone

_BANDWIDTHS_DIFFER = 0.05
_READ_BYTES_DIFFER = 0.15
_MEASURED_DIFFERS = 0.15

Source = Literal["other_bandwidth", "engine_read_bytes", "measured_bandwidth"]
Direction = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """A source that disagrees: by it, the efficiency is higher or lower than ours."""

    source: Source
    efficiency: Direction


def disagreements(e: Evidence, direction: Direction | None = None) -> tuple[CrossCheck, ...]:
    """Cross-checks that differ; with a direction only those that say so."""
    return tuple(
        found for found in _disagreeing(e) if direction is None or found.efficiency == direction
    )


def _disagreeing(e: Evidence) -> Iterator[CrossCheck]:
    if e.bandwidth_ratio is not None and _differs(e.bandwidth_ratio, _BANDWIDTHS_DIFFER):
        yield CrossCheck("other_bandwidth", "lower" if e.bandwidth_ratio > 1 else "higher")
    if e.engine_read_ratio is not None and _differs(e.engine_read_ratio, _READ_BYTES_DIFFER):
        yield CrossCheck("engine_read_bytes", "higher" if e.engine_read_ratio > 1 else "lower")
    if e.measured_ratio is None or e.efficiency is None:
        return
    off = e.measured_ratio - e.efficiency
    # More may be a neighbour's reading, less may be the pauses.
    believed = (
        has_the_gpu_alone(e)
        if off > 0
        else e.busy_ratio is not None and e.busy_ratio >= ALWAYS_BUSY
    )
    if believed and abs(off) > _MEASURED_DIFFERS:
        yield CrossCheck("measured_bandwidth", "higher" if off > 0 else "lower")


def _differs(ratio: float, tolerance: float) -> bool:
    # Rounded, so that a difference of exactly the tolerance is not one because of binary fractions.
    return round(abs(ratio - 1), 9) > tolerance
