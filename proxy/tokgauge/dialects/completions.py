"""Completions: `POST /v1/completions` (OpenAI API reference, vLLM 0.32's additions)."""

from __future__ import annotations

from typing import Any

from tokgauge.dialects.answer import OUTPUT, TOKEN
from tokgauge.dialects.choices import ChoicesReader, Chunk, ChunkChoice
from tokgauge.dialects.lenient import LenientDecoder


class _Choice(ChunkChoice):
    text: Any = None


class _Chunk(Chunk):
    choices: list[_Choice] | None = None


class CompletionsReader(ChoicesReader):
    """Reads text completions; several prompts in one request are several choices."""

    __slots__ = ()

    decoder = LenientDecoder(_Chunk)

    def marks_of(self, choice: _Choice) -> int:
        text = choice.text
        is_token = text or (text == "" and self.is_part_of_character(choice))
        return TOKEN | OUTPUT if is_token else 0
