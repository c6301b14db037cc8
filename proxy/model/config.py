"""What a model's config.json says about its shape.

Names of keys differ between architectures; each value here is present only when the file states
it, or when the library that reads the file has one fixed meaning for its absence. Nothing is
filled in from what similar models have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["AttentionKind", "ModelConfig", "parse_config"]

AttentionKind = Literal["full", "sliding", "chunked", "none"]
"""What a layer keeps per token: all of the context, the last tokens, those of the current chunk,
or nothing (linear attention and state-space layers)."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The text model's shape. None: the file does not say."""

    layers: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    v_head_dim: int | None
    mla_dim: int | None
    """Compressed KV of one token and layer under multi-head latent attention [values]."""
    attention: tuple[AttentionKind, ...] | None
    """One entry a layer; None when it cannot be told."""
    window: int | None
    """Reach of sliding layers, or length of a chunk [tokens]."""
    experts: int | None
    experts_per_token: int | None
    tied: bool | None
    """Whether input embedding and output head are one matrix."""
    dtype: str | None
    kv_quantized: bool
    """The checkpoint asks for a quantised KV cache; the engine decides whether it follows."""
    encoder_decoder: bool
    kv_unknown_because: str | None
    """Why KV bytes cannot be told from this file, although the shape is there."""


_TEXT_SECTIONS = ("text_config", "llm_config", "language_config", "language_model_config")
_ALTERNATING = frozenset(("gemma2", "gpt_oss"))
_PATTERNED = frozenset(("gemma3", "gemma3_text", "cohere2"))
_UNIFORM_WINDOW = frozenset(
    [
        "mistral",
        "mixtral",
        "phi3",
        "phimoe",
        "starcoder2",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "qwen2_vl",
        "qwen2_vl_text",
        "qwen2_5_vl",
        "qwen2_5_vl_text",
    ]
)
# Families that had one K and V head per query head before grouped heads came: there an absent
# num_key_value_heads means as many as heads.
_ONE_KV_HEAD_PER_HEAD = frozenset(
    [
        "llama",
        "gpt2",
        "gptj",
        "gpt_neo",
        "gpt_neox",
        "opt",
        "bloom",
        "phi",
        "internlm",
        "baichuan",
        "olmo",
        "codegen",
        "persimmon",
    ]
)
_NOT_MODELLED = {
    "index_topk": "sparse attention reads a part of the context",
    "block_configs": "layers differ in their heads",
    "global_head_dim": "layers differ in their head size",
    "num_global_key_value_heads": "layers differ in their heads",
    "swa_num_key_value_heads": "layers differ in their heads",
    "hybrid_layer_pattern": "layers differ in their heads",
    "linear_attn_config": "linear attention of a kind that is not modelled",
    "compress_ratios": "compressed attention is not modelled",
    "cross_attention_layers": "cross-attention reads the picture, not the context",
}
_KINDS: dict[str, AttentionKind] = {
    "full_attention": "full",
    "attention": "full",
    "global": "full",
    "sliding_attention": "sliding",
    "local": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "none",
    "mamba": "none",
    "mamba2": "none",
    "conv": "none",
    "recurrent": "none",
    "moe": "none",
    "mlp": "none",
}
_HYBRID_PATTERN: dict[str, AttentionKind] = {"*": "full", "M": "none", "-": "none", "E": "none"}
_STATE_SPACE_KEYS = (
    "mamba_d_state",
    "ssm_state_size",
    "mamba_n_heads",
    "ssm_cfg",
    "attn_type_list",
)


def parse_config(document: Mapping[str, Any]) -> ModelConfig:
    """Reads a decoded config.json, or the text part of a multimodal one. Never raises."""
    text = _text_section(document)
    layers = _count(text, "num_hidden_layers", "n_layer", "num_layers", "n_layers")
    hidden = _count(text, "hidden_size", "n_embd", "d_model", "dim")
    heads = _count(text, "num_attention_heads", "n_head", "n_heads", "num_heads")
    model_type = _text(text, "model_type") or _text(document, "model_type")
    attention, window, reason = _attention(text, model_type, layers)
    for key, why in _NOT_MODELLED.items():
        if text.get(key) is not None:
            reason = f"{why} ({key})"
    quantization = _mapping(text.get("quantization_config")) or _mapping(
        document.get("quantization_config")
    )
    kv_rank, rope_dim = _count(text, "kv_lora_rank"), _count(text, "qk_rope_head_dim")
    kv_heads, kv_reason = _kv_heads(text, heads, model_type)
    return ModelConfig(
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_head_dim(text, hidden, heads),
        v_head_dim=_count(text, "v_head_dim"),
        mla_dim=kv_rank + rope_dim if kv_rank and rope_dim else None,
        attention=attention,
        window=window,
        experts=_count(
            text, "num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts"
        )
        or _count(_mapping(text.get("ffn_config")), "moe_num_experts"),
        experts_per_token=_count(
            text,
            "num_experts_per_tok",
            "experts_per_token",
            "num_experts_per_token",
            "moe_topk",
            "moe_k",
            "moe_top_k",
        )
        or _count(_mapping(text.get("ffn_config")), "moe_top_k"),
        tied=_tied(document, text),
        dtype=_dtype(text) or _dtype(document),
        kv_quantized=bool(
            quantization.get("kv_cache_scheme") or quantization.get("kv_cache_quant_algo")
        ),
        encoder_decoder=document.get("is_encoder_decoder") is True,
        kv_unknown_because=reason or kv_reason,
    )


def _text_section(document: Mapping[str, Any]) -> Mapping[str, Any]:
    outer = _mapping(document.get("thinker_config")) or document
    for section in _TEXT_SECTIONS:
        if inner := _mapping(outer.get(section)):
            return inner
    return outer


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _count(section: Mapping[str, Any], *keys: str) -> int | None:
    """The first of these keys that holds a positive whole number."""
    for key in keys:
        value = section.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**53:
            return value
    return None


def _text(section: Mapping[str, Any], key: str) -> str | None:
    value = section.get(key)
    return value if isinstance(value, str) and value else None


def _dtype(section: Mapping[str, Any]) -> str | None:
    value = _text(section, "dtype") or _text(section, "torch_dtype")
    return value.removeprefix("torch.") if value else None


def _tied(document: Mapping[str, Any], text: Mapping[str, Any]) -> bool | None:
    # Of a multimodal model the outer statement counts: the outer class ties the weights.
    for section in (document, text):
        value = section.get("tie_word_embeddings")
        if isinstance(value, bool):
            return value
    return None


def _head_dim(text: Mapping[str, Any], hidden: int | None, heads: int | None) -> int | None:
    # An explicit null means the same as absence.
    if text.get("head_dim") is not None:
        return _count(text, "head_dim")
    if stated := _count(text, "attention_head_dim", "kv_channels"):
        return stated
    return hidden // heads if hidden and heads and hidden % heads == 0 else None


def _kv_heads(
    text: Mapping[str, Any], heads: int | None, model_type: str | None
) -> tuple[int | None, str | None]:
    attention = _mapping(text.get("attn_config"))
    for key in ("num_key_value_heads", "num_kv_heads", "n_head_kv"):
        if isinstance(text.get(key), list):
            return None, f"layers differ in their heads ({key})"
    stated = _count(text, "num_key_value_heads", "n_head_kv", "multi_query_group_num") or _count(
        attention, "kv_n_heads"
    )
    if stated is not None:
        return stated, None
    if text.get("multi_query") is True and text.get("new_decoder_architecture") is not True:
        return 1, None
    if grouped := _count(text, "num_kv_heads"):
        return grouped, None
    return (heads, None) if model_type in _ONE_KV_HEAD_PER_HEAD else (None, None)


def _attention(
    text: Mapping[str, Any], model_type: str | None, layers: int | None
) -> tuple[tuple[AttentionKind, ...] | None, int | None, str | None]:
    """(kind of each layer, window, reason why unknown)."""
    window = _count(text, "sliding_window", "sliding_window_size")
    if text.get("use_sliding_window") is False:
        window = None
    chunk = _count(text, "attention_chunk_size")
    if layers is None:
        return None, None, "config.json does not say how many layers there are"
    if layers > 10_000:
        return None, None, f"{layers} layers are not credible"
    kinds = _stated_kinds(text, layers)
    if kinds is None and _states_kinds(text):
        return None, None, "the kinds of its layers are not understood"
    if kinds is None:
        kinds = _conventional_kinds(text, model_type, layers, window, chunk)
    if kinds is None:
        return None, None, "which layers see only a part of the context is not stated"
    if "chunked" in kinds and "sliding" in kinds:
        return None, None, "sliding and chunked layers together are not modelled"
    if "chunked" in kinds:
        window = chunk
    elif "sliding" not in kinds:
        window = None
    if window is None and "chunked" in kinds:
        return None, None, "chunked layers whose chunk is not stated"
    if window is None and "sliding" in kinds:
        if text.get("use_sliding_window") is not False and "sliding_window" not in text:
            return None, None, "layers with a sliding window whose size is not stated"
        # A window that is switched off (false, or null) leaves full attention.
        return tuple(_switched_off(kind) for kind in kinds), None, None
    return kinds, window, None


def _switched_off(kind: AttentionKind) -> AttentionKind:
    return "full" if kind == "sliding" else kind


def _states_kinds(text: Mapping[str, Any]) -> bool:
    return any(text.get(k) for k in ("layer_types", "layers_block_type", "hybrid_override_pattern"))


def _stated_kinds(text: Mapping[str, Any], layers: int) -> tuple[AttentionKind, ...] | None:
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        names: list[Any] = list(pattern)
        table = _HYBRID_PATTERN
    else:
        stated = text.get("layer_types") or text.get("layers_block_type")
        names = stated if isinstance(stated, list) else []
        table = _KINDS
    if len(names) < layers or not all(isinstance(n, str) and n in table for n in names[:layers]):
        return None
    return tuple(table[name] for name in names[:layers])


def _conventional_kinds(
    text: Mapping[str, Any],
    model_type: str | None,
    layers: int,
    window: int | None,
    chunk: int | None,
) -> tuple[AttentionKind, ...] | None:
    """The kinds that an architecture has by its code when the file does not list them."""
    numbers = range(layers)
    if interval := _count(text, "full_attention_interval"):
        return tuple("none" if (n + 1) % interval else "full" for n in numbers)
    if period := _count(text, "attn_layer_period"):
        offset = text.get("attn_layer_offset", 0)
        return tuple("full" if n % period == offset else "none" for n in numbers)
    if any(key in text for key in _STATE_SPACE_KEYS):
        return None
    if chunk is not None:
        roped = text.get("no_rope_layers")
        if not isinstance(roped, list) or len(roped) != layers:
            return None
        return tuple("chunked" if use else "full" for use in roped)
    if window is None:
        # Gemma leaves its defaults out of the file; the window is always there.
        if model_type in _ALTERNATING | _PATTERNED:
            return None
        return tuple("full" for _ in numbers)
    if model_type in _ALTERNATING:
        return tuple("full" if n % 2 else "sliding" for n in numbers)
    pattern = _count(text, "sliding_window_pattern", "_sliding_window_pattern")
    if model_type in ("gemma3", "gemma3_text"):
        pattern = pattern or 6
    if model_type in _PATTERNED:
        if pattern is None:
            return None
        return tuple("sliding" if (n + 1) % pattern else "full" for n in numbers)
    if model_type in _UNIFORM_WINDOW:
        first = text.get("max_window_layers") if text.get("use_sliding_window") is True else 0
        first = first if isinstance(first, int) else 0
        return tuple("sliding" if n >= first else "full" for n in numbers)
    return None
