"""What the exchanges and the engine's page showed lately: kept look by look, for a window."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from tokgauge.diagnosis import answers, decoding
from tokgauge.diagnosis.answers import Answers
from tokgauge.diagnosis.decoding import Decoded, DecodingWatch
from tokgauge.diagnosis.inputs import Page, WindowSeen
from tokgauge.diagnosis.live import TokensPerEvent
from tokgauge.engine import metrics_page
from tokgauge.engine.metrics_page import EngineRates, EngineReading
from tokgauge.measure.record import Progress, Record


class _Look(NamedTuple):
    """The engine's page, what the streams and the ended answers showed since the look before, and
    how many sequences of this proxy's own were running when the page was asked for.
    """

    reading: EngineReading | None
    decoded: Decoded
    answers: Answers
    own_sequences: int


class TrafficWindow:
    """The looks of the last `length` seconds; `now` is the monotonic time of the beginning."""

    def __init__(self, length: float, now: float) -> None:
        self._length = length
        self._watch = DecodingWatch(now)
        self._answers = Answers()
        self._looks: deque[_Look] = deque()
        self._per_event = TokensPerEvent()
        self._is_split = False
        """The first look is only the beginning of what comes after it."""
        self.last_reading: EngineReading | None = None
        """The engine's page of the last look."""

    def ended(self, record: Record) -> None:
        """An exchange has ended."""
        progress = record.progress
        self._watch.ended(progress)
        if progress.generates:
            self._answers.add(record, streamed=progress.streamed)
        if (
            record.stream
            and record.token_source == "usage"
            and record.token_events
            and not progress.calls_tools
        ):
            self._per_event.learn(record.completion_tokens or 0, record.token_events)

    def look(
        self, now: float, running: list[Progress], reading: EngineReading | None, own_sequences: int
    ) -> None:
        """Take what has happened since the last look."""
        ended, self._answers = self._answers, Answers()
        self._looks.append(_Look(reading, self._watch.look(now, running), ended, own_sequences))
        self.last_reading = reading
        seconds = sum(look.decoded.seconds for look in self._looks)
        while len(self._looks) > 2:
            oldest = self._looks[0].decoded.seconds
            if seconds - oldest < self._length:
                break
            seconds -= oldest
            self._looks.popleft()
            self._is_split = False

    def split(self) -> None:
        """What comes is another time than what was: it is not judged together.

        The last look may hold some of both, so only its page counts, as a beginning.
        """
        last = self._looks[-1] if self._looks else None
        self._looks.clear()
        if last is not None:
            self._looks.append(last._replace(decoded=decoding.NOTHING))
        self._is_split = True

    def forget(self) -> None:
        """What was seen so far belongs to another model."""
        self._looks.clear()
        self._is_split = False
        self._per_event = TokensPerEvent()
        self.last_reading = None

    def seen(self) -> WindowSeen | None:
        """The window; None before the first look, also of a new time."""
        if not self._looks or (self._is_split and len(self._looks) == 1):
            return None
        looks, rates = self._since_first_look()
        return WindowSeen(
            decoded=decoding.merge([look.decoded for look in looks]),
            answers=answers.merge([look.answers for look in looks]),
            pages=tuple(
                Page(look.reading, look.own_sequences)
                for look in self._looks
                if look.reading is not None
            ),
            last=self.last_reading,
            rates=rates,
            tokens_per_event=self._per_event.value,
        )

    def _since_first_look(self) -> tuple[list[_Look], EngineRates | None]:
        """The looks that the window is made of, and what the engine did over the same time.

        That is the time between the first and the last look at the engine's page where there are
        two, else all looks together.
        """
        looks = list(self._looks)
        told = [index for index, look in enumerate(looks) if look.reading is not None]
        if len(told) < 2:
            return looks[1:] or looks, None
        first, last = told[0], told[-1]
        earlier, later = looks[first].reading, looks[last].reading
        assert earlier is not None  # noqa: S101 - `told` holds only such
        assert later is not None  # noqa: S101
        return looks[first + 1 : last + 1], metrics_page.between(earlier, later)
