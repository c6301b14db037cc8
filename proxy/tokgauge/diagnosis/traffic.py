"""All exchanges of all relays: what runs, and which of them ran alone."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

import msgspec

from tokgauge.measure.record import Progress, Record

_PATIENCE = 5.0
"""Seconds after which a relay that hangs holds up the records of others no longer."""

_REMEMBERED = 60.0
"""Seconds for which it is known when generating exchanges of other relays ran."""


class _Relay:
    """One relay: what it runs, since when that is known, and when what it ran has ended."""

    def __init__(self) -> None:
        self.told_at = float("-inf")
        self.running: dict[str, Progress] = {}
        self.ended: list[tuple[float, float]] = []

    def overlaps(self, began: float, ended: float) -> bool:
        """Whether it generated anything between these times."""
        if any(
            progress.generates and progress.opened_at < ended for progress in self.running.values()
        ):
            return True
        for first, last in reversed(self.ended):  # they are in the order of their ends
            if last <= began:
                return False
            if first < ended:
                return True
        return False


class Traffic:
    """What relays told last of what runs, less what has ended since.

    several: there may be more than one relay. With one, nothing that has ended is remembered: its
    own exchanges know by themselves which of them ran alone.
    """

    def __init__(self, *, several: bool = True) -> None:
        self._several = several
        self._relays: dict[Hashable, _Relay] = {}
        self._undecided: list[tuple[Hashable, Record]] = []
        self._past: list[tuple[Hashable, float, float]] = []
        """When generating exchanges ran of relays that are no more."""
        self.last_ended_at: float | None = None
        """When the last generating exchange ended (monotonic seconds)."""

    def came(self, relay: Hashable) -> None:
        """There is another relay."""
        self._relays[relay] = _Relay()

    def gone(self, relay: Hashable, at: float) -> list[Record]:
        """A relay is no more, nor what it ran; returns the records that are complete by that."""
        known = self._relays.pop(relay, None)
        if known is not None:
            self._past += [(relay, *span) for span in known.ended]
            self._past += [
                (relay, progress.opened_at, at)
                for progress in known.running.values()
                if progress.generates
            ]
        return self._decided(at)

    def told(self, relay: Hashable, at: float, running: Iterable[Progress]) -> list[Record]:
        """A relay has told all that it ran at `at`; returns the records that are complete by it."""
        known = self._relays[relay]
        known.told_at = at
        known.running = {progress.id: progress for progress in running}
        known.ended = [span for span in known.ended if span[1] > at - _REMEMBERED]
        self._past = [span for span in self._past if span[2] > at - _REMEMBERED]
        return self._decided(at)

    def ended(self, relay: Hashable, record: Record) -> list[Record]:
        """An exchange has ended; returns the records that are complete.

        Whether it ran alone is only known once all other relays have told what they ran then.
        """
        known = self._relays[relay]
        known.running.pop(record.id, None)
        progress = record.progress
        if not progress.generates:
            return [record]
        self.last_ended_at = record.ended_at
        if self._several:
            known.ended.append((progress.opened_at, record.ended_at))
        if not record.alone:
            return [record]
        self._undecided.append((relay, record))
        return self._decided(record.ended_at)

    def _decided(self, at: float) -> list[Record]:
        complete: list[Record] = []
        open_still: list[tuple[Hashable, Record]] = []
        for relay, record in self._undecided:
            others = [known for name, known in self._relays.items() if name != relay]
            began, ended = record.progress.opened_at, record.ended_at
            if any(other.overlaps(began, ended) for other in others) or any(
                first < ended and last > began for gone, first, last in self._past if gone != relay
            ):
                complete.append(msgspec.structs.replace(record, alone=False))
            elif all(other.told_at >= ended for other in others):
                complete.append(record)
            elif at - ended > _PATIENCE:
                complete.append(msgspec.structs.replace(record, alone=None))
            else:
                open_still.append((relay, record))
        self._undecided = open_still
        return complete

    @property
    def running(self) -> Iterator[Progress]:
        """What runs. Copies: the thread that reads the GPUs asks, too."""
        for relay in list(self._relays.values()):
            yield from list(relay.running.values())

    @property
    def generating(self) -> int:
        """How many exchanges that generate text run."""
        return sum(progress.generates for progress in self.running)
