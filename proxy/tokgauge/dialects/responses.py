"""Responses: `POST /v1/responses` (OpenAI API reference: streaming events `response.*`)."""

from __future__ import annotations

from typing import Any

import msgspec

from tokgauge.dialects.answer import OUTPUT, TOKEN, AnswerReader
from tokgauge.dialects.lenient import LenientDecoder
from tokgauge.dialects.usage import RawUsage


class _Incomplete(msgspec.Struct):
    reason: Any = None


class _Response(msgspec.Struct):
    status: Any = None
    model: Any = None
    error: Any = None
    usage: RawUsage | None = None
    incomplete_details: _Incomplete | None = None


class _Event(msgspec.Struct):
    type: Any = None
    delta: Any = None
    response: _Response | None = None


_EVENT = LenientDecoder(_Event)
_RESPONSE = LenientDecoder(_Response)

_LAST = frozenset({"response.completed", "response.incomplete", "response.failed"})


class ResponsesReader(AnswerReader):
    """Reads Responses; the last event carries the whole answer with usage and status."""

    __slots__ = ()

    def event(self, name: bytes, data: bytes) -> int:
        if data == b"[DONE]":
            self.done = True
            return 0
        event = self._decode(_EVENT, data)
        if event is None:
            self.error = self.error or name == b"error"
            return 0
        kind = event.type
        if isinstance(kind, str) and kind.endswith(".delta"):
            if not event.delta or not self._count(0):
                return 0
            if "_call" in kind:  # function_call_arguments, mcp_call_arguments, …
                self.calls = True
            return TOKEN if ".reasoning" in kind else TOKEN | OUTPUT
        if kind == "error" or name == b"error":
            self.error = True
        elif event.response is not None:
            self._take(event.response, last=isinstance(kind, str) and kind in _LAST)
        return 0

    def body(self, data: bytes) -> None:
        response = self._decode(_RESPONSE, data)
        if response is not None:
            self._take(response, last=True)

    def _take(self, response: _Response, *, last: bool) -> None:
        if response.model and isinstance(response.model, str):
            self.model = response.model
        if response.usage is not None:
            self._take_usage(response.usage)
        if not last:
            return
        self.done = True
        if response.status == "failed" or response.error:
            self.error = True
            return
        # vLLM 0.32 closes a cut answer with `response.completed` too: the details tell.
        reason = response.incomplete_details.reason if response.incomplete_details else None
        if reason == "max_output_tokens":
            self._finish(0, "length")
        elif reason:
            self._finish(0, reason)
        elif response.status == "completed":
            self._finish(0, "stop")
