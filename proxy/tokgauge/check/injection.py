"""Whether usage can be asked for on behalf of clients, tried as the proxy does: once without the
wish, once with it, one token each, and compared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import httpx2

from tokgauge.check.asking import TOKEN_SECONDS, Asking
from tokgauge.check.finding import Finding, State
from tokgauge.dialects.injection import refuses_injection
from tokgauge.dialects.manners import Lesson, Manners
from tokgauge.dialects.usage_filter import UsageEventFilter
from tokgauge.engine.error_text import error_text
from tokgauge.probe.question import Question
from tokgauge.settings import Settings

_COUNTED = "tokens of streams are then counted from their events"


class _Found(NamedTuple):
    state: State
    text: str
    value: bool | None


async def injection(asking: Asking, settings: Settings, model: str | None) -> Finding:
    """Ask `model` for streams of one token, without and with their usage."""
    if not settings.inject_usage:
        found = _Found("ok", f"switched off by inject_usage; {_COUNTED}", None)
    elif model is None:
        found = _Found("warning", "not tried: no model has a name", None)
    else:
        try:
            found = await _tried(asking, Question(model, "Hi", 1))
        except (httpx2.HTTPError, TimeoutError) as error:
            reason = str(error) or f"no answer within {TOKEN_SECONDS:g} s"
            found = _Found("warning", f"not known: {reason}", None)
    source = "two requests for one token each"
    return Finding("engine", "usage injection", found.state, found.text, source, found.value)


async def _tried(asking: Asking, question: Question) -> _Found:
    while True:
        try:
            status, wished = await _ask(asking, question)
        except httpx2.TransportError as error:
            if not isinstance(error, httpx2.ReadError | httpx2.RemoteProtocolError):
                raise
            status, wished = 0, str(error).encode()
        if status == 200:
            break
        if refuses_injection(wished):
            return _refused(error_text(wished))
        changed = question.without_what_was_refused(wished)
        if changed is None:
            break
        question = changed[0]
    plain_status, plain = await _ask(asking, replace(question, usage_wished=False))
    if plain_status != 200:
        text = f"not known: it answers {plain_status}: {error_text(plain)}"
        return _Found("warning", text, None)
    if status != 200:
        return _refused(f"it answers {status}" if status else "it closes the connection")
    lesson = Lesson()
    lesson.feed(plain)
    if lesson.usage:
        return _Found("ok", "accepted, and not needed: the engine tells usage unasked", True)
    manners = lesson.manners("")
    if manners is None:
        return _Found("warning", "not known: the end of its stream cannot be read", None)
    return _compared(manners, wished)


async def _ask(asking: Asking, question: Question) -> tuple[int, bytes]:
    return await asking.post(question.path, question.body(stream=True))


def _refused(how: str) -> _Found:
    return _Found("warning", f"the engine refuses stream_options ({how}); {_COUNTED}", False)


def _compared(manners: Manners, body: bytes) -> _Found:
    hiding = UsageEventFilter(manners, thorough=True)
    hiding.feed(body)
    if not body or hiding.error:
        return _refused("no stream comes")
    differs = hiding.differs
    if differs is None and hiding.done != manners.done:
        differs = "only one of both ends with [DONE]"
    if differs is not None:
        return _Found(
            "warning", f"more than one event differs with it: {differs}; {_COUNTED}", False
        )
    if not hiding.removed:
        return _Found("warning", f"accepted, but the engine sends no usage; {_COUNTED}", False)
    return _Found("ok", "accepted: streams report their tokens", True)
