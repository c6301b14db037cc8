"""What chat completions and completions have in common: `choices`, `usage` and errors."""

from __future__ import annotations

from typing import Any

import msgspec

from tokgauge.dialects.answer import AnswerReader
from tokgauge.dialects.lenient import LenientDecoder
from tokgauge.dialects.usage import RawUsage, interpret


class Chunk(msgspec.Struct):
    """The members that both dialects' events and bodies share, `choices` aside."""

    usage: RawUsage | None = None
    error: Any = None
    object: Any = None
    model: Any = None


class ChunkChoice(msgspec.Struct):
    """The members that both dialects' choices share."""

    index: Any = None
    finish_reason: Any = None
    stop_reason: Any = msgspec.UNSET
    token_ids: Any = msgspec.UNSET


class _BodyChoice(msgspec.Struct):
    index: Any = None
    finish_reason: Any = None


class _Body(Chunk):
    choices: list[_BodyChoice] | None = None


_BODY = LenientDecoder(_Body)


class ChoicesReader(AnswerReader):
    """Reads answers made of choices; a dialect says how its events decode and what they carry."""

    __slots__ = ()

    decoder: LenientDecoder[Any]
    """Decodes one event into a `Chunk` with `choices`."""

    def marks_of(self, choice: Any) -> int:
        """The marks of one of these choices."""
        raise NotImplementedError

    def event(self, name: bytes, data: bytes) -> int:
        if data == b"[DONE]":
            self.done = True
            return 0
        chunk = self._decode(self.decoder, data)
        if name == b"error" or (chunk is not None and _is_error(chunk)):
            self.error = True
            return 0
        if chunk is None:
            return 0
        if self.model is None and chunk.model and isinstance(chunk.model, str):
            self.model = chunk.model
        marks = 0
        for position, choice in enumerate(chunk.choices or ()):
            index = choice.index if type(choice.index) is int else position
            found = self.marks_of(choice)
            if found and self._count(index):
                marks |= found
            if choice.finish_reason:
                self._finish(index, choice.finish_reason)
        usage = chunk.usage
        if usage is not None:
            self._take_usage(usage)
        if marks:
            self._note_first_tokens(usage)
        return marks

    def body(self, data: bytes) -> None:
        body = self._decode(_BODY, data)
        if body is None:
            return
        if body.model and isinstance(body.model, str):
            self.model = body.model
        if _is_error(body):
            self.error = True
            return
        if body.usage is not None:
            self._take_usage(body.usage)
        for position, choice in enumerate(body.choices or ()):
            index = choice.index if type(choice.index) is int else position
            self._finish(index, choice.finish_reason)
        self.done = True

    def is_part_of_character(self, choice: ChunkChoice) -> bool:
        """Whether the empty text of a choice stands for a token that is only part of a character.

        vLLM sends an event for each token, with empty text until the character is whole, and its
        last event carries the last token, unless it was aborted. Other engines keep a connection
        alive with empty text, or close with it. vLLM's choices are known by the key `token_ids` or
        `stop_reason`; those of older versions only by the engine.
        """
        if choice.finish_reason:
            return choice.stop_reason is not msgspec.UNSET and choice.finish_reason != "abort"
        return (
            self.empty_is_token
            or choice.token_ids is not msgspec.UNSET
            or choice.stop_reason is not msgspec.UNSET
        )

    def _note_first_tokens(self, usage: RawUsage | None) -> None:
        """Keep how many tokens the first token event carried, where continuous usage tells."""
        if usage is not None and self.first_event_tokens is None:
            first = interpret(usage).completion
            # Only the very first event tells: later ones would include what came before.
            self.first_event_tokens = first if first and self.token_events == 1 else 0


def _is_error(chunk: Chunk) -> bool:
    """The error shapes seen inside a 200: `{"error": …}` and `{"object": "error", …}`."""
    return bool(chunk.error) or chunk.object == "error"
