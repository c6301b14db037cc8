"""Reads the GPUs through NVML (module `pynvml` of nvidia-ml-py), whatever goes wrong in it.

Calls pass through the choke point in nvml_calls.py, which turns every error into "absent". Errors
that end an NVML session (driver unloaded or upgraded) close it; it is opened again with a growing
pause. A lost card does the same but leaves the others readable. The library itself stays loaded:
after an upgrade of the driver NVML may refuse this process until it is restarted
(`lib_rm_version_mismatch`), and stays down till then.

NVML calls may block for seconds when a driver hangs: read from a thread of its own (sampler.py).

Source of names, error codes and behaviour: NVML API reference, docs.nvidia.com/deploy/nvml-api.
"""

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType

import pynvml

from tokgauge.gpu.dram_bandwidth import DramBandwidth
from tokgauge.gpu.nvml_calls import DeviceLostError, Function, NvmlCalls, SessionEndedError, named
from tokgauge.gpu.readings import (
    THROTTLE_REASONS,
    GpuProcess,
    GpuReading,
    ProcessKind,
    Snapshot,
    ratio_of,
)

__all__ = ["NvmlReader", "in_host_pid_namespace"]

_log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
# How far back process utilisation is asked for, at least: NVML refreshes its samples about once
# a second, and a younger question would find none and read as "idle".
_SHORTEST_WINDOW_SECONDS = 1.0
# Inode of the initial pid namespace (PROC_PID_INIT_INO in Linux's proc_ns.h).
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"

# pynvml's own returns None, which here means that it failed.
_INIT = (("nvmlInit", lambda: pynvml.nvmlInit() or True),)
# Newest version first. Version 2 leaves the driver's own reserve out of `used`.
_MEMORY = (
    (
        "nvmlDeviceGetMemoryInfo_v2",
        lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2),
    ),
    *named("nvmlDeviceGetMemoryInfo"),
)
_CLOCK_REASONS = named(
    "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
)
_PROCESS_UTILIZATION = named("nvmlDeviceGetProcessUtilization")
_PROCESSES: dict[ProcessKind, tuple[Function, ...]] = {
    "compute": named(
        "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"
    ),
    "mps": named(
        "nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v2"
    ),
    "graphics": named(
        "nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"
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
        self._pause = _FIRST_PAUSE_SECONDS
        self._retry_at = -math.inf
        self._last_read_at: float | None = None
        self._gpm: dict[int, DramBandwidth] = {}
        self._calls = NvmlCalls()

    def open(self) -> bool:
        """Open the session; False when NVML cannot be used now (then wait for the next `read`)."""
        if self._is_open:
            return True
        self._calls.look_again()
        try:
            opened = self._calls.ask_newest(_INIT)
        except (SessionEndedError, DeviceLostError):
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
        except (SessionEndedError, DeviceLostError):
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
            with contextlib.suppress(SessionEndedError, DeviceLostError):
                measure.free(self._calls)
        self._gpm.clear()
        with contextlib.suppress(SessionEndedError, DeviceLostError):
            self._calls.ask("nvmlShutdown")

    def _snapshot(self, at: float, *, up: bool, gpus: tuple[GpuReading, ...] = ()) -> Snapshot:
        return Snapshot(
            at=at,
            up=up,
            gpus=gpus,
            problem=self._problem,
            errors=MappingProxyType(dict(self._calls.errors)),
        )

    def _postpone(self) -> None:
        self._problem = self._calls.last_kind
        self._retry_at = self._clock() + self._pause
        self._pause = min(self._pause * 2, _LONGEST_PAUSE_SECONDS)

    def _read_gpus(self, at: float) -> tuple[GpuReading, ...]:
        count = self._calls.ask("nvmlDeviceGetCount")
        if count is None:
            raise SessionEndedError
        gpus = []
        for index in range(count):
            try:
                gpus.append(self._read_gpu(index, at))
            except DeviceLostError:
                self._gpm.pop(index, None)
                gpus.append(GpuReading(index=index, lost=True))
        return tuple(gpus)

    def _read_gpu(self, index: int, at: float) -> GpuReading:
        gpu = self._calls.ask("nvmlDeviceGetHandleByIndex", index)
        if gpu is None:
            return GpuReading(index=index)
        memory = self._calls.ask_newest(_MEMORY, gpu)
        utilization = self._calls.ask("nvmlDeviceGetUtilizationRates", gpu)
        milliwatts = self._calls.ask("nvmlDeviceGetPowerUsage", gpu)
        reasons = self._calls.ask_newest(_CLOCK_REASONS, gpu)
        mig_modes = self._calls.ask("nvmlDeviceGetMigMode", gpu)
        ecc_modes = self._calls.ask("nvmlDeviceGetEccMode", gpu)
        mig = None if mig_modes is None else mig_modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE
        return GpuReading(
            index=index,
            uuid=self._calls.ask("nvmlDeviceGetUUID", gpu),
            name=self._calls.ask("nvmlDeviceGetName", gpu),
            # 0 is how some drivers say "not told" (GB10 gives a bus width of 0).
            memory_total_bytes=None if memory is None else int(memory.total) or None,
            memory_used_bytes=None if memory is None else int(memory.used),
            utilization_ratio=ratio_of(None if utilization is None else utilization.gpu),
            memory_clock_mhz=self._calls.ask("nvmlDeviceGetClockInfo", gpu, pynvml.NVML_CLOCK_MEM)
            or None,
            max_memory_clock_mhz=self._calls.ask(
                "nvmlDeviceGetMaxClockInfo", gpu, pynvml.NVML_CLOCK_MEM
            )
            or None,
            memory_bus_bits=self._calls.ask("nvmlDeviceGetMemoryBusWidth", gpu) or None,
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
            listed = self._calls.ask_newest(functions, gpu)
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
        name: str | None = self._calls.ask("nvmlSystemGetProcessName", pid)
        return name or None

    def _read_sm_ratios(self, gpu: object, at: float) -> dict[int, float | None] | None:
        """SM use by pid, the mean of the samples since the last look; None when NVML cannot say.

        Older drivers sometimes report shares above 100: such a process gets None.
        """
        elapsed = 0.0 if self._last_read_at is None else at - self._last_read_at
        window = min(max(elapsed, _SHORTEST_WINDOW_SECONDS), 10.0)
        # NVML stamps its samples with the wall clock, in microseconds.
        since = int((time.time() - window) * 1e6)
        samples = self._calls.ask_newest(_PROCESS_UTILIZATION, gpu, since, no_samples=())
        if samples is None:
            return None
        shares: dict[int, list[float | None]] = {}
        for sample in samples:
            shares.setdefault(int(sample.pid), []).append(ratio_of(sample.smUtil))
        ratios: dict[int, float | None] = {}
        for pid, values in shares.items():
            known = [value for value in values if value is not None]
            ratios[pid] = sum(known) / len(known) if known else None
        return ratios

    def _read_dram_bandwidth(self, index: int, gpu: object, at: float) -> float | None:
        if index not in self._gpm:
            support = self._calls.ask("nvmlGpmQueryDeviceSupport", gpu)
            if support is None or not support.isSupportedDevice:
                return None
            self._gpm[index] = DramBandwidth()
        return self._gpm[index].read(self._calls, gpu, at)


def _reason_names(bits: int) -> frozenset[str]:
    return frozenset(name for bit, name in THROTTLE_REASONS.items() if bits & bit)
