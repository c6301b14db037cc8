"""Finds a repository in the local Hugging Face cache. Nothing is ever downloaded.

Layout: <cache>/models--org--name/refs/main holds the commit, snapshots/<commit>/ the files
(https://huggingface.co/docs/huggingface_hub/guides/manage-cache).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tokgauge.model.errors import CheckpointError
from tokgauge.model.files import exists, file_size, home_expanded

__all__ = ["cache_directory", "is_repository", "snapshot"]

_REPOSITORY = re.compile(r"[A-Za-z0-9_][\w.-]{0,95}(?:/[A-Za-z0-9_][\w.-]{0,95})?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Where the Hugging Face libraries of this user keep their files. Raises CheckpointError."""
    if cache := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return home_expanded(cache)
    if home := environment.get("HF_HOME"):
        return home_expanded(home) / "hub"
    base = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return home_expanded(base) / "huggingface" / "hub"


def is_repository(text: str) -> bool:
    """Whether a text can be the name of a repository (`name` or `org/name`)."""
    return _REPOSITORY.fullmatch(text) is not None and ".." not in text and "--" not in text


def snapshot(repository: str, cache: Path, revision: str = "main") -> Path:
    """The directory of the cached files.

    Raises CheckpointError when the repository is not in the cache, or when it is not clear which
    of several snapshots is meant.
    """
    folder = cache / ("models--" + repository.replace("/", "--"))
    if not exists(folder):
        raise CheckpointError(f"{repository} is not in the local cache {cache}")
    snapshots = folder / "snapshots"
    ref = folder / "refs" / revision
    try:
        if exists(ref):
            file_size(ref)
            with ref.open("r", encoding="ascii") as file:
                commit = file.read(64).strip()
            if not _COMMIT.fullmatch(commit):
                raise CheckpointError(f"{ref}: not a commit")
            found = [snapshots / commit] if exists(snapshots / commit) else []
        else:
            found = [path for path in snapshots.iterdir() if path.is_dir()]
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{ref}: not a commit") from error
    except OSError as error:
        raise CheckpointError(f"{folder}: {(error.strerror or 'unreadable').lower()}") from error
    if len(found) != 1:
        what = "several snapshots and no refs/main" if found else "no snapshot of its refs/main"
        raise CheckpointError(f"{folder}: {what}")
    return found[0]
