"""Text that came from a server: how much of it there is to read."""

from __future__ import annotations

from typing import Any

import msgspec

from tokgauge.dialects.answer import UNREADABLE

__all__ = ["characters"]


class _Part(msgspec.Struct):
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None


class _Choice(msgspec.Struct):
    delta: _Part | None = None
    message: _Part | None = None
    text: Any = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] | None = None


_decode = msgspec.json.Decoder(_Answer).decode


def characters(data: bytes) -> int:
    """Characters in one event or one whole body, reasoning included; 0 for what is not readable."""
    try:
        answer = _decode(data)
    except UNREADABLE:
        return 0
    count = 0
    for choice in answer.choices or ():
        part = choice.delta or choice.message
        texts = [choice.text]
        if part is not None:
            # Some servers send reasoning under both names.
            texts += [part.content, part.reasoning or part.reasoning_content]
        count += sum(len(text) for text in texts if isinstance(text, str))
    return count
