"""Chat completions: `POST /v1/chat/completions` (OpenAI API reference, vLLM 0.32's additions)."""

from __future__ import annotations

from typing import Any

import msgspec

from tokgauge.dialects.answer import OUTPUT, TOKEN
from tokgauge.dialects.choices import ChoicesReader, Chunk, ChunkChoice
from tokgauge.dialects.lenient import LenientDecoder


class _Delta(msgspec.Struct):
    role: Any = None
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None
    function_call: Any = None
    refusal: Any = None
    audio: Any = None


class _Choice(ChunkChoice):
    delta: _Delta | None = None


class _Chunk(Chunk):
    choices: list[_Choice] | None = None


_REASONING_PARTS = ("thinking", "reasoning", "redacted_thinking")


class ChatReader(ChoicesReader):
    """Reads chat completions."""

    __slots__ = ()

    decoder = LenientDecoder(_Chunk)

    def marks_of(self, choice: _Choice) -> int:
        delta = choice.delta
        if delta is None:
            return 0
        if delta.tool_calls or delta.function_call:
            self.calls = True
            return TOKEN | OUTPUT
        content = delta.content
        if content and isinstance(content, str):
            return TOKEN | OUTPUT
        if delta.refusal or delta.audio:
            return TOKEN | OUTPUT
        marks = _marks_of_parts(content) if content and isinstance(content, list) else 0
        if delta.reasoning or delta.reasoning_content:
            return marks | TOKEN
        if not marks and not delta.role and self.is_part_of_character(choice):
            if content == "":
                return TOKEN | OUTPUT
            if delta.reasoning == "" or delta.reasoning_content == "":
                return TOKEN
        return marks


def _marks_of_parts(parts: list[Any]) -> int:
    """The marks of a content made of parts, `{"type": "text", "text": …}` and the like.

    Reasoning comes as a part of its own (Mistral: `thinking`, itself made of parts).
    """
    marks = 0
    for part in parts:
        if isinstance(part, str):
            marks |= TOKEN | OUTPUT if part else 0
        elif isinstance(part, dict):
            kind = part.get("type")
            said = part.get(kind) if isinstance(kind, str) else None
            said = said or part.get("text")
            if isinstance(said, list):
                said = _marks_of_parts(said)
            if said:
                marks |= TOKEN if kind in _REASONING_PARTS else TOKEN | OUTPUT
    return marks
