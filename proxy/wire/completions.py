"""Completions: `POST /v1/completions` (OpenAI API reference, vLLM 0.32's additions)."""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.wire.answer import OUTPUT, TOKEN
from proxy.wire.choices import ChoicesReader, Chunk, carries_part_of_character


class _Choice(msgspec.Struct):
    index: int = 0
    text: Any = None
    finish_reason: Any = None
    stop_reason: Any = msgspec.UNSET


class _Chunk(Chunk):
    choices: list[_Choice] | None = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class CompletionsReader(ChoicesReader):
    """Reads text completions; several prompts in one request are several choices."""

    __slots__ = ()

    def decode_chunk(self, data: bytes) -> _Chunk:
        return _decode_chunk(data)

    def marks_of(self, choice: _Choice) -> int:
        text = choice.text
        is_token = text or (
            text == "" and carries_part_of_character(choice.finish_reason, choice.stop_reason)
        )
        return TOKEN | OUTPUT if is_token else 0
