"""What the shapes and types of tensors tell of the KV cache, where config.json is silent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tokgauge.model.config import ModelConfig
from tokgauge.model.tensors import UNPACKED, Role, Tensor, layer_index, role_of

__all__ = ["kv_values_by_layer", "stored_dtype"]

_PROJECTION = re.compile(
    r"\.(?:self_attn|attn|attention|self_attention)\.(?:attention\.)?"
    r"(?P<which>k_proj|v_proj|wk|wv)\.(?:base_layer\.)?(?P<part>weight|scales|weight_packed)$"
)
_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def kv_values_by_layer(tensors: Iterable[Tensor], config: ModelConfig) -> Mapping[int, int]:
    """K and V values of one token, for each layer whose projections tell them."""
    if config.mla_dim or config.architecture is None or config.architecture.rule == "shared":
        return {}
    made: dict[int, dict[str, int]] = {}
    for tensor in tensors:
        match = _PROJECTION.search(tensor.name)
        layer = layer_index(tensor.name)
        if match is None or layer is None:
            continue
        if role_of(tensor, layers=config.layers, experts=None) is not Role.DENSE:
            continue
        outputs = _outputs(tensor, match["part"])
        if outputs:
            made.setdefault(layer, {})["v" if "v" in match["which"] else "k"] = outputs
    found = {}
    for layer, sizes in made.items():
        keys, values = sizes.get("k"), sizes.get("v")
        if keys and values is None and config.same_keys_and_values:
            values = keys
        if keys and values:
            found[layer] = keys + values
    return found


def _outputs(tensor: Tensor, part: str) -> int | None:
    """Outputs of a projection; None where its packing hides them."""
    if len(tensor.shape) != 2:
        return None
    if part == "scales":
        return tensor.shape[1]  # one row of AWQ and GPTQ scales for each group of inputs
    if part == "weight_packed" or tensor.dtype in UNPACKED:
        return tensor.shape[0]
    return None


def stored_dtype(tensors: Iterable[Tensor]) -> str | None:
    """The dtype of most bytes among the tensors in floats of 16 or 32 bits, as torch names it."""
    sizes: dict[str, int] = {}
    for tensor in tensors:
        if tensor.dtype in _DTYPES:
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.bytes
    return _DTYPES[max(sizes, key=lambda dtype: sizes[dtype])] if sizes else None
