"""What the check says of one thing that it looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Area = Literal["settings", "engine", "gpu", "ceiling"]
State = Literal["ok", "warning", "missing"]
"""Missing: the proxy lacks what it needs: an engine, names for its models, a card that was named
wrong. Warning: something that it could tell is absent."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    text: for a person. source: where the value comes from. value: for a program, in base units.
    """

    area: Area
    name: str
    state: State
    text: str
    source: str | None = None
    value: Any = None


def works(findings: list[Finding]) -> bool:
    """Whether nothing necessary is missing."""
    return all(finding.state != "missing" for finding in findings)
