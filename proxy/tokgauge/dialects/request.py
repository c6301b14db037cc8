"""The request side: what a client asked for, read from the body of a generating request."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tokgauge.dialects.answer import UNREADABLE

Wish = Literal["absent", "null", "unset", "unset_null", "false", "true", "unreadable"]
"""What a request says about usage. absent: no `stream_options`; null: they are null; unset: an
object without `include_usage`; unset_null: `include_usage` is null; false and true: it is that;
unreadable: anything else. vLLM takes `unset` for true, so each is a case of its own.
"""

ADDABLE = frozenset(("absent", "null", "unset", "unset_null", "false"))
"""Those to which a wish for usage may be added."""


class RequestParams(msgspec.Struct, frozen=True):
    """What a request asked for; None where it did not say or cannot be read."""

    model: str | None = None
    stream: bool = False
    max_tokens: int | None = None
    echo: bool = False
    wish: Wish = "absent"
    continuous_usage: bool = False
    several: bool = False
    """The response may have more than one choice."""


class _Body(msgspec.Struct):
    model: Any = None
    stream: Any = None
    stream_options: Any = msgspec.UNSET
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    echo: Any = None
    n: Any = None
    prompt: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(_Body).decode


def read_request(body: bytes) -> RequestParams | None:
    """Read a JSON request body; None when it is not a JSON object that can be read."""
    try:
        asked = _decode(body)
    except UNREADABLE:
        return None
    model = asked.model
    if not isinstance(model, str):
        model = None
    options = asked.stream_options
    return RequestParams(
        model=model,
        stream=asked.stream is True,
        max_tokens=_first_limit(asked),
        echo=asked.echo is True,
        wish=_wish(options),
        continuous_usage=isinstance(options, dict) and bool(options.get("continuous_usage_stats")),
        several=asked.n not in (None, 1) or memoryview(asked.prompt)[:1].tobytes() == b"[",
    )


def _wish(options: Any) -> Wish:
    if options is msgspec.UNSET:
        return "absent"
    if options is None:
        return "null"
    if not isinstance(options, dict):
        return "unreadable"
    if "include_usage" not in options:
        return "unset"
    wish = options["include_usage"]
    if wish is None:
        return "unset_null"
    if wish is True:
        return "true"
    return "false" if wish is False else "unreadable"


def _first_limit(asked: _Body) -> int | None:
    for limit in (asked.max_completion_tokens, asked.max_tokens, asked.max_output_tokens):
        if type(limit) is int and limit > 0:
            return limit
    return None
