"""Whether the engine tells usage when it is asked for it, tried with one token."""

from __future__ import annotations

import httpx2

from proxy.check.asking import TOKEN_SECONDS, Asking
from proxy.check.finding import Finding, State
from proxy.probe.question import Question
from proxy.probe.server import error_text
from proxy.settings import Settings
from proxy.wire.chat import ChatReader
from proxy.wire.injection import REFUSAL_STATUSES, refuses_injection
from proxy.wire.sse import EventReader


async def injection(asking: Asking, settings: Settings, model: str | None) -> Finding:
    """Ask `model` for a stream of one token with its usage."""

    def finding(state: State, text: str, value: bool | None) -> Finding:
        return Finding("engine", "usage injection", state, text, "one request for one token", value)

    counted = "tokens of streams are then counted from their events"
    if not settings.inject_usage:
        return finding("ok", f"switched off by inject_usage; {counted}", None)
    if model is None:
        return finding("warning", "not tried: no model has a name", None)
    question = Question(model, "Hi", 1)
    while True:
        try:
            status, body = await asking.post(question.path.encode(), question.body(stream=True))
        except (httpx2.HTTPError, TimeoutError) as error:
            reason = str(error) or f"no answer within {TOKEN_SECONDS:g} s"
            return finding("warning", f"not known: {reason}", None)
        if status == 200:
            break
        if status in REFUSAL_STATUSES and refuses_injection(body):
            return finding("warning", f"the engine refuses stream_options; {counted}", False)
        changed = question.without_what_was_refused(body)
        if changed is None:
            return finding("warning", f"not known: it answers {status}: {error_text(body)}", None)
        question = changed[0]
    reader = ChatReader()
    for event in EventReader().feed(body):
        reader.event(*event)
    if reader.usage.completion is None:
        return finding("warning", f"accepted, but the engine sends no usage; {counted}", False)
    return finding("ok", "accepted: streams report their tokens", True)
