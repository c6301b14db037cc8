"""The one error of the experiment."""

from __future__ import annotations

from typing import Literal

Kind = Literal["unreachable", "refused", "no_model", "busy", "inputs", "not_told", "broken"]


class CalibrationError(Exception):
    """The experiment could not be made. `str(error)` says what happened and what to do."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
