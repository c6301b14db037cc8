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
from functools import partial
from typing import Any

import pynvml

from tokgauge.simulator.gpu import Scene, SimulatedGpu

__all__ = ["DEVICE_FUNCTIONS", "SimulatedNvml"]


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
            if name in DEVICE_FUNCTIONS:
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


def _nothing(scene: Scene, *args: Any) -> int:
    return int(pynvml.NVML_SUCCESS)


def _number(field: str) -> Any:
    """A function that stores a figure of the card; some take what they are asked for before."""
    return lambda gpu, *args: _set(args[-1], getattr(gpu, field))


def _text(field: str) -> Any:
    return lambda gpu, buffer, length: _set_text(buffer, getattr(gpu, field))


def _switch(field: str) -> Any:
    """A function that stores what is on now, and what will be after a restart."""

    def store(gpu: SimulatedGpu, current: Any, pending: Any) -> int:
        _set(pending, int(getattr(gpu, field)))
        return _set(current, int(getattr(gpu, field)))

    return store


def _utilization(gpu: SimulatedGpu, reference: Any) -> int:
    reference._obj.gpu = gpu.utilization_percent
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


def _memory(gpu: SimulatedGpu, reference: Any) -> int:
    memory = reference._obj
    memory.total = gpu.memory_total_bytes
    memory.used = gpu.memory_used_bytes
    memory.free = gpu.memory_total_bytes - gpu.memory_used_bytes
    return int(pynvml.NVML_SUCCESS)


def _listed(kind: str, gpu: SimulatedGpu, count: Any, array: Any) -> int:
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
DEVICE_FUNCTIONS: dict[str, Any] = {
    "nvmlDeviceGetName": _text("name"),
    "nvmlDeviceGetUUID": _text("uuid"),
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetMemoryInfo_v2": _memory,
    "nvmlDeviceGetUtilizationRates": _utilization,
    "nvmlDeviceGetClockInfo": _number("memory_clock_mhz"),
    "nvmlDeviceGetMaxClockInfo": _number("max_memory_clock_mhz"),
    "nvmlDeviceGetMemoryBusWidth": _number("memory_bus_bits"),
    "nvmlDeviceGetPowerUsage": _number("power_milliwatts"),
    "nvmlDeviceGetCurrentClocksEventReasons": _number("clock_reasons"),
    "nvmlDeviceGetMigMode": _switch("mig"),
    "nvmlDeviceGetEccMode": _switch("ecc"),
    "nvmlDeviceGetComputeRunningProcesses_v3": partial(_listed, "compute"),
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": partial(_listed, "mps"),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": partial(_listed, "graphics"),
    "nvmlDeviceGetProcessUtilization": _process_utilization,
    "nvmlGpmQueryDeviceSupport": _gpm_support,
    "nvmlGpmSampleGet": _gpm_sample,
}
_ANSWERS: dict[str, Any] = {
    **DEVICE_FUNCTIONS,
    "nvmlInitWithFlags": _nothing,
    "nvmlShutdown": _nothing,
    "nvmlDeviceGetCount_v2": _count,
    "nvmlDeviceGetHandleByIndex_v2": _handle,
    "nvmlSystemGetProcessName": _process_name,
    "nvmlGpmSampleAlloc": _gpm_alloc,
    "nvmlGpmSampleFree": _nothing,
    "nvmlGpmMetricsGet": _gpm_metrics,
}
