"""Usage injection on the way down: the event that was asked for is taken out of the stream."""

from __future__ import annotations

import re

from tokgauge.dialects.manners import Choices, Manners, Names, has_no_choice, is_error, told_usage
from tokgauge.dialects.members import layout_of, members_of

_BLANK_LINE = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")
_LINE = re.compile(rb"(?:^|(?<=[\r\n]))(data|event): ?([^\r\n]*)")

_HELD_LIMIT = 64 * 1024


class UsageEventFilter:
    """Takes the usage event out of an event stream, and compares all else with the `manners`.

    The usage event has no choice and comes once, when all choices have finished. Members that moved
    into it from the last event (`system_fingerprint` of vLLM, `timings` of llama.cpp) are put back
    where they stood: such a last event is held until the usage event is here.

    `feed` returns what may leave now: all of it, except an unfinished event, which may still turn
    out to be one of these two. thorough: every event is compared, not only those at the end.
    """

    __slots__ = (
        "_after_cr", "_after_held", "_choices", "_held_event", "_last", "_manners",
        "_mark", "_part", "_passing", "_quick", "between", "differs", "done", "error", "finished",
        "removed",
    )  # fmt: skip

    def __init__(self, manners: Manners, *, thorough: bool) -> None:
        self._manners = manners
        self._mark = manners.finish_mark
        self._quick = not thorough  # until a choice has finished
        self._choices = Choices()
        self._last: Names = ()  # of the last event that was looked at
        self._part = b""  # an unfinished event
        self._passing = b""  # the last bytes of an unfinished one that is too large to be held
        self._held_event = b""
        self._after_held = b""  # comments that came after it
        self._after_cr = ""  # "keep" or "drop": the last event ended in CR, an LF belongs to it
        self.removed = 0
        self.finished = False
        """A choice has finished."""
        self.error = False
        self.done = False
        self.differs: str | None = None
        """How the stream differs from one without the wish; None as far as is known."""
        self.between = True
        """Whether the next byte begins an event: nothing of one is held or has partly left."""

    @property
    def held(self) -> bytes:
        """What has come and not left."""
        return self._held_event + self._after_held + self._part

    @property
    def holds_event(self) -> bool:
        """Whether a whole event is held: that must not last."""
        return bool(self._held_event)

    def release(self) -> bytes:
        """Give up waiting for the usage event; returns what was held for it."""
        held = self._held_event + self._after_held
        self._held_event = self._after_held = b""
        self.between = not (self._part or self._passing or self._after_cr)
        return held

    def feed(self, chunk: bytes) -> bytes:
        """Take the next bytes from the engine; return those that go to the client."""
        if (
            self._quick
            and self.between
            and chunk.endswith(b"\n\n")
            and chunk.find(b'"usage"') < 0
            and chunk.find(self._mark) < 0
        ):
            return chunk
        out = self._feed_slowly(chunk)
        self.between = not (self._held_event or self._part or self._passing or self._after_cr)
        return out

    def _feed_slowly(self, chunk: bytes) -> bytes:
        out: list[bytes] = []
        if self._after_cr and chunk:
            if chunk.startswith(b"\n"):
                chunk = chunk[1:]
                if self._after_cr == "keep":
                    self._keep(b"\n", out)
            self._after_cr = ""
        sent = len(self._passing)
        raw = self._passing + self._part + chunk
        self._part = self._passing = b""
        position = 0
        while (match := _BLANK_LINE.search(raw, position)) is not None:
            event = raw[max(position, sent) : match.end()]
            kept = position < sent or self._take(event, out)
            if position < sent:
                out.append(event)
            position = match.end()
            if event.endswith(b"\r") and position == len(raw):
                self._after_cr = "keep" if kept else "drop"
        rest = raw[position:]
        no_event = rest.startswith((b":", b"\n", b"\r")) and not self._held_event
        if position >= sent and len(rest) <= _HELD_LIMIT and not no_event:
            self._part = rest
        else:
            out += (self.release(), raw[max(position, sent) :])
            # Three bytes tell whether the next ones complete a blank line.
            self._passing = rest[-3:] if rest.strip(b"\r\n") else b""
        return b"".join(out)

    def _keep(self, piece: bytes, out: list[bytes]) -> None:
        """What is no event goes on, after the event before it."""
        if self._after_held or (self._held_event and piece != b"\n"):
            self._after_held += piece
        elif self._held_event:
            self._held_event += piece
        else:
            out.append(piece)

    def _take(self, event: bytes, out: list[bytes]) -> bool:
        """Judge a whole event; returns False for the one that is taken out."""
        name, data = b"", []
        for match in _LINE.finditer(event):
            if match[1] == b"data":
                data.append(match[2])
            else:
                name = match[2]
        if not data:
            self._keep(event, out)
            return True
        text = b"\n".join(data)
        if text == b"[DONE]":
            self.done = True
            out += (self.release(), event)
            return True
        members = members_of(text) or {}
        if is_error(name, members):
            self.error = True
            out += (self.release(), event)
            return True
        if told_usage(members) and has_no_choice(members) and self._is_the_one(members):
            self._take_out(members, out)
            return False
        out.append(self.release())
        self._compare(event, members, out)
        return True

    def _is_the_one(self, members: dict[str, bytes]) -> bool:
        if self.finished and not self.removed:
            return True
        self._differ("usage does not come once and at the end")
        # Not what was asked for in this way; but there are clients that crash on an empty list.
        return members.get("choices", b"null") != b"null"

    def _take_out(self, members: dict[str, bytes], out: list[bytes]) -> None:
        last = self._manners.last
        self.removed += 1
        if self._held_event:
            restored = self._with(self._held_event, members)
            if restored is None:
                moved = ", ".join(name for name in last.names if name not in self._last)
                self._differ(f"{moved} is not in the last event any more")
            else:
                self._held_event = restored
                self._last = last.names
            out.append(self.release())
        if self.finished and self._last != last.names:
            self._differ("the last event has other members")

    def _compare(self, event: bytes, members: dict[str, bytes], out: list[bytes]) -> None:
        """Look at an event that goes on: now, or when members have been put back into it."""
        manners, names = self._manners, tuple(members)
        if self.removed:
            self._differ("events follow on the usage event")
        finishes = self._choices.take(members)
        if finishes:
            self.finished = True
            self._quick = False
        self._last = names
        if self.finished and names != manners.last.names:
            missing = [name for name in manners.last.names if name not in members]
            if missing and finishes and manners.constants.keys() >= set(missing):
                restored = self._with(event, manners.constants)
                if restored is not None:
                    self._last = manners.last.names
                    out.append(restored)
                    return
            if missing and self._choices.all_finished:  # else another choice has the last event
                self._held_event = event
                return
        elif not manners.fits(names):
            self._differ("an event has other members: " + (", ".join(names) or "none"))
        out.append(event)

    def _with(self, event: bytes, more: dict[str, bytes]) -> bytes | None:
        """A last event as it is without the wish; None when it cannot be made of what there is."""
        lines = [match for match in _LINE.finditer(event) if match[1] == b"data"]
        if len(lines) != 1:
            return None
        start, end = lines[0].span(2)
        members = members_of(event[start:end])
        if members is None:
            return None
        last = self._manners.last
        missing = frozenset(last.names).difference(members)
        if not missing <= more.keys() or layout_of(event[start:end]) != last.without(missing):
            return None
        return event[:start] + last.written({**more, **members}) + event[end:]

    def _differ(self, how: str) -> None:
        if self.differs is None:
            self.differs = how
