"""Scenes of GPUs: the founding one, and what may happen to it."""

from dataclasses import replace
from typing import Any

import pynvml

from tokgauge.simulator.gpu import MIB, Scene, SimulatedGpu, SimulatedProcess
from tokgauge.simulator.nvml import DEVICE_FUNCTIONS

__all__ = [
    "active_neighbour_scene",
    "empty_list_scene",
    "fast_card_scene",
    "founding_scene",
    "lost_gpu_scene",
    "mig_scene",
    "no_process_utilization_scene",
    "throttled_scene",
    "wsl_scene",
]

_SW_POWER_CAP = 0x4
_SW_THERMAL = 0x20


def founding_scene() -> Scene:
    """Three RTX A6000. GPU 0 at 0 % with six processes: vLLM with 35,344 MiB and five neighbours
    that only hold memory. GPU 1 at 47 % with other people's work (36,750 MiB), GPU 2 with 29,104
    MiB of theirs, idle.
    """
    neighbours = (334, 528, 334, 2002, 428)
    processes = (
        SimulatedProcess(81_204, "VLLM::EngineCore", 35_344 * MIB),
        *(
            SimulatedProcess(90_001 + number, "/opt/conda/bin/python", mib * MIB)
            for number, mib in enumerate(neighbours)
        ),
    )
    return Scene(
        gpus=(
            SimulatedGpu(
                uuid="GPU-5eed0000-0000-0000-0000-000000000000",
                memory_used_bytes=sum(process.memory_bytes or 0 for process in processes),
                processes=processes,
            ),
            SimulatedGpu(
                uuid="GPU-5eed0000-0000-0000-0000-000000000001",
                memory_used_bytes=36_750 * MIB,
                utilization_percent=47,
                power_milliwatts=182_000,
                clock_reasons=0,
                processes=(
                    SimulatedProcess(77_310, "/usr/bin/python3", 36_750 * MIB, sm_percent=46),
                ),
            ),
            SimulatedGpu(
                uuid="GPU-5eed0000-0000-0000-0000-000000000002",
                memory_used_bytes=29_104 * MIB,
                processes=(SimulatedProcess(78_115, "/usr/bin/python3", 29_104 * MIB),),
            ),
        )
    )


def fast_card_scene() -> Scene:
    """An H100 that the engine has for itself."""
    return Scene(
        gpus=(
            SimulatedGpu(
                name="NVIDIA H100 80GB HBM3",
                uuid="GPU-5eed0000-0000-0000-0000-000000000100",
                memory_total_bytes=81_559 * MIB,
                memory_used_bytes=70_000 * MIB,
                memory_clock_mhz=2619,
                max_memory_clock_mhz=2619,
                memory_bus_bits=5120,
                processes=(SimulatedProcess(81_300, "VLLM::EngineCore", 70_000 * MIB),),
            ),
        )
    )


def _with_first(scene: Scene, **changes: Any) -> Scene:
    return replace(scene, gpus=(replace(scene.gpus[0], **changes), *scene.gpus[1:]))


def active_neighbour_scene() -> Scene:
    """The founding scene while the neighbour with 2,002 MiB computes."""
    scene = founding_scene()
    processes = tuple(
        replace(process, sm_percent=38) if process.memory_bytes == 2002 * MIB else process
        for process in scene.gpus[0].processes
    )
    return _with_first(
        scene,
        processes=processes,
        utilization_percent=41,
        power_milliwatts=171_000,
        clock_reasons=0,
    )


def throttled_scene() -> Scene:
    """The engine at work on a hot card: thermal slowdown, memory clock below its maximum."""
    scene = founding_scene()
    engine, *others = scene.gpus[0].processes
    return _with_first(
        scene,
        processes=(replace(engine, sm_percent=97), *others),
        utilization_percent=100,
        memory_clock_mhz=5001,
        power_milliwatts=298_000,
        clock_reasons=_SW_POWER_CAP | _SW_THERMAL,
    )


def wsl_scene() -> Scene:
    """Windows Subsystem for Linux: processes without memory, names or utilisation."""
    scene = founding_scene()
    return _with_first(
        scene,
        processes=tuple(
            replace(process, memory_bytes=None, name=None) for process in scene.gpus[0].processes
        ),
        errors={
            "nvmlDeviceGetProcessUtilization": pynvml.NVML_ERROR_NOT_SUPPORTED,
            "nvmlDeviceGetMigMode": pynvml.NVML_ERROR_NOT_SUPPORTED,
        },
    )


def mig_scene() -> Scene:
    """An A100 cut into MIG slices: no utilisation, no memory by process."""
    return Scene(
        gpus=(
            SimulatedGpu(
                name="NVIDIA A100-SXM4-80GB",
                memory_total_bytes=81_920 * MIB,
                memory_used_bytes=37_000 * MIB,
                memory_clock_mhz=1593,
                max_memory_clock_mhz=1593,
                memory_bus_bits=5120,
                mig=True,
                processes=(SimulatedProcess(4711, "VLLM::EngineCore", None),),
                errors={
                    "nvmlDeviceGetUtilizationRates": pynvml.NVML_ERROR_NOT_SUPPORTED,
                    "nvmlDeviceGetProcessUtilization": pynvml.NVML_ERROR_NOT_SUPPORTED,
                },
            ),
        )
    )


def empty_list_scene() -> Scene:
    """A container that may not see processes: none listed, though memory is in use."""
    return _with_first(founding_scene(), processes=())


def lost_gpu_scene() -> Scene:
    """GPU 0 has fallen off the bus; GPU 1 goes on."""
    code = pynvml.NVML_ERROR_GPU_IS_LOST
    names = (*DEVICE_FUNCTIONS, "nvmlDeviceGetHandleByIndex_v2")
    return _with_first(founding_scene(), errors=dict.fromkeys(names, code))


def no_process_utilization_scene() -> Scene:
    """The engine at work on a card whose driver does not tell who does the work."""
    return _with_first(
        founding_scene(),
        utilization_percent=92,
        clock_reasons=0,
        errors={"nvmlDeviceGetProcessUtilization": pynvml.NVML_ERROR_NOT_SUPPORTED},
    )
