"""What drafting reads in a step of speculative decoding, by the engine's `speculative_config`.

The drafted tokens come one after another, so what drafts is read once for each of them; the model
itself is read once to verify them all. Methods: vllm/config/speculative.py (0.32).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tokgauge.model.errors import CheckpointError
from tokgauge.model.kv import KvCache, KvGroup
from tokgauge.model.members import count, text
from tokgauge.model.resolve import resolve_kv, resolve_weights, tensors_of
from tokgauge.model.tensors import Role, Tensor, drafting_layers, layer_index, role_of
from tokgauge.model.weights import Draft, Streamed, WeightsFound

__all__ = ["DraftUnknown", "with_draft"]

_WITHOUT_WEIGHTS = frozenset(["ngram", "[ngram]", "ngram_gpu", "suffix"])
_TABLES = frozenset(["embed_tokens", "d2t", "t2d"])
"""Of a drafting head: a token reads one row, or one number."""
_MOST_TOKENS = 1000


@dataclass(frozen=True, slots=True)
class DraftUnknown:
    """Why the bytes of drafting are not known."""

    reason: str


def with_draft(
    weights: WeightsFound,
    kv: KvCache | None,
    config: Mapping[str, Any],
    root: str | None,
    environment: Mapping[str, str] | None = None,
) -> tuple[WeightsFound, KvCache | None] | DraftUnknown:
    """Weights and cache with what drafting reads beside them.

    config: vLLM's speculative_config. root: where the model's own files are, which hold its
    multi-token layers. Reads files; never raises.
    """
    if weights.streamed is None:
        return DraftUnknown("what a step of the model itself reads is not known")
    tokens = count(config, "num_speculative_tokens")
    if tokens is None or tokens > _MOST_TOKENS:
        return DraftUnknown("speculative_config does not say num_speculative_tokens")
    try:
        found = _one_pass(weights.streamed, kv, config, root, environment)
    except (CheckpointError, OSError, ValueError) as error:
        return DraftUnknown(str(error))
    if isinstance(found, DraftUnknown):
        return found
    read, groups = found
    passes = 1 if config.get("parallel_drafting") is True or _method(config) == "medusa" else tokens
    streamed = replace(weights.streamed, draft=Draft(read, passes, 1 + tokens))
    if kv is not None:
        # Each pass reads the drafting layers' cache again.
        read_again = tuple(replace(g, layers=g.layers * passes) for g in groups)
        kv = replace(kv, groups=kv.groups + read_again)
    return replace(weights, streamed=streamed), kv


def _method(config: Mapping[str, Any]) -> str:
    method = text(config, "method") or ""
    return "mtp" if method.endswith("mtp") else method


def _one_pass(
    target: Streamed,
    kv: KvCache | None,
    config: Mapping[str, Any],
    root: str | None,
    environment: Mapping[str, str] | None,
) -> tuple[Streamed, tuple[KvGroup, ...]] | DraftUnknown:
    """(weights that one drafted token reads, the cache that it reads)."""
    method, model = _method(config), text(config, "model")
    if method in _WITHOUT_WEIGHTS:
        return Streamed(0.0), ()
    if method == "mtp":
        return _multi_token(tensors_of(model or root, environment), target), _one_layer(kv)
    if model is None:
        return DraftUnknown("speculative_config names no model that drafts")
    if method in ("eagle", "eagle3", "medusa"):
        cache = () if method == "medusa" else _one_layer(kv)
        return _head_alone(tensors_of(model, environment), target), cache
    if method not in ("", "draft_model"):
        return DraftUnknown(f"what the method {method!r} reads is not modelled")
    found = resolve_weights(model, environment=environment)
    if not isinstance(found, WeightsFound) or found.streamed is None:
        why = found.streamed_unknown_because if isinstance(found, WeightsFound) else found.reason
        return DraftUnknown(f"the model that drafts: {why}")
    cache_of_it = resolve_kv(model, environment=environment)
    if not isinstance(cache_of_it, KvCache):
        return DraftUnknown(f"the model that drafts: {cache_of_it.reason}")
    return found.streamed, cache_of_it.groups


def _one_layer(kv: KvCache | None) -> tuple[KvGroup, ...]:
    """The cache of one more layer like those of the model that see all of the context."""
    if kv is None:
        return ()
    full = next((group for group in kv.groups if group.reach is None), None)
    if full is None or not kv.layers_told:
        raise CheckpointError("the KV cache of the layers that draft is not known")
    return (replace(full, layers=1, kept=True),)


def _head(target: Streamed) -> float:
    """The output head that a draft without one of its own shares with the model [bytes]."""
    if target.head_bytes is None:
        raise CheckpointError("the size of the output head, which the draft shares, is not known")
    return target.head_bytes


def _head_alone(tensors: list[Tensor], target: Streamed) -> Streamed:
    """A drafting head with files of its own: all of it but its tables."""
    read = [t for t in tensors if _TABLES.isdisjoint(t.name.split("."))]
    own_head = any("lm_head" in t.name or t.name.startswith("medusa") for t in read)
    size = float(sum(t.bytes for t in read))
    if not size:
        raise CheckpointError("the model that drafts has no tensors")
    return Streamed(size if own_head else size + _head(target))


def _multi_token(tensors: list[Tensor], target: Streamed) -> Streamed:
    """The layers of a model that predict further tokens, with the head that they share."""
    drafting = drafting_layers(tensors)
    experts = target.experts or None
    own = [
        t
        for t in tensors
        if layer_index(t.name) in drafting or role_of(t, layers=None, experts=experts) is Role.MTP
    ]
    own = [t for t in own if _TABLES.isdisjoint(t.name.split("."))]
    if not own:
        raise CheckpointError("no multi-token layers are recognised among its tensors")
    routed = float(sum(t.bytes for t in own if "experts" in t.name.split(".")))
    rest = float(sum(t.bytes for t in own)) - routed
    if not any("head" in t.name.split(".") or "lm_head" in t.name for t in own):
        rest += _head(target)
    if not routed:
        return Streamed(rest)
    if not target.experts:
        raise CheckpointError("how many of its experts a token uses is not known")
    return Streamed(
        rest, routed / target.experts, target.experts, target.experts_per_token, target.choices
    )
