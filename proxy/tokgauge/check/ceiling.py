"""The ceiling's inputs as far as they are known, and the ceiling that follows."""

from __future__ import annotations

from collections.abc import Iterator

from tokgauge.check.engine import EngineSeen
from tokgauge.check.finding import Finding, State
from tokgauge.diagnosis import ceiling_inputs
from tokgauge.diagnosis.assess import assess
from tokgauge.diagnosis.inputs import Inputs
from tokgauge.engine.facts import one_of
from tokgauge.gpu.bandwidth import Bandwidth
from tokgauge.gpu.readings import GpuReading
from tokgauge.model.kv import KvCache, KvUnknown
from tokgauge.model.weights import Basis, WeightsFound
from tokgauge.settings import Engine

_BASES: tuple[Basis, ...] = ("streamed", "checkpoint")


def ceiling_findings(
    engine: Engine, seen: EngineSeen, gpus: tuple[GpuReading, ...]
) -> Iterator[Finding]:
    """Bandwidth of `gpus`, weights and KV cache, and the division where both sides are known."""
    problem = ceiling_inputs.gpu_problem(engine)
    if problem is not None:
        yield Finding("ceiling", "gpu", "missing", problem, "settings")
    bandwidth = ceiling_inputs.bandwidth(engine, gpus)
    yield _bandwidth_finding(bandwidth)
    base = one_of(seen.bases)
    if seen.bases and base is None and engine.model_path is None and engine.weights_bytes is None:
        named = ", ".join(card.id for card in seen.bases[:5])
        yield Finding(
            "ceiling", "weights", "warning",
            f"the engine lists several models ({named}): the ceiling will be that of the one that "
            "its answers name; set model_path, or weights_bytes",
        )  # fmt: skip
        return
    found = ceiling_inputs.model_bytes(
        engine,
        base.root if base is not None else None,
        seen.reading.kv_cache_dtype if seen.reading is not None else None,
    )
    weights, kv = found.weights, found.kv
    if isinstance(weights, WeightsFound):
        for basis in _BASES:
            yield _weights_finding(weights, basis)
    else:
        yield Finding(
            "ceiling", "weights", "warning",
            f"unknown: {weights.reason}; set model_path, or weights_bytes",
        )  # fmt: skip
    yield _kv_finding(kv)
    speed = f"{(bandwidth.bytes_per_second or 0) / 1e9:.0f} GB/s"
    inputs = Inputs(bandwidth=bandwidth, model=found, tensor_parallel=engine.tensor_parallel_size)
    for basis, limit in assess(inputs).ceilings.items():
        yield Finding(
            "ceiling",
            f"ceiling, {basis}",
            "ok",
            f"{limit.tokens_per_second:.1f} tok/s for one stream with a short context",
            f"{speed} / {limit.bytes_per_step / 1e9:.2f} GB",
            limit.tokens_per_second,
        )


def _bandwidth_finding(bandwidth: Bandwidth) -> Finding:
    total = bandwidth.bytes_per_second
    if total is None:
        text = f"unknown: {bandwidth.explanation}; set gpu or gpu_bandwidth"
        return Finding("ceiling", "bandwidth", "warning", text)
    doubt = f" ({bandwidth.warning})" if bandwidth.warning else ""
    return Finding(
        "ceiling",
        "bandwidth",
        "ok" if bandwidth.warning is None else "warning",
        f"{total / 1e9:.0f} GB/s{doubt}",
        bandwidth.explanation,
        total,
    )


def _kv_finding(kv: KvCache | KvUnknown) -> Finding:
    if isinstance(kv, KvUnknown):
        text = f"unknown: {kv.reason}; set {kv.what_to_set}"
        return Finding("ceiling", "KV cache", "warning", text)
    state = f", {kv.state_bytes / 1e6:.1f} MB of state a sequence" if kv.state_bytes else ""
    text = f"{kv.bytes_per_token:.0f} bytes a token{state}"
    return Finding("ceiling", "KV cache", "ok", text, kv.source, kv.bytes_per_token)


def _weights_finding(weights: WeightsFound, basis: Basis) -> Finding:
    read = weights.bytes_per_step(1.0, basis)
    source = weights.streamed_source if basis == "streamed" else weights.checkpoint_source
    meaning = "read per token" if basis == "streamed" else "in the whole checkpoint"
    if basis == "checkpoint" and weights.checkpoint_bytes is not None and read is None:
        size = weights.checkpoint_bytes
        why = weights.rule_of_thumb_fails_because
        text = f"{size / 1e9:.2f} GB {meaning}, and no rule of thumb by it: {why}"
        return Finding("ceiling", f"weights, {basis}", "ok", text, source, size)
    if read is None:
        why = weights.streamed_unknown_because or "not told"
        field_name = "weights_bytes" if basis == "streamed" else "checkpoint_bytes"
        # The whole checkpoint is only the rule of thumb: nothing depends on it.
        state: State = "warning" if basis == "streamed" else "ok"
        text = f"unknown: {why if basis == 'streamed' else 'not told'}; set {field_name}"
        return Finding("ceiling", f"weights, {basis}", state, text)
    return Finding(
        "ceiling", f"weights, {basis}", "ok", f"{read / 1e9:.2f} GB {meaning}", source, read
    )
