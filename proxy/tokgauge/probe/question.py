"""The request of the experiment, and how it bends to what a server refuses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from tokgauge.dialects.injection import refuses_injection

__all__ = ["DEFAULT_PROMPT", "Question"]

DEFAULT_PROMPT = (
    "Explain in detail how a computer's memory hierarchy works, from registers over caches and "
    "main memory to disks. Give examples and figures, and write at least two thousand words."
)
"""Asks for more than 512 tokens, so that the limit sets the length and runs are comparable."""


@dataclass(frozen=True, slots=True)
class Question:
    """One request that both ways ask alike.

    The fields after `max_tokens` are what a server may refuse: see `without_what_was_refused`.
    """

    model: str
    prompt: str
    max_tokens: int
    route: Literal["chat_completions", "completions"] = "chat_completions"
    limit_name: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    temperature: bool = True
    usage_wished: bool = True

    @property
    def path(self) -> str:
        """Where it goes, below the server's address."""
        return "/v1/chat/completions" if self.route == "chat_completions" else "/v1/completions"

    def body(self, *, stream: bool) -> bytes:
        """The JSON of the request."""
        asked: dict[str, Any] = {"model": self.model}
        if self.route == "chat_completions":
            asked["messages"] = [{"role": "user", "content": self.prompt}]
        else:
            asked["prompt"] = self.prompt
        asked[self.limit_name] = self.max_tokens
        if self.temperature:
            asked["temperature"] = 0
        asked["stream"] = stream
        if stream and self.usage_wished:
            asked["stream_options"] = {"include_usage": True}
        return msgspec.json.encode(asked)

    def without_what_was_refused(self, refusal: bytes) -> tuple[Question, str] | None:
        """The question as the server may accept it, and a note on the change.

        `refusal` is the body of an answer with status 400 or 422. None when it names nothing that
        could be left out; each change is made once.
        """
        text = refusal.lower()
        if self.usage_wished and refuses_injection(refusal):
            return (
                replace(self, usage_wished=False),
                "the server refuses stream_options, so it was not asked for usage",
            )
        if self.limit_name == "max_tokens" and b"max_completion_tokens" in text:
            return (
                replace(self, limit_name="max_completion_tokens"),
                "the server wants max_completion_tokens instead of max_tokens",
            )
        if self.temperature and b"temperature" in text:
            return (
                replace(self, temperature=False),
                "the server refuses temperature 0: both answers are sampled and may differ",
            )
        if self.route == "chat_completions" and b"chat template" in text:
            return (
                replace(self, route="completions"),
                "the model has no chat template: /v1/completions was asked instead",
            )
        return None
