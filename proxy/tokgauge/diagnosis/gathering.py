"""What inputs, work and efficiency say as evidence."""

from __future__ import annotations

from dataclasses import replace

from tokgauge.diagnosis.efficiency import Efficiency
from tokgauge.diagnosis.evidence import Evidence
from tokgauge.diagnosis.expected_time import Normal
from tokgauge.diagnosis.inputs import Inputs, StreamSeen, WindowSeen
from tokgauge.diagnosis.other_bandwidth import other_bandwidth_ratio
from tokgauge.diagnosis.work import NoEfficiency, Work, speculates, tokens_per_step
from tokgauge.engine.metrics_page import EngineRates
from tokgauge.gpu.readings import GpuReading, whole_sum
from tokgauge.model.ceiling import ridge_batch


def evidence_of(
    inputs: Inputs, work: Work | NoEfficiency, efficiency: Efficiency | NoEfficiency,
    normal: Normal | None,
) -> Evidence:  # fmt: skip
    """All of it."""
    found = efficiency if isinstance(efficiency, Efficiency) else None
    evidence = Evidence(
        efficiency=found.ratio if found is not None else None,
        checkpoint_efficiency=found.by_basis.get("checkpoint") if found is not None else None,
        no_efficiency=_no_efficiency(inputs, efficiency),
        basis=found.basis if found is not None else None,
        normal=normal,
        steps_source=work.steps_source if isinstance(work, Work) else None,
        ridge_batch=_ridge(inputs, found),
        speculative=speculates(inputs.seen),
        tokens_per_step=tokens_per_step(inputs.seen),
        engine_read_ratio=_engine_read_ratio(inputs, work, found),
    )
    if isinstance(inputs.seen, WindowSeen):
        evidence = _with_window(evidence, inputs.seen, work)
    elif inputs.seen is not None:
        evidence = _with_stream(evidence, inputs.seen)
    return _with_gpus(evidence, inputs)


def engine_read(inputs: Inputs, work: Work | NoEfficiency) -> float | None:
    """The engine's own estimate of the bytes it reads per second of decoding, all GPUs."""
    rates = inputs.seen.rates if isinstance(inputs.seen, WindowSeen) else None
    per_gpu = rates.read_bytes_per_second_per_gpu if rates is not None else None
    busy = _while_busy(per_gpu, rates, work)
    return None if busy is None else busy * inputs.tensor_parallel


def _no_efficiency(inputs: Inputs, efficiency: Efficiency | NoEfficiency) -> NoEfficiency | None:
    """Why there is no ratio; inputs of the division that are not known are named together."""
    bandwidth = inputs.bandwidth
    unknown = bandwidth.explanation if bandwidth.bytes_per_second is None else None
    if isinstance(efficiency, NoEfficiency):
        if efficiency.why != "inputs_unknown":
            return efficiency
        return replace(efficiency, bandwidth=unknown)
    if efficiency.ratio is not None:
        return None
    return NoEfficiency(why="inputs_unknown", bandwidth=unknown)


def _with_window(evidence: Evidence, seen: WindowSeen, work: Work | NoEfficiency) -> Evidence:
    decoded, rates, answers, page = seen.decoded, seen.rates, seen.answers, seen.last
    known = work if isinstance(work, Work) else None
    return replace(
        evidence,
        request_ratio=answers.ratios.median(),
        tokens_per_second=_while_busy(
            rates.generation_tokens_per_second if rates is not None else None, rates, work
        ),
        sequence_tokens_per_second=_of_one_sequence(work),
        decoded_tokens=_decoded_tokens(seen),
        window_seconds=decoded.seconds,
        busy_ratio=decoded.busy_seconds / decoded.seconds if decoded.seconds else None,
        mean_batch=known.shape.sequences if known is not None else None,
        prefill_share=evidence.normal.prefill_share if evidence.normal is not None else None,
        others_prefill_share=_others_prefill(known),
        waiting=page.waiting if page is not None else None,
        kv_cache_usage=page.kv_cache_usage if page is not None else None,
        preemptions_per_second=rates.preemptions_per_second if rates is not None else None,
        unstreamed_ratio=answers.unstreamed_ratio,
        silent_wait_seconds=answers.waits.median(),
        truncated_ratio=answers.truncated_ratio,
    )


def _with_stream(evidence: Evidence, seen: StreamSeen) -> Evidence:
    return replace(
        evidence,
        tokens_per_second=seen.decode_rate,
        # Whether they are enough, those who measured the stream have decided.
        decoded_tokens=seen.tokens if evidence.no_efficiency is None else None,
        mean_batch=1.0 if seen.alone else None,
        busy_ratio=1.0 if seen.alone else None,
        kv_cache_usage=seen.kv_cache_usage,
    )


def _with_gpus(evidence: Evidence, inputs: Inputs) -> Evidence:
    gpus = inputs.gpus
    known = [item for item in inputs.contentions if item.neighbours_known]
    neighbours = [neighbour for item in known for neighbour in item.neighbours]
    slowest = _most_throttled(gpus)
    evidence = replace(
        evidence,
        contention=inputs.contention,
        gpu_utilization=_lowest([gpu.utilization_ratio for gpu in gpus]),
        bandwidth_ratio=other_bandwidth_ratio(inputs),
        measured_ratio=_lowest([gpu.dram_bandwidth_ratio for gpu in gpus]),
    )
    if known:
        evidence = replace(
            evidence,
            neighbours=len(neighbours),
            neighbour_memory_bytes=whole_sum(item.memory_bytes for item in neighbours),
            neighbour_sm_ratio=whole_sum(item.sm_ratio for item in neighbours),
        )
    if slowest is None:
        return evidence
    return replace(
        evidence,
        memory_clock_mhz=slowest.memory_clock_mhz,
        max_memory_clock_mhz=slowest.max_memory_clock_mhz,
        throttle_reasons=slowest.throttle_reasons,
        power_watts=slowest.power_watts,
    )


def _ridge(inputs: Inputs, found: Efficiency | None) -> float | None:
    """The batch from which on computing is the limit, with weights and contexts as they are."""
    bandwidth = inputs.bandwidth.bytes_per_second
    if found is None or bandwidth is None or inputs.roof is None:
        return None
    if speculates(inputs.seen):
        return None  # drafts are computed as well, and nobody tells how many
    return ridge_batch(bandwidth, found.weight_bytes, inputs.roof, found.kv_bytes_per_sequence)


def _engine_read_ratio(
    inputs: Inputs, work: Work | NoEfficiency, found: Efficiency | None
) -> float | None:
    theirs = engine_read(inputs, work)
    return theirs / found.achieved if theirs is not None and found is not None else None


def _decoded_tokens(seen: WindowSeen) -> int | None:
    """Tokens of the window: by the engine, which also counts what is not streamed, else events.

    None when nobody has counted all of them.
    """
    rates = seen.rates
    if rates is not None and rates.generation_tokens_per_second is not None:
        return round(rates.generation_tokens_per_second * rates.seconds)
    return None if seen.decoded.uncounted_seconds else round(seen.decoded.sequence_events)


def _others_prefill(work: Work | None) -> float | None:
    if work is None or work.prompt_tokens is not None or not work.busy_seconds:
        return None
    return min(1.0, work.uncounted / work.busy_seconds)


def _while_busy(
    per_second: float | None, rates: EngineRates | None, work: Work | NoEfficiency
) -> float | None:
    """One of the engine's rates, pauses left out; None when it or they are not known."""
    if per_second is None or rates is None or isinstance(work, NoEfficiency):
        return None
    return per_second * rates.seconds / work.busy_seconds if work.busy_seconds else None


def _of_one_sequence(work: Work | NoEfficiency) -> float | None:
    """Tokens per second of one sequence: it gains so many in each step of its engine.

    How many sequences run is only sampled, so it is not the tokens of all divided by that.
    """
    if isinstance(work, NoEfficiency) or not work.busy_seconds:
        return None
    per_step = work.shape.tokens_per_step
    return work.rate * per_step if per_step is not None else None


def _most_throttled(gpus: tuple[GpuReading, ...]) -> GpuReading | None:
    """The GPU whose memory clock is furthest below its maximum: a step waits for the slowest."""

    def share(gpu: GpuReading) -> float:
        if not gpu.memory_clock_mhz or not gpu.max_memory_clock_mhz:
            return 1.0
        return gpu.memory_clock_mhz / gpu.max_memory_clock_mhz

    return min(gpus, key=share, default=None)


def _lowest(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return min(known) if known and len(known) == len(values) else None
