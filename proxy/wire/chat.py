"""Chat completions: `POST /v1/chat/completions` (OpenAI API reference, vLLM 0.32's additions)."""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.wire.answer import OUTPUT, TOKEN
from proxy.wire.choices import ChoicesReader, Chunk, carries_part_of_character


class _Delta(msgspec.Struct):
    role: Any = None
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None
    function_call: Any = None
    refusal: Any = None
    audio: Any = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    finish_reason: Any = None
    stop_reason: Any = msgspec.UNSET


class _Chunk(Chunk):
    choices: list[_Choice] | None = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class ChatReader(ChoicesReader):
    """Reads chat completions."""

    __slots__ = ()

    def decode_chunk(self, data: bytes) -> _Chunk:
        return _decode_chunk(data)

    def marks_of(self, choice: _Choice) -> int:
        delta = choice.delta
        if delta is None:
            return 0
        content = delta.content
        if content or delta.tool_calls or delta.function_call or delta.refusal or delta.audio:
            return TOKEN | OUTPUT
        if delta.reasoning or delta.reasoning_content:
            return TOKEN
        if delta.role is None and carries_part_of_character(
            choice.finish_reason, choice.stop_reason
        ):
            if content == "":
                return TOKEN | OUTPUT
            if delta.reasoning == "" or delta.reasoning_content == "":
                return TOKEN
        return 0
