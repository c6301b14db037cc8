"""Reads the GPUs through NVML (module `pynvml` of nvidia-ml-py), whatever goes wrong in it.

All calls pass through one choke point, `NvmlReader._ask`, which turns every error into "absent" and
counts it by kind. Errors that end an NVML session (driver unloaded or upgraded) close it; it is
opened again with a growing pause. A lost card does the same but leaves the others readable.
The library itself stays loaded: after an upgrade of the driver NVML may refuse this process until
it is restarted (`lib_rm_version_mismatch`), and stays down till then.

NVML calls may block for seconds when a driver hangs: read from a thread of its own (sampler.py).

Source of names, error codes and behaviour: NVML API reference, docs.nvidia.com/deploy/nvml-api.
"""

import contextlib
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pynvml

from tokgauge.gpu.readings import THROTTLE_REASONS, GpuProcess, GpuReading, ProcessKind, Snapshot

__all__ = ["NvmlReader", "in_host_pid_namespace"]

_log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
# How far back process utilisation is asked for, at least: NVML refreshes its samples about once
# a second, and a younger question would find none and read as "idle".
_SHORTEST_WINDOW_SECONDS = 1.0
# NVML wants the two samples of a GPM metric to be at least this far apart.
_GPM_SHORTEST_GAP_SECONDS = 0.1
# Inode of the initial pid namespace (PROC_PID_INIT_INO in Linux's proc_ns.h).
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"

_ERROR_KINDS: dict[int, str] = {
    value: name.removeprefix("NVML_ERROR_").lower()
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(value, int)
}
_SESSION_ENDED = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
_DEVICE_LOST = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})
_ASK_AN_OLDER_FUNCTION = frozenset(
    {
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
    }
)
# pynvml raises NVMLError(0) when process utilisation succeeds at once, with nothing to report.
_NO_SAMPLES = frozenset({pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS})

# The C function's name (for the log) and a call of it, newest version first. The lambdas look the
# function up when called, because an older pynvml may lack it: that is an AttributeError.
_Function = tuple[str, Callable[..., Any]]
_MEMORY: tuple[_Function, ...] = (
    # Version 2 leaves the driver's own reserve out of `used`.
    (
        "nvmlDeviceGetMemoryInfo_v2",
        lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2),
    ),
    ("nvmlDeviceGetMemoryInfo", lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu)),
)
_CLOCK_REASONS: tuple[_Function, ...] = (
    (
        "nvmlDeviceGetCurrentClocksEventReasons",
        lambda gpu: pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu),
    ),
    (
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        lambda gpu: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu),
    ),
)
_PROCESSES: dict[ProcessKind, tuple[_Function, ...]] = {
    "compute": (
        (
            "nvmlDeviceGetComputeRunningProcesses_v3",
            lambda gpu: pynvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu),
        ),
        (
            "nvmlDeviceGetComputeRunningProcesses_v2",
            lambda gpu: pynvml.nvmlDeviceGetComputeRunningProcesses_v2(gpu),
        ),
    ),
    "mps": (
        (
            "nvmlDeviceGetMPSComputeRunningProcesses_v3",
            lambda gpu: pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3(gpu),
        ),
        (
            "nvmlDeviceGetMPSComputeRunningProcesses_v2",
            lambda gpu: pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v2(gpu),
        ),
    ),
    "graphics": (
        (
            "nvmlDeviceGetGraphicsRunningProcesses_v3",
            lambda gpu: pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3(gpu),
        ),
        (
            "nvmlDeviceGetGraphicsRunningProcesses_v2",
            lambda gpu: pynvml.nvmlDeviceGetGraphicsRunningProcesses_v2(gpu),
        ),
    ),
}


def in_host_pid_namespace() -> bool:
    """True when this process sees pids as the host does, so that NVML's pids mean something here.

    Elsewhere (a container without `--pid=host`) the pid that NVML reports may belong to nobody or,
    worse, to some other process.
    """
    try:
        return os.readlink("/proc/self/ns/pid") == _INITIAL_PID_NAMESPACE
    except OSError:
        return False


class _SessionEndedError(Exception):
    """NVML as a whole can no longer be used; the session has to be opened again."""


class _DeviceLostError(Exception):
    """One GPU has gone; its handle is void."""


class NvmlReader:
    """One NVML session. `read` never raises; it opens the session itself when it is not open.

    `process_names` says whether names of processes may be asked for by pid; None (the default)
    means: only in the host's pid namespace. `clock` is a monotonic clock in seconds. Not
    thread-safe: one thread reads and closes.
    """

    def __init__(
        self,
        *,
        process_names: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._process_names = in_host_pid_namespace() if process_names is None else process_names
        self._clock = clock
        self._is_open = False
        self._gpu_lost = False
        self._problem: str | None = None
        self._last_kind: str | None = None
        self._pause = _FIRST_PAUSE_SECONDS
        self._retry_at = -math.inf
        self._last_read_at: float | None = None
        self._gpm: dict[int, _DramBandwidth] = {}
        self._errors: Counter[str] = Counter()
        self._missing: set[str] = set()
        self._logged: set[str] = set()

    def open(self) -> bool:
        """Open the session; False when NVML cannot be used now (then wait for the next `read`)."""
        if self._is_open:
            return True
        # A driver may have been upgraded meanwhile.
        self._missing.clear()
        try:
            opened = self._ask((("nvmlInit", lambda: pynvml.nvmlInit() or True),))
        except (_SessionEndedError, _DeviceLostError):
            opened = None
        if opened is None:
            self._postpone()
            return False
        if self._problem is not None:
            _log.info("NVML opened again after: %s", self._problem)
        self._is_open = True
        self._last_read_at = None
        return True

    def read(self) -> Snapshot:
        """Look at all GPUs. While NVML cannot be used: `up` False, and no GPUs."""
        at = self._clock()
        if self._gpu_lost and at >= self._retry_at:
            self.close()
        if not self._is_open and (at < self._retry_at or not self.open()):
            return self._snapshot(at, up=False)
        try:
            gpus = self._read_gpus(at)
        except (_SessionEndedError, _DeviceLostError):
            self.close()
            self._postpone()
            return self._snapshot(at, up=False)
        self._last_read_at = at
        lost = any(gpu.lost for gpu in gpus)
        if lost and not self._gpu_lost:
            self._postpone()
        elif not lost:
            self._pause = _FIRST_PAUSE_SECONDS
            self._problem = None
        self._gpu_lost = lost
        return self._snapshot(at, up=True, gpus=gpus)

    def close(self) -> None:
        """End the session. Harmless when none is open."""
        if not self._is_open:
            return
        self._is_open = False
        self._gpu_lost = False
        for measure in self._gpm.values():
            with contextlib.suppress(_SessionEndedError, _DeviceLostError):
                measure.free(self._ask)
        self._gpm.clear()
        with contextlib.suppress(_SessionEndedError, _DeviceLostError):
            self._ask((("nvmlShutdown", lambda: pynvml.nvmlShutdown()),))

    def _snapshot(self, at: float, *, up: bool, gpus: tuple[GpuReading, ...] = ()) -> Snapshot:
        return Snapshot(
            at=at,
            up=up,
            gpus=gpus,
            problem=self._problem,
            errors=MappingProxyType(dict(self._errors)),
        )

    def _postpone(self) -> None:
        self._problem = self._last_kind
        self._retry_at = self._clock() + self._pause
        self._pause = min(self._pause * 2, _LONGEST_PAUSE_SECONDS)

    def _ask(self, functions: Sequence[_Function], *args: object, no_samples: object = None) -> Any:
        """The choke point: the answer of the newest function that exists, or None.

        `no_samples` is the answer to give for NOT_FOUND. Raises only _SessionEndedError and
        _DeviceLostError.
        """
        for name, call in functions:
            if name in self._missing:
                continue
            try:
                return call(*args)
            except pynvml.NVMLError as error:
                code = int(error.value)
                if no_samples is not None and code in _NO_SAMPLES:
                    return no_samples
                kind = _ERROR_KINDS.get(code, "unknown")
                self._count(name, kind)
                if code in _SESSION_ENDED:
                    raise _SessionEndedError from error
                if code in _DEVICE_LOST:
                    raise _DeviceLostError from error
                if code not in _ASK_AN_OLDER_FUNCTION:
                    return None
                self._missing.add(name)
            except (pynvml.NVMLLibraryMismatchError, AttributeError):
                self._count(name, "function_not_found")
                self._missing.add(name)
            except UnicodeError:
                self._count(name, "unicode")
                return None
            except Exception:
                # The border of this module: bindings have raised TypeError, OSError and
                # ctypes.ArgumentError when library and struct versions differ.
                self._count(name, "binding")
                return None
        return None

    def _count(self, function: str, kind: str) -> None:
        self._errors[kind] += 1
        if kind in {"function_not_found", "binding"}:
            # An unknown function is one that NVML has in another driver or pynvml version.
            if function not in self._logged:
                self._logged.add(function)
                _log.info("NVML function %s cannot be used here (%s)", function, kind)
        elif kind not in {"not_supported", "not_found", "unicode"}:
            self._last_kind = kind
            if kind not in self._logged:
                self._logged.add(kind)
                _log.warning("NVML: %s failed: %s", function, kind)

    def _read_gpus(self, at: float) -> tuple[GpuReading, ...]:
        count = self._value("nvmlDeviceGetCount")
        if count is None:
            raise _SessionEndedError
        gpus = []
        for index in range(count):
            try:
                gpus.append(self._read_gpu(index, at))
            except _DeviceLostError:
                self._gpm.pop(index, None)
                gpus.append(GpuReading(index=index, lost=True))
        return tuple(gpus)

    def _value(self, name: str, *args: object) -> Any:
        """The answer of the pynvml function `name`, or None."""
        return self._ask(((name, lambda *given: getattr(pynvml, name)(*given)),), *args)

    def _read_gpu(self, index: int, at: float) -> GpuReading:
        gpu = self._value("nvmlDeviceGetHandleByIndex", index)
        if gpu is None:
            return GpuReading(index=index)
        memory = self._ask(_MEMORY, gpu)
        utilization = self._value("nvmlDeviceGetUtilizationRates", gpu)
        milliwatts = self._value("nvmlDeviceGetPowerUsage", gpu)
        reasons = self._ask(_CLOCK_REASONS, gpu)
        mig_modes = self._value("nvmlDeviceGetMigMode", gpu)
        ecc_modes = self._value("nvmlDeviceGetEccMode", gpu)
        mig = None if mig_modes is None else mig_modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE
        return GpuReading(
            index=index,
            uuid=self._value("nvmlDeviceGetUUID", gpu),
            name=self._value("nvmlDeviceGetName", gpu),
            # 0 is how some drivers say "not told" (GB10 gives a bus width of 0).
            memory_total_bytes=None if memory is None else int(memory.total) or None,
            memory_used_bytes=None if memory is None else int(memory.used),
            utilization_ratio=_ratio(None if utilization is None else utilization.gpu),
            memory_clock_mhz=self._value("nvmlDeviceGetClockInfo", gpu, pynvml.NVML_CLOCK_MEM)
            or None,
            max_memory_clock_mhz=self._value(
                "nvmlDeviceGetMaxClockInfo", gpu, pynvml.NVML_CLOCK_MEM
            )
            or None,
            memory_bus_bits=self._value("nvmlDeviceGetMemoryBusWidth", gpu) or None,
            power_watts=None if milliwatts is None else milliwatts / 1000,
            throttle_reasons=None if reasons is None else _reason_names(reasons),
            processes=self._read_processes(gpu, at),
            mig=mig,
            ecc=None if ecc_modes is None else ecc_modes[0] == pynvml.NVML_FEATURE_ENABLED,
            dram_bandwidth_ratio=None if mig else self._read_dram_bandwidth(index, gpu, at),
        )

    def _read_processes(self, gpu: object, at: float) -> tuple[GpuProcess, ...] | None:
        """Processes in NVML's order, each pid once (compute before MPS before graphics).

        None when the compute processes, which are the ones that matter, cannot be listed.
        """
        found: dict[int, GpuProcess] = {}
        for kind, functions in _PROCESSES.items():
            listed = self._ask(functions, gpu)
            if listed is None:
                if kind == "compute":
                    return None
                continue
            for process in listed:
                pid = int(process.pid)
                if pid not in found:
                    memory = process.usedGpuMemory
                    found[pid] = GpuProcess(
                        pid=pid,
                        name=self._name_of(pid),
                        used_memory_bytes=None if memory is None else int(memory),
                        kind=kind,
                    )
        if not found:
            return ()
        sm_ratios = self._read_sm_ratios(gpu, at)
        if sm_ratios is not None:
            # No sample means that the process did not run since the last look.
            for pid, process in found.items():
                found[pid] = replace(process, sm_ratio=sm_ratios.get(pid, 0.0))
        return tuple(found.values())

    def _name_of(self, pid: int) -> str | None:
        if not self._process_names:
            return None
        name: str | None = self._value("nvmlSystemGetProcessName", pid)
        return name or None

    def _read_sm_ratios(self, gpu: object, at: float) -> dict[int, float | None] | None:
        """SM use by pid, the mean of the samples since the last look; None when NVML cannot say.

        Older drivers sometimes report shares above 100: such a process gets None.
        """
        elapsed = 0.0 if self._last_read_at is None else at - self._last_read_at
        window = min(max(elapsed, _SHORTEST_WINDOW_SECONDS), 10.0)
        # NVML stamps its samples with the wall clock, in microseconds.
        since = int((time.time() - window) * 1e6)
        samples = self._ask(
            (
                (
                    "nvmlDeviceGetProcessUtilization",
                    lambda *given: pynvml.nvmlDeviceGetProcessUtilization(*given),
                ),
            ),
            gpu,
            since,
            no_samples=(),
        )
        if samples is None:
            return None
        shares: dict[int, list[float | None]] = {}
        for sample in samples:
            shares.setdefault(int(sample.pid), []).append(_ratio(sample.smUtil))
        ratios: dict[int, float | None] = {}
        for pid, values in shares.items():
            known = [value for value in values if value is not None]
            ratios[pid] = sum(known) / len(known) if known else None
        return ratios

    def _read_dram_bandwidth(self, index: int, gpu: object, at: float) -> float | None:
        if index not in self._gpm:
            support = self._value("nvmlGpmQueryDeviceSupport", gpu)
            if support is None or not support.isSupportedDevice:
                return None
            self._gpm[index] = _DramBandwidth()
        return self._gpm[index].read(self._ask, gpu, at)


class _DramBandwidth:
    """GPM metric 10 of one GPU: the share of DRAM bandwidth used between two samples."""

    def __init__(self) -> None:
        self._older: Any = None
        self._older_at = -math.inf
        self._request: Any = None

    def read(self, ask: Callable[..., Any], gpu: object, at: float) -> float | None:
        """The share (0 to 1) since the previous call; None on the first call or when too soon."""
        if self._older is not None and at - self._older_at < _GPM_SHORTEST_GAP_SECONDS:
            return None
        newer = ask((("nvmlGpmSampleAlloc", lambda: pynvml.nvmlGpmSampleAlloc()),))
        if newer is None:
            return None
        taken = ask(
            (("nvmlGpmSampleGet", lambda: pynvml.nvmlGpmSampleGet(gpu, newer)),),
        )
        older = self._older
        if taken is None:
            _free_sample(ask, newer)
            return None
        self._older, self._older_at = newer, at
        if older is None:
            return None
        value = self._compare(ask, older, newer)
        _free_sample(ask, older)
        return value

    def _compare(self, ask: Callable[..., Any], older: object, newer: object) -> float | None:
        if self._request is None:
            self._request = pynvml.c_nvmlGpmMetricsGet_t()
        request = self._request
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = 1
        request.sample1, request.sample2 = older, newer
        metric = request.metrics[0]
        metric.metricId = pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL
        answer = ask((("nvmlGpmMetricsGet", lambda: pynvml.nvmlGpmMetricsGet(request)),))
        if answer is None or metric.nvmlReturn != pynvml.NVML_SUCCESS:
            return None
        return _ratio(metric.value)

    def free(self, ask: Callable[..., Any]) -> None:
        """Give the kept sample back to NVML."""
        if self._older is not None:
            older, self._older = self._older, None
            _free_sample(ask, older)


def _free_sample(ask: Callable[..., Any], sample: object) -> None:
    ask((("nvmlGpmSampleFree", lambda: pynvml.nvmlGpmSampleFree(sample)),))


def _ratio(percent: float | None) -> float | None:
    if percent is None or not 0 <= percent <= 100:
        return None
    return percent / 100


def _reason_names(bits: int) -> frozenset[str]:
    return frozenset(name for bit, name in THROTTLE_REASONS.items() if bits & bit)
