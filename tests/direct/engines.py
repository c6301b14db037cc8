"""Kinds of engines: what each makes of the wish for usage. All answer with the same few tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.direct.harness import Answers
from tests.direct.replies import Apart, Extra, Headers, Joined, Reply

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EVENT_STREAM: Headers = (("content-type", "text/event-stream; charset=utf-8"),)
DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
FINGERPRINT = "fp-1"
TIMINGS = {"prompt_n": 5, "prompt_ms": 1.25, "predicted_n": 3, "predicted_ms": 9.5}


def event(document: Any) -> bytes:
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    return b"data: " + text.encode() + b"\n\n"


def chunk(delta: Any = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A chat chunk; `delta` may be a text. `choices` among `more` replaces its choice."""
    delta = {"content": delta} if isinstance(delta, str) else delta or {}
    return {
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "qwen",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        **more,
    }  # fmt: skip


ROLE = chunk({"role": "assistant", "content": ""})
TOKENS = [ROLE, chunk("Wie "), chunk("spät "), chunk("?")]
FINISH = chunk({}, "stop")


def usage_chunk(**more: Any) -> dict[str, Any]:
    """The extra event of `include_usage`."""
    return chunk(choices=[], **{"usage": USAGE, **more})


def events(*documents: dict[str, Any]) -> tuple[bytes, ...]:
    return tuple(event(document) for document in documents)


PLAIN = (*events(*TOKENS, FINISH), DONE)
"""What nobody asked for: no usage."""


def wish(body: bytes) -> tuple[bool, bool]:
    """Whether a request asks for usage, and for it on every event."""
    try:
        options = json.loads(body)["stream_options"]
        asked = options["include_usage"] is True
    except (ValueError, TypeError, KeyError):
        return False, False
    return asked, asked and options.get("continuous_usage_stats") is True


def streams(pieces: tuple[bytes, ...], **more: Any) -> Reply:
    return Reply(pieces, headers=EVENT_STREAM, **more)


def always(reply: Reply) -> Answers:
    return lambda body: reply


def by_wish(plain: tuple[bytes, ...], asked: tuple[bytes, ...], reply: Reply) -> Answers:
    """`plain` to a request without the wish, `asked` with it; each event in a write of its own."""

    def answer(body: bytes) -> Reply:
        wished, continuous = wish(body)
        pieces = asked if wished else plain
        if continuous:
            pieces = (*_with_usage(TOKENS), *pieces[len(TOKENS) :])
        return replace(reply, pieces=pieces)

    return answer


def _with_usage(documents: list[dict[str, Any]]) -> tuple[bytes, ...]:
    return events(*({**document, "usage": USAGE} for document in documents))


STREAM = streams(())


def honours(reply: Reply = STREAM, **usage: Any) -> Answers:
    """One extra event; `usage` are members of that event beside or in place of the usual ones."""
    document = {**usage_chunk(), **usage}
    document = {key: value for key, value in document.items() if value is not ...}
    extra = Extra(event(document))
    return by_wish(PLAIN, (*PLAIN[:-1], extra, DONE), reply)


def moves(how: Callable[[bytes], bytes], reply: Reply = STREAM, **members: Any) -> Answers:
    """Members that sit on the finish event sit on the usage event when that is asked for.

    how: in what way the finish event leaves then, `Joined` or `Apart`.
    """
    finish = {**FINISH, **members}
    extra = Extra(event(usage_chunk(**members)))
    return by_wish(
        (*events(*TOKENS, finish), DONE),
        (*events(*TOKENS), how(event(FINISH)), extra, DONE),
        reply,
    )


def forces(reply: Reply = STREAM, *, everywhere: bool = False, events_own: bool = True) -> Answers:
    """Usage unasked: as an event of its own, on every event, or only on the finish event."""
    tokens = _with_usage(TOKENS) if everywhere else events(*TOKENS)
    finish = {**FINISH, "usage": USAGE} if everywhere or not events_own else FINISH
    own = (event(usage_chunk()),) if events_own else ()
    return always(replace(reply, pieces=(*tokens, event(finish), *own, DONE)))


def refuses(refusal: Reply) -> Answers:
    """An engine that does not take `stream_options` with the wish, and answers with `refusal`."""

    def answer(body: bytes) -> Reply:
        return refusal if wish(body)[0] else streams(PLAIN)

    return answer


def _json(document: Any, status: str) -> Reply:
    body = json.dumps(document).encode()
    return Reply((body,), status, headers=(("content-type", "application/json"),), framing="length")


REFUSALS = {
    "400 by name": _json(
        {"error": {"message": "unknown field stream_options", "code": 400}}, "400 Bad Request"
    ),
    "400 without name": _json({"detail": "Extra inputs are not permitted"}, "400 Bad Request"),
    "422 text": Reply(
        (b"unprocessable",), "422 Unprocessable Entity",
        headers=(("content-type", "text/plain"),), framing="length",
    ),
    "422 list": _json(
        {"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"]}]},
        "422 Unprocessable Entity",
    ),
    "500": _json({"error": {"message": "internal error"}}, "500 Internal Server Error"),
    "501 empty": Reply((), "501 Not Implemented", framing="length"),
    "400 chunked, closed": Reply(
        (b'{"error":', b'"no"}'), "400 Bad Request", headers=(("content-type", "text/html"),),
        end="close",
    ),
    "200 empty": Reply((), headers=(("content-type", "application/json"),), framing="length"),
    "200 empty stream": streams(()),
    "200 JSON error": _json({"error": {"message": "no usage in streams"}}, "200 OK"),
    "200 error event": streams(events({"error": {"message": "no usage here", "code": 400}})),
    "closes": Reply(dies=True, end="close"),
    "resets": Reply(dies=True, end="reset"),
}  # fmt: skip
"""In how many shapes an engine can dislike a wish."""

ENGINES: dict[str, Answers] = {
    "honours": honours(),
    "honours, no choices": honours(choices=...),
    "honours, null choices": honours(choices=None),
    "honours, members more": honours(metrics={"time_to_first_token_ms": 2.5}, service_tier=None),
    "fingerprint moves": moves(Joined, system_fingerprint=FINGERPRINT),
    "fingerprint moves apart": moves(Apart, system_fingerprint=FINGERPRINT),
    "timings move": moves(Joined, timings=TIMINGS),
    "timings move apart": moves(Apart, timings=TIMINGS),
    "ignores": always(streams(PLAIN)),
    "forces": forces(),
    "forces everywhere": forces(everywhere=True),
    "forces on the finish": forces(events_own=False),
    **{f"refuses, {name}": refuses(refusal) for name, refusal in REFUSALS.items()},
}
