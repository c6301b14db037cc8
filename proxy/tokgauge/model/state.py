"""Recurrent state of a sequence: read and written in every step, whatever the context.

Shapes as vLLM 0.32 allocates them (vllm/model_executor/layers/mamba/mamba_utils.py): the last
inputs of a short convolution, kept in the model's dtype, and a state. The state's dtype is the
model's too, unless the class or config.json asks for another (mamba_ssm_dtype and the like).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokgauge.model.architectures import Rule
from tokgauge.model.members import count, mapping, text

__all__ = ["state_bytes"]

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def state_bytes(
    section: Mapping[str, Any], rule: Rule, layers: int, model_dtype: str | None
) -> float | None:
    """State of one sequence over `layers` recurrent layers [bytes]; None when it is not told."""
    if not layers:
        return 0.0
    shape = _shape(section, rule)
    convolution_bytes = _BYTES.get(model_dtype or "")
    if shape is None or convolution_bytes is None:
        return None
    convolution, state = shape
    own = text(section, "mamba_ssm_dtype") or text(section, "mamba_ssm_cache_dtype")
    state_bytes_each = _BYTES.get(own) if own else convolution_bytes
    if own is None and (rule == "kimi" or section.get("model_type") == "nemotron_h"):
        state_bytes_each = 4
    if state_bytes_each is None:
        return None
    return float(layers * (convolution * convolution_bytes + state * state_bytes_each))


def _shape(section: Mapping[str, Any], rule: Rule) -> tuple[int, int] | None:
    """(values of the convolution's inputs, values of the state) of one layer."""
    hidden = count(section, "hidden_size", "d_model")
    if rule == "mamba1":
        expand = count(section, "mamba_expand", "expand") or 2
        # Jamba's intermediate_size is that of its feed-forward parts.
        stated = count(section, "intermediate_size") if "state_size" in section else None
        inner = stated or (hidden * expand if hidden else None)
        values = count(section, "mamba_d_state", "state_size") or 16
        kernel = count(section, "mamba_d_conv", "conv_kernel") or 4
        return (inner * (kernel - 1), inner * values) if inner else None
    if rule in ("mamba2", "shared"):
        return _mamba2(section, hidden)
    if rule == "delta":
        return _delta(section)
    if rule == "kimi":
        return _kimi(mapping(section.get("linear_attn_config")))
    kernel = count(section, "conv_L_cache") or 3
    return (hidden * (kernel - 1), 0) if hidden else None


def _mamba2(section: Mapping[str, Any], hidden: int | None) -> tuple[int, int] | None:
    heads = count(section, "mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "num_heads")
    size = count(section, "mamba_d_state", "ssm_state_size", "state_size")
    if not heads or not size:
        return None
    expand = count(section, "mamba_expand", "expand") or 2
    head = count(section, "mamba_d_head", "mamba_head_dim", "mamba_headdim")
    if head is None and section.get("model_type") == "mamba2":
        head = count(section, "head_dim")
    if head is None and hidden:
        head = expand * hidden // heads
    if head is None:
        return None
    groups = count(section, "mamba_n_groups", "mamba_ngroups", "n_groups") or 1
    kernel = count(section, "mamba_d_conv", "conv_kernel") or 4
    return (heads * head + 2 * groups * size) * (kernel - 1), heads * head * size


def _kimi(section: Mapping[str, Any]) -> tuple[int, int] | None:
    heads, size = count(section, "num_heads"), count(section, "head_dim")
    kernel = count(section, "short_conv_kernel_size") or 4
    if not heads or not size:
        return None
    return 3 * heads * size * (kernel - 1), heads * size * size


def _delta(section: Mapping[str, Any]) -> tuple[int, int] | None:
    keys, values = count(section, "linear_num_key_heads"), count(section, "linear_num_value_heads")
    key_size, value_size = (
        count(section, "linear_key_head_dim"),
        count(section, "linear_value_head_dim"),
    )
    kernel = count(section, "linear_conv_kernel_dim") or 4
    if not keys or not values or not key_size or not value_size:
        return None
    convolution = (2 * keys * key_size + values * value_size) * (kernel - 1)
    return convolution, values * value_size * key_size
