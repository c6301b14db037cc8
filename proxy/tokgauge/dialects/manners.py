"""How an engine's streams look without a wish for usage, learned from those that had none.

`Lesson` watches one such stream. `Manners` is what lessons have in common: with it the stream of a
changed request is compared.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from tokgauge.dialects.answer import UNREADABLE
from tokgauge.dialects.members import Layout, layout_of, members_of
from tokgauge.dialects.sse import Event, EventReader

Names = tuple[str, ...]
"""The names of an event's members, in order; none for what is not a JSON object."""

FINISHES = re.compile(rb'"finish_reason"\s*:\s*"')

_EMPTY_LIST = re.compile(rb"\[\s*\]")
_EMPTY_OBJECT = re.compile(rb"\{\s*\}")


class _Choice(msgspec.Struct):
    index: Any = 0
    finish_reason: Any = None


_decode_choices = msgspec.json.Decoder(list[_Choice]).decode


def told_usage(members: dict[str, bytes]) -> bool:
    """Whether the event carries counts of tokens."""
    usage = members.get("usage", b"")
    return usage.startswith(b"{") and _EMPTY_OBJECT.fullmatch(usage) is None


def has_no_choice(members: dict[str, bytes]) -> bool:
    """Whether `choices` is missing, null or empty."""
    choices = members.get("choices", b"null")
    return choices == b"null" or _EMPTY_LIST.fullmatch(choices) is not None


def is_error(name: bytes, members: dict[str, bytes]) -> bool:
    """The error shapes seen inside a 200."""
    error, kind = members.get("error", b"null"), members.get("object")
    return name == b"error" or error not in (b"null", b'""') or kind == b'"error"'


class Choices:
    """Which choices of a stream have begun, and which have finished."""

    def __init__(self) -> None:
        self._begun: set[Any] = set()
        self._finished: set[Any] = set()

    def take(self, members: dict[str, bytes]) -> bool:
        """Take an event; returns whether a choice has finished with it."""
        try:
            choices = _decode_choices(members.get("choices", b"[]"))
        except UNREADABLE:
            return False
        before = len(self._finished)
        for choice in choices:
            index = choice.index if isinstance(choice.index, int) else 0
            self._begun.add(index)
            if isinstance(choice.finish_reason, str) and choice.finish_reason:
                self._finished.add(index)
        return len(self._finished) > before

    @property
    def all_finished(self) -> bool:
        """Whether there were some, and each has finished."""
        return bool(self._finished) and self._finished == self._begun


class Lesson:
    """One stream that came as the engine sends it to a request without the wish.

    first: members of the first event. usage: it told usage all the same. error: it contained one.
    """

    def __init__(self) -> None:
        self._events = EventReader()
        self._choices = Choices()
        self._last = b""
        self._count = 0
        self.first: dict[str, bytes] | None = None
        self.usage = False
        self.error = False
        self.done = False
        self.shapes: set[Names] = set()
        self.finishes: list[dict[str, bytes]] = []

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the response."""
        for event in self._events.feed(data):
            if not self.done:
                self._take(event)

    def _take(self, event: Event) -> None:
        if event.data == b"[DONE]":
            self.done = True
            return
        members = members_of(event.data)
        names = tuple(members or ())
        self._count += 1
        if self.first is None:
            self.first = members or {}
            self.error = event.name == b"error"
        self._last = event.data
        self.shapes.add(names)
        if members is None:
            return
        self.error = self.error or is_error(event.name, members)
        self.usage = self.usage or told_usage(members)
        if self._choices.take(members):
            self.finishes.append(members)

    @property
    def whole(self) -> bool:
        """Whether the stream can be taken for one that ended as it should."""
        return self._choices.all_finished and not self.error

    def manners(self, content_type: str) -> Manners | None:
        """What the stream shows; None when its end cannot be read."""
        last = layout_of(self._last)
        mark = FINISHES.search(self._last)
        if last is None or not self.whole:
            return None
        constants: dict[str, bytes] = {}
        if len(self.finishes) > 1:
            first, *others = self.finishes
            constants = {
                name: value
                for name, value in first.items()
                if value.startswith(b'"') and all(other.get(name) == value for other in others)
            }
        return Manners(
            content_type=content_type,
            done=self.done,
            shapes=frozenset(self.shapes),
            middle=self._count > 2,
            last=last,
            finish_mark=mark.group() if mark is not None else b'"finish_reason"',
            constants=constants,
        )


class Manners(NamedTuple):
    """How streams of one kind of request look.

    done: they end with `[DONE]`. shapes: the names of their events. middle: the events between the
    first and the last are among those; a stream of one token has none. last: their last event.
    finish_mark: bytes that are in an event with which a choice finishes. constants: members that
    are the same text in every event with which a choice finishes.
    """

    content_type: str
    done: bool
    shapes: frozenset[Names]
    middle: bool
    last: Layout
    finish_mark: bytes
    constants: dict[str, bytes]

    def merge(self, other: Manners) -> Manners | None:
        """What two streams of the same kind show; None when they end differently."""
        alike = self._replace(
            shapes=other.shapes, middle=other.middle, constants=other.constants
        )  # fmt: skip
        if alike != other:
            return None
        return self._replace(
            shapes=self.shapes | other.shapes,
            middle=self.middle or other.middle,
            constants=dict(self.constants.items() & other.constants.items()),
        )

    def fits(self, names: Names) -> bool:
        """Whether an event with these members is one that comes without the wish, too."""
        if names in self.shapes:
            return True
        known = {name for shape in self.shapes for name in shape}
        return not self.middle and bool(names) and known.issuperset(names)
