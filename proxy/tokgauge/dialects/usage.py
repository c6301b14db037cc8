"""Token counts as engines report them, in OpenAI's and Anthropic's names."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec


class Details(msgspec.Struct):
    """`prompt_tokens_details`, `completion_tokens_details` and the Responses names of them."""

    cached_tokens: Any = None
    reasoning_tokens: Any = None


class RawUsage(msgspec.Struct):
    """The `usage` object of any dialect; fields of unexpected type are kept as they come."""

    prompt_tokens: Any = None
    completion_tokens: Any = None
    input_tokens: Any = None
    output_tokens: Any = None
    cache_read_input_tokens: Any = None
    cache_creation_input_tokens: Any = None
    prompt_tokens_details: Details | None = None
    completion_tokens_details: Details | None = None
    input_tokens_details: Details | None = None
    output_tokens_details: Details | None = None


class Usage(NamedTuple):
    """Tokens of one exchange; None means that the engine did not say."""

    prompt: int | None = None
    completion: int | None = None
    cached_prompt: int | None = None
    reasoning: int | None = None


NO_USAGE = Usage()


def interpret(raw: RawUsage) -> Usage:
    """Pick the counts out of a usage object; anything but a whole number ≥ 0 is absent."""
    prompt, completion = _count(raw.prompt_tokens), _count(raw.completion_tokens)
    if prompt is None:
        prompt = _count(raw.input_tokens)
    if completion is None:
        completion = _count(raw.output_tokens)
    cached = reasoning = None
    details = raw.prompt_tokens_details or raw.input_tokens_details
    if details is not None:
        cached = _count(details.cached_tokens)
    if cached is None:
        cached = _count(raw.cache_read_input_tokens)
    details = raw.completion_tokens_details or raw.output_tokens_details
    if details is not None:
        reasoning = _count(details.reasoning_tokens)
    return Usage(prompt, completion, cached, reasoning)


def interpret_messages(raw: RawUsage) -> Usage:
    """The counts of an Anthropic message.

    Its `input_tokens` are those that no cache had to do with: the prompt is the sum of three.
    """
    parts = (raw.input_tokens, raw.cache_read_input_tokens, raw.cache_creation_input_tokens)
    told = [_count(part) for part in parts if part is not None]
    prompt = None
    if raw.input_tokens is not None and None not in told:
        prompt = sum(count for count in told if count is not None)
    return interpret(raw)._replace(prompt=prompt)


def merge_raw(earlier: RawUsage | None, later: RawUsage) -> RawUsage:
    """What `earlier` told and `later` does not tell again, and all of `later`."""
    if earlier is None:
        return later
    members = msgspec.structs.asdict(later).items()
    said = {name: value for name, value in members if value is not None}
    return msgspec.structs.replace(earlier, **said)


def merge(earlier: Usage, later: Usage) -> Usage:
    """The last count wins, field by field (Anthropic sends input and output apart)."""
    if earlier is NO_USAGE:
        return later
    return Usage(*(_first(new, old) for old, new in zip(earlier, later, strict=True)))


def _count(value: Any) -> int | None:
    # Above 2**53 a count is noise, and a Prometheus sample (a double) could not hold it exactly.
    if type(value) is int and 0 <= value < 2**53:
        return value
    return None


def _first(preferred: int | None, other: int | None) -> int | None:
    return other if preferred is None else preferred
