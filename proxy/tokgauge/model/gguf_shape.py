"""What the metadata of a GGUF file tell of the model's layers and of its KV cache.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The rules for windows are those of
llama.cpp (src/llama-model.cpp), which also decides the cache's type: 16 bits unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping

from tokgauge.model.kv import KvCache, KvGroup, KvUnknown
from tokgauge.model.layers import AttentionKind
from tokgauge.model.members import count

__all__ = ["gguf_not_understood", "kv_from_gguf"]

_FULL = frozenset(
    [
        "llama", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe",
        "gemma", "phi2", "phi3", "phimoe", "deepseek", "deepseek2", "command-r", "chatglm", "glm4",
        "glm4moe", "granite", "granitemoe", "falcon", "starcoder", "starcoder2", "stablelm", "olmo",
        "olmoe", "exaone", "minicpm", "internlm2", "nemotron", "orion", "xverse", "baichuan",
        "gpt2", "gptneox", "mpt", "bloom", "qwen", "refact", "codeshell", "dbrx", "arcee",
        "smollm3", "ernie4_5", "ernie4_5-moe", "hunyuan-moe", "hunyuan-dense", "seed_oss",
        "apertus", "dots1", "bailingmoe", "bailingmoe2", "minimax-m2", "mistral3",
    ]
)  # fmt: skip
_SLIDING = {
    "gemma2": 2, "gemma3": 6, "cohere2": 4, "gpt-oss": 2, "exaone4": 4, "olmo2": 4, "gemma3n": 5,
}  # fmt: skip
"""Every so many layers one sees all of the context; the others their window, if one is stated."""

_CACHE_BYTES = {
    "f16": 2.0, "bf16": 2.0, "f32": 4.0, "q8_0": 34 / 32, "q4_0": 18 / 32, "q4_1": 20 / 32,
    "q5_0": 22 / 32, "q5_1": 24 / 32, "float16": 2.0, "bfloat16": 2.0, "float32": 4.0,
}  # fmt: skip

_SHARED_OF_GEMMA3N = 20
"""Layers of Gemma 3n that keep a cache of their own; those after them read the last of these."""


def gguf_not_understood(architecture: object) -> str | None:
    """Why a step's bytes cannot be told for this `general.architecture`."""
    if architecture in _FULL or architecture in _SLIDING:
        return None
    return f"the GGUF architecture {architecture!r} is not among those that are understood"


def kv_from_gguf(
    fields: Mapping[str, object], source: str, cache_dtype: str | None = None
) -> KvCache | KvUnknown:
    """The cache of one sequence as llama.cpp keeps it.

    fields: the metadata, lists of numbers included. cache_dtype: `--cache-type-k`; default f16.
    """
    architecture = fields.get("general.architecture")
    if reason := gguf_not_understood(architecture):
        return KvUnknown(reason, negligible_when_short=False)
    value_bytes = 2.0
    if cache_dtype is not None and cache_dtype != "auto":
        if cache_dtype not in _CACHE_BYTES:
            return KvUnknown(f"the size of KV cache dtype {cache_dtype!r} is not known")
        value_bytes = _CACHE_BYTES[cache_dtype]

    def number(key: str) -> int | None:
        return count(fields, f"{architecture}.{key}")

    layers = number("block_count")
    if layers is None or layers > 10_000:
        return KvUnknown("its metadata do not tell how many layers there are")
    layers -= number("nextn_predict_layers") or 0
    if number("attention.key_length_mla"):
        rank, rope = number("attention.kv_lora_rank"), number("rope.dimension_count")
        if rank is None or rope is None:
            return KvUnknown("its metadata do not tell the size of its compressed cache")
        return KvCache((KvGroup(layers, (rank + rope) * value_bytes),), 1, source)
    heads, embedding = number("attention.head_count"), number("embedding_length")
    size = embedding // heads if embedding and heads else None
    keys, values = number("attention.key_length") or size, number("attention.value_length") or size
    by_layer = _kv_heads(fields.get(f"{architecture}.attention.head_count_kv"), heads, layers)
    if keys is None or values is None or by_layer is None:
        return KvUnknown("its metadata do not tell its KV heads")
    window, pattern = number("attention.sliding_window"), _SLIDING.get(str(architecture))
    stated = fields.get(f"{architecture}.attention.sliding_window_pattern")
    groups: dict[tuple[AttentionKind, int | None, bool, float], int] = {}
    for layer, kv_heads in enumerate(by_layer):
        slides = pattern is not None and window is not None and (layer + 1) % pattern != 0
        if isinstance(stated, list) and layer < len(stated) and window is not None:
            slides = bool(stated[layer])
        kind: AttentionKind = "sliding" if slides else "full"
        kept = architecture != "gemma3n" or layer < _SHARED_OF_GEMMA3N
        key = (kind, window if slides else None, kept, kv_heads * (keys + values) * value_bytes)
        groups[key] = groups.get(key, 0) + 1
    return KvCache(
        tuple(
            KvGroup(count, each, kind, reach, kept)
            for (kind, reach, kept, each), count in groups.items()
            if each
        ),
        min((count for count in by_layer if count), default=None),
        source,
    )


def _kv_heads(stated: object, heads: int | None, layers: int) -> list[int] | None:
    """KV heads of each layer: one number for all, or one each; as many as heads when absent."""
    if isinstance(stated, list):
        fits = len(stated) >= layers and all(isinstance(n, int) and n >= 0 for n in stated)
        return stated[:layers] if fits else None
    if isinstance(stated, int) and not isinstance(stated, bool) and stated > 0:
        return [stated] * layers
    return [heads] * layers if stated is None and heads else None
