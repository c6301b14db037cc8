"""The objects that the real clients build, through the proxy and without it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anthropic
import openai

from tests.real_vllm.processes import MODEL
from tests.real_vllm.traffic import PROMPTS, TOO_LONG_PROMPT, TWO_CHOICES_PROMPT, USAGE, Clients

ATTEMPTS = 3
"""vLLM merges tokens into one event when its server process lags behind its engine, and only then:
a difference that is the proxy's own shows in every attempt."""

IDS = re.compile(r"\b(chatcmpl|cmpl|resp|msg|modelperm)[-_][\w-]+")
TIMES = {"created", "created_at", "completed_at"}

Call = Callable[[Clients], Awaitable[Any]]


@dataclass(frozen=True)
class Compared:
    """One call made on both ways; `difference` is None when the objects were equal.

    fingerprint_kept is None where the comparison covers the fingerprint: everywhere but in
    streams whose usage is hidden. There vLLM moves it to the hidden event.
    """

    name: str
    difference: str | None
    fingerprint_kept: bool | None


def _chat(prompt: str = PROMPTS[1], **more: Any) -> Call:
    body: dict[str, Any] = {
        "model": MODEL, "messages": [{"role": "user", "content": prompt}], "temperature": 0,
        "max_tokens": 24, **more,
    }  # fmt: skip
    return lambda clients: clients.openai.chat.completions.create(**body)


def _completion(prompt: Any = PROMPTS[1], **more: Any) -> Call:
    body: dict[str, Any] = {
        "model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 24, **more,
    }  # fmt: skip
    return lambda clients: clients.openai.completions.create(**body)


def _responses(**more: Any) -> Call:
    body: dict[str, Any] = {
        "model": MODEL, "input": PROMPTS[1], "temperature": 0, "max_output_tokens": 24, **more,
    }  # fmt: skip
    return lambda clients: clients.openai.responses.create(**body)


def _messages(**more: Any) -> Call:
    body: dict[str, Any] = {
        "model": MODEL, "messages": [{"role": "user", "content": PROMPTS[1]}],
        "max_tokens": 24, "extra_body": {"temperature": 0}, **more,
    }  # fmt: skip
    return lambda clients: clients.anthropic.messages.create(**body)


async def _models(clients: Clients) -> Any:
    return (await clients.openai.models.list()).data


HIDES_USAGE = {
    "chat stream, usage not asked", "chat stream, usage false", "chat stream, one token",
    "chat stream, stop string", "completion stream, usage not asked",
    "completion stream, usage false", "completion stream, echo",
}  # fmt: skip

CALLS: dict[str, Call] = {
    "models": _models,
    "chat": _chat(),
    "chat n=2": _chat(TWO_CHOICES_PROMPT, n=2),
    "chat with logprobs": _chat(logprobs=True, top_logprobs=2),
    "chat, stop string": _chat(stop=["e", " "]),
    **{
        f"chat stream, usage {name}": _chat(stream=True, **options)
        for name, (options, _) in USAGE.items()
    },
    "chat stream, one token": _chat(stream=True, max_tokens=1),
    "chat stream, stop string": _chat(stream=True, stop=["e", " "]),
    "completion": _completion(),
    "completion, two prompts": _completion(list(PROMPTS[:2])),
    **{
        f"completion stream, usage {name}": _completion(stream=True, **options)
        for name, (options, _) in USAGE.items()
    },
    "completion stream, echo": _completion(stream=True, echo=True),
    "responses": _responses(),
    "responses stream": _responses(stream=True),
    "messages": _messages(),
    "messages stream": _messages(stream=True),
    "error: unknown model": _chat(model="nope"),
    "error: unknown model, stream": _chat(model="nope", stream=True),
    "error: too long": _chat(TOO_LONG_PROMPT),
    "error: bad value": _completion(temperature=-3),
    "error: messages": _messages(model="nope"),
}


async def compare_calls(engine: str, proxy: str) -> list[Compared]:
    """Make every call directly and through the proxy, one after the other."""
    async with Clients(engine) as direct, Clients(proxy) as proxied:
        return [await _compare(name, call, direct, proxied) for name, call in CALLS.items()]


async def _compare(name: str, call: Call, direct: Clients, proxied: Clients) -> Compared:
    # The first answer fills the prefix cache; computed from the cache, logits differ in the last
    # bits from those computed without it, for whoever asks.
    await _outcome(call, direct)
    difference: str | None = None
    for _ in range(ATTEMPTS):
        expected, seen = await _outcome(call, direct), await _outcome(call, proxied)
        kept = None
        if name in HIDES_USAGE:
            kept = _take_fingerprints(seen) == _take_fingerprints(expected)
        if seen == expected:
            return Compared(name, None, kept)
        difference = _first_difference(expected, seen)
    return Compared(name, difference, None)


async def _outcome(call: Call, clients: Clients) -> Any:
    try:
        answer = await call(clients)
        if isinstance(answer, openai.AsyncStream | anthropic.AsyncStream):
            answer = [event async for event in answer]
    except (openai.APIStatusError, anthropic.APIStatusError) as error:
        return [type(error).__name__, error.status_code, error.message, error.body]
    return _masked(answer)


def _masked(value: Any) -> Any:
    """The object without what differs from one call to the next: ids and times."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    if isinstance(value, dict):
        return {k: 0 if k in TIMES and v else _masked(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_masked(v) for v in value]
    return IDS.sub(r"\1-ID", value) if isinstance(value, str) else value


def _take_fingerprints(events: Any) -> list[Any]:
    """Remove the fingerprints from a stream's events; gives them."""
    return [event.pop("system_fingerprint", None) for event in events if isinstance(event, dict)]


def _first_difference(expected: Any, seen: Any, where: str = "") -> str:
    if isinstance(expected, dict) and isinstance(seen, dict):
        for key in sorted({*expected, *seen}, key=str):
            if expected.get(key) != seen.get(key):
                return _first_difference(expected.get(key), seen.get(key), f"{where}.{key}")
    if isinstance(expected, list) and isinstance(seen, list) and len(expected) == len(seen):
        for index, (one, other) in enumerate(zip(expected, seen, strict=True)):
            if one != other:
                return _first_difference(one, other, f"{where}[{index}]")
    if isinstance(expected, list) and isinstance(seen, list):
        return f"{where}: {len(expected)} items direct, {len(seen)} through the proxy"
    return f"{where}: {expected!r} direct, {seen!r} through the proxy"[:200]
