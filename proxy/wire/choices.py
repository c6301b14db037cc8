"""What chat completions and completions have in common: `choices`, `usage` and errors."""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.wire.answer import AnswerReader
from proxy.wire.usage import RawUsage, interpret


class Chunk(msgspec.Struct):
    """The members that both dialects' events and bodies share, `choices` aside."""

    usage: RawUsage | None = None
    error: Any = None
    object: Any = None
    model: Any = None


class _BodyChoice(msgspec.Struct):
    index: int = 0
    finish_reason: Any = None


class _Body(Chunk):
    choices: list[_BodyChoice] | None = None


_decode_body = msgspec.json.Decoder(_Body).decode


class ChoicesReader(AnswerReader):
    """Reads answers made of choices; a dialect says how its events decode and what they carry."""

    __slots__ = ()

    def decode_chunk(self, data: bytes) -> Any:
        """Decode one event into a `Chunk` with `choices`."""
        raise NotImplementedError

    def marks_of(self, choice: Any) -> int:
        """The marks of one of these choices."""
        raise NotImplementedError

    def event(self, name: bytes, data: bytes) -> int:
        if data == b"[DONE]":
            self.done = True
            return 0
        chunk = self._decode(self.decode_chunk, data)
        if name == b"error" or (chunk is not None and _is_error(chunk)):
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
            found = self.marks_of(choice)
            if found and self._count(choice.index):
                marks |= found
            if choice.finish_reason is not None:
                self._finish(choice.index, choice.finish_reason)
        if marks:
            self._note_first_tokens(chunk.usage)
        return marks

    def body(self, data: bytes) -> None:
        body = self._decode(_decode_body, data)
        if body is None:
            return
        if isinstance(body.model, str):
            self.model = body.model
        if _is_error(body):
            self.error = True
            return
        if body.usage is not None:
            self.raw_usage = body.usage
        for choice in body.choices or ():
            if choice.finish_reason is not None:
                self._finish(choice.index, choice.finish_reason)
        self.done = True

    def _note_first_tokens(self, usage: RawUsage | None) -> None:
        """Keep how many tokens the first token event carried, where continuous usage tells."""
        if usage is not None and self.first_event_tokens is None:
            first = interpret(usage).completion
            # Only the very first event tells: later ones would include what came before.
            self.first_event_tokens = first if first and self.token_events == 1 else 0


def carries_part_of_character(finish_reason: Any, stop_reason: Any) -> bool:
    """Whether empty text stands for a token that is only a part of a character.

    vLLM sends an event for each token, with empty text until the character is whole; its last event
    carries the last token and the key `stop_reason`. Other engines close with an empty event that
    stands for no token.
    """
    return finish_reason is None or stop_reason is not msgspec.UNSET


def _is_error(chunk: Chunk) -> bool:
    """The error shapes seen inside a 200: `{"error": …}` and `{"object": "error", …}`."""
    return chunk.error is not None or chunk.object == "error"
