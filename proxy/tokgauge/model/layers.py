"""Which layers of a model keep what: all of the context, a part of it, another layer's, or a state.

The kinds come from config.json where it lists them, else from the class's own rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from tokgauge.model.architectures import Architecture, Defaults
from tokgauge.model.members import count, mapping

__all__ = ["AttentionKind", "CachedLayer", "LayerPlan", "plan_layers"]

AttentionKind = Literal["full", "sliding", "chunked"]
"""What a cache is read for: all of the context, its last tokens, or those of the current chunk."""

_Kind = Literal["full", "sliding", "chunked", "state", "both", "none"]


@dataclass(frozen=True, slots=True)
class CachedLayer:
    """One reading of a KV cache in a decode step."""

    layer: int
    """The layer whose projections make the cache."""
    kind: AttentionKind
    reach: int | None
    """Window, or length of a chunk [tokens]; None for all of the context."""
    own: bool = True
    """Whether this reading has a cache of its own; False: it reads one that is there already."""


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """caches: every reading of a cache. states: layers with a recurrent state."""

    caches: tuple[CachedLayer, ...]
    states: int


_KINDS: dict[str, _Kind] = {
    "full_attention": "full",
    "attention": "full",
    "global": "full",
    "sliding_attention": "sliding",
    "local": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "state",
    "mamba": "state",
    "mamba2": "state",
    "conv": "state",
    "hybrid": "both",
    "moe": "none",
    "mlp": "none",
}
_HYBRID_PATTERN: dict[str, _Kind] = {"*": "full", "M": "state", "-": "none", "E": "none"}
_MOST_LAYERS = 10_000
_MOST_PASSES = 100


def plan_layers(
    text: Mapping[str, Any], architecture: Architecture, defaults: Defaults, layers: int | None
) -> LayerPlan | str:
    """What each layer keeps, or in a few words why it cannot be told."""
    if layers is None:
        return "config.json does not say how many layers there are"
    if layers > _MOST_LAYERS:
        return f"{layers} layers are not credible"
    kinds = _kinds(text, architecture, defaults, layers)
    if isinstance(kinds, str):
        return kinds
    window = _window(text, defaults)
    chunk = count(text, "attention_chunk_size")
    reaches: dict[_Kind, int | None] = {"full": None, "both": None}
    if "sliding" in kinds:
        if window is None and not _switched_off(text):
            return "layers with a sliding window whose size is not stated"
        reaches["sliding"] = window
    if "chunked" in kinds:
        if chunk is None:
            return "chunked layers whose chunk is not stated"
        reaches["chunked"] = chunk
    caches = []
    for layer, kind in enumerate(kinds):
        if kind in reaches:
            reach = reaches[kind]
            # A window that is switched off (false, or null) leaves full attention.
            seen: AttentionKind = "chunked" if kind == "chunked" else "sliding"
            caches.append(CachedLayer(layer, "full" if reach is None else seen, reach))
    states = sum(kind in ("state", "both") for kind in kinds)
    shared = _shared(caches, text)
    if isinstance(shared, str):
        return shared
    for member in ("H_cycles", "L_cycles", "total_ut_steps", "loop_num"):
        if (count(text, member) or 0) > _MOST_PASSES:
            return f"{text[member]} passes ({member}) are not credible"
    return LayerPlan(_repeated(shared, text, architecture), states)


def _each(kinds: Iterable[str]) -> tuple[_Kind, ...]:
    """One entry a layer; the texts are those of _Kind, which a generator hides from checkers."""
    return cast(tuple[_Kind, ...], tuple(kinds))


def _window(text: Mapping[str, Any], defaults: Defaults) -> int | None:
    if _switched_off(text):
        return None
    return count(text, "sliding_window", "sliding_window_size") or defaults.window


def _switched_off(text: Mapping[str, Any]) -> bool:
    if text.get("use_sliding_window") is False:
        return True
    return "sliding_window" in text and text["sliding_window"] is None


def _kinds(
    text: Mapping[str, Any], architecture: Architecture, defaults: Defaults, layers: int
) -> tuple[_Kind, ...] | str:
    """The kind of every layer, or why it cannot be told."""
    stated = _stated(text, layers)
    if stated is not None:
        return stated
    rule = architecture.rule
    if rule == "mamba1":
        period = count(text, "attn_layer_period")
        if period is None:
            return _each(["state"] * layers)
        offset = text.get("attn_layer_offset", 0)
        return _each("full" if n % period == offset else "state" for n in range(layers))
    if rule == "mamba2":
        return _mamba2(text, architecture, layers)
    if rule == "delta":
        interval = count(text, "full_attention_interval") or 4
        return _each("state" if (n + 1) % interval else "full" for n in range(layers))
    if rule == "kimi":
        return _kimi(mapping(text.get("linear_attn_config")), layers)
    if rule == "convolution":
        full = text.get("full_attn_idxs")
        if not isinstance(full, list):
            return "which layers see the context is not stated"
        return _each("full" if n in full else "state" for n in range(layers))
    if rule == "shared":
        return "which layers see the context is not stated"
    return _sliding(text, defaults, layers)


def _stated(text: Mapping[str, Any], layers: int) -> tuple[_Kind, ...] | str | None:
    """What the file lists; None where it lists nothing."""
    blocks = text.get("block_configs")
    if isinstance(blocks, list) and len(blocks) >= layers:
        return _each(_block(mapping(block).get("attention")) for block in blocks[:layers])
    pattern = text.get("hybrid_override_pattern")
    heads = text.get("hybrid_layer_pattern")
    if isinstance(pattern, str) and pattern:
        names: list[Any] = list(pattern)
        table = _HYBRID_PATTERN
    elif isinstance(heads, list) and heads:
        names = ["sliding_attention" if sliding else "full_attention" for sliding in heads]
        table = _KINDS
    else:
        listed = text.get("layer_types") or text.get("layers_block_type")
        if not listed:
            return None
        names, table = listed if isinstance(listed, list) else [], _KINDS
    if len(names) < layers or not all(isinstance(n, str) and n in table for n in names[:layers]):
        return "the kinds of its layers are not understood"
    return tuple(table[name] for name in names[:layers])


def _block(attention: Any) -> _Kind:
    """The kind of a layer of Nemotron-NAS, whose attention may be left out or made linear."""
    stated = mapping(attention)
    return "none" if stated.get("no_op") or stated.get("replace_with_linear") else "full"


def _mamba2(
    text: Mapping[str, Any], architecture: Architecture, layers: int
) -> tuple[_Kind, ...] | str:
    if architecture.name == "Mamba2ForCausalLM":
        return _each(["state"] * layers)
    if architecture.name == "FalconH1ForCausalLM":
        return _each(["both"] * layers)
    full = text.get("attn_layer_indices")
    if not isinstance(full, list):
        return "which layers see the context is not stated"
    return _each("full" if n in full else "state" for n in range(layers))


def _kimi(stated: Mapping[str, Any], layers: int) -> tuple[_Kind, ...] | str:
    full, linear = stated.get("full_attn_layers"), stated.get("kda_layers")
    if not isinstance(full, list) or not isinstance(linear, list):
        return "which layers see the context is not stated"
    # These lists count layers from one.
    if sorted([*full, *linear], key=str) != sorted(range(1, layers + 1), key=str):
        return "the kinds of its layers are not understood"
    return _each("full" if n + 1 in full else "state" for n in range(layers))


def _sliding(text: Mapping[str, Any], defaults: Defaults, layers: int) -> tuple[_Kind, ...] | str:
    """The kinds that a class without states has when the file does not list them."""
    numbers = range(layers)
    if count(text, "attention_chunk_size"):
        roped = text.get("no_rope_layers")
        if not roped:
            step = count(text, "no_rope_layer_interval") or 4
            roped = [(n + 1) % step != 0 for n in numbers]
        if not isinstance(roped, list) or len(roped) != layers:
            return "which layers see only a part of the context is not stated"
        return _each("chunked" if use else "full" for use in roped)
    if _window(text, defaults) is None:
        return _each(["full"] * layers)
    pattern = defaults.pattern
    stated = _stated_pattern(text)
    if isinstance(stated, str):
        return _each("full" if stated[n % len(stated)] == "G" else "sliding" for n in numbers)
    if stated is not None and pattern is not None and pattern[0].isdigit():
        pattern = pattern.replace(pattern.split()[0], str(stated), 1)
    if pattern == "all":
        return _each(["sliding"] * layers)
    if pattern == "late":
        if text.get("use_sliding_window") is not True:
            return _each(["full"] * layers)
        first = text.get("max_window_layers")
        first = first if isinstance(first, int) else 28
        return _each("sliding" if n >= first else "full" for n in numbers)
    if pattern is not None and pattern.startswith("first "):
        period = int(pattern.split()[1])
        return _each("sliding" if n % period else "full" for n in numbers)
    if pattern is None:
        return "which layers see only a part of the context is not stated"
    period = int(pattern.split()[0])
    kinds: list[_Kind] = ["sliding" if (n + 1) % period else "full" for n in numbers]
    if pattern.endswith("last"):
        kinds[-1] = "full"
    return tuple(kinds)


def _stated_pattern(text: Mapping[str, Any]) -> int | str | None:
    """A period, or letters as EXAONE 4 writes them: LLLG."""
    letters = text.get("sliding_window_pattern")
    if isinstance(letters, str) and letters and set(letters) <= {"L", "G"}:
        return letters
    return count(
        text, "sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers"
    )


def _shared(caches: list[CachedLayer], text: Mapping[str, Any]) -> list[CachedLayer] | str:
    """Layers that read a cache which an earlier layer keeps: they read as much, and keep nothing.

    Gemma 3n and 4: the last num_kv_shared_layers read the last earlier layer of their kind.
    Hunyuan with use_cla: of cla_share_factor layers the first keeps it.
    """
    shared = count(text, "num_kv_shared_layers") or 0
    if shared:
        first = len(caches) - shared
        found = caches[:first]
        if first < 1:
            return "more layers share a KV cache than there are"
        for cache in caches[first:]:
            source = next((c for c in reversed(caches[:first]) if c.kind == cache.kind), None)
            if source is None:
                return "a layer shares a KV cache that no earlier layer keeps"
            found.append(replace(cache, layer=source.layer, own=False))
        return found
    if text.get("use_cla") is True:
        factor = count(text, "cla_share_factor")
        if factor is None:
            return "how many layers share a KV cache is not stated"
        return [
            replace(cache, layer=cache.layer - cache.layer % factor, own=cache.layer % factor == 0)
            for cache in caches
        ]
    return caches


def _repeated(
    caches: list[CachedLayer], text: Mapping[str, Any], architecture: Architecture
) -> tuple[CachedLayer, ...]:
    """The readings of a step whose stack runs several times, or has several blocks in a layer."""
    if architecture.rule == "double":
        return tuple(cache for cache in caches for _ in range(2))
    if architecture.rule != "looped":
        return tuple(caches)
    if cycles := count(text, "H_cycles"):
        # The L stack runs in every inner cycle, the H stack once in each outer one.
        passes = cycles * ((count(text, "L_cycles") or 0) + 1)
        return tuple(cache for cache in caches for _ in range(passes))
    if steps := count(text, "total_ut_steps"):
        return tuple(cache for cache in caches for _ in range(steps))
    times = count(text, "loop_num") or 1
    window = count(text, "loop_window_size") or 64
    again = [
        reading
        for cache in caches
        for _ in range(times - 1)
        for reading in (
            replace(cache, own=False),
            CachedLayer(cache.layer, "sliding", window),
        )
    ]
    return (*caches, *again)
