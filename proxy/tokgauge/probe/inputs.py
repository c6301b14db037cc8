"""The ceiling's inputs for the server that was probed, as far as they can be found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tokgauge.diagnosis.ceiling_inputs import compute_roof, drafting
from tokgauge.diagnosis.inputs import Inputs, ModelBytes, StreamSeen
from tokgauge.gpu.bandwidth import Bandwidth, engine_bandwidth
from tokgauge.gpu.catalogue import Card
from tokgauge.gpu.contention import EngineOnGpu
from tokgauge.gpu.readings import GpuReading
from tokgauge.model.ceiling import serving_bandwidth
from tokgauge.model.estimate import estimate_weights
from tokgauge.model.hub_cache import is_repository
from tokgauge.model.kv import KvUnknown
from tokgauge.model.resolve import resolve_kv, resolve_weights
from tokgauge.model.weights import WeightsFound, WeightsUnknown
from tokgauge.probe.gpu import GpusSeen

__all__ = ["Given", "find_inputs"]


@dataclass(frozen=True, slots=True)
class Given:
    """What the person says of the hardware and the model; None where nothing was said."""

    bandwidth: float | None = None
    """Of one card [bytes/s]."""
    card: Card | None = None
    weights_bytes: float | None = None
    """That a decode step reads [bytes]."""
    parameters: float | None = None
    bits: float = 16.0
    """Per parameter."""
    tensor_parallel: int = 1
    speculative: Mapping[str, Any] | None = None
    """vLLM's speculative_config."""


def find_inputs(
    given: Given,
    stream: StreamSeen,
    *,
    root: str | None,
    seen: GpusSeen | None,
    kv_cache_dtype: str | None,
) -> Inputs:
    """What the stream is judged by.

    root: as the server names its files. seen: the GPUs of this machine, None when the server is
    elsewhere: then a path means nothing here, while the name of a repository still does. Reads
    files.
    """
    if seen is None and root is not None and not is_repository(root):
        root = None
    bandwidth = _bandwidth(given, seen.gpus if seen is not None else None)
    model = _model(given, root, kv_cache_dtype)
    return Inputs(
        bandwidth=bandwidth,
        model=model,
        roof=compute_roof(bandwidth.card, model.streamed, given.tensor_parallel),
        tensor_parallel=given.tensor_parallel,
        seen=stream,
        gpus=(seen.last,) if seen is not None and seen.last is not None else (),
        contention=seen.contention if seen is not None else "unknown",
        contentions=seen.judged if seen is not None else (),
    )


def _bandwidth(given: Given, gpus: Sequence[GpuReading] | None) -> Bandwidth:
    if given.bandwidth is not None:
        total = serving_bandwidth(given.bandwidth, given.tensor_parallel)
        return Bandwidth(total, "settings", "given with --bandwidth")
    if given.card is not None:
        total = serving_bandwidth(given.card.bandwidth_bytes_per_second, given.tensor_parallel)
        return Bandwidth(total, "catalogue", f"table of cards: {given.card.name}", card=given.card)
    if gpus is None:
        return Bandwidth(None, None, "the server runs on another machine: name its card with --gpu")
    if not gpus:
        return Bandwidth(None, None, "NVML shows no GPU here: name the card with --gpu")
    used = _engine_gpus(gpus, given.tensor_parallel)
    if not used:
        return Bandwidth(
            None,
            None,
            "the GPUs here differ, and no engine was recognised on one: name the card with --gpu",
        )
    found = engine_bandwidth(used, tensor_parallel_size=given.tensor_parallel)
    if found.bytes_per_second is None:
        return Bandwidth(None, None, f"{found.explanation}: name the card with --gpu")
    return found


def _engine_gpus(gpus: Sequence[GpuReading], tensor_parallel: int) -> Sequence[GpuReading]:
    """Those with a process of an engine, else any of those that are all of one kind."""
    engine = EngineOnGpu()
    used = [gpu for gpu in gpus if any(engine.owns(process) for process in gpu.processes or ())]
    if used:
        return used
    kinds = {(gpu.name, gpu.memory_total_bytes, gpu.mig) for gpu in gpus}
    return gpus[:tensor_parallel] if len(kinds) == 1 else ()


def _model(given: Given, root: str | None, kv_cache_dtype: str | None) -> ModelBytes:
    kv = resolve_kv(root, cache_dtype=kv_cache_dtype)
    if isinstance(kv, KvUnknown) and (given.weights_bytes or given.parameters):
        # Whoever states the bytes of a step states those of a state with them.
        kv = replace(kv, negligible_when_short=True)
    no_draft = "what drafting reads is not known: name it with --speculative-config"
    model = ModelBytes(_weights(given, root), kv, no_draft)
    return model if given.speculative is None else drafting(model, given.speculative, root)


def _weights(given: Given, root: str | None) -> WeightsFound | WeightsUnknown:
    if given.parameters is not None:
        return estimate_weights(given.parameters, given.bits)
    return resolve_weights(root, streamed_bytes=given.weights_bytes)
