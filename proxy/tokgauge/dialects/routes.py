"""Path → route: a bounded set of names, and the dialect spoken there."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from tokgauge.dialects.answer import AnswerReader
from tokgauge.dialects.chat import ChatReader
from tokgauge.dialects.completions import CompletionsReader
from tokgauge.dialects.messages import MessagesReader
from tokgauge.dialects.responses import ResponsesReader

READERS: MappingProxyType[str, Callable[[], AnswerReader]] = MappingProxyType(
    {
        "chat_completions": ChatReader,
        "completions": CompletionsReader,
        "responses": ResponsesReader,
        "messages": MessagesReader,
    }
)
"""Routes whose answers are text of a model, with the reader of their dialect."""

READ_BODIES = READERS.keys() | {"embeddings", "tokenize", "rerank", "score", "audio"}
"""Routes on which no engine can answer well without having read the request's body."""

# The longest suffix that fits wins; engines may serve their API under a prefix of their own.
_SUFFIXES = (
    ("/chat/completions", "chat_completions"),
    ("/completions", "completions"),
    ("/responses", "responses"),
    ("/messages", "messages"),
    ("/embeddings", "embeddings"),
    ("/models", "models"),
    ("/tokenize", "tokenize"),
    ("/detokenize", "tokenize"),
    ("/rerank", "rerank"),
    ("/score", "score"),
    ("/audio/transcriptions", "audio"),
    ("/audio/translations", "audio"),
    ("/audio/speech", "audio"),
    ("/health", "health"),
    ("/metrics", "metrics"),
)

_LONGEST = max(len(suffix) for suffix, _ in _SUFFIXES)

ROUTES = (*tuple(dict.fromkeys(name for _, name in _SUFFIXES)), "other")
"""Every value that the label `route` can take."""


def classify(method: str, path: bytes) -> str:
    """Name the route of a request line (`path` is the raw path, without query)."""
    text = path[-_LONGEST:].decode("latin-1")
    for suffix, name in _SUFFIXES:
        if text.endswith(suffix):
            # GET /v1/responses and the like read stored objects: no generation there.
            return name if name not in READERS or method == "POST" else "other"
    return "other"
