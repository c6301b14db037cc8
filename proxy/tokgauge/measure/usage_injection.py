"""Whether usage is asked for on behalf of clients: what is known of the engine, route by route.

Injection is earned. The first streams go up as they came and teach how they look; then the wish is
added, and each stream that comes of it is compared with that. What differs or is refused switches
injection off for the route, until the engine is another one.
"""

from __future__ import annotations

import logging

from tokgauge.dialects.manners import Lesson, Manners
from tokgauge.dialects.request import RequestParams, Wish
from tokgauge.measure.record import InjectionState

logger = logging.getLogger("tokgauge")

ROUTES = ("chat_completions", "completions")
"""The routes whose requests have `stream_options`."""

Kind = tuple[Wish, bool]
"""What decides, besides the route, how a stream ends: the wish in the request, several choices.

Options without `include_usage` are a kind of their own: vLLM takes them for a wish.
"""

_DOUBTS = 2
"""Refusals in a row after which an engine that has served changed requests is taken at its word."""


def kind_of(asked: RequestParams) -> Kind:
    """The kind of stream that a request asks for."""
    wish: Wish = asked.wish if asked.wish in ("unset", "unset_null") else "absent"
    return wish, asked.several


class RouteInjection:
    """What is known of one route since the engine's start.

    proven: a changed request had the stream that it should. manners: of the kinds that have taught.
    unneeded: kinds to which the engine tells usage unasked. why: a sentence for people.
    """

    def __init__(self, route: str) -> None:
        self.route = route
        self.proven = False
        self.manners: dict[Kind, Manners] = {}
        self.unneeded: set[Kind] = set()
        self._off: InjectionState | None = None
        self._why = ""
        self._doubts = 0

    @property
    def off(self) -> bool:
        """Whether nothing is asked for on this route any more."""
        return self._off is not None

    @property
    def state(self) -> InjectionState:
        if self._off is not None:
            return self._off
        if self.manners:
            return "on"
        return "off_unneeded" if self.unneeded else "learning"

    @property
    def why(self) -> str:
        if self._off is not None:
            return self._why
        return {
            "on": "usage is asked for, and the client sees what it would see without",
            "off_unneeded": "the engine tells usage unasked",
            "learning": "no stream has shown yet how streams end when usage is not asked for",
        }[self.state]

    def taught(self, kind: Kind, lesson: Lesson, content_type: str) -> None:
        """A stream without the wish has ended, or told usage."""
        if lesson.usage:
            self.manners.pop(kind, None)
            self.unneeded.add(kind)
            return
        manners = lesson.manners(content_type)
        if manners is None or kind in self.unneeded:
            return
        known = self.manners.get(kind)
        agreed = manners if known is None else known.merge(manners)
        if agreed is None:
            self.differs("its streams end in several ways without it, too")
        else:
            self.manners[kind] = agreed

    def worked(self) -> None:
        """A changed request had the stream that it should."""
        self.proven = True
        self._doubts = 0

    def refused(self, how: str) -> None:
        """A changed request had no stream, and the client's own had one."""
        self._doubts += 1
        if not self.proven or self._doubts >= _DOUBTS:
            self._switch_off("off_refused", f"the engine refuses it ({how})")

    def differs(self, how: str) -> None:
        """A stream was not what it would have been."""
        self._switch_off("off_differs", f"more than one event differs with it: {how}")

    def ignored(self) -> None:
        """A stream ended as it should, without usage."""
        self._switch_off("off_ignored", "the engine takes the wish and tells no usage")

    def _switch_off(self, state: InjectionState, why: str) -> None:
        if self._off is None:
            self._off, self._why = state, why
            logger.warning("usage is no longer asked for on %s: %s", self.route, why)


class UsageInjection:
    """What is known of the engine that runs now."""

    def __init__(self) -> None:
        self.enabled = True
        self._routes = {route: RouteInjection(route) for route in ROUTES}
        self._started_at: float | None = None

    def of(self, route: str) -> RouteInjection | None:
        """What is known of a route; None when nothing may be asked for there."""
        return self._routes.get(route) if self.enabled else None

    def begin_anew(self) -> None:
        """The engine may be another one from now on."""
        self._routes = {route: RouteInjection(route) for route in ROUTES}

    def connection_closed(self) -> None:
        """The engine has closed an idle connection: if it does not say when it started, this may
        be all that is seen of its end.
        """
        if self._started_at is None:
            self.begin_anew()

    def process_started(self, at: float) -> None:
        """The engine's process says when it started (Unix time)."""
        if self._started_at not in (None, at):
            self.begin_anew()
        self._started_at = at

    def states(self) -> dict[str, tuple[InjectionState, str]]:
        """State and reason by route."""
        if not self.enabled:
            return dict.fromkeys(ROUTES, ("off_setting", "switched off by inject_usage"))
        return {route: (known.state, known.why) for route, known in self._routes.items()}
