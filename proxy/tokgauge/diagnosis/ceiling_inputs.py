"""The three figures of the ceiling - bandwidth, weights, KV cache - each with its source."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from tokgauge.diagnosis.inputs import ModelBytes
from tokgauge.gpu.bandwidth import Bandwidth, engine_bandwidth
from tokgauge.gpu.catalogue import Card, find_cards, load_catalogue
from tokgauge.gpu.contention import EngineOnGpu
from tokgauge.gpu.readings import GpuReading
from tokgauge.model.ceiling import ComputeRoof
from tokgauge.model.draft import DraftUnknown, with_draft
from tokgauge.model.kv import KvCache
from tokgauge.model.resolve import resolve_kv, resolve_weights
from tokgauge.model.weights import Streamed, WeightsFound
from tokgauge.settings import Engine

_NAMED = 6
"""Cards that a message names at most."""


def model_bytes(engine: Engine, root: str | None, kv_cache_dtype: str | None) -> ModelBytes:
    """Weights and KV cache of the served model.

    root: what `GET /v1/models` names; the setting `model_path` wins. kv_cache_dtype: as the
    engine's metrics say; the setting wins. Reads files, so it belongs into a thread. Never raises.
    """
    where = engine.model_path or root
    weights = resolve_weights(
        where, streamed_bytes=engine.weights_bytes, checkpoint_bytes=engine.checkpoint_bytes
    )
    kv = resolve_kv(
        where,
        bytes_per_token=engine.kv_bytes_per_token,
        cache_dtype=engine.kv_cache_dtype or kv_cache_dtype,
    )
    if engine.speculative_config is None:
        return ModelBytes(weights, kv)
    return drafting(ModelBytes(weights, kv), json.loads(engine.speculative_config), where)


def drafting(model: ModelBytes, config: Mapping[str, Any], root: str | None) -> ModelBytes:
    """The same with what drafting reads, by vLLM's speculative_config. Reads files."""
    weights, kv = model.weights, model.kv
    if not isinstance(weights, WeightsFound):
        return model
    drafted = with_draft(weights, kv if isinstance(kv, KvCache) else None, config, root)
    if isinstance(drafted, DraftUnknown):
        return ModelBytes(weights, kv, f"what drafting reads is not known: {drafted.reason}")
    return ModelBytes(drafted[0], drafted[1] or kv, None)


def engine_on_gpu(engine: Engine) -> EngineOnGpu:
    """How the settings say that the engine's processes and GPUs are found."""
    return EngineOnGpu(
        pids=frozenset(engine.engine_pids),
        name=re.compile(engine.engine_process) if engine.engine_process else None,
        gpus=frozenset(int(gpu) if gpu.isdigit() else gpu for gpu in engine.gpus) or None,
    )


def bandwidth(engine: Engine, readings: tuple[GpuReading, ...]) -> Bandwidth:
    """Memory bandwidth that one decode step draws on; `readings` are the engine's GPUs."""
    found = engine_bandwidth(
        readings,
        tensor_parallel_size=engine.tensor_parallel_size,
        settings_value=engine.gpu_bandwidth,
        measured_value=engine.gpu_measured_bandwidth,
    )
    cards = find_cards(engine.gpu) if engine.gpu is not None else []
    if found.bytes_per_second is not None and found.card is None and len(cards) == 1:
        return replace(found, card=cards[0])
    if found.bytes_per_second is not None or engine.gpu is None:
        return found
    if len(cards) != 1:
        return Bandwidth(None, None, gpu_problem(engine) or "no card is named")
    return Bandwidth(
        cards[0].bandwidth_bytes_per_second * engine.tensor_parallel_size,
        "catalogue",
        f"table of cards: {cards[0].name}, named in the settings",
        card=cards[0],
    )


def gpu_problem(engine: Engine) -> str | None:
    """What is wrong with the name in the setting `gpu`, and what to do; None when nothing is."""
    if engine.gpu is None or engine.gpu_bandwidth or engine.gpu_measured_bandwidth:
        return None
    cards = find_cards(engine.gpu)
    if len(cards) == 1:
        return None
    or_else = "or set gpu_bandwidth"
    if cards:
        named = ", ".join(card.name for card in cards[:_NAMED])
        more = ", and more" if len(cards) > _NAMED else ""
        return f"the setting gpu = {engine.gpu!r} means {named}{more}: name one of them, {or_else}"
    names = {card.name.removeprefix("NVIDIA ").lower(): card.name for card in load_catalogue()}
    close = get_close_matches(engine.gpu.lower().removeprefix("nvidia "), names, n=3, cutoff=0.5)
    near = ", ".join(names[name] for name in close)
    like = f" (near it: {near})" if near else ""
    return f"the setting gpu = {engine.gpu!r} is no card of the table{like}: correct it, {or_else}"


def compute_roof(
    card: Card | None, streamed: Streamed | None, cards: int, *,
    flops: float | None = None, parameters: float | None = None,
) -> ComputeRoof | None:  # fmt: skip
    """What so many cards compute at most; None where card or model do not tell.

    flops: of one GPU in the precision that the model is computed in, parameters: that a token is
    multiplied with; both as set.
    """
    if flops is None and card is not None and card.dense_flops is not None:
        flops = card.dense_flops * (streamed.speedup if streamed is not None else 1.0)
    if parameters is None and streamed is not None:
        parameters = streamed.parameters
    if flops is None or parameters is None:
        return None
    return ComputeRoof(flops * cards, parameters)
