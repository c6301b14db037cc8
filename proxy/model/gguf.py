"""Tensor sizes from GGUF files, tensor by tensor through the `gguf` library (the extra `gguf`).

"Q4_K_M" and its like are mixtures, so neither a file name nor a nominal number of bits tells the
bytes; the library knows the block sizes of every type.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy.model.errors import CheckpointError
from proxy.model.files import exists, file_size
from proxy.model.tensors import Tensor

__all__ = ["GgufFile", "read_gguf"]

_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_MAX_PARTS = 1000


@dataclass(frozen=True, slots=True)
class GgufFile:
    """Tensors of a GGUF model (all parts of a split one) and the shape that its metadata states."""

    tensors: list[Tensor]
    layers: int | None
    experts: int | None
    experts_per_token: int | None


def read_gguf(path: Path) -> GgufFile:
    """Reads a GGUF file and the other parts of its split.

    Raises CheckpointError when the library is missing, a part is missing, or one tensor cannot be
    sized: a partial total would be worse than none.
    """
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise CheckpointError(
            f"{path}: reading GGUF needs the extra: pip install 'tokgauge[gguf]'"
        ) from error
    tensors: list[Tensor] = []
    shape: dict[str, int | None] = {}
    for number, part in enumerate(_parts(path)):
        reader = _open(GGUFReader, part)
        tensors += _tensors(reader, part)
        if number == 0:
            shape = _shape(reader)
    return GgufFile(
        tensors,
        layers=shape.get("block_count"),
        experts=shape.get("expert_count"),
        experts_per_token=shape.get("expert_used_count"),
    )


def _parts(path: Path) -> list[Path]:
    match = _SPLIT.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    if not 0 < count <= _MAX_PARTS:
        raise CheckpointError(f"{path}: {count} parts are not credible")
    parts = [
        path.with_name(f"{match['stem']}-{number:05}-of-{match['count']}.gguf")
        for number in range(1, count + 1)
    ]
    for part in parts:
        if not exists(part):
            raise CheckpointError(f"{part}: this part is missing")
    return parts


def _open(reader_class: Any, path: Path) -> Any:
    file_size(path)
    try:
        return reader_class(path)
    # The library checks little: a damaged file fails wherever its numbers lead.
    except (ValueError, LookupError, ArithmeticError, OSError, MemoryError, TypeError) as error:
        raise CheckpointError(f"{path}: not a whole GGUF file ({error})") from error


def _tensors(reader: Any, path: Path) -> list[Tensor]:
    found = []
    for tensor in reader.tensors:
        size = int(tensor.n_bytes)
        if size < 0 or (size == 0 and int(tensor.n_elements) > 0):
            raise CheckpointError(f"{path}: tensor {tensor.name!r} cannot be sized")
        # GGUF lists the fastest axis first, the other formats last.
        shape = tuple(int(length) for length in reversed(tensor.shape))
        found.append(Tensor(str(tensor.name), size, tensor.tensor_type.name, shape))
    return found


def _shape(reader: Any) -> dict[str, int | None]:
    architecture = _contents(reader, "general.architecture")
    return {
        key: value if isinstance(value := _contents(reader, f"{architecture}.{key}"), int) else None
        for key in ("block_count", "expert_count", "expert_used_count")
    }


def _contents(reader: Any, key: str) -> Any:
    field = reader.get_field(key)
    return None if field is None else field.contents()
