"""Bytes that a sequence keeps: KV cache by token of context, and recurrent state.

What a decode step reads of it and what memory it takes differ: layers may read a cache that
another one keeps, windows end, and a state is read and written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tokgauge.model.config import ModelConfig
from tokgauge.model.layers import AttentionKind

__all__ = ["KvCache", "KvGroup", "KvUnknown", "kv_from_bytes_per_token", "kv_from_config"]

_DTYPE_BYTES = {
    "float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2,
    "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1, "int8": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Readings of the same part of the context."""

    layers: int
    """How many of them there are in a step."""
    bytes_per_token: float
    """Of one token in one layer [bytes]."""
    kind: AttentionKind = "full"
    reach: int | None = None
    """Window or chunk [tokens]; None for full attention."""
    kept: bool = True
    """Whether each has a cache of its own; False: it reads one that another layer keeps."""

    def tokens_seen(self, context: float) -> float:
        """How many tokens of the context a decode step reads."""
        if self.reach is None:
            return context
        if self.kind == "chunked" and context > 0:
            return (context - 1) % self.reach + 1
        return min(context, self.reach)


@dataclass(frozen=True, slots=True)
class KvCache:
    """What one sequence keeps."""

    groups: tuple[KvGroup, ...]
    kv_heads: int | None
    """Heads that tensor parallelism can share out; 1 for a compressed cache; None: not known."""
    source: str
    state_bytes: float = 0.0
    """Recurrent state, whatever the context [bytes]."""
    layers_told: bool = True
    """Whether the groups are of layers; False: one stands for all of them together."""

    @property
    def bytes_per_token(self) -> float:
        """Growth per token while every layer still sees all of the context [bytes]."""
        return sum(group.layers * group.bytes_per_token for group in self.groups if group.kept)

    def bytes_read(self, context: float) -> float:
        """What one decode step moves for one sequence with `context` tokens [bytes].

        The cache is read; the state is read and written.
        """
        return 2 * self.state_bytes + sum(
            group.layers * group.bytes_per_token * group.tokens_seen(context)
            for group in self.groups
        )

    def bytes_kept(self, context: float) -> float:
        """Memory of one sequence with `context` tokens [bytes]."""
        return self.state_bytes + sum(
            group.layers * group.bytes_per_token * min(context, group.reach or context)
            for group in self.groups
            if group.kept
        )

    def copies(self, tensor_parallel: int) -> float:
        """How often the cache exists over the cards: a head is the smallest part.

        With more cards than KV heads, several cards keep, and read, the same head.
        """
        return 1.0 if self.kv_heads is None else max(1.0, tensor_parallel / self.kv_heads)


@dataclass(frozen=True, slots=True)
class KvUnknown:
    """No true figure, and what a person can do about it."""

    reason: str
    what_to_set: str = "kv_bytes_per_token"
    negligible_when_short: bool = True
    """False: what is unknown is there whatever the context, as a recurrent state is."""


def kv_from_bytes_per_token(bytes_per_token: float, source: str = "settings") -> KvCache:
    """A cache whose bytes per token are stated: every token counts, however old."""
    return KvCache((KvGroup(1, bytes_per_token),), None, source, layers_told=False)


def kv_from_config(
    config: ModelConfig,
    source: str,
    cache_dtype: str | None = None,
    shapes: Mapping[int, int] | None = None,
) -> KvCache | KvUnknown:
    """The cache that a config.json describes.

    cache_dtype: the engine's `--kv-cache-dtype`; None or "auto" means the model's own.
    shapes: K and V values of a token by layer, told by the shapes of the tensors that make them;
    where a layer has them, they count, and the configuration tells the rest.
    Per layer and token 2 x KV heads x head size values, or with multi-head latent attention
    kv_lora_rank + qk_rope_head_dim values (DeepSeek-V2, arXiv 2405.04434 section 2.1).
    """
    if config.caches is None:
        unknown = config.kv_unknown_because or "config.json does not tell its attention"
        return KvUnknown(unknown, negligible_when_short=config.not_understood is None)
    if config.encoder_decoder:
        return KvUnknown("encoder-decoder models also cache the encoder's output")
    if config.state_bytes is None:
        return KvUnknown(
            "the recurrent state of its layers is not told", negligible_when_short=False
        )
    if not config.caches:
        return KvCache((), None, source, config.state_bytes)
    value_bytes = _value_bytes(config, cache_dtype)
    if isinstance(value_bytes, KvUnknown):
        return value_bytes
    told = {} if config.mla_dim or shapes is None else shapes
    stated = _values_per_layer(config)
    if isinstance(stated, KvUnknown):
        if any(cache.layer not in told for cache in config.caches):
            return stated
        stated = 0
    found: Counter[tuple[AttentionKind, int | None, bool, float]] = Counter()
    for cache in config.caches:
        values = told.get(cache.layer, stated)
        found[cache.kind, cache.reach, cache.own, values * value_bytes] += 1
    groups = tuple(
        KvGroup(number, size, kind, reach, own)
        for (kind, reach, own, size), number in sorted(found.items(), key=str)
    )
    return KvCache(groups, 1 if config.mla_dim else config.kv_heads, source, config.state_bytes)


def _values_per_layer(config: ModelConfig) -> int | KvUnknown:
    if config.mla_dim:
        return config.mla_dim
    if config.kv_unknown_because:
        return KvUnknown(config.kv_unknown_because)
    if config.kv_heads is None:
        return KvUnknown("config.json does not say how many KV heads there are")
    if config.head_dim is None:
        return KvUnknown("config.json does not say how large a head is")
    if config.heads is not None and config.kv_heads > config.heads:
        return KvUnknown(f"{config.kv_heads} KV heads for {config.heads} heads is not credible")
    return config.kv_heads * (config.head_dim + (config.v_head_dim or config.head_dim))


def _value_bytes(config: ModelConfig, cache_dtype: str | None) -> float | KvUnknown:
    if cache_dtype is not None and cache_dtype != "auto":
        stated = _DTYPE_BYTES.get(cache_dtype)
        if stated is None:
            return KvUnknown(f"the size of KV cache dtype {cache_dtype!r} is not known")
        return stated
    if config.kv_quantized:
        return KvUnknown(
            "the checkpoint asks for a quantised KV cache, which an engine may follow or not",
            "kv_cache_dtype",
        )
    if config.dtype is None:
        return KvUnknown("neither config.json nor its tensors tell a dtype", "kv_cache_dtype")
    if config.dtype in ("float32", "float"):
        return KvUnknown(
            "config.json states float32, which engines load as 16 bit unless told otherwise",
            "kv_cache_dtype",
        )
    own = _DTYPE_BYTES.get(config.dtype)
    if own is None:
        return KvUnknown(f"the size of dtype {config.dtype!r} is not known", "kv_cache_dtype")
    return own
