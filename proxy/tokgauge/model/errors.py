"""The errors of reading a checkpoint.

CheckpointError          what is on disk cannot give a true number; the text says why
"""

from __future__ import annotations

__all__ = ["CheckpointError"]


class CheckpointError(Exception):
    """A checkpoint that cannot be sized. `str(error)` is one sentence for a person."""
