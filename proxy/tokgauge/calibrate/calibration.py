"""From settings to constants: find what serves, measure it, fit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tokgauge.calibrate.engine import EngineBench
from tokgauge.calibrate.errors import CalibrationError
from tokgauge.calibrate.experiment import Experiment, run_experiment
from tokgauge.calibrate.inputs import StepReader
from tokgauge.diagnosis import ceiling_inputs
from tokgauge.diagnosis.calibration_file import HoldsFor, holds_for
from tokgauge.diagnosis.fit import Fitted, NotTold
from tokgauge.gpu.contention import judge_snapshot
from tokgauge.gpu.nvml import NvmlReader
from tokgauge.gpu.readings import GpuReading
from tokgauge.model.served import ServedModel
from tokgauge.settings import Engine, Settings


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured, what follows, and what it holds for."""

    holds_for: HoldsFor
    experiment: Experiment
    fitted: Fitted | NotTold
    notes: tuple[str, ...]


async def calibrated(
    settings: Settings, *, model: str | None, at_most: float, beside_traffic: bool,
    progress: Callable[[str, float], None],
) -> Calibration:  # fmt: skip
    """Measure the engine of the settings. Raises `CalibrationError`, OSError for certificates."""
    engine = settings.engine
    async with EngineBench(engine) as bench:
        card = _chosen(await bench.models(), model)
        page = await bench.reading()
        found = await asyncio.to_thread(
            ceiling_inputs.model_bytes, engine, card.root, page.kv_cache_dtype if page else None
        )
        reader = StepReader(found, engine.tensor_parallel_size)
        reader.check()
        gpus = await asyncio.to_thread(_gpus, engine) if settings.nvml else ()
        bandwidth = ceiling_inputs.bandwidth(engine, gpus).bytes_per_second
        version = await bench.version()
        bench.choose(card.id)
        made = await run_experiment(
            bench, reader, context_length=card.max_model_len, beside_traffic=beside_traffic,
            at_most=at_most, progress=progress,
        )  # fmt: skip
        notes = _notes(bench, made, bandwidth)
    named = gpus[0].name if gpus else engine.gpu
    kind = page.kind if page is not None else card.owned_by
    return Calibration(
        holds_for(engine, card, found, kind, version, named),
        made,
        made.constants(bandwidth),
        notes,
    )


def _chosen(listed: tuple[ServedModel, ...], wanted: str | None) -> ServedModel:
    for card in listed:
        if wanted in (None, card.id):
            return card
    names = ", ".join(card.id for card in listed)
    raise CalibrationError("no_model", f"the engine does not list {wanted!r}; it lists: {names}")


def _gpus(engine: Engine) -> tuple[GpuReading, ...]:
    """Those that the engine uses, chosen as the proxy chooses them."""
    reader = NvmlReader()
    try:
        snapshot = reader.read()
    finally:
        reader.close()
    judged = judge_snapshot(snapshot, ceiling_inputs.engine_on_gpu(engine), None)
    used = {found.gpu for found in judged}
    return tuple(gpu for gpu in snapshot.gpus if gpu.index in used)


def _notes(bench: EngineBench, made: Experiment, bandwidth: float | None) -> tuple[str, ...]:
    notes = [f"{count} loads told nothing: {why}" for why, count in made.failed.items()]
    if not bench.has_page:
        notes.append(
            "the engine has no metrics page that is known: whether others used it is not known, "
            "only the scatter would show it"
        )
    if bandwidth is None:
        notes.append("the cards' bandwidth is not known: set --gpu or --gpu-bandwidth")
    return tuple(notes)
