"""What each tensor of a checkpoint is for, told from its name.

The names are those that model authors and llama.cpp give; a decode step reads some tensors in
full, some in part (one row of an embedding, some experts of many), some not at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

__all__ = [
    "UNPACKED",
    "Role",
    "Tensor",
    "drafting_layers",
    "expert_index",
    "layer_index",
    "layer_path",
    "role_of",
]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor as it is stored: `bytes` [bytes], `dtype` as the format spells it."""

    name: str
    bytes: int
    dtype: str
    shape: tuple[int, ...]


UNPACKED = frozenset(("BF16", "F16", "F32", "F8_E4M3", "F8_E5M2"))
"""Types of which one element is one weight, so that shapes tell how many there are."""


class Role(Enum):
    """What a decode step of the text model does with a tensor."""

    DENSE = "read in full"
    HEAD = "output head, read in full"
    EMBEDDING = "input embedding: one row per token, or the output head when tied"
    GATHERED = "other tables of which a token reads one row"
    EXPERT = "read when a token is routed to it"
    TOWER = "vision or audio, not used while text is decoded"
    MTP = "multi-token prediction, used only for drafting"
    ADAPTER = "of a low-rank adapter, which the base model does without"


_TOWERS = frozenset(
    [
        "visual",
        "vision",
        "vision_tower",
        "vision_model",
        "vision_encoder",
        "vision_embed_tokens",
        "vision_adapter",
        "vision_language_adapter",
        "vision_projection",
        "multi_modal_projector",
        "mm_projector",
        "pre_mm_projector_norm",
        "patch_merger",
        "image_newline",
        "image_projection",
        "embed_vision",
        "vpm",
        "resampler",
        "audio",
        "audio_tower",
        "audio_model",
        "audio_encoder",
        "audio_projection",
        "embed_audio",
        "embed_tokens_extend",
        "apm",
        "tts",
        "talker",
        "token2wav",
        "code2wav",
        "sam_model",
        "aligner",
        "mlp1",
    ]
)
_MTP = frozenset(
    ["mtp", "mtp_layers", "mtp_block", "mtp_emb_norm", "mtp_hidden_norm", "mtp_linear_proj"]
)
_MTP_PARTS = frozenset(("eh_proj", "enorm", "hnorm", "shared_head", "nextn"))
_EMBEDDINGS = frozenset(
    [
        "embed_tokens",
        "tok_embeddings",
        "wte",
        "word_embeddings",
        "embed_in",
        "token_embd",
        "embeddings",
    ]
)
_GATHERED = frozenset(
    [
        "embed_tokens_per_layer",
        "per_layer_token_embd",
        "wpe",
        "embed_positions",
        "position_embeddings",
        "token_type_embeddings",
        "position_embd",
        "token_types",
    ]
)
_HEADS = frozenset(["lm_head", "embed_out", "output_layer"])
_ADAPTERS = frozenset(
    ["lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector"]
)
_GGUF_EXPERT = re.compile(r"\.ffn_(?:gate|up|down|gate_up)_exps\.")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|blk|block)\.(\d{1,6})\.")
_EXPERT = re.compile(r"\.experts\.(\d{1,6})\.")


def layer_index(name: str) -> int | None:
    """Number of the layer that a tensor belongs to."""
    match = _LAYER.search(name)
    return int(match[1]) if match else None


def layer_path(name: str) -> str | None:
    """The name up to that number: a model may have several stacks, each counted from 0."""
    match = _LAYER.search(name)
    return name[: match.end(1)] if match else None


def expert_index(name: str) -> int | None:
    """Number of the expert; None where one tensor holds all experts of a layer."""
    match = _EXPERT.search(name)
    return int(match[1]) if match else None


def drafting_layers(tensors: Iterable[Tensor]) -> set[int]:
    """Layers that only predict further tokens, told by parts that no other layer has.

    GGUF counts them among the layers of the model, so their number does not give them away.
    """
    found = set()
    for tensor in tensors:
        parts = tensor.name.split(".")
        layer = layer_index(tensor.name)
        if layer is None or _MTP_PARTS.isdisjoint(parts):
            continue
        if _MTP.isdisjoint(_before_number(parts)):
            found.add(layer)
    return found


def role_of(tensor: Tensor, *, layers: int | None, experts: int | None) -> Role:
    """The role of a tensor of a language model.

    layers: decoder layers by config; tensors of layers beyond them predict further tokens
    (DeepSeek-V3, GLM-4.5). experts: routed experts of a layer by config.
    """
    name = tensor.name
    parts = name.split(".")
    if not _ADAPTERS.isdisjoint(parts):
        return Role.ADAPTER
    before_layers = _before_number(parts)
    if not _TOWERS.isdisjoint(before_layers):
        return Role.TOWER
    layer = layer_index(name)
    if not _MTP.isdisjoint(before_layers) or (
        layers is not None and layer is not None and layer >= layers
    ):
        return Role.MTP
    if layer is not None:
        return Role.EXPERT if _is_expert(tensor, parts, experts) else Role.DENSE
    if not _GATHERED.isdisjoint(parts):
        return Role.GATHERED
    if not _EMBEDDINGS.isdisjoint(parts):
        return Role.EMBEDDING
    if not _HEADS.isdisjoint(parts) or parts[0] == "output" or parts[-2:-1] == ["output"]:
        return Role.HEAD
    return Role.DENSE


def _before_number(parts: list[str]) -> list[str]:
    for position, part in enumerate(parts):
        if part.isdigit():
            return parts[:position]
    return parts


def _is_expert(tensor: Tensor, parts: list[str], experts: int | None) -> bool:
    if "experts" in parts or _GGUF_EXPERT.search(tensor.name):
        return True
    # Granite, JetMoe and Step-3 keep all experts in one tensor without the word.
    return (
        not {"block_sparse_moe", "moe"}.isdisjoint(parts)
        and experts is not None
        and len(tensor.shape) == 3
        and tensor.shape[0] == experts
    )
