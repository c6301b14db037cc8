"""Completions: `POST /v1/completions` (OpenAI API reference, vLLM 0.32's additions)."""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.wire.answer import OUTPUT, TOKEN, AnswerReader
from proxy.wire.chat import carries_part_of_character, note_first_tokens, read_body
from proxy.wire.usage import RawUsage


class _Choice(msgspec.Struct):
    index: int = 0
    text: Any = None
    finish_reason: Any = None
    stop_reason: Any = msgspec.UNSET


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: RawUsage | None = None
    error: Any = None
    object: Any = None
    model: Any = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class CompletionsReader(AnswerReader):
    """Reads text completions; several prompts in one request are several choices."""

    __slots__ = ()

    def event(self, name: bytes, data: bytes) -> int:
        if data == b"[DONE]":
            self.done = True
            return 0
        chunk = self._decode(_decode_chunk, data)
        if name == b"error" or (
            chunk is not None and (chunk.error is not None or chunk.object == "error")
        ):
            self.error = True
            return 0
        if chunk is None:
            return 0
        if chunk.usage is not None:
            self.raw_usage = chunk.usage
        if self.model is None and isinstance(chunk.model, str):
            self.model = chunk.model
        marks = 0
        for choice in chunk.choices or ():
            is_token = choice.text or (
                choice.text == ""
                and carries_part_of_character(choice.finish_reason, choice.stop_reason)
            )
            if is_token and self._count(choice.index):
                marks = TOKEN | OUTPUT
            if choice.finish_reason is not None:
                self._finish(choice.index, choice.finish_reason)
        if marks:
            note_first_tokens(self, chunk.usage)
        return marks

    def body(self, data: bytes) -> None:
        read_body(self, data)
