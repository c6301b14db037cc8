"""The GPU figures that are published, one pure function each, named as the metric is.

A function yields samples: the values of the labels that its docstring names, in that order, and
the figure. The label `gpu` is NVML's index. What is not known yields no sample. Pass snapshots
through `fresh` first, so that a hanging driver does not leave old figures standing.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import get_args

from tokgauge.gpu.bandwidth import gpu_bandwidth
from tokgauge.gpu.contention import Activity, Contention, State
from tokgauge.gpu.readings import THROTTLE_REASONS, GpuReading, Snapshot, whole_sum

__all__ = [
    "STALE_AFTER_SECONDS",
    "Sample",
    "fresh",
    "gpu_contention",
    "gpu_dram_bandwidth_ratio",
    "gpu_info",
    "gpu_memory_bandwidth_bytes_per_second",
    "gpu_memory_total_bytes",
    "gpu_memory_used_bytes",
    "gpu_neighbour_memory_bytes",
    "gpu_neighbour_processes",
    "gpu_neighbour_sm_ratio",
    "gpu_power_watts",
    "gpu_throttle",
    "gpu_utilization_ratio",
    "nvml_errors_total",
    "nvml_up",
]

Sample = tuple[tuple[str, ...], float]

STALE_AFTER_SECONDS = 5.0


def fresh(
    snapshot: Snapshot | None, now: float, limit_seconds: float = STALE_AFTER_SECONDS
) -> Snapshot | None:
    """The snapshot, or None when there is none or it is older than the limit (monotonic times)."""
    if snapshot is None or snapshot.age(now) > limit_seconds:
        return None
    return snapshot


def nvml_up(snapshot: Snapshot | None) -> Iterator[Sample]:
    """No labels. 1 while NVML answers, 0 while it does not."""
    yield (), float(snapshot is not None and snapshot.up)


def nvml_errors_total(snapshot: Snapshot | None) -> Iterator[Sample]:
    """Labels: kind. Failed NVML calls since the start, expected ones (`not_supported`) included."""
    if snapshot is not None:
        for kind, count in sorted(snapshot.errors.items()):
            yield (kind,), float(count)


def gpu_info(snapshot: Snapshot | None) -> Iterator[Sample]:
    """Labels: gpu, uuid, name. Always 1; an unknown name or uuid is empty."""
    for gpu in _gpus(snapshot):
        if gpu.uuid is not None or gpu.name is not None:
            yield (str(gpu.index), gpu.uuid or "", gpu.name or ""), 1.0


def gpu_utilization_ratio(snapshot: Snapshot | None) -> Iterator[Sample]:
    """Labels: gpu. Share of time in which at least one kernel ran."""
    return _per_gpu((gpu.index, gpu.utilization_ratio) for gpu in _gpus(snapshot))


def gpu_memory_used_bytes(snapshot: Snapshot | None) -> Iterator[Sample]:
    """Labels: gpu."""
    return _per_gpu((gpu.index, gpu.memory_used_bytes) for gpu in _gpus(snapshot))


def gpu_memory_total_bytes(snapshot: Snapshot | None) -> Iterator[Sample]:
    """Labels: gpu."""
    return _per_gpu((gpu.index, gpu.memory_total_bytes) for gpu in _gpus(snapshot))


def gpu_power_watts(snapshot: Snapshot | None) -> Iterator[Sample]:
    """Labels: gpu."""
    return _per_gpu((gpu.index, gpu.power_watts) for gpu in _gpus(snapshot))


def gpu_dram_bandwidth_ratio(snapshot: Snapshot | None) -> Iterator[Sample]:
    """Labels: gpu. NVML's own measurement of the share of DRAM bandwidth used (Hopper or later)."""
    return _per_gpu((gpu.index, gpu.dram_bandwidth_ratio) for gpu in _gpus(snapshot))


def gpu_throttle(snapshot: Snapshot | None) -> Iterator[Sample]:
    """Labels: gpu, reason. 1 while the reason holds clocks down, else 0."""
    for gpu in _gpus(snapshot):
        if gpu.throttle_reasons is not None:
            for reason in THROTTLE_REASONS.values():
                yield (str(gpu.index), reason), float(reason in gpu.throttle_reasons)


def gpu_memory_bandwidth_bytes_per_second(
    snapshot: Snapshot | None,
    *,
    settings_value: float | None = None,
    measured_value: float | None = None,
) -> Iterator[Sample]:
    """Labels: gpu, source. The theoretical bandwidth of each GPU."""
    for gpu in _gpus(snapshot):
        bandwidth = gpu_bandwidth(gpu, settings_value=settings_value, measured_value=measured_value)
        if bandwidth.bytes_per_second is not None and bandwidth.source is not None:
            yield (str(gpu.index), bandwidth.source), bandwidth.bytes_per_second


def gpu_contention(contentions: Sequence[Contention]) -> Iterator[Sample]:
    """Labels: gpu, state. 1 for the state that holds, 0 for the others."""
    for contention in contentions:
        for state in get_args(State):
            yield (str(contention.gpu), state), float(contention.state == state)


def gpu_neighbour_processes(contentions: Sequence[Contention]) -> Iterator[Sample]:
    """Labels: gpu, activity. Processes beside the engine; absent while it cannot be told apart."""
    for contention in _told_apart(contentions):
        for activity in get_args(Activity):
            count = sum(item.activity == activity for item in contention.neighbours)
            yield (str(contention.gpu), activity), float(count)


def gpu_neighbour_memory_bytes(contentions: Sequence[Contention]) -> Iterator[Sample]:
    """Labels: gpu. Memory that neighbours hold; absent when NVML hides that of any."""
    for contention in _told_apart(contentions):
        held = whole_sum(item.memory_bytes for item in contention.neighbours)
        if held is not None:
            yield (str(contention.gpu),), float(held)


def gpu_neighbour_sm_ratio(contentions: Sequence[Contention]) -> Iterator[Sample]:
    """Labels: gpu. Sum of the neighbours' SM time; absent when NVML hides that of any."""
    for contention in _told_apart(contentions):
        shares = whole_sum(item.sm_ratio for item in contention.neighbours)
        if shares is not None:
            yield (str(contention.gpu),), shares


def _gpus(snapshot: Snapshot | None) -> tuple[GpuReading, ...]:
    return () if snapshot is None else snapshot.gpus


def _told_apart(contentions: Sequence[Contention]) -> Iterator[Contention]:
    return (item for item in contentions if item.neighbours_known)


def _per_gpu(values: Iterable[tuple[int, float | None]]) -> Iterator[Sample]:
    return (((str(index),), float(value)) for index, value in values if value is not None)
