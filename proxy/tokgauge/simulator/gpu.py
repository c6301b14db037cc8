"""What simulated GPUs show: cards, processes, and what fails."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["MIB", "Scene", "SimulatedGpu", "SimulatedProcess"]

MIB = 1024**2

_IDLE_CLOCKS = 0x1


@dataclass(frozen=True, slots=True)
class SimulatedProcess:
    """A process on a simulated GPU. Memory None is NVML's "not available"; `sm_percent` None means
    that process utilisation has no sample of it, as for a process that does not run.
    """

    pid: int
    name: str | None
    memory_bytes: int | None
    sm_percent: int | None = None
    kind: Literal["compute", "mps", "graphics"] = "compute"


@dataclass(frozen=True, slots=True)
class SimulatedGpu:
    """One simulated GPU; an RTX A6000 at rest unless told otherwise.

    `errors` gives NVML return codes by function name, for this GPU alone. `dram_percent` is GPM
    metric 10; None is a card without GPM (before Hopper).
    """

    name: str = "NVIDIA RTX A6000"
    uuid: str = "GPU-00000000-0000-0000-0000-000000000000"
    memory_total_bytes: int = 49140 * MIB
    memory_used_bytes: int = 0
    utilization_percent: int = 0
    memory_clock_mhz: int = 8001
    max_memory_clock_mhz: int = 8001
    memory_bus_bits: int = 384
    power_milliwatts: int = 24_000
    clock_reasons: int = _IDLE_CLOCKS
    mig: bool = False
    ecc: bool = False
    dram_percent: float | None = None
    processes: tuple[SimulatedProcess, ...] = ()
    errors: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that NVML shows: the GPUs, return codes by function name (`nvmlInitWithFlags` for
    a driver that is not there), and seconds that every call takes.
    """

    gpus: tuple[SimulatedGpu, ...]
    errors: Mapping[str, int] = field(default_factory=dict)
    call_seconds: float = 0.0
