"""Faults on demand: the request header `x-simulate`, for example `cut-after=5; slow=3`."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Annotated

import msgspec

_Count = Annotated[int, msgspec.Meta(ge=0)]


class FaultError(ValueError):
    """An `x-simulate` header that cannot be understood."""


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """What shall happen to one request. Field names with `-` for `_` are the header's words.

    `*_after` count events of a stream; a response that is not streamed is cut in the middle of
    its body (cut), never comes (stall) or is a 500 (error).
    """

    ttft: Annotated[float, msgspec.Meta(ge=0)] | None = None
    """Seconds (simulated) until the first token."""
    cut_after: _Count | None = None
    """Close the socket without the closing chunk."""
    stall_after: _Count | None = None
    """Send nothing more and keep the connection open."""
    error_after: _Count | None = None
    """The error event of a killed engine, then [DONE]."""
    status: Annotated[int, msgspec.Meta(ge=400, le=599)] | None = None
    """An error response with this status."""
    close: bool = False
    """Close the connection after the response without having announced it."""
    no_done: bool = False
    """End the stream cleanly, without [DONE]."""
    empty: bool = False
    """200 and no event at all (or no body)."""
    empty_deltas: bool = False
    """Every second token has no text, as with a token that is part of a character."""
    slow: Annotated[float, msgspec.Meta(ge=1)] = 1.0
    """This sequence gets its tokens so many times more slowly."""
    tokens: _Count | None = None
    """Length of the answer before it stops by itself."""
    reasoning: _Count | None = None
    """Tokens of reasoning before the answer."""
    tool_calls: _Count | None = None
    """Number of tool calls to answer with, when the request has tools."""


_WORDS = {field.encode_name.replace("_", "-"): field for field in msgspec.structs.fields(Faults)}
_VALUE_OF_BARE_WORD = {
    "slow": "4", "cut-after": "1", "stall-after": "1", "error-after": "1", "tool-calls": "1",
}  # fmt: skip
NONE = Faults()


def parse(header: str) -> Faults:
    """Read the header's value; FaultError names the word that is wrong."""
    values: dict[str, object] = {}
    for part in filter(None, (part.strip() for part in header.split(";"))):
        word, equals, value = (text.strip() for text in part.partition("="))
        field = _WORDS.get(word)
        if field is None:
            raise FaultError(f"unknown word in x-simulate: {word}")
        if field.type is bool:
            values[field.name] = True
        else:
            values[field.name] = value if equals else _VALUE_OF_BARE_WORD.get(word, "")
    try:
        return msgspec.convert(values, Faults, strict=False)
    except msgspec.ValidationError as error:
        raise FaultError(f"x-simulate: {error}") from None


def draw(rates: Mapping[str, float], chance: random.Random) -> Faults:
    """One of the profile's random faults, or none."""
    ticket = chance.random()
    for header, rate in rates.items():
        ticket -= rate
        if ticket < 0:
            return parse(header)
    return NONE
