"""Turns an assessment into the figures of the moment. What is not known has no sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from tokgauge.diagnosis import wording, wording_answers, wording_waiting
from tokgauge.diagnosis.assess import Assessment
from tokgauge.diagnosis.engine_gpus import GpusNow
from tokgauge.diagnosis.expected_time import CONSTANTS_SOURCES
from tokgauge.diagnosis.figures import Figures
from tokgauge.diagnosis.inputs import ModelBytes
from tokgauge.diagnosis.three_answers import CAUSES_OF, ThreeAnswers
from tokgauge.diagnosis.verdict import LEVELS
from tokgauge.engine.facts import OTHER
from tokgauge.gpu import figures as gpu_figures
from tokgauge.gpu.contention import Contention
from tokgauge.gpu.readings import Snapshot
from tokgauge.model.kv import KvCache
from tokgauge.model.served import ServedModel
from tokgauge.model.weights import WeightsFound
from tokgauge.settings import Engine

_Samples = list[tuple[tuple[str, ...], float]]

_OF_GPUS: Mapping[str, Callable[[Snapshot | None], Iterable[gpu_figures.Sample]]] = {
    "tokgauge_nvml_up": gpu_figures.nvml_up,
    "tokgauge_nvml_errors_total": gpu_figures.nvml_errors_total,
    "tokgauge_gpu_info": gpu_figures.gpu_info,
    "tokgauge_gpu_utilization_ratio": gpu_figures.gpu_utilization_ratio,
    "tokgauge_gpu_memory_used_bytes": gpu_figures.gpu_memory_used_bytes,
    "tokgauge_gpu_memory_total_bytes": gpu_figures.gpu_memory_total_bytes,
    "tokgauge_gpu_power_watts": gpu_figures.gpu_power_watts,
    "tokgauge_gpu_dram_bandwidth_ratio": gpu_figures.gpu_dram_bandwidth_ratio,
    "tokgauge_gpu_throttle": gpu_figures.gpu_throttle,
}

_OF_CONTENTION: Mapping[str, Callable[[Sequence[Contention]], Iterable[gpu_figures.Sample]]] = {
    "tokgauge_gpu_contention": gpu_figures.gpu_contention,
    "tokgauge_gpu_neighbour_processes": gpu_figures.gpu_neighbour_processes,
    "tokgauge_gpu_neighbour_memory_bytes": gpu_figures.gpu_neighbour_memory_bytes,
    "tokgauge_gpu_neighbour_sm_ratio": gpu_figures.gpu_neighbour_sm_ratio,
}


def three_answers(assessment: Assessment) -> ThreeAnswers:
    """The three judgements in words."""
    return ThreeAnswers(
        speed=wording.in_words(assessment.speed),
        waiting=wording_waiting.in_words(assessment.waiting),
        answers=wording_answers.in_words(assessment.answers),
    )


def figures_of(
    assessment: Assessment, shown: ThreeAnswers, now: float, *, gpus: GpusNow, engine: Engine,
    nvml: bool, served: ServedModel | None, model: ModelBytes | None,
) -> Figures:  # fmt: skip
    """The figures at `now` (monotonic seconds). shown: the three answers as they are shown.

    nvml: whether GPUs are looked at. served: the model whose weights are read, None when that is
    not known; model: its bytes, None where they were not read or may be another one's.
    """
    label = served.id if served is not None else OTHER
    samples = {
        **_gpu_samples(gpus, engine, nvml=nvml),
        **_speed_samples(assessment, label),
        **_normal_samples(assessment, label),
        **_verdict_samples(shown, label),
        "tokgauge_model_info": _model_info(label, served, model),
    }
    return Figures(
        at=now,
        samples=samples,
        bandwidth=assessment.bandwidth.bytes_per_second,
        tokens_per_step=assessment.tokens_per_step,
        verdict=shown.as_json(),
    )


def _gpu_samples(gpus: GpusNow, engine: Engine, *, nvml: bool) -> dict[str, _Samples]:
    looked_at = _OF_GPUS if nvml else {}
    bandwidths = gpu_figures.gpu_memory_bandwidth_bytes_per_second(
        gpus.snapshot,
        settings_value=engine.gpu_bandwidth,
        measured_value=engine.gpu_measured_bandwidth,
    )
    return {
        **{name: list(figure(gpus.snapshot)) for name, figure in looked_at.items()},
        **{name: list(figure(gpus.contentions)) for name, figure in _OF_CONTENTION.items()},
        "tokgauge_gpu_memory_bandwidth_bytes_per_second": list(bandwidths),
    }


def _speed_samples(assessment: Assessment, label: str) -> dict[str, _Samples]:
    samples: dict[str, _Samples] = {
        "tokgauge_ceiling_tokens_per_second": [
            ((label, basis), ceiling.tokens_per_second)
            for basis, ceiling in assessment.ceilings.items()
        ]
    }
    found, theirs = assessment.efficiency, assessment.engine_read
    if found is None:
        return samples
    labels = (label, found.basis)
    if found.ratio is not None:
        samples["tokgauge_memory_bandwidth_utilization_ratio"] = [(labels, found.ratio)]
    samples["tokgauge_achieved_bandwidth_bytes_per_second"] = [(labels, found.achieved)]
    if theirs is not None:
        samples["tokgauge_engine_estimated_bandwidth_bytes_per_second"] = [((label,), theirs)]
        samples["tokgauge_engine_to_computed_bandwidth_ratio"] = [
            ((label,), theirs / found.achieved)
        ]
    return samples


def _normal_samples(assessment: Assessment, label: str) -> dict[str, _Samples]:
    """What is normal. Typical constants are ranges to judge by, and no figures of this engine."""
    samples: dict[str, _Samples] = {}
    normal, constants = assessment.normal, assessment.constants
    if normal is not None:
        samples["tokgauge_expected_time_ratio"] = [((label,), normal.ratio)]
        samples["tokgauge_normal_share_low"] = [((label,), normal.range.low)]
        samples["tokgauge_normal_share_high"] = [((label,), normal.range.high)]
        samples["tokgauge_constants_source"] = [
            ((label, source), float(source == normal.source)) for source in CONSTANTS_SOURCES
        ]
    if constants is not None:
        labels = (label, constants.source)
        samples["tokgauge_fixed_step_seconds"] = [(labels, constants.fixed.middle)]
        samples["tokgauge_effective_bandwidth_bytes_per_second"] = [
            (labels, constants.bandwidth.middle)
        ]
    if assessment.prefill_rate is not None:
        samples["tokgauge_prefill_tokens_per_second"] = [((label,), assessment.prefill_rate)]
    if assessment.prefill_ceiling is not None:
        samples["tokgauge_prefill_ceiling_tokens_per_second"] = [
            ((label,), assessment.prefill_ceiling)
        ]
    return samples


def _verdict_samples(shown: ThreeAnswers, label: str) -> dict[str, _Samples]:
    levels: _Samples = []
    causes: _Samples = []
    for question, verdict in shown:
        named = {cause.kind for cause in verdict.causes}
        levels += [((label, question, level), float(level == verdict.level)) for level in LEVELS]
        causes += [((label, question, kind), float(kind in named)) for kind in CAUSES_OF[question]]
    return {"tokgauge_verdict": levels, "tokgauge_verdict_cause": causes}


def _model_info(label: str, served: ServedModel | None, model: ModelBytes | None) -> _Samples:
    if model is None:
        return []
    weights, kv = model.weights, model.kv
    sources = (
        (weights.streamed_source or "", weights.checkpoint_source or "")
        if isinstance(weights, WeightsFound)
        else ("", "")
    )
    root = (served.root or "") if served is not None else ""
    return [((label, root, *sources, kv.source if isinstance(kv, KvCache) else ""), 1.0)]
