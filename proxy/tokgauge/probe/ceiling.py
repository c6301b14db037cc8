"""The ceiling of the server that was probed, as far as its figures can be found, and the share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokgauge.gpu.bandwidth import Bandwidth, engine_bandwidth
from tokgauge.gpu.catalogue import Card
from tokgauge.gpu.contention import EngineOnGpu
from tokgauge.gpu.readings import GpuReading
from tokgauge.model.ceiling import (
    efficiency,
    serving_bandwidth,
    single_stream_ceiling,
    step_bytes,
)
from tokgauge.model.draft import DraftUnknown, with_draft
from tokgauge.model.estimate import estimate_weights
from tokgauge.model.hub_cache import is_repository
from tokgauge.model.kv import KvCache, KvUnknown
from tokgauge.model.resolve import resolve_kv, resolve_weights
from tokgauge.model.weights import Basis, WeightsFound, WeightsUnknown

__all__ = ["Ceiling", "Given", "Limit", "find_ceiling"]

_BASES: tuple[Basis, ...] = ("streamed", "checkpoint")


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


@dataclass(frozen=True, slots=True)
class Limit:
    """The division on one basis, and the share of it that was reached."""

    bytes_per_step: float
    tokens_per_second: float
    """With one token per step."""
    share: float | None
    """None without a measured decode rate."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Inputs with their sources; `limits` is empty when one of them is unknown."""

    bandwidth: Bandwidth
    weights: WeightsFound | WeightsUnknown
    kv: KvCache | KvUnknown
    context: float | None
    """Mean tokens of context; None when the server does not count them."""
    limits: dict[Basis, Limit]
    draft_unknown_because: str | None = "name it with --speculative-config"
    """Why what drafting reads is not counted; None where it is."""

    @property
    def basis(self) -> Basis | None:
        """The basis that the verdict uses: streamed where it is known."""
        return next((basis for basis in _BASES if basis in self.limits), None)

    @property
    def share(self) -> float | None:
        """On that basis."""
        return None if self.basis is None else self.limits[self.basis].share

    @property
    def kv_counted(self) -> bool:
        """Whether the KV cache is among the bytes of a step."""
        return isinstance(self.kv, KvCache) and self.context is not None


def find_ceiling(
    given: Given,
    *,
    root: str | None,
    gpus: Sequence[GpuReading] | None,
    context: float | None,
    kv_cache_dtype: str | None,
    decode_rate: float | None,
    tokens_per_step: float | None,
) -> Ceiling:
    """Find the inputs, divide, and compare with the measured rate [tokens/s].

    tokens_per_step: None counts as one, which makes a share too high when there were more.

    root: as the server names its files. gpus: of this machine, None when the server is elsewhere:
    then a path means nothing here, while the name of a repository still does. Reads files.
    """
    if gpus is None and root is not None and not is_repository(root):
        root = None
    bandwidth = _bandwidth(given, gpus)
    weights = _weights(given, root)
    kv = resolve_kv(root, cache_dtype=kv_cache_dtype)
    per_step = computed = tokens_per_step or 1.0
    no_draft: str | None = "name it with --speculative-config"
    if given.speculative is not None and isinstance(weights, WeightsFound):
        drafted = with_draft(
            weights, kv if isinstance(kv, KvCache) else None, given.speculative, root
        )
        if isinstance(drafted, DraftUnknown):
            no_draft = drafted.reason
        else:
            weights, kv, no_draft = drafted[0], drafted[1] or kv, None
            assert weights.streamed is not None  # noqa: S101 - with_draft would have refused
            computed = weights.streamed.draft.verified if weights.streamed.draft else computed
    steps = None if decode_rate is None else decode_rate / per_step
    limits: dict[Basis, Limit] = {}
    total = bandwidth.bytes_per_second
    stateful = isinstance(kv, KvUnknown) and not kv.negligible_when_short
    if stateful and given.weights_bytes is None and given.parameters is None:
        # Beside the weights each step moves a state of unknown size: no share would be true.
        return Ceiling(bandwidth, weights, kv, context, limits, no_draft)
    if total is not None and isinstance(weights, WeightsFound):
        cache = kv if isinstance(kv, KvCache) and context is not None else None
        for basis in _BASES:
            read = weights.bytes_per_step(computed, basis)
            if read is not None:
                limits[basis] = _limit(total, read, cache, context or 0.0, given, steps)
    return Ceiling(bandwidth, weights, kv, context, limits, no_draft)


def _limit(
    total: float,
    weight_bytes: float,
    kv: KvCache | None,
    context: float,
    given: Given,
    steps: float | None,
) -> Limit:
    read = step_bytes(weight_bytes, kv, (context,), tensor_parallel=given.tensor_parallel)
    return Limit(
        bytes_per_step=read,
        tokens_per_second=single_stream_ceiling(total, read),
        share=None if steps is None else efficiency(steps, read, total),
    )


def _bandwidth(given: Given, gpus: Sequence[GpuReading] | None) -> Bandwidth:
    if given.bandwidth is not None:
        total = serving_bandwidth(given.bandwidth, given.tensor_parallel)
        return Bandwidth(total, "settings", "given with --bandwidth")
    if given.card is not None:
        total = serving_bandwidth(given.card.bandwidth_bytes_per_second, given.tensor_parallel)
        return Bandwidth(total, "catalogue", f"table of cards: {given.card.name}")
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


def _weights(given: Given, root: str | None) -> WeightsFound | WeightsUnknown:
    if given.parameters is not None:
        return estimate_weights(given.parameters, given.bits)
    return resolve_weights(root, streamed_bytes=given.weights_bytes)
