"""Chat completions: `POST /v1/chat/completions` (OpenAI API reference, vLLM 0.32's additions)."""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.wire.answer import OUTPUT, TOKEN, AnswerReader
from proxy.wire.usage import RawUsage, interpret


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


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: RawUsage | None = None
    error: Any = None
    object: Any = None
    model: Any = None


class _BodyChoice(msgspec.Struct):
    index: int = 0
    finish_reason: Any = None


class _Body(msgspec.Struct):
    choices: list[_BodyChoice] | None = None
    usage: RawUsage | None = None
    error: Any = None
    object: Any = None
    model: Any = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
decode_body = msgspec.json.Decoder(_Body).decode


class ChatReader(AnswerReader):
    """Reads chat completions."""

    __slots__ = ()

    def event(self, name: bytes, data: bytes) -> int:
        if data == b"[DONE]":
            self.done = True
            return 0
        chunk = self._decode(_decode_chunk, data)
        if name == b"error" or (chunk is not None and is_error(chunk)):
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
            found = _marks(choice)
            if found and self._count(choice.index):
                marks |= found
            if choice.finish_reason is not None:
                self._finish(choice.index, choice.finish_reason)
        if marks:
            note_first_tokens(self, chunk.usage)
        return marks

    def body(self, data: bytes) -> None:
        read_body(self, data)


def _marks(choice: _Choice) -> int:
    delta = choice.delta
    if delta is None:
        return 0
    content = delta.content
    if content or delta.tool_calls or delta.function_call or delta.refusal or delta.audio:
        return TOKEN | OUTPUT
    if delta.reasoning or delta.reasoning_content:
        return TOKEN
    if delta.role is None and carries_part_of_character(choice.finish_reason, choice.stop_reason):
        if content == "":
            return TOKEN | OUTPUT
        if delta.reasoning == "" or delta.reasoning_content == "":
            return TOKEN
    return 0


def carries_part_of_character(finish_reason: Any, stop_reason: Any) -> bool:
    """Whether empty text stands for a token that is only a part of a character.

    vLLM sends an event for each token, with empty text until the character is whole; its last event
    carries the last token and the key `stop_reason`. Other engines close with an empty event that
    stands for no token.
    """
    return finish_reason is None or stop_reason is not msgspec.UNSET


def is_error(chunk: _Chunk | _Body) -> bool:
    """The error shapes seen inside a 200: `{"error": …}` and `{"object": "error", …}`."""
    return chunk.error is not None or chunk.object == "error"


def note_first_tokens(reader: AnswerReader, usage: RawUsage | None) -> None:
    """Keep how many tokens the first token event carried, where continuous usage tells."""
    if usage is not None and reader.first_event_tokens is None:
        first = interpret(usage).completion
        # Only the very first event tells: later ones would include what came before.
        reader.first_event_tokens = first if first and reader.token_events == 1 else 0


def read_body(reader: AnswerReader, data: bytes) -> None:
    """Read a body with `choices` and `usage` (chat completions and completions alike)."""
    body = reader._decode(decode_body, data)
    if body is None:
        return
    if isinstance(body.model, str):
        reader.model = body.model
    if is_error(body):
        reader.error = True
        return
    if body.usage is not None:
        reader.raw_usage = body.usage
    for choice in body.choices or ():
        if choice.finish_reason is not None:
            reader._finish(choice.index, choice.finish_reason)
    reader.done = True
