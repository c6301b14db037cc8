"""Whether the engine can be reached, from whoever tried last."""

from __future__ import annotations

from time import monotonic


class Reachability:
    """up: None before the first try. at: when that was (`monotonic()`). error: why in vain."""

    def __init__(self) -> None:
        self.up: bool | None = None
        self.at = float("-inf")
        self.error = ""

    def tried(self, up: bool, error: str = "") -> None:
        """It has been tried just now."""
        self.up = up
        self.error = error
        self.at = monotonic()

    def heard(self, up: bool | None, at: float) -> None:
        """Somebody else tried it at `at`."""
        if up is not None and at > self.at:
            self.up = up
            self.at = at
            self.error = ""
