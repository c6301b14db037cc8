"""What a model's config.json says about its shape.

Names of members differ between architectures; each value here is present only when the file states
it, or when the class that reads the file has one fixed meaning for its absence (see
`architectures`). Nothing is filled in from what similar models have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokgauge.model.architectures import Architecture, Defaults, defaults_of, understand
from tokgauge.model.layers import CachedLayer, plan_layers
from tokgauge.model.members import count, mapping
from tokgauge.model.members import text as text_of
from tokgauge.model.state import state_bytes

__all__ = ["ModelConfig", "parse_config"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The text model's shape. None: the file does not say."""

    not_understood: str | None
    """Why a step's bytes cannot be told for this class, whatever its files hold."""
    architecture: Architecture | None
    layers: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    v_head_dim: int | None
    mla_dim: int | None
    """Compressed KV of one token and layer under multi-head latent attention [values]."""
    caches: tuple[CachedLayer, ...] | None
    """Every reading of a KV cache in a step; None when it cannot be told."""
    same_keys_and_values: bool
    """Layers without a projection of their own for the values cache the keys as both."""
    states: int
    """Layers with a recurrent state."""
    state_bytes: float | None
    """State of one sequence [bytes]; None: not told."""
    reads: tuple[tuple[str, int], ...]
    """Parts of tensor names, and how often a step reads the tensors that have one."""
    experts: int | None
    experts_per_token: int | None
    choices: int | None
    """What a token chooses its experts from, where that is more than `experts`: identities cost
    nothing."""
    tied: bool | None
    """Whether input embedding and output head are one matrix."""
    dtype: str | None
    kv_quantized: bool
    """The checkpoint asks for a quantised KV cache; the engine decides whether it follows."""
    quantized: bool
    """Whether its weights are stored in a quantised format."""
    quant_bits: int | None
    """Bits of a quantised weight, where the file states them."""
    encoder_decoder: bool
    max_context: int | None
    """Tokens that the positions reach [tokens]."""
    kv_unknown_because: str | None
    """Why KV bytes cannot be told from this file, although the shape is there."""


_TEXT_SECTIONS = ("text_config", "llm_config", "language_config", "language_model_config")
_HEADS_DIFFER = (
    "global_head_dim",
    "num_global_key_value_heads",
    "swa_num_key_value_heads",
    "swa_head_dim",
    "block_configs",
    "attention_other_setting",
)
"""Members with which one layer's KV heads or their size are not another's."""


def parse_config(document: Mapping[str, Any]) -> ModelConfig:
    """Reads a decoded config.json, or the text part of a multimodal one. Never raises."""
    text = _text_section(document)
    architecture, not_understood = understand(document, text)
    model_type = text_of(text, "model_type") or text_of(document, "model_type")
    defaults = defaults_of(model_type)
    layers = count(
        text, "num_layers_per_stack", "num_hidden_layers", "n_layer", "num_layers", "n_layers"
    )
    hidden = count(text, "hidden_size", "n_embd", "d_model", "dim")
    heads = count(text, "num_attention_heads", "n_head", "n_heads", "num_heads") or defaults.heads
    quantization = mapping(text.get("quantization_config")) or mapping(
        document.get("quantization_config")
    )
    kv_heads, reason = _kv_heads(text, heads, defaults)
    caches, states = None, 0
    if architecture is None or not_understood is not None:
        reason = not_understood
    else:
        plan = plan_layers(text, architecture, defaults, layers)
        if isinstance(plan, str):
            reason = plan
        else:
            caches, states = plan.caches, plan.states
    dtype = _dtype(text) or _dtype(document)
    experts, per_token, choices = _experts(text)
    rule = architecture.rule if architecture is not None else "unknown"
    return ModelConfig(
        not_understood=not_understood,
        architecture=architecture,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_head_dim(text, hidden, heads, defaults, rule == "shared"),
        v_head_dim=None if text.get("model_type") == "minicpm3" else count(text, "v_head_dim"),
        mla_dim=_compressed(text),
        caches=caches,
        same_keys_and_values=text.get("attention_k_eq_v") is True,
        states=states,
        state_bytes=state_bytes(text, rule, states, dtype),
        reads=_reads(text, architecture),
        experts=experts,
        experts_per_token=per_token,
        choices=choices,
        tied=_tied(document, text),
        dtype=dtype,
        kv_quantized=bool(
            quantization.get("kv_cache_scheme") or quantization.get("kv_cache_quant_algo")
        ),
        quantized=bool(quantization),
        quant_bits=count(quantization, "bits", "w_bit"),
        encoder_decoder=document.get("is_encoder_decoder") is True,
        max_context=count(text, "max_position_embeddings", "max_sequence_length", "n_positions"),
        kv_unknown_because=reason,
    )


def _text_section(document: Mapping[str, Any]) -> Mapping[str, Any]:
    outer = mapping(document.get("thinker_config")) or document
    for section in _TEXT_SECTIONS:
        if inner := mapping(outer.get(section)):
            return inner
    return outer


def _dtype(section: Mapping[str, Any]) -> str | None:
    value = text_of(section, "dtype") or text_of(section, "torch_dtype")
    return value.removeprefix("torch.") if value else None


def _tied(document: Mapping[str, Any], text: Mapping[str, Any]) -> bool | None:
    # Of a multimodal model the outer statement counts: the outer class ties the weights.
    for section in (document, text):
        value = section.get("tie_word_embeddings")
        if isinstance(value, bool):
            return value
    return None


def _head_dim(
    text: Mapping[str, Any], hidden: int | None, heads: int | None, defaults: Defaults, wide: bool
) -> int | None:
    """wide: attention over the hidden state beside the embedding, twice as many values."""
    nope, rope = count(text, "qk_nope_head_dim"), count(text, "qk_rope_head_dim")
    if nope and rope:
        return nope + rope
    if stated := count(text, "head_dim", "attention_head_dim", "kv_channels"):
        return stated
    if "head_dim" in text and text["head_dim"] is not None:
        return None
    if defaults.head_size is not None:
        return defaults.head_size
    hidden = hidden * 2 if hidden and wide else hidden
    return hidden // heads if hidden and heads and hidden % heads == 0 else None


def _compressed(text: Mapping[str, Any]) -> int | None:
    """Values of a token and layer under multi-head latent attention; None without it.

    MiniCPM3 has its members too, and is cached uncompressed, the values padded to the keys' size
    (vllm/model_executor/models/minicpm3.py).
    """
    if text.get("use_mla") is False or text.get("model_type") == "minicpm3":
        return None
    rank, rope = count(text, "kv_lora_rank"), count(text, "qk_rope_head_dim")
    return rank + rope if rank and rope else None


def _kv_heads(
    text: Mapping[str, Any], heads: int | None, defaults: Defaults
) -> tuple[int | None, str | None]:
    """(KV heads, why they cannot be one number)."""
    for key in ("num_key_value_heads", "num_kv_heads", "n_head_kv"):
        if isinstance(text.get(key), list):
            return None, f"layers differ in their heads ({key})"
    for key in _HEADS_DIFFER:
        if text.get(key):
            return None, f"layers differ in their heads ({key})"
    stated = count(
        text, "num_key_value_heads", "n_head_kv", "multi_query_group_num", "num_attention_groups"
    ) or count(mapping(text.get("attn_config")), "kv_n_heads")
    if stated is not None:
        return stated, None
    if text.get("multi_query") is True and text.get("new_decoder_architecture") is not True:
        return 1, None
    if grouped := count(text, "num_kv_heads"):
        return grouped, None
    return (heads, None) if defaults.kv_heads == "heads" else (defaults.kv_heads, None)


def _experts(text: Mapping[str, Any]) -> tuple[int | None, int | None, int | None]:
    """(experts with weights, experts of a token, what a token chooses from)."""
    nested = mapping(text.get("ffn_config"))
    experts = count(
        text, "num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts"
    ) or count(nested, "moe_num_experts")
    per_token = (
        _same_in_all(text, "moe_topk")
        or count(
            text,
            "num_experts_per_tok",
            "experts_per_token",
            "num_experts_per_token",
            "num_selected_experts",
            "moe_topk",
            "moe_k",
            "moe_top_k",
            "top_k_experts",
        )
        or count(nested, "moe_top_k")
    )
    identities = count(text, "zero_expert_num")
    return experts, per_token, experts + identities if experts and identities else None


def _same_in_all(text: Mapping[str, Any], key: str) -> int | None:
    """The number that a list of one for each layer holds throughout, as Hunyuan writes it."""
    listed = text.get(key)
    if not isinstance(listed, list) or not listed or listed.count(listed[0]) != len(listed):
        return None
    return count({key: listed[0]}, key)


def _reads(
    text: Mapping[str, Any], architecture: Architecture | None
) -> tuple[tuple[str, int], ...]:
    """How often a step reads the tensors of a part; what is not named is read once."""
    if architecture is None:
        return ()
    if architecture.rule == "looped":
        if cycles := count(text, "H_cycles"):
            inner = count(text, "L_cycles") or 0
            return ("L_module", cycles * inner), ("H_module", cycles)
        return (("layers", count(text, "total_ut_steps", "loop_num") or 1),)
    if architecture.rule == "shared":
        blocks = count(text, "num_mem_blocks") or 1
        listed = text.get("layers_block_type") or text.get("layer_types")
        uses = listed.count("hybrid") if isinstance(listed, list) else 0
        # Each of the blocks serves as many of the hybrid layers as the others, but for one.
        return (("shared_transformer", -(-uses // blocks)),)
    return ()
