"""The GPUs of this machine while the experiment runs, for a server that runs here too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from tokgauge.gpu.contention import Contention, EngineOnGpu, State, judge_snapshot, worst
from tokgauge.gpu.nvml import NvmlReader
from tokgauge.gpu.readings import GpuReading, Snapshot
from tokgauge.gpu.sampler import GpuSampler

__all__ = ["GpuWatch", "GpusSeen"]

_KEPT = 600


@dataclass(frozen=True, slots=True)
class GpusSeen:
    """What was seen: `last` is the reading during the last stream, None when it was too short."""

    gpus: tuple[GpuReading, ...]
    contention: State
    judged: tuple[Contention, ...]
    last: GpuReading | None
    """Of the engine's GPU (the busiest of several)."""


class GpuWatch:
    """Samples once a second in a thread of its own. Use it in a `with` statement."""

    def __init__(self) -> None:
        self._snapshots: list[Snapshot] = []
        self._sampler = GpuSampler(NvmlReader(), on_snapshot=self._add)

    def __enter__(self) -> Self:
        self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._sampler.stop()

    def _add(self, snapshot: Snapshot) -> None:
        self._snapshots = [*self._snapshots[-_KEPT + 1 :], snapshot]

    def seen(self) -> GpusSeen:
        """What the samples say, as long as the experiment keeps the engine busy."""
        snapshots = self._snapshots
        # Utilisation looks back: the first sample tells of the time before the experiment.
        during = snapshots[1:]
        judgements = [judge_snapshot(snapshot, EngineOnGpu(), True) for snapshot in during]
        states = [worst([found.state for found in judged]) for judged in judgements]
        judged = judgements[-1] if judgements else ()
        gpus = snapshots[-1].gpus if snapshots else ()
        return GpusSeen(gpus, worst(states), judged, _engine_gpu(gpus, judged) if during else None)


def _engine_gpu(gpus: Sequence[GpuReading], judged: Sequence[Contention]) -> GpuReading | None:
    used = {found.gpu for found in judged if found.engine_processes}
    own = [gpu for gpu in gpus if gpu.index in used] or (list(gpus) if len(gpus) == 1 else [])
    return max(own, key=lambda gpu: gpu.utilization_ratio or 0.0, default=None)
