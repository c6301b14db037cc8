"""What one look at the GPUs yields: immutable values that any thread may share.

Every value may be None, which means "not told": unsupported by the card, hidden in a container,
lost with the GPU. None is never replaced by 0.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeVar

__all__ = [
    "THROTTLE_REASONS",
    "GpuProcess",
    "GpuReading",
    "ProcessKind",
    "Snapshot",
    "ratio_of",
    "whole_sum",
]

ProcessKind = Literal["compute", "mps", "graphics"]

# Bits of NVML's clock event reasons that hold clocks down (NVML API, nvmlClocksEventReasons).
# 0x1, "GPU is idle", is left out on purpose: an idle card is not throttled.
THROTTLE_REASONS: Mapping[int, str] = MappingProxyType(
    {
        0x2: "applications_clocks_setting",
        0x4: "sw_power_cap",
        0x8: "hw_slowdown",
        0x10: "sync_boost",
        0x20: "sw_thermal_slowdown",
        0x40: "hw_thermal_slowdown",
        0x80: "hw_power_brake_slowdown",
        0x100: "display_clock_setting",
    }
)


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One process with a context on a GPU.

    `pid` is the pid in the host's namespace, also when seen from a container. `sm_ratio` (0 to 1)
    is 0.0 when NVML has no sample of this process, which means that it did not run, and None when
    NVML cannot say.
    """

    pid: int
    name: str | None = None
    used_memory_bytes: int | None = None
    sm_ratio: float | None = None
    kind: ProcessKind = "compute"


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one moment. Ratios are 0 to 1, clocks MHz, power watts, memory bytes.

    `utilization_ratio` is the share of the last sampling period (1/6 s to 1 s) in which at least
    one kernel ran. It is no share of the bandwidth: that is `dram_bandwidth_ratio` (GPM metric 10,
    Hopper and later). `processes` is None when NVML cannot list them, and () when it lists none.
    `lost` says that the driver has lost the card; everything else is None then.
    """

    index: int
    uuid: str | None = None
    name: str | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    utilization_ratio: float | None = None
    memory_clock_mhz: int | None = None
    max_memory_clock_mhz: int | None = None
    memory_bus_bits: int | None = None
    power_watts: float | None = None
    throttle_reasons: frozenset[str] | None = None
    processes: tuple[GpuProcess, ...] | None = None
    mig: bool | None = None
    ecc: bool | None = None
    dram_bandwidth_ratio: float | None = None
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All GPUs at the monotonic time `at` (seconds).

    `up` is False while NVML cannot be used; `gpus` is empty then and `problem` names the kind of
    the error that closed it. `errors` counts the reader's failed NVML calls by kind since it was
    made.
    """

    at: float
    up: bool
    gpus: tuple[GpuReading, ...] = ()
    problem: str | None = None
    errors: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def age(self, now: float) -> float:
        """Seconds since this snapshot was taken. A sampler that hangs shows itself here."""
        return now - self.at


Number = TypeVar("Number", int, float)


def whole_sum(values: Iterable[Number | None]) -> Number | None:
    """The sum; None when any part is unknown: a partial sum is no sum."""
    total: Number = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def ratio_of(percent: float | None) -> float | None:
    """0 to 1; None for what is none: older drivers report shares above 100."""
    if percent is None or not 0 <= percent <= 100:
        return None
    return percent / 100
