"""The figures of the moment, as they are shown."""

from __future__ import annotations

import msgspec

STALE_AFTER = 15.0
"""Seconds after which figures that nobody renews are no longer shown."""


class Figures(msgspec.Struct, frozen=True):
    """One set of figures.

    at: monotonic seconds. samples: metric name → label values and value. bandwidth [bytes/s] and
    tokens_per_step: what a single request is compared with. verdict: as plain JSON values, see
    `tokgauge.diagnosis.verdict`.
    """

    at: float
    samples: dict[str, list[tuple[tuple[str, ...], float]]]
    bandwidth: float | None = None
    tokens_per_step: float | None = None
    verdict: dict[str, object] | None = None

    def is_fresh(self, now: float) -> bool:
        """Whether they still say something of now."""
        return now - self.at <= STALE_AFTER
