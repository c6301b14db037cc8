"""The cards and processes that NVML shows here."""

from __future__ import annotations

from collections.abc import Iterator

import pynvml

from tokgauge.check.finding import Finding, State
from tokgauge.diagnosis import ceiling_inputs
from tokgauge.diagnosis.engine_gpus import GpusNow
from tokgauge.gpu.bandwidth import gpu_bandwidth
from tokgauge.gpu.contention import judge_snapshot
from tokgauge.gpu.nvml import NvmlReader, in_host_pid_namespace
from tokgauge.gpu.readings import GpuReading, Snapshot
from tokgauge.settings import Engine


def snapshot_now() -> Snapshot:
    """One look at the GPUs of this machine."""
    reader = NvmlReader()
    try:
        return reader.read()
    finally:
        reader.close()


def gpus_now(snapshot: Snapshot | None, engine: Engine) -> GpusNow:
    """The look, judged as the proxy judges it."""
    on_gpu = ceiling_inputs.engine_on_gpu(engine)
    return GpusNow(snapshot, () if snapshot is None else judge_snapshot(snapshot, on_gpu, None))


def gpu_findings(now: GpusNow, engine: Engine) -> Iterator[Finding]:
    """NVML, and card, processes and contention of each GPU; no snapshot: NVML is not to be used."""
    snapshot = now.snapshot
    lacks = "contention stays unknown"
    if engine.gpu is None and engine.gpu_bandwidth is None:
        lacks = "an engine on another machine needs the setting gpu or gpu_bandwidth"
    if snapshot is None:
        yield Finding("gpu", "NVML", "ok", "switched off by nvml = false", "settings")
        return
    if not snapshot.up or not snapshot.gpus:
        reason = snapshot.problem or "no GPU"
        yield Finding("gpu", "NVML", "warning", f"no GPU to see here ({reason}): {lacks}")
        return
    count = len(snapshot.gpus)
    driver = _driver_version()
    yield Finding(
        "gpu",
        "NVML",
        "ok",
        f"{count} GPU{'s' if count > 1 else ''}, driver {driver or 'version not told'}",
        "NVML",
        {"driver": driver, "gpus": count},
    )
    contention = {found.gpu: found for found in now.contentions}
    for gpu in snapshot.gpus:
        yield _card_finding(gpu, engine)
        yield _processes_finding(gpu)
        found = contention.get(gpu.index)
        if found is not None:
            state: State = "warning" if found.state == "unknown" else "ok"
            yield Finding(
                "gpu",
                f"GPU {gpu.index} contention",
                state,
                f"{found.state.replace('_', ' ')}: {found.evidence}",
                "NVML",
                found.state,
            )
    if not in_host_pid_namespace():
        yield Finding(
            "gpu",
            "process names",
            "warning",
            "this is not the host's pid namespace, so processes have no names: start the container "
            "with --pid=host, or set engine_pids",
        )


def _driver_version() -> str | None:
    try:
        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError, UnicodeError):
        return None


def _card_finding(gpu: GpuReading, engine: Engine) -> Finding:
    total, used = gpu.memory_total_bytes, gpu.memory_used_bytes
    memory = "memory not told" if total is None else f"{total / 2**30:.1f} GiB"
    if total is not None and used is not None:
        memory += f", {used / 2**30:.1f} in use"
    found = gpu_bandwidth(
        gpu,
        settings_value=engine.gpu_bandwidth,
        measured_value=engine.gpu_measured_bandwidth,
    )
    known = found.bytes_per_second is not None
    speed = f"{(found.bytes_per_second or 0) / 1e9:.0f} GB/s" if known else found.explanation
    text = f"{gpu.name or 'name not told'}, {memory}, {speed}"
    if gpu.lost:
        text = "the driver has lost this GPU"
    if found.warning is not None:
        text += f" ({found.warning})"
    return Finding(
        "gpu",
        f"GPU {gpu.index}",
        "ok" if known and found.warning is None and not gpu.lost else "warning",
        text,
        found.explanation if known else None,
        {
            "name": gpu.name,
            "uuid": gpu.uuid,
            "memory_total_bytes": total,
            "memory_used_bytes": used,
            "bandwidth_bytes_per_second": found.bytes_per_second,
            "bandwidth_source": found.source,
        },
    )


def _processes_finding(gpu: GpuReading) -> Finding:
    processes = gpu.processes
    if processes is None:
        text = "NVML cannot list them"
    elif not processes:
        text = "none listed"
    else:
        unnamed = sum(process.name is None for process in processes)
        text = f"{len(processes)} visible"
        if unnamed:
            text += f", {unnamed} without a name"
    return Finding(
        "gpu",
        f"GPU {gpu.index} processes",
        "warning" if processes is None else "ok",
        text,
        "NVML",
        None if processes is None else len(processes),
    )
