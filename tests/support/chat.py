"""Short ways to say the usual: ask for a chat stream, run one exchange."""

import json
from typing import Any

from tests.support.client import Response, post
from tests.support.engine import DONE, ROLE, chat_event, usage_event

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
ASKED = {"stream_options": {"include_usage": True}}


def chat_request(*, stream: bool = True, asked: bool = False, **fields: Any) -> dict[str, Any]:
    """A chat request; with `asked` the client itself wants the usage event."""
    request: dict[str, Any] = {
        "model": "qwen",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": stream,
    }
    return {**request, **(ASKED if asked else {}), **fields}


def ask(port: int, *, asked: bool = True, path: str = CHAT, **fields: Any) -> Response:
    """POST a streaming chat request and read the whole answer."""
    return post(port, path, chat_request(asked=asked, **fields))


def body_of(**fields: Any) -> bytes:
    return json.dumps(chat_request(**fields)).encode()


def whole_answer(*texts: str, usage: bool = True) -> list[bytes]:
    """The events of a short answer: role, texts, finish with the last, usage, [DONE]."""
    *first, last = texts
    events = [ROLE, *map(chat_event, first), chat_event(last, finish="length")]
    if usage:
        events.append(usage_event(len(texts)))
    return [*events, DONE]
