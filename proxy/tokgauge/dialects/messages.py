"""Anthropic messages: `POST /v1/messages` (Anthropic API reference: streaming messages)."""

from __future__ import annotations

from typing import Any

import msgspec

from tokgauge.dialects.answer import OUTPUT, TOKEN, AnswerReader
from tokgauge.dialects.lenient import LenientDecoder
from tokgauge.dialects.usage import RawUsage, interpret_messages, merge_raw

_STOP_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


class _Delta(msgspec.Struct):
    type: Any = None
    text: Any = None
    thinking: Any = None
    partial_json: Any = None
    stop_reason: Any = None


class _Block(msgspec.Struct):
    type: Any = None
    text: Any = None
    thinking: Any = None
    data: Any = None


class _Message(msgspec.Struct):
    type: Any = None
    model: Any = None
    stop_reason: Any = None
    usage: RawUsage | None = None


class _Event(msgspec.Struct):
    type: Any = None
    delta: _Delta | None = None
    content_block: _Block | None = None
    message: _Message | None = None
    usage: RawUsage | None = None


_EVENT = LenientDecoder(_Event)
_MESSAGE = LenientDecoder(_Message)


class MessagesReader(AnswerReader):
    """Reads Anthropic messages; stop reasons get the names of the OpenAI dialects."""

    __slots__ = ("_so_far",)

    def __init__(self) -> None:
        super().__init__()
        self._so_far: RawUsage | None = None

    def event(self, name: bytes, data: bytes) -> int:
        event = self._decode(_EVENT, data)
        if event is None:
            self.error = self.error or name == b"error"
            return 0
        kind = event.type
        if kind == "content_block_delta":
            return self._delta(event.delta)
        if kind == "content_block_start":
            return self._block(event.content_block)
        if kind == "message_start" and event.message is not None:
            self._take(event.message)
        elif kind == "message_delta":
            if event.usage is not None:
                self._take_usage(event.usage)
            if event.delta is not None:
                self._stop(event.delta.stop_reason)
        elif kind == "message_stop":
            self.done = True
        elif kind == "error" or name == b"error":
            self.error = True
        return 0

    def body(self, data: bytes) -> None:
        message = self._decode(_MESSAGE, data)
        if message is None:
            return
        if message.type == "error":
            self.error = True
            return
        self._take(message)
        self.done = True

    def _delta(self, delta: _Delta | None) -> int:
        if delta is None:
            return 0
        if delta.thinking and self._count(0):
            return TOKEN
        if delta.partial_json:
            self.calls = True
        if (delta.text or delta.partial_json) and self._count(0):
            return TOKEN | OUTPUT
        return 0

    def _block(self, block: _Block | None) -> int:
        if block is None:
            return 0
        if isinstance(block.type, str) and block.type.endswith("tool_use"):
            # A tool call shows its name before its arguments: the first sign of it.
            self.calls = True
            return TOKEN | OUTPUT if self._count(0) else 0
        if (block.thinking or block.data) and self._count(0):
            return TOKEN
        return TOKEN | OUTPUT if block.text and self._count(0) else 0

    def _take(self, message: _Message) -> None:
        if message.model and isinstance(message.model, str):
            self.model = message.model
        if message.usage is not None:
            self._take_usage(message.usage)
        self._stop(message.stop_reason)

    def _take_usage(self, usage: RawUsage) -> None:
        # The parts of the prompt may come in different events.
        self._so_far = so_far = merge_raw(self._so_far, usage)
        self.usage = interpret_messages(so_far)
        if usage.output_tokens is not None:
            self.usage_events = self.token_events

    def _stop(self, reason: Any) -> None:
        if isinstance(reason, str):
            self._finish(0, _STOP_REASONS.get(reason, reason))
