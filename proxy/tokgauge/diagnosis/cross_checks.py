"""Other sources of the bandwidth and of the bytes, and the doubts that they raise."""

from __future__ import annotations

from collections.abc import Iterator

from tokgauge.diagnosis.evidence import ALWAYS_BUSY, Evidence
from tokgauge.diagnosis.wording import percent

_BANDWIDTHS_DIFFER = 0.05
_READ_BYTES_DIFFER = 0.15
_MEASURED_DIFFERS = 0.15


def disagreements(e: Evidence) -> Iterator[tuple[int, str]]:
    """Cross-checks that differ: +1 when they make the efficiency higher than ours, else -1."""
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
        else e.busy_ratio is not None and e.busy_ratio >= ALWAYS_BUSY
    )
    if believed and abs(off) > _MEASURED_DIFFERS:
        yield (
            1 if off > 0 else -1,
            f"the card itself measures {percent(e.measured_ratio)} of its bandwidth in use,"
            f" {percent(e.efficiency)} is what the tokens explain",
        )


def _differs(ratio: float, tolerance: float) -> bool:
    # Rounded, so that a difference of exactly the tolerance is not one because of binary fractions.
    return round(abs(ratio - 1), 9) > tolerance


def _off(difference: float) -> str:
    return f"{percent(abs(difference))} {'more' if difference > 0 else 'less'}"
