"""Tensor sizes from GGUF files, tensor by tensor.

"Q4_K_M" and its like are mixtures, so neither a file name nor a nominal number of bits tells the
bytes. The sizes of the types come from the `gguf` library (the extra `gguf`); its reader is not
used, because it makes an array of every word of the vocabulary and takes half a minute for that.
Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from tokgauge.model.errors import CheckpointError
from tokgauge.model.files import exists, file_size
from tokgauge.model.members import count
from tokgauge.model.tensors import Tensor

__all__ = ["GgufFile", "read_gguf"]

_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_MAX_PARTS = 1000
_MAX_ITEMS = 10_000_000
"""Largest count of fields, tensors or strings that is believed."""
_SHORT = 10_000
"""Lists of numbers up to this length are kept: one number for each layer, not for each word."""

_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9

_TypeSizes = Mapping[int, tuple[str, int, int]]
"""Number of a type: its name, elements in a block, bytes of a block."""


@dataclass(frozen=True, slots=True)
class GgufFile:
    """Tensors of a GGUF model (all parts of a split one) and what its metadata states."""

    tensors: list[Tensor]
    fields: Mapping[str, object]
    """Numbers, texts and short lists of numbers, by their keys."""
    layers: int | None
    experts: int | None
    experts_per_token: int | None


def read_gguf(path: Path) -> GgufFile:
    """Reads a GGUF file and the other parts of its split.

    Raises CheckpointError when the library is missing, a part is missing or cut short, or one
    tensor cannot be sized: a partial total would be worse than none.
    """
    types = _type_sizes(path)
    parts = [_read_part(part, types) for part in _parts(path)]
    fields = parts[0][1]

    def stated(key: str) -> int | None:
        return count(fields, f"{fields.get('general.architecture')}.{key}")

    return GgufFile(
        [tensor for tensors, _ in parts for tensor in tensors],
        fields,
        layers=stated("block_count"),
        experts=stated("expert_count"),
        experts_per_token=stated("expert_used_count"),
    )


def _type_sizes(path: Path) -> _TypeSizes:
    try:
        from gguf.constants import GGML_QUANT_SIZES
    except ImportError as error:
        raise CheckpointError(
            f"{path}: reading GGUF needs the extra: pip install 'tokgauge[gguf]'"
        ) from error
    return {
        int(kind): (str(kind.name), int(elements), int(size))
        for kind, (elements, size) in GGML_QUANT_SIZES.items()
    }


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


def _read_part(path: Path, types: _TypeSizes) -> tuple[list[Tensor], dict[str, object]]:
    file_size(path)
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return _Header(data).read(types)
    except OSError as error:
        raise CheckpointError(f"{path}: {(error.strerror or 'unreadable').lower()}") from error
    # Positions and lengths that lead outside, and an empty file, which cannot be mapped.
    except (struct.error, OverflowError, ValueError) as error:
        raise CheckpointError(f"{path}: not a whole GGUF file ({error})") from error


class _Header:
    """Walks over the head of a GGUF file. Raises ValueError or struct.error when it is damaged."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def read(self, types: _TypeSizes) -> tuple[list[Tensor], dict[str, object]]:
        """All tensors, and the fields that hold numbers or a string."""
        if self._data[:4] != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        self._at = 4
        version = self._scalar("I")
        if version not in (2, 3):
            raise ValueError(f"version {version} is not 2 or 3 in little-endian order")
        tensor_count, field_count = self._count(), self._count()
        fields: dict[str, object] = {}
        for _ in range(field_count):
            key = self._string()
            fields[key] = self._value(self._scalar("I"))
        tensors, end = [], 0
        for _ in range(tensor_count):
            tensor, offset = self._tensor(types)
            tensors.append(tensor)
            end = max(end, offset + tensor.bytes)
        alignment = fields.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError("its alignment is not a number")
        missing = -(-self._at // alignment) * alignment + end - len(self._data)
        if missing > 0:
            raise ValueError(f"{missing} bytes are missing")
        return tensors, fields

    def _scalar(self, code: str) -> int:
        (value,) = struct.unpack_from(f"<{code}", self._data, self._at)
        self._at += struct.calcsize(f"<{code}")
        return value  # type: ignore[no-any-return]  # struct cannot know

    def _count(self) -> int:
        count = self._scalar("Q")
        if count > _MAX_ITEMS:
            raise ValueError(f"a count of {count} is not credible")
        return count

    def _string(self) -> str:
        length = self._scalar("Q")
        begin, self._at = self._at, self._at + length
        if self._at > len(self._data):
            raise ValueError("a string leads outside")
        return self._data[begin : self._at].decode("utf-8", "replace")

    def _value(self, kind: int) -> object:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._scalar(self._code(kind))
        kind, count = self._scalar("I"), self._count()
        if kind == _STRING:
            self._skip_strings(count)
            return None
        code = self._code(kind)
        if count <= _SHORT:
            return [self._scalar(code) for _ in range(count)]
        self._at += count * struct.calcsize(f"<{code}")
        return None

    def _skip_strings(self, count: int) -> None:
        at, data, unpack = self._at, self._data, struct.Struct("<Q").unpack_from
        for _ in range(count):
            at += 8 + unpack(data, at)[0]
        self._at = at

    def _code(self, kind: int) -> str:
        code = _SCALARS.get(kind)
        if code is None:
            raise ValueError(f"a field of the unknown type {kind}")
        return code

    def _tensor(self, types: _TypeSizes) -> tuple[Tensor, int]:
        name = self._string()
        axes = self._scalar("I")
        if axes > 8:
            raise ValueError(f"tensor {name!r} has {axes} axes")
        # GGUF lists the fastest axis first, the other formats last.
        shape = tuple(self._scalar("Q") for _ in range(axes))[::-1]
        kind, offset = self._scalar("I"), self._scalar("Q")
        if kind not in types:
            raise ValueError(f"tensor {name!r} has type {kind}, which the gguf library lacks")
        type_name, block_elements, block_bytes = types[kind]
        if shape and shape[-1] % block_elements:
            raise ValueError(f"tensor {name!r} does not consist of whole blocks")
        size = prod(shape) // block_elements * block_bytes
        return Tensor(name, size, type_name, shape), offset
