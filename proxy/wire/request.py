"""The request side: what a client asked for, read from the body of a generating request."""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.wire.answer import UNREADABLE


class Asked(msgspec.Struct, frozen=True):
    """What a request asked for; None where it did not say or cannot be read."""

    model: str | None = None
    stream: bool = False
    max_tokens: int | None = None
    echo: bool = False
    usage_wished: bool | None = None
    """`stream_options.include_usage` is true; None: there is a wish that cannot be read."""
    continuous_usage: bool = False


class _Body(msgspec.Struct):
    model: Any = None
    stream: Any = None
    stream_options: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    echo: Any = None


_decode = msgspec.json.Decoder(_Body).decode


def read_request(body: bytes) -> Asked | None:
    """Read a JSON request body; None when it is not a JSON object that can be read."""
    try:
        asked = _decode(body)
    except UNREADABLE:
        return None
    model = asked.model
    if not isinstance(model, str):
        model = None
    usage_wished: bool | None = False
    continuous = False
    options = asked.stream_options
    if isinstance(options, dict):
        usage_wished = bool(options.get("include_usage"))
        continuous = bool(options.get("continuous_usage_stats"))
    elif options is not None:
        usage_wished = None
    limit = _first_limit(asked)
    return Asked(model, asked.stream is True, limit, asked.echo is True, usage_wished, continuous)


def _first_limit(asked: _Body) -> int | None:
    for limit in (asked.max_completion_tokens, asked.max_tokens, asked.max_output_tokens):
        if type(limit) is int and limit > 0:
            return limit
    return None
