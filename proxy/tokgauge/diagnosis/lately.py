"""Answers of the last minute or so, which says more of them than the short window of the speed."""

from __future__ import annotations

from collections import deque

from tokgauge.diagnosis import answers
from tokgauge.diagnosis.answers import Answers
from tokgauge.measure.record import Record

WINDOWS = 4
"""So many times the window of the speed: with the default of 15 s that is a minute."""

_PARTS = 20


class Lately:
    """Answers that ended within the last `length` seconds, to a twentieth of that."""

    def __init__(self, length: float) -> None:
        self._length = length
        self._parts: deque[tuple[float, Answers]] = deque()

    def ended(self, record: Record) -> None:
        """An exchange has ended."""
        if not record.progress.generates:
            return
        if not self._parts or record.ended_at - self._parts[-1][0] > self._length / _PARTS:
            self._parts.append((record.ended_at, Answers()))
        self._parts[-1][1].add(record, streamed=record.progress.streamed)

    def seen(self, now: float) -> Answers:
        """All of them at `now` (monotonic seconds)."""
        while self._parts and now - self._parts[0][0] > self._length:
            self._parts.popleft()
        return answers.merge(part for _, part in self._parts)
