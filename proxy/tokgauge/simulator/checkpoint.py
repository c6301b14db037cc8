"""Checkpoints of Qwen2.5-7B-Instruct with its real shapes and headers, and no weights.

Sizes are all that the ceiling needs; the files are sparse and take a few kilobytes on disk.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

_HIDDEN, _MLP, _LAYERS, _VOCABULARY, _KV = 3584, 18944, 28, 152064, 512
_GROUP = 128
_BYTES = {"BF16": 2, "F16": 2, "I32": 4}

_CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": _HIDDEN,
    "intermediate_size": _MLP,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": _VOCABULARY,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}

_Tensor = tuple[str, str, tuple[int, ...]]


def write_bf16(directory: Path) -> None:
    """Qwen2.5-7B-Instruct in bfloat16: 15.23 GB, of which a step reads 14.14 GB."""
    _write(directory, "BF16", awq=False)


def write_awq(directory: Path) -> None:
    """Qwen2.5-7B-Instruct-AWQ, 4 bits in groups of 128: a step reads 4.48 GB."""
    _write(directory, "F16", awq=True)


def _write(directory: Path, dtype: str, *, awq: bool) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    header: dict[str, object] = {}
    offset = 0
    for name, kind, shape in _tensors(dtype, awq=awq):
        size = _BYTES[kind]
        for extent in shape:
            size *= extent
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)
    (directory / "config.json").write_text(json.dumps(_CONFIG))


def _tensors(dtype: str, *, awq: bool) -> Iterator[_Tensor]:
    yield "model.embed_tokens.weight", dtype, (_VOCABULARY, _HIDDEN)
    for layer in range(_LAYERS):
        prefix = f"model.layers.{layer}"
        for name, outputs, inputs, bias in (
            ("self_attn.q_proj", _HIDDEN, _HIDDEN, True),
            ("self_attn.k_proj", _KV, _HIDDEN, True),
            ("self_attn.v_proj", _KV, _HIDDEN, True),
            ("self_attn.o_proj", _HIDDEN, _HIDDEN, False),
            ("mlp.gate_proj", _MLP, _HIDDEN, False),
            ("mlp.up_proj", _MLP, _HIDDEN, False),
            ("mlp.down_proj", _HIDDEN, _MLP, False),
        ):
            yield from _linear(f"{prefix}.{name}", dtype, outputs, inputs, awq=awq)
            if bias:
                yield f"{prefix}.{name}.bias", dtype, (outputs,)
        yield f"{prefix}.input_layernorm.weight", dtype, (_HIDDEN,)
        yield f"{prefix}.post_attention_layernorm.weight", dtype, (_HIDDEN,)
    yield "model.norm.weight", dtype, (_HIDDEN,)
    yield "lm_head.weight", dtype, (_VOCABULARY, _HIDDEN)


def _linear(name: str, dtype: str, outputs: int, inputs: int, *, awq: bool) -> Iterator[_Tensor]:
    if not awq:
        yield f"{name}.weight", dtype, (outputs, inputs)
        return
    yield f"{name}.qweight", "I32", (inputs, outputs // 8)
    yield f"{name}.qzeros", "I32", (inputs // _GROUP, outputs // 8)
    yield f"{name}.scales", dtype, (inputs // _GROUP, outputs)
