"""From the name that an engine gives its model to weights, KV cache and shape, with their sources.

Sizes are summed from what the files state for every tensor, never from parameters x nominal bits:
scales, zero points and layers that a quantisation leaves alone are in it. Settings win over files.
Nothing is downloaded, and nothing raises: what cannot be told comes back with its reason.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tokgauge.model.config import ModelConfig, parse_config
from tokgauge.model.errors import CheckpointError
from tokgauge.model.files import exists, home_expanded, read_json_object
from tokgauge.model.gguf import read_gguf
from tokgauge.model.gguf_shape import gguf_not_understood, kv_from_gguf
from tokgauge.model.hub_cache import cache_directory, is_repository, snapshot
from tokgauge.model.kv import KvCache, KvUnknown, kv_from_bytes_per_token, kv_from_config
from tokgauge.model.safetensors import SAFETENSORS_NAMES, read_directory, read_file
from tokgauge.model.shapes import kv_values_by_layer, stored_dtype
from tokgauge.model.tensors import Tensor
from tokgauge.model.weights import Streamed, WeightsFound, WeightsUnknown, split_tensors

__all__ = ["resolve_config", "resolve_kv", "resolve_weights", "tensors_of"]


def resolve_weights(
    root: str | None,
    *,
    streamed_bytes: float | None = None,
    checkpoint_bytes: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> WeightsFound | WeightsUnknown:
    """Weights of the model that an engine's /v1/models names as `root`.

    root: a path (relative ones from here) or the name of a repository in the local Hugging Face
    cache. streamed_bytes, checkpoint_bytes: settings [bytes], which win over files; they are also
    the way to say that the engine quantises or casts while it loads. Never downloads, never
    raises. Reads every shard's header, so it belongs into a thread.
    """
    found = _from_files(root, environment)
    if streamed_bytes is None and checkpoint_bytes is None:
        return found
    if isinstance(found, WeightsUnknown):
        found = WeightsFound(None, None, None, None, streamed_unknown_because=found.reason)
    if streamed_bytes is not None:
        found = replace(
            found,
            streamed=Streamed(streamed_bytes),
            streamed_source="settings",
            streamed_unknown_because=None,
        )
    if checkpoint_bytes is not None:
        found = replace(
            found,
            checkpoint_bytes=checkpoint_bytes,
            checkpoint_source="settings",
            rule_of_thumb_fails_because=None,
        )
    return found


def resolve_kv(
    root: str | None,
    *,
    bytes_per_token: float | None = None,
    cache_dtype: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> KvCache | KvUnknown:
    """What a sequence of the model named `root` keeps: by the setting [bytes], else by its files.

    cache_dtype: as the engine was told (`--kv-cache-dtype`). Never raises.
    """
    if bytes_per_token is not None:
        return kv_from_bytes_per_token(bytes_per_token)
    try:
        path = _locate(root, environment)
        if gguf := _gguf_file(path):
            return kv_from_gguf(read_gguf(gguf).fields, f"gguf:{gguf}", cache_dtype)
        file = _config_file(path)
        document = read_json_object(file)
        config = parse_config(document)
        found = kv_from_config(config, f"config:{file}", cache_dtype)
        if config.not_understood is not None or config.mla_dim:
            return found
        tensors = _tensors_beside(file.parent)
        if config.dtype is None and (dtype := stored_dtype(tensors)):
            config = parse_config({**document, "dtype": dtype})
        shapes = kv_values_by_layer(tensors, config)
        source = f"config:{file} and the shapes of k_proj and v_proj"
        by_shapes = kv_from_config(config, source, cache_dtype, shapes)
        # The shapes are named as a source only where they tell something else.
        if isinstance(found, KvCache) and by_shapes == replace(found, source=source):
            return found
        return by_shapes
    except (CheckpointError, OSError, ValueError) as error:
        return KvUnknown(str(error))


def resolve_config(
    root: str | None, *, environment: Mapping[str, str] | None = None
) -> ModelConfig | None:
    """The config.json of the model named `root`; None when there is none to read."""
    try:
        return parse_config(read_json_object(_config_file(_locate(root, environment))))
    except (CheckpointError, OSError, ValueError):
        return None


def tensors_of(root: str | None, environment: Mapping[str, str] | None = None) -> list[Tensor]:
    """All tensors of the safetensors files that `root` names. Raises CheckpointError."""
    path = _locate(root, environment)
    found = read_directory(path) if path.is_dir() else (read_file(path), path)
    if found is None:
        raise CheckpointError(f"{path}: no safetensors files in it")
    return found[0]


def _from_files(
    root: str | None, environment: Mapping[str, str] | None
) -> WeightsFound | WeightsUnknown:
    try:
        return _read(_locate(root, environment))
    except (CheckpointError, OSError, ValueError) as error:
        # ValueError: paths that no file system can hold, such as one with a NUL character.
        return WeightsUnknown(str(error))


def _locate(root: str | None, environment: Mapping[str, str] | None) -> Path:
    """The file or directory that `root` means, as vLLM reads it: a path first, then a name."""
    if not root:
        raise CheckpointError("the engine does not say which files it serves")
    path = home_expanded(root)
    if exists(path):
        return path.absolute()  # links stay: the hub cache's targets have no names
    if not is_repository(root):
        raise CheckpointError(f"{root} does not exist here (perhaps only inside the container)")
    return snapshot(root, cache_directory(os.environ if environment is None else environment))


def _config_file(path: Path) -> Path:
    """The config.json that describes a checkpoint. Raises CheckpointError where none is."""
    file = (path if path.is_dir() else path.parent) / "config.json"
    if path.suffix == ".gguf" or not exists(file):
        raise CheckpointError(f"{path}: no config.json for it")
    return file


def _read(path: Path) -> WeightsFound:
    if gguf := _gguf_file(path):
        return _from_gguf(gguf)
    if not path.is_dir():
        if path.suffix == ".safetensors":
            return _found(read_file(path), _config_beside(path.parent), f"safetensors:{path}")
        raise CheckpointError(f"{path}: neither a directory nor a safetensors or GGUF file")
    if found := read_directory(path):
        tensors, listed_in = found
        return _found(tensors, _config_beside(path), f"safetensors:{listed_in}")
    if exists(path / "adapter_config.json"):
        raise CheckpointError(f"{path}: a LoRA adapter, not the model that it changes")
    raise CheckpointError(f"{path}: no safetensors or GGUF files in it")


def _gguf_file(path: Path) -> Path | None:
    """The GGUF file that a path means, where it means one. Raises when it may mean several."""
    if not path.is_dir():
        return path if path.suffix == ".gguf" else None
    if any(exists(path / name) for name in SAFETENSORS_NAMES):
        return None
    firsts = sorted(
        p for p in path.glob("*.gguf") if "-of-" not in p.name or "-00001-of-" in p.name
    )
    firsts = [p for p in firsts if not p.name.startswith("mmproj")]
    if len(firsts) > 1:
        raise CheckpointError(f"{path}: {len(firsts)} GGUF models, name one of them")
    return firsts[0] if firsts else None


def _config_beside(directory: Path) -> ModelConfig | CheckpointError:
    try:
        return parse_config(read_json_object(directory / "config.json"))
    except CheckpointError as error:
        return error


def _tensors_beside(directory: Path) -> list[Tensor]:
    """The tensors next to a config.json; none where their files do not tell."""
    try:
        listed = read_directory(directory)
    except CheckpointError:
        return []
    return listed[0] if listed is not None else []


def _found(
    tensors: list[Tensor], config: ModelConfig | CheckpointError, source: str
) -> WeightsFound:
    total = float(sum(tensor.bytes for tensor in tensors))
    if not total:
        raise CheckpointError(f"{source}: no tensors in it")
    try:
        if isinstance(config, CheckpointError):
            raise config
        if config.encoder_decoder:
            raise CheckpointError("a decode step of an encoder-decoder model is not modelled")
        if config.not_understood is not None:
            raise CheckpointError(config.not_understood)
        if sum(tensor.bytes for tensor in tensors if tensor.dtype == "F32") > total / 2:
            raise CheckpointError("it is stored in 32 bits, which engines cast to 16 while loading")
        streamed = split_tensors(
            tensors,
            layers=config.layers,
            experts=config.experts,
            experts_per_token=config.experts_per_token,
            choices=config.choices,
            tied=config.tied,
            reads=config.reads,
            quant_bits=config.quant_bits,
        )
    except CheckpointError as error:
        return _only_a_size(total, source, str(error))
    fails = _why_not_divided(streamed, config.reads)
    return WeightsFound(streamed, source, total, source, rule_of_thumb_fails_because=fails)


def _why_not_divided(streamed: Streamed, reads: Sequence[tuple[str, int]]) -> str | None:
    if streamed.experts:
        return "a step of a mixture of experts reads a part of the checkpoint"
    if any(times > 1 for _, times in reads):
        return "a step reads parts of the checkpoint more than once"
    return None


def _only_a_size(total: float, source: str, reason: str) -> WeightsFound:
    """A checkpoint of which only the size is known: neither basis tells what a step reads."""
    return WeightsFound(
        None, None, total, source,
        streamed_unknown_because=reason,
        rule_of_thumb_fails_because=reason,
    )  # fmt: skip


def _from_gguf(path: Path) -> WeightsFound:
    file = read_gguf(path)
    source = f"gguf:{path}"
    total = float(sum(tensor.bytes for tensor in file.tensors))
    if not total:
        raise CheckpointError(f"{path}: no tensors in it")
    try:
        if reason := gguf_not_understood(file.fields.get("general.architecture")):
            raise CheckpointError(reason)
        streamed = split_tensors(
            file.tensors,
            layers=file.layers,
            experts=file.experts,
            experts_per_token=file.experts_per_token,
        )
    except CheckpointError as error:
        return _only_a_size(total, source, str(error))
    fails = _why_not_divided(streamed, ())
    return WeightsFound(streamed, source, total, source, rule_of_thumb_fails_because=fails)
