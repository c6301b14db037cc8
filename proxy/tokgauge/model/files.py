"""Reads small JSON files of a checkpoint, with every way of failing as one error."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from tokgauge.model.errors import CheckpointError

__all__ = [
    "MAX_JSON_BYTES",
    "exists",
    "file_size",
    "home_expanded",
    "parse_json_object",
    "read_json_object",
]

MAX_JSON_BYTES = 64 * 1024 * 1024
"""Largest config or index that is read [bytes]. Real ones stay below 20 MB."""


def file_size(path: Path) -> int:
    """Size of a regular file [bytes]; links are followed.

    Raises CheckpointError for anything else: opening a pipe would wait for ever.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise CheckpointError(f"{path}: {_cause(error)}") from error
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path}: not a regular file")
    return status.st_size


def exists(path: Path) -> bool:
    """Whether something is there to be read. Raises CheckpointError when one may not look."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise CheckpointError(f"{path}: {_cause(error)}") from error
    return True


def home_expanded(text: str) -> Path:
    """A path with a leading `~` replaced. Raises CheckpointError when that user has no home."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise CheckpointError(f"{text}: there is no such home directory") from error


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises CheckpointError when there is none."""
    size = file_size(path)
    if size > MAX_JSON_BYTES:
        raise CheckpointError(f"{path}: {size} bytes is too large for a JSON file of a checkpoint")
    try:
        with path.open("rb") as file:
            data = file.read(size)
    except OSError as error:
        raise CheckpointError(f"{path}: {_cause(error)}") from error
    return parse_json_object(data, path)


def parse_json_object(data: bytes, path: Path) -> dict[str, Any]:
    """The JSON object in `data`; `path` is only named in the error."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    return value


def _cause(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
