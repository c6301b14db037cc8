"""The request side: what a client asked for, read from the body of a generating request."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from proxy.wire.answer import UNREADABLE


class Asked(NamedTuple):
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
    options = asked.stream_options
    readable = options is None or isinstance(options, dict)
    limits = (asked.max_completion_tokens, asked.max_tokens, asked.max_output_tokens)
    return Asked(
        model=asked.model if isinstance(asked.model, str) else None,
        stream=asked.stream is True,
        max_tokens=next((limit for limit in limits if type(limit) is int and limit > 0), None),
        echo=asked.echo is True,
        usage_wished=bool(options and options.get("include_usage")) if readable else None,
        continuous_usage=bool(readable and options and options.get("continuous_usage_stats")),
    )
