"""The GPUs of the engine while it is served: sampled in a thread, with who else uses them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tokgauge.diagnosis import ceiling_inputs
from tokgauge.gpu import figures as gpu_figures
from tokgauge.gpu.contention import Contention, ContentionHistory, State
from tokgauge.gpu.nvml import NvmlReader
from tokgauge.gpu.readings import GpuReading, Snapshot
from tokgauge.gpu.sampler import GpuSampler
from tokgauge.settings import Engine


@dataclass(frozen=True, slots=True)
class GpusNow:
    """One look. snapshot: None when there is none or it is stale; of all GPUs of the machine."""

    snapshot: Snapshot | None
    contentions: tuple[Contention, ...]

    @property
    def of_engine(self) -> tuple[GpuReading, ...]:
        """The readings of those that the engine uses."""
        if self.snapshot is None:
            return ()
        used = {contention.gpu for contention in self.contentions}
        return tuple(gpu for gpu in self.snapshot.gpus if gpu.index in used)


class EngineGpus:
    """was_busy: whether the engine had work that a reading at a time looks back on (any thread).

    failed: is told of failures, in any thread.
    """

    def __init__(
        self, engine: Engine, was_busy: Callable[[float], bool | None],
        failed: Callable[[Exception], None],
    ) -> None:  # fmt: skip
        self._failed = failed
        self._history = ContentionHistory(ceiling_inputs.engine_on_gpu(engine), was_busy)
        self._sampler: GpuSampler | None = None

    def start(self) -> None:
        """Sample from now on, unless it does already."""
        if self._sampler is None:
            self._sampler = GpuSampler(
                NvmlReader(process_names=None),
                on_snapshot=self._history.add,
                on_error=self._failed,
            )
            self._sampler.start()

    def stop(self) -> None:
        """Sample no more."""
        if self._sampler is not None:
            self._sampler.stop(timeout_seconds=0.5)

    def now(self, now: float) -> GpusNow:
        """What is known at `now` (monotonic seconds)."""
        latest = self._sampler.latest() if self._sampler is not None else None
        return GpusNow(gpu_figures.fresh(latest, now), self._history.latest(now))

    def contention_during(self, start: float, end: float) -> State | None:
        """The worst state between two monotonic times; None when nobody samples."""
        if self._sampler is None:
            return None
        return self._history.contention_during(start, end)
