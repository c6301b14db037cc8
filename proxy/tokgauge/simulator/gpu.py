"""Simulated GPUs behind the real `pynvml` bindings: no driver, no card, no compiler.

`SimulatedNvml` stands in for the loaded NVML library (`pynvml.nvmlLib`), so the bindings' own code,
their structures and their error mapping stay in use. What it shows is a `Scene`; put another one in
its attribute `scene` at any time and the next call shows it.

    nvml = SimulatedNvml(founding_scene())
    nvml.install()
    ...
    nvml.scene = active_neighbour_scene()
    ...
    nvml.uninstall()

The functions follow the NVML API reference; only those that this project calls exist. Any other is
"function not found", as with an old driver.
"""

import ctypes
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pynvml

__all__ = [
    "Scene",
    "SimulatedGpu",
    "SimulatedNvml",
    "SimulatedProcess",
    "active_neighbour_scene",
    "empty_list_scene",
    "founding_scene",
    "lost_gpu_scene",
    "mig_scene",
    "no_process_utilization_scene",
    "throttled_scene",
    "wsl_scene",
]

MIB = 1024**2

_IDLE_CLOCKS = 0x1
_SW_POWER_CAP = 0x4
_SW_THERMAL = 0x20


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


class SimulatedNvml:
    """The NVML library as `pynvml` sees it. `scene` may be replaced while it is in use."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._replaced: tuple[Any, dict[str, Any]] | None = None

    def install(self) -> None:
        """Become the NVML library of this process."""
        if self._replaced is not None:
            return
        self._replaced = (pynvml.nvmlLib, dict(pynvml._nvmlGetFunctionPointer_cache))
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml.nvmlLib = self

    def uninstall(self) -> None:
        """Put back what was there before."""
        if self._replaced is None:
            return
        library, functions = self._replaced
        self._replaced = None
        pynvml.nvmlLib = library
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml._nvmlGetFunctionPointer_cache.update(functions)

    def __getattr__(self, name: str) -> Any:
        answer = _ANSWERS.get(name)
        if answer is None:
            raise AttributeError(name)

        def function(*args: Any) -> int:
            scene = self.scene
            if scene.call_seconds:
                time.sleep(scene.call_seconds)
            if name in scene.errors:
                return scene.errors[name]
            if name in _DEVICE_FUNCTIONS:
                gpu = _gpu_of(scene, args[0])
                if gpu is None:
                    return int(pynvml.NVML_ERROR_GPU_IS_LOST)
                return gpu.errors.get(name, 0) or answer(gpu, *args[1:])
            return int(answer(scene, *args))

        return function


def _gpu_of(scene: Scene, handle: Any) -> SimulatedGpu | None:
    number = ctypes.cast(handle, ctypes.c_void_p).value or 0
    return scene.gpus[number - 1] if 1 <= number <= len(scene.gpus) else None


def _set(reference: Any, value: int) -> int:
    """Store through a `byref`; pynvml passes every result that way."""
    reference._obj.value = value
    return int(pynvml.NVML_SUCCESS)


def _set_text(buffer: Any, text: str) -> int:
    buffer.value = text.encode()
    return int(pynvml.NVML_SUCCESS)


def _set_pointer(reference: Any, value: int) -> int:
    ctypes.c_void_p.from_buffer(reference._obj).value = value
    return int(pynvml.NVML_SUCCESS)


def _init(scene: Scene, flags: int) -> int:
    return int(pynvml.NVML_SUCCESS)


def _shutdown(scene: Scene) -> int:
    return int(pynvml.NVML_SUCCESS)


def _count(scene: Scene, count: Any) -> int:
    return _set(count, len(scene.gpus))


def _handle(scene: Scene, index: Any, handle: Any) -> int:
    if index.value >= len(scene.gpus):
        return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    error = scene.gpus[index.value].errors.get("nvmlDeviceGetHandleByIndex_v2", 0)
    return error or _set_pointer(handle, index.value + 1)


def _process_name(scene: Scene, pid: Any, buffer: Any, length: Any) -> int:
    for gpu in scene.gpus:
        for process in gpu.processes:
            if process.pid == pid.value and process.name is not None:
                return _set_text(buffer, process.name)
    return int(pynvml.NVML_ERROR_NOT_FOUND)


def _name(gpu: SimulatedGpu, buffer: Any, length: Any) -> int:
    return _set_text(buffer, gpu.name)


def _uuid(gpu: SimulatedGpu, buffer: Any, length: Any) -> int:
    return _set_text(buffer, gpu.uuid)


def _memory(gpu: SimulatedGpu, reference: Any) -> int:
    memory = reference._obj
    memory.total = gpu.memory_total_bytes
    memory.used = gpu.memory_used_bytes
    memory.free = gpu.memory_total_bytes - gpu.memory_used_bytes
    return int(pynvml.NVML_SUCCESS)


def _utilization(gpu: SimulatedGpu, reference: Any) -> int:
    reference._obj.gpu = gpu.utilization_percent
    return int(pynvml.NVML_SUCCESS)


def _clock(gpu: SimulatedGpu, kind: Any, reference: Any) -> int:
    return _set(reference, gpu.memory_clock_mhz)


def _max_clock(gpu: SimulatedGpu, kind: Any, reference: Any) -> int:
    return _set(reference, gpu.max_memory_clock_mhz)


def _bus(gpu: SimulatedGpu, reference: Any) -> int:
    return _set(reference, gpu.memory_bus_bits)


def _power(gpu: SimulatedGpu, reference: Any) -> int:
    return _set(reference, gpu.power_milliwatts)


def _reasons(gpu: SimulatedGpu, reference: Any) -> int:
    return _set(reference, gpu.clock_reasons)


def _mig(gpu: SimulatedGpu, current: Any, pending: Any) -> int:
    _set(pending, int(gpu.mig))
    return _set(current, int(gpu.mig))


def _ecc(gpu: SimulatedGpu, current: Any, pending: Any) -> int:
    _set(pending, int(gpu.ecc))
    return _set(current, int(gpu.ecc))


def _listed(gpu: SimulatedGpu, kind: str, count: Any, array: Any) -> int:
    processes = [process for process in gpu.processes if process.kind == kind]
    room = count._obj.value
    count._obj.value = len(processes)
    if not processes:
        return int(pynvml.NVML_SUCCESS)
    if array is None or room < len(processes):
        return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    for slot, process in zip(array, processes, strict=False):
        slot.pid = process.pid
        slot.usedGpuMemory = (
            pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value
            if process.memory_bytes is None
            else process.memory_bytes
        )
    return int(pynvml.NVML_SUCCESS)


def _compute(gpu: SimulatedGpu, count: Any, array: Any) -> int:
    return _listed(gpu, "compute", count, array)


def _mps(gpu: SimulatedGpu, count: Any, array: Any) -> int:
    return _listed(gpu, "mps", count, array)


def _graphics(gpu: SimulatedGpu, count: Any, array: Any) -> int:
    return _listed(gpu, "graphics", count, array)


def _process_utilization(gpu: SimulatedGpu, array: Any, count: Any, since: Any) -> int:
    running = [process for process in gpu.processes if process.sm_percent is not None]
    room = count._obj.value
    count._obj.value = len(running)
    if not running:
        return int(pynvml.NVML_ERROR_NOT_FOUND)
    if array is None or room < len(running):
        return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    for slot, process in zip(array, running, strict=False):
        slot.pid = process.pid
        slot.timeStamp = time.time_ns() // 1000
        slot.smUtil = process.sm_percent
    return int(pynvml.NVML_SUCCESS)


def _gpm_support(gpu: SimulatedGpu, reference: Any) -> int:
    reference._obj.isSupportedDevice = int(gpu.dram_percent is not None)
    return int(pynvml.NVML_SUCCESS)


def _gpm_alloc(scene: Scene, reference: Any) -> int:
    return _set_pointer(reference, 1)


def _gpm_free(scene: Scene, sample: Any) -> int:
    return int(pynvml.NVML_SUCCESS)


def _gpm_sample(gpu: SimulatedGpu, sample: Any) -> int:
    # A sample remembers only which share was current: its pointer is that share, plus one.
    return _set_sample(sample, round((gpu.dram_percent or 0.0) * 1000) + 1)


def _set_sample(sample: Any, value: int) -> int:
    ctypes.c_void_p.from_buffer(sample).value = value
    return int(pynvml.NVML_SUCCESS)


def _gpm_metrics(scene: Scene, reference: Any) -> int:
    request = reference._obj
    newer = ctypes.cast(request.sample2, ctypes.c_void_p).value or 1
    for metric in request.metrics[: request.numMetrics]:
        known = metric.metricId == pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL
        metric.nvmlReturn = pynvml.NVML_SUCCESS if known else pynvml.NVML_ERROR_NOT_SUPPORTED
        metric.value = (newer - 1) / 1000
    return int(pynvml.NVML_SUCCESS)


# Functions whose first argument is a device handle.
_DEVICE_FUNCTIONS: dict[str, Any] = {
    "nvmlDeviceGetName": _name,
    "nvmlDeviceGetUUID": _uuid,
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetMemoryInfo_v2": _memory,
    "nvmlDeviceGetUtilizationRates": _utilization,
    "nvmlDeviceGetClockInfo": _clock,
    "nvmlDeviceGetMaxClockInfo": _max_clock,
    "nvmlDeviceGetMemoryBusWidth": _bus,
    "nvmlDeviceGetPowerUsage": _power,
    "nvmlDeviceGetCurrentClocksEventReasons": _reasons,
    "nvmlDeviceGetMigMode": _mig,
    "nvmlDeviceGetEccMode": _ecc,
    "nvmlDeviceGetComputeRunningProcesses_v3": _compute,
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": _mps,
    "nvmlDeviceGetGraphicsRunningProcesses_v3": _graphics,
    "nvmlDeviceGetProcessUtilization": _process_utilization,
    "nvmlGpmQueryDeviceSupport": _gpm_support,
    "nvmlGpmSampleGet": _gpm_sample,
}
_ANSWERS: dict[str, Any] = {
    **_DEVICE_FUNCTIONS,
    "nvmlInitWithFlags": _init,
    "nvmlShutdown": _shutdown,
    "nvmlDeviceGetCount_v2": _count,
    "nvmlDeviceGetHandleByIndex_v2": _handle,
    "nvmlSystemGetProcessName": _process_name,
    "nvmlGpmSampleAlloc": _gpm_alloc,
    "nvmlGpmSampleFree": _gpm_free,
    "nvmlGpmMetricsGet": _gpm_metrics,
}


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
    names = (*_DEVICE_FUNCTIONS, "nvmlDeviceGetHandleByIndex_v2")
    return _with_first(founding_scene(), errors=dict.fromkeys(names, code))


def no_process_utilization_scene() -> Scene:
    """The engine at work on a card whose driver does not tell who does the work."""
    return _with_first(
        founding_scene(),
        utilization_percent=92,
        clock_reasons=0,
        errors={"nvmlDeviceGetProcessUtilization": pynvml.NVML_ERROR_NOT_SUPPORTED},
    )
