"""Checkpoints with the real shapes and headers of known models, and no weights.

Sizes are all that the ceiling needs; the files are sparse and take a few kilobytes on disk.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_GROUP = 128
_BYTES = {"BF16": 2, "F16": 2, "I32": 4}

_Tensor = tuple[str, str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """Sizes of a decoder; kv: of keys, and of values. tied: the input embedding is the output head.
    bias: of the projections to queries, keys and values.
    """

    architecture: str
    model_type: str
    hidden: int
    mlp: int
    layers: int
    vocabulary: int
    heads: int
    kv_heads: int
    kv: int
    tied: bool
    bias: bool

    def config(self) -> dict[str, object]:
        """As config.json has them."""
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "hidden_size": self.hidden,
            "intermediate_size": self.mlp,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.kv // self.kv_heads,
            "vocab_size": self.vocabulary,
            "tie_word_embeddings": self.tied,
            "torch_dtype": "bfloat16",
        }


_QWEN_7B = _Shape(
    architecture="Qwen2ForCausalLM", model_type="qwen2", hidden=3584, mlp=18944, layers=28,
    vocabulary=152064, heads=28, kv_heads=4, kv=512, tied=False, bias=True,
)  # fmt: skip
_LLAMA_1B = _Shape(
    architecture="LlamaForCausalLM", model_type="llama", hidden=2048, mlp=8192, layers=16,
    vocabulary=128256, heads=32, kv_heads=8, kv=512, tied=True, bias=False,
)  # fmt: skip


def write_bf16(directory: Path) -> None:
    """Qwen2.5-7B-Instruct in bfloat16: 15.23 GB, of which a step reads 14.14 GB."""
    _write(directory, _QWEN_7B, "BF16", awq=False)


def write_awq(directory: Path) -> None:
    """Qwen2.5-7B-Instruct-AWQ, 4 bits in groups of 128: a step reads 4.48 GB."""
    _write(directory, _QWEN_7B, "F16", awq=True)


def write_small(directory: Path) -> None:
    """Llama-3.2-1B-Instruct in bfloat16: a step reads all of its 2.47 GB."""
    _write(directory, _LLAMA_1B, "BF16", awq=False)


def _write(directory: Path, shape: _Shape, dtype: str, *, awq: bool) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    header: dict[str, object] = {}
    offset = 0
    for name, kind, extents in _tensors(shape, dtype, awq=awq):
        size = _BYTES[kind] * math.prod(extents)
        header[name] = {"dtype": kind, "shape": extents, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)
    (directory / "config.json").write_text(json.dumps(shape.config()))


def _tensors(shape: _Shape, dtype: str, *, awq: bool) -> Iterator[_Tensor]:
    yield "model.embed_tokens.weight", dtype, (shape.vocabulary, shape.hidden)
    queries = shape.kv // shape.kv_heads * shape.heads
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        for name, outputs, inputs, bias in (
            ("self_attn.q_proj", queries, shape.hidden, shape.bias),
            ("self_attn.k_proj", shape.kv, shape.hidden, shape.bias),
            ("self_attn.v_proj", shape.kv, shape.hidden, shape.bias),
            ("self_attn.o_proj", shape.hidden, queries, False),
            ("mlp.gate_proj", shape.mlp, shape.hidden, False),
            ("mlp.up_proj", shape.mlp, shape.hidden, False),
            ("mlp.down_proj", shape.hidden, shape.mlp, False),
        ):
            yield from _linear(f"{prefix}.{name}", dtype, outputs, inputs, awq=awq)
            if bias:
                yield f"{prefix}.{name}.bias", dtype, (outputs,)
        yield f"{prefix}.input_layernorm.weight", dtype, (shape.hidden,)
        yield f"{prefix}.post_attention_layernorm.weight", dtype, (shape.hidden,)
    yield "model.norm.weight", dtype, (shape.hidden,)
    if not shape.tied:
        yield "lm_head.weight", dtype, (shape.vocabulary, shape.hidden)


def _linear(name: str, dtype: str, outputs: int, inputs: int, *, awq: bool) -> Iterator[_Tensor]:
    if not awq:
        yield f"{name}.weight", dtype, (outputs, inputs)
        return
    yield f"{name}.qweight", "I32", (inputs, outputs // 8)
    yield f"{name}.qzeros", "I32", (inputs // _GROUP, outputs // 8)
    yield f"{name}.scales", dtype, (inputs // _GROUP, outputs)
