"""From the name that an engine gives its model to weights, KV cache and shape, with their sources.

Sizes are summed from what the files state for every tensor, never from parameters x nominal bits:
scales, zero points and layers that a quantisation leaves alone are in it. Settings win over files.
Nothing is downloaded, and nothing raises: what cannot be told comes back with its reason.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from proxy.model.config import ModelConfig, parse_config
from proxy.model.errors import CheckpointError
from proxy.model.files import exists, home_expanded, read_json_object
from proxy.model.gguf import read_gguf
from proxy.model.hub_cache import cache_directory, is_repository, snapshot
from proxy.model.kv import KvCache, KvUnknown, kv_from_bytes_per_token, kv_from_config
from proxy.model.safetensors import read_directory, read_file
from proxy.model.tensors import Role, Tensor, layer_index, role_of
from proxy.model.weights import Streamed, WeightsFound, WeightsUnknown, split_tensors

__all__ = ["resolve_config", "resolve_kv", "resolve_weights"]

_UNPACKED = frozenset(("BF16", "F16", "F32", "F8_E4M3", "F8_E5M2"))
"""Types of which one element is one weight, so that shapes tell sizes."""


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
        found = replace(found, checkpoint_bytes=checkpoint_bytes, checkpoint_source="settings")
    return found


def resolve_kv(
    root: str | None,
    *,
    bytes_per_token: float | None = None,
    cache_dtype: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> KvCache | KvUnknown:
    """KV cache of the model named `root`: from the setting [bytes], else from its config.json.

    cache_dtype: as the engine was told (`--kv-cache-dtype`). Never raises.
    """
    if bytes_per_token is not None:
        return kv_from_bytes_per_token(bytes_per_token)
    try:
        file = _config_file(_locate(root, environment))
        config = parse_config(read_json_object(file))
        found = kv_from_config(config, f"config:{file}", cache_dtype)
        if isinstance(found, KvCache):
            return found
        values = _kv_values_by_shape(file.parent, config)
        return kv_from_config(
            config, f"config:{file} and the shapes of k_proj and v_proj", cache_dtype, values
        )
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
    if not path.is_dir():
        if path.suffix == ".gguf":
            return _from_gguf(path)
        if path.suffix == ".safetensors":
            return _found(read_file(path), _config_beside(path.parent), f"safetensors:{path}")
        raise CheckpointError(f"{path}: neither a directory nor a safetensors or GGUF file")
    if found := read_directory(path):
        tensors, listed_in = found
        return _found(tensors, _config_beside(path), f"safetensors:{listed_in}")
    if exists(path / "adapter_config.json"):
        raise CheckpointError(f"{path}: a LoRA adapter, not the model that it changes")
    firsts = sorted(
        p for p in path.glob("*.gguf") if "-of-" not in p.name or "-00001-of-" in p.name
    )
    firsts = [p for p in firsts if not p.name.startswith("mmproj")]
    if len(firsts) == 1:
        return _from_gguf(firsts[0])
    if firsts:
        raise CheckpointError(f"{path}: {len(firsts)} GGUF models, name one of them")
    raise CheckpointError(f"{path}: no safetensors or GGUF files in it")


def _config_beside(directory: Path) -> ModelConfig | CheckpointError:
    try:
        return parse_config(read_json_object(directory / "config.json"))
    except CheckpointError as error:
        return error


def _kv_values_by_shape(directory: Path, config: ModelConfig) -> int | None:
    """K and V values per token and layer by the projections that make them, if all layers agree."""
    listed = read_directory(directory)
    if listed is None or config.mla_dim or config.attention is None:
        return None
    made: dict[int, dict[str, int]] = {}
    for tensor in listed[0]:
        layer = layer_index(tensor.name)
        if (
            layer is not None
            and tensor.name.endswith((".self_attn.k_proj.weight", ".self_attn.v_proj.weight"))
            and tensor.dtype in _UNPACKED
            and len(tensor.shape) == 2
            and role_of(tensor, layers=config.layers, experts=None) is Role.DENSE
        ):
            made.setdefault(layer, {})[tensor.name.split(".")[-2]] = tensor.shape[0]
    caching = sum(kind != "none" for kind in config.attention)
    sizes = {(layer.get("k_proj"), layer.get("v_proj")) for layer in made.values()}
    if len(made) != caching or len(sizes) != 1:
        return None
    keys, values = sizes.pop()
    return keys + values if keys and values else None


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
        if sum(tensor.bytes for tensor in tensors if tensor.dtype == "F32") > total / 2:
            raise CheckpointError("it is stored in 32 bits, which engines cast to 16 while loading")
        streamed = split_tensors(
            tensors,
            layers=config.layers,
            experts=config.experts,
            experts_per_token=config.experts_per_token,
            tied=config.tied,
        )
    except CheckpointError as error:
        return WeightsFound(None, None, total, source, streamed_unknown_because=str(error))
    return WeightsFound(streamed, source, total, source)


def _from_gguf(path: Path) -> WeightsFound:
    file = read_gguf(path)
    source = f"gguf:{path}"
    total = float(sum(tensor.bytes for tensor in file.tensors))
    if not total:
        raise CheckpointError(f"{path}: no tensors in it")
    try:
        streamed = split_tensors(
            file.tensors,
            layers=file.layers,
            experts=file.experts,
            experts_per_token=file.experts_per_token,
        )
    except CheckpointError as error:
        return WeightsFound(None, None, total, source, streamed_unknown_because=str(error))
    return WeightsFound(streamed, source, total, source)
