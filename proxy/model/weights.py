"""How many bytes of weights one decode step reads, and how many the checkpoint holds.

Two bases, never mixed: `streamed` is what a step really reads; `checkpoint` is the whole file,
which the well-known rule of thumb divides by. Sizes are summed from what the files state for every
tensor, never from parameters x nominal bits: scales, zero points and layers that a quantisation
leaves alone are in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from proxy.model.config import ModelConfig, parse_config
from proxy.model.errors import CheckpointError
from proxy.model.files import exists, read_json_object
from proxy.model.gguf import read_gguf
from proxy.model.hub_cache import cache_directory, is_repository, snapshot
from proxy.model.kv import KvCache, KvUnknown, kv_from_bytes_per_token, kv_from_config
from proxy.model.safetensors import read_directory, read_file
from proxy.model.tensors import Role, Tensor, drafting_layers, expert_index, layer_index, role_of

__all__ = [
    "Basis",
    "Streamed",
    "WeightsFound",
    "WeightsUnknown",
    "estimate_weights",
    "expected_experts",
    "resolve_config",
    "resolve_kv",
    "resolve_weights",
    "split_tensors",
]

Basis = Literal["streamed", "checkpoint"]

_UNPACKED = frozenset(("BF16", "F16", "F32", "F8_E4M3", "F8_E5M2"))
"""Types of which one element is one weight, so that shapes tell sizes."""


def expected_experts(experts: int, per_token: int, tokens: float) -> float:
    """Distinct experts of a layer that a step with `tokens` tokens reads: E(1-(1-k/E)^t).

    Under uniform, independent routing (MoESD, arXiv 2505.19645). Real routing is correlated, which
    makes it fewer. Between k and min(k*t, E) for one token or more.
    """
    return float(experts * (1 - (1 - per_token / experts) ** tokens))


@dataclass(frozen=True, slots=True)
class Streamed:
    """Bytes that a decode step reads."""

    dense_bytes: float
    """Read by every step."""
    expert_bytes: float = 0.0
    """One expert, summed over the layers that have experts."""
    experts: int = 0
    experts_per_token: int = 0

    def bytes_per_step(self, tokens: float = 1.0) -> float:
        """What a step reads that computes `tokens` tokens [bytes]; experts by expectation."""
        if not self.experts:
            return self.dense_bytes
        distinct = expected_experts(self.experts, self.experts_per_token, tokens)
        return self.dense_bytes + self.expert_bytes * distinct


@dataclass(frozen=True, slots=True)
class WeightsFound:
    """At least one of the two bases is known."""

    streamed: Streamed | None
    streamed_source: str | None
    """"settings" or "safetensors:/path" or "gguf:/path"."""
    checkpoint_bytes: float | None
    checkpoint_source: str | None
    streamed_unknown_because: str | None = None

    @property
    def basis(self) -> Basis:
        """The basis that ratios use: streamed where it is known."""
        return "checkpoint" if self.streamed is None else "streamed"

    def bytes_per_step(self, tokens: float = 1.0, basis: Basis | None = None) -> float | None:
        """Weight bytes of a step on one basis [bytes]; None where that basis is not known."""
        if (basis or self.basis) == "checkpoint":
            return self.checkpoint_bytes
        return None if self.streamed is None else self.streamed.bytes_per_step(tokens)


@dataclass(frozen=True, slots=True)
class WeightsUnknown:
    """Neither basis is known: why, and which setting helps."""

    reason: str
    what_to_set: str = "streamed_bytes"


def estimate_weights(parameters: float, bits: float) -> WeightsFound:
    """The rule of thumb parameters x bits / 8: the checkpoint basis, and only an estimate."""
    return WeightsFound(
        streamed=None,
        streamed_source=None,
        checkpoint_bytes=parameters * bits / 8,
        checkpoint_source=f"estimate: {parameters:g} parameters x {bits:g} bits",
        streamed_unknown_because="parameters x bits does not tell what a step reads",
    )


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
    raises.
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


def split_tensors(
    tensors: Iterable[Tensor],
    *,
    layers: int | None = None,
    experts: int | None = None,
    experts_per_token: int | None = None,
    tied: bool | None = None,
) -> Streamed:
    """What of these tensors a decode step of the text model reads.

    The input embedding counts only when no separate output head is there: then one matrix is
    both, and the head reads all of it. Raises CheckpointError when it cannot be told.
    """
    tensors = list(tensors)
    drafting = drafting_layers(tensors)
    by_role: dict[Role, list[Tensor]] = {role: [] for role in Role}
    for tensor in tensors:
        if layer_index(tensor.name) not in drafting:
            by_role[role_of(tensor, layers=layers, experts=experts)].append(tensor)
    dense = by_role[Role.DENSE] + by_role[Role.HEAD]
    if not any(layer_index(tensor.name) is not None for tensor in dense):
        raise CheckpointError("no decoder layers are recognised among its tensors")
    if not by_role[Role.HEAD]:
        if tied is False or not by_role[Role.EMBEDDING]:
            raise CheckpointError("its output head is not recognised among its tensors")
        dense += by_role[Role.EMBEDDING]
    dense_bytes = sum(tensor.bytes for tensor in dense)
    routed = by_role[Role.EXPERT]
    if not routed:
        if experts is not None and experts > 1:
            raise CheckpointError("its experts are not recognised among its tensors")
        return Streamed(float(dense_bytes))
    if experts is None or experts_per_token is None or experts_per_token > experts:
        raise CheckpointError("how many of its experts a token uses is not stated")
    _check_experts(routed, experts)
    return Streamed(
        float(dense_bytes),
        expert_bytes=sum(tensor.bytes for tensor in routed) / experts,
        experts=experts,
        experts_per_token=experts_per_token,
    )


def _check_experts(routed: list[Tensor], experts: int) -> None:
    """Every layer with single experts has all of them; raises CheckpointError otherwise."""
    numbers: dict[int | None, set[int]] = {}
    for tensor in routed:
        number = expert_index(tensor.name)
        if number is not None:
            numbers.setdefault(layer_index(tensor.name), set()).add(number)
        elif len(tensor.shape) >= 3 and experts not in tensor.shape:
            raise CheckpointError(f"tensor {tensor.name!r} does not hold {experts} experts")
    for layer, found in numbers.items():
        if found != set(range(experts)):
            raise CheckpointError(
                f"layer {layer} has {len(found)} experts, config.json says {experts}"
            )


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
    path = Path(root).expanduser() if root.startswith("~") else Path(root)
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
