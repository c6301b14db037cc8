"""How a candidate is started, and where those from PyPI live."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path


class Absent(Exception):  # noqa: N818 - a finding, not an error
    """The candidate is not on this machine; the text says why."""


@dataclass(frozen=True)
class Place:
    """Where a candidate listens, where its engine is, and where it may write."""

    port: int
    engine_port: int
    directory: Path


@dataclass(frozen=True)
class Launch:
    """A command that runs in the foreground; None where no process stands between."""

    command: tuple[str, ...] | None
    environment: dict[str, str] = field(default_factory=dict)


def program(name: str) -> str:
    """The path of an installed program. Raises Absent."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if path is None:
        raise Absent(f"{name} is not installed (Debian: apt-get install {name})")
    return path


def from_pypi(name: str, requirement: str, executable: str) -> Path:
    """A program of a package in a virtual environment of its own, installed when it is missing.

    They lie under $BENCH_CACHE, ~/.cache/tokgauge-bench without it. Raises Absent.
    """
    home = os.environ.get("BENCH_CACHE") or Path.home() / ".cache" / "tokgauge-bench"
    directory = Path(home) / name
    path = directory / "bin" / executable
    if path.exists():
        return path
    try:
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
        subprocess.run(
            [str(directory / "bin" / "pip"), "install", "-q", requirement],
            check=True, timeout=600, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except (subprocess.SubprocessError, OSError) as error:
        raise Absent(f"{requirement} cannot be installed from PyPI: {error}") from error
    if not path.exists():
        raise Absent(f"{requirement} has no program {executable}")
    return path


def installed_version(python: Path, distribution: str) -> str:
    """The version of a distribution as that interpreter sees it."""
    code = f"import importlib.metadata as m; print(m.version({distribution!r}))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, timeout=60)
    return done.stdout.strip() or "unknown"
