"""The wish for usage of one exchange: what is done for it, and what its response tells of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tokgauge.dialects.manners import Lesson, Manners, Names, has_no_choice, told_usage
from tokgauge.dialects.usage_filter import UsageEventFilter
from tokgauge.measure.media_type import media_type
from tokgauge.measure.usage_injection import Kind, RouteInjection

_NEVER_ABOUT_THE_WISH = (401, 407, 408, 413, 429, 502, 503, 504)
"""Errors that are not repeated once the engine is known to accept the wish: asking again would
double the load of an engine that is overloaded, and the tries of a wrong key.
"""

Verdict = Literal["goes", "waits", "again"]
"""Of a response to a changed request: it goes to the client; its first event is needed to tell;
the request is sent once more as it was."""


class UsageWish:
    """One streaming request without a wish for usage of its own.

    manners: what its stream should look like. None: the request goes up as it came, and teaches.
    """

    __slots__ = (
        "_content_type", "_first", "_kind", "_known", "_lesson", "_manners", "_suspected",
        "filter",
    )  # fmt: skip

    def __init__(self, known: RouteInjection, kind: Kind) -> None:
        self._known = known
        self._kind = kind
        self._manners: Manners | None = known.manners.get(kind)
        self._lesson: Lesson | None = None
        self._content_type = ""
        self._suspected: str | None = None
        self._first: Names | None = None
        self.filter: UsageEventFilter | None = None

    @property
    def teaches(self) -> bool:
        """Whether the client's own request goes up."""
        return self._manners is None

    # the response to a changed request, before the client gets any of it

    def judge_head(self, status: int, content: Mapping[str, str]) -> Verdict:
        """Whether the head may go on."""
        manners = self._manners
        if manners is None:
            return "goes"
        if status >= 400:
            if self._known.proven and status in _NEVER_ABOUT_THE_WISH:
                return "goes"
            return self._suspect(f"status {status}")
        if content.get("content-encoding", "identity") != "identity":
            self._known.differs("its streams are compressed, so no event can be taken out")
            return self._suspect("it is compressed")
        if status != 200 or media_type(content) != manners.content_type:
            return self._suspect("another kind of response")
        return "goes" if self._known.proven else "waits"

    def judge_first(self, data: bytes) -> Verdict:
        """Whether the response may go on, as far as `data`, its first bytes, tells."""
        manners = self._manners
        if manners is None or data.startswith((b":", b"\n", b"\r")):
            return "goes"
        if b"data" not in data and data.endswith((b"\n\n", b"\n\r\n", b"\r\r")):
            return "goes"  # whole, and no event: nothing to wait for
        lesson = Lesson()
        lesson.feed(data)
        if lesson.first is None:
            return self._suspect("nothing but [DONE]") if lesson.done else "waits"
        if lesson.error:
            return self._suspect("an error event")
        names = tuple(lesson.first)
        if names in manners.shapes or (told_usage(lesson.first) and has_no_choice(lesson.first)):
            return "goes"
        self._first = names
        return self._suspect("its first event has other members")

    def broke_off(self) -> Verdict:
        """There is no response, or none with an event in it."""
        if self._manners is None:
            return "goes"
        return self._suspect("no response" if self._suspected is None else self._suspected)

    def _suspect(self, how: str) -> Verdict:
        self._suspected = how
        return "again"

    # the response that goes to the client

    def begins(self, status: int, content: Mapping[str, str]) -> bool:
        """The head goes on; returns whether bytes may be cut out of what follows."""
        encoded = content.get("content-encoding", "identity") != "identity"
        content_type = media_type(content)
        if status != 200 or encoded:
            return False
        manners = self._manners
        if manners is None or self._suspected is not None:
            self._content_type = content_type
            self._lesson = Lesson()
            return False
        self.filter = UsageEventFilter(manners, thorough=not self._known.proven)
        return True

    @property
    def learns(self) -> bool:
        """Whether `came` wants the bytes that have gone to the client."""
        return self._lesson is not None

    def came(self, data: bytes) -> None:
        """Bytes of a response without the wish."""
        lesson = self._lesson
        if lesson is None:
            return
        lesson.feed(data)
        if self._suspected is not None:
            if lesson.first is not None:
                self._conclude(lesson)
                self._lesson = None
        elif lesson.done or lesson.usage:
            self._known.taught(self._kind, lesson, self._content_type)
            self._lesson = None

    def _conclude(self, lesson: Lesson) -> None:
        """The client's own request has had its first event, after the changed one had not."""
        manners = self._manners
        if lesson.error or manners is None or self._content_type != manners.content_type:
            return
        how = self._suspected or ""
        if self._first is None:
            if how == "another kind of response":
                self._known.differs(how)
            else:
                self._known.refused(how)
        elif self._first != tuple(lesson.first or ()):
            self._known.differs(how)
        else:  # it comes of something else in this request
            shapes = manners.shapes | {self._first}
            self._known.manners[self._kind] = manners._replace(shapes=shapes)

    def ends(self, *, complete: bool, cut: bool) -> bool:
        """The exchange is over. complete: the whole response has come. cut: the engine broke off.

        Returns whether the wish may be to blame for that.
        """
        hiding, lesson, known, manners = self.filter, self._lesson, self._known, self._manners
        if lesson is not None and complete and self._suspected is None:
            known.taught(self._kind, lesson, self._content_type)
        if hiding is None or manners is None:
            return False
        if hiding.differs is not None:
            known.differs(hiding.differs)
        elif cut and not known.proven:
            known.differs("a stream broke off")
        elif (complete or hiding.done) and not hiding.error:
            if hiding.done != manners.done:
                known.differs("only one of both ends with [DONE]")
            elif hiding.removed:
                known.worked()
            elif hiding.finished and not known.proven:
                known.ignored()
        return known.off
