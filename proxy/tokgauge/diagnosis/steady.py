"""Keeps a reason on show long enough to be read."""

from __future__ import annotations

from collections.abc import Mapping

from tokgauge.diagnosis.verdict import Level, Verdict

SHOWN_AT_LEAST = 10.0
"""Seconds for which a reason stays: to read a headline, its causes and what to do about them."""

ALARM: Mapping[Level, int] = {
    "not_judged": 0,
    "healthy": 0,
    "above_ceiling": 0,
    "watch": 1,
    "suspect": 2,
}
"""How much a level asks for action: above the ceiling is a doubt about the inputs, no alarm."""


class Steady:
    """The verdict on one question that is on show."""

    def __init__(self) -> None:
        self._shown: Verdict | None = None
        self._since = float("-inf")

    def show(self, found: Verdict, now: float) -> Verdict:
        """What to show when `found` holds at `now` (monotonic seconds).

        What is worse, and a further reason, show at once. Numbers of what is on show are renewed.
        """
        shown = self._shown
        if shown is None or _adds(found, shown):
            self._since = now
        elif _same(found, shown):
            pass
        elif _names_something(shown) and now - self._since < SHOWN_AT_LEAST:
            return shown
        else:
            self._since = now
        self._shown = found
        return found

    def forget(self) -> None:
        """What is on show belongs to another engine or model."""
        self._shown = None


def _names_something(verdict: Verdict) -> bool:
    return ALARM[verdict.level] > 0 or bool(verdict.causes)


def _kinds(verdict: Verdict) -> frozenset[str]:
    return frozenset(cause.kind for cause in verdict.causes)


def _adds(found: Verdict, shown: Verdict) -> bool:
    worse = ALARM[found.level] - ALARM[shown.level]
    return worse > 0 or (worse == 0 and _kinds(found) > _kinds(shown))


def _same(found: Verdict, shown: Verdict) -> bool:
    return found.level == shown.level and _kinds(found) == _kinds(shown)
