"""The one error of the experiment."""

from __future__ import annotations

from typing import Literal

__all__ = ["Kind", "ProbeError"]

Kind = Literal[
    "unreachable", "unauthorized", "not_openai", "no_model", "unknown_model", "refused",
    "server_error", "timeout", "cut", "stream_error", "no_tokens",
]  # fmt: skip


class ProbeError(Exception):
    """The experiment could not be made. `str(error)` says what happened and what to do."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
