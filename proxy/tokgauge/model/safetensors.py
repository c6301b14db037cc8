"""Tensor sizes from the headers of safetensors files.

Format: 8 bytes little-endian length, that many bytes of JSON {name: {dtype, shape, data_offsets}},
then the data (https://github.com/huggingface/safetensors#format). Only the header is read.
"""

from __future__ import annotations

from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

from tokgauge.model.errors import CheckpointError
from tokgauge.model.files import exists, file_size, parse_json_object, read_json_object
from tokgauge.model.tensors import Tensor

__all__ = ["MAX_HEADER_BYTES", "SAFETENSORS_NAMES", "read_directory", "read_file"]

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit [bytes]."""

_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip

_LAYOUTS = (
    ("model.safetensors.index.json", "model.safetensors"),
    ("consolidated.safetensors.index.json", "consolidated.safetensors"),
)

SAFETENSORS_NAMES = tuple(name for layout in _LAYOUTS for name in layout)
"""Files of which one tells that a directory holds safetensors."""


def read_file(path: Path) -> list[Tensor]:
    """All tensors of one file.

    Raises CheckpointError when the file is not whole: header beyond the end, offsets beyond the
    end, holes or overlaps, sizes that disagree with shape and dtype.
    """
    size = file_size(path)
    if size < 8:
        raise CheckpointError(f"{path}: too short for a safetensors file ({size} bytes)")
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > MAX_HEADER_BYTES:
                raise CheckpointError(f"{path}: header of {length} bytes, not a safetensors file")
            if length > size - 8:
                raise CheckpointError(f"{path}: cut short inside its header")
            data = file.read(length)
    except OSError as error:
        raise CheckpointError(f"{path}: {(error.strerror or 'unreadable').lower()}") from error
    header = parse_json_object(data, path)
    header.pop("__metadata__", None)
    spans = sorted(
        ((*_offsets(entry, name, path), name) for name, entry in header.items()),
        key=lambda span: span[:2],
    )
    position = 0
    for begin, end, name in spans:
        if begin != position:
            raise CheckpointError(f"{path}: tensor {name!r} overlaps another or leaves a hole")
        position = end
    if size < 8 + length + position:
        missing = 8 + length + position - size
        raise CheckpointError(f"{path}: cut short, {missing} bytes are missing")
    return [_tensor(name, end - begin, header[name], path) for begin, end, name in spans]


def read_directory(directory: Path) -> tuple[list[Tensor], Path] | None:
    """The tensors of a checkpoint and the file that lists them; None without safetensors.

    Shards are those that the index names, never those that happen to lie there: repositories also
    hold second copies in another layout. Raises CheckpointError when one shard or tensor is
    missing, because a partial sum is no sum.
    """
    for index_name, single_name in _LAYOUTS:
        index = directory / index_name
        if exists(index):
            return _read_shards(index), index
        single = directory / single_name
        if exists(single):
            return read_file(single), single
    return None


def _read_shards(index: Path) -> list[Tensor]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: no weight_map")
    wanted: dict[str, set[str]] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _stays_inside(shard):
            raise CheckpointError(f"{index}: {shard!r} is not a file of this checkpoint")
        wanted.setdefault(shard, set()).add(name)
    tensors: list[Tensor] = []
    for shard, names in sorted(wanted.items()):
        path = index.parent / shard
        if not exists(path):
            raise CheckpointError(f"{path}: this shard is missing")
        found = [tensor for tensor in read_file(path) if tensor.name in names]
        if len(found) < len(names):
            missing = min(names - {tensor.name for tensor in found})
            raise CheckpointError(f"{path}: tensor {missing!r} of the index is not in it")
        tensors += found
    return tensors


def _stays_inside(shard: str) -> bool:
    path = PurePosixPath(shard)
    return bool(shard) and "\0" not in shard and not path.is_absolute() and ".." not in path.parts


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _offsets(entry: Any, name: str, path: Path) -> tuple[int, int]:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if (
        not isinstance(offsets, list)
        or len(offsets) != 2
        or not all(_is_size(offset) for offset in offsets)
        or offsets[0] > offsets[1]
    ):
        raise CheckpointError(f"{path}: tensor {name!r} has no valid data_offsets")
    return offsets[0], offsets[1]


def _tensor(name: str, size: int, entry: dict[str, Any], path: Path) -> Tensor:
    dtype, shape = entry.get("dtype"), entry.get("shape")
    if (
        not isinstance(dtype, str)
        or not isinstance(shape, list)
        or not all(_is_size(length) for length in shape)
    ):
        raise CheckpointError(f"{path}: tensor {name!r} has no valid dtype and shape")
    bits = _BITS.get(dtype)
    if bits is not None and prod(shape) * bits != size * 8:
        raise CheckpointError(f"{path}: tensor {name!r} has a size other than its shape says")
    return Tensor(name, size, dtype, tuple(shape))
