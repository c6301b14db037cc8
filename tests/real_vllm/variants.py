"""vLLM with other options: the client's bytes direct and through the proxy, and the counters."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tests.real_vllm.processes import MODEL
from tests.real_vllm.scraping import Sides, by_label
from tests.real_vllm.traffic import PROMPTS, USAGE, Clients

ROUNDS = 3
"""The first stream of a kind teaches the proxy, the second is the first that it asks usage for."""

ATTEMPTS = 10
"""vLLM merges tokens into one event when its server process lags behind its engine, and only then:
a difference that is the proxy's own shows in every attempt."""

VARYING = [
    (re.compile(rb"\b((?:chatcmpl|cmpl|resp|msg|chatcmpl-tool|call|fc|rs)[-_])[\w-]+"), rb"\1ID"),
    (re.compile(rb'"(created|created_at|completed_at)":\s*\d+(?:\.\d+)?'), rb'"\1":0'),
    (re.compile(rb'"(\w+_ms|tokens_per_second)":\s*[\d.e+-]+'), rb'"\1":0'),
]
"""What differs from one answer to the next: ids, when they were made, and the engine's timings."""

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}


class Reports(Protocol):
    def line(
        self, phase: str, figure: str, reference: object, proxy: object, holds: bool | None
    ) -> None: ...

    def equal(self, phase: str, figure: str, reference: Any, proxy: Any) -> None: ...


@dataclass(frozen=True)
class Call:
    """One request: its path and the document that is posted there."""

    name: str
    path: str
    document: dict[str, Any]


@dataclass(frozen=True)
class Variant:
    """One way to start vLLM, and what is asked of it."""

    name: str
    options: tuple[str, ...]
    calls: tuple[Call, ...]


def chat(name: str, **more: Any) -> Call:
    document = {
        "model": MODEL, "messages": [{"role": "user", "content": PROMPTS[1]}],
        "temperature": 0, "max_tokens": 24, "ignore_eos": True, **more,
    }  # fmt: skip
    return Call(f"chat {name}", "/v1/chat/completions", document)


def chat_streams(**more: Any) -> list[Call]:
    """One with each wish for usage."""
    return [
        chat(f"stream, usage {name}", stream=True, **wish, **more)
        for name, (wish, _) in USAGE.items()
    ]


def completion(name: str, **more: Any) -> Call:
    document = {
        "model": MODEL, "prompt": PROMPTS[1], "temperature": 0, "max_tokens": 24,
        "ignore_eos": True, **more,
    }  # fmt: skip
    return Call(f"completion {name}", "/v1/completions", document)


def responses(**more: Any) -> Call:
    document = {
        "model": MODEL, "input": PROMPTS[1], "temperature": 0, "max_output_tokens": 24,
        "stream": True, **more,
    }  # fmt: skip
    return Call("responses stream", "/v1/responses", document)


def messages(**more: Any) -> Call:
    document = {
        "model": MODEL, "messages": [{"role": "user", "content": PROMPTS[1]}], "temperature": 0,
        "max_tokens": 24, "stream": True, **more,
    }  # fmt: skip
    return Call("messages stream", "/v1/messages", document)


USUAL = (
    *chat_streams(),
    chat("not streamed"),
    *(
        completion(f"stream, usage {name}", stream=True, **wish)
        for name, (wish, _) in USAGE.items()
    ),
    completion("not streamed"),
)

VARIANTS = (
    Variant("forced usage", ("--enable-force-include-usage",), USUAL),
    Variant(
        "tool parser",
        ("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        (
            *chat_streams(),
            chat("tools, auto, stream", stream=True, tools=[TOOL]),
            *(
                chat(f"tools, {name}, {kind}", stream=kind == "stream", tools=[TOOL],
                     tool_choice=choice, max_tokens=60)
                for name, choice in {
                    "required": "required",
                    "named": {"type": "function", "function": {"name": "get_weather"}},
                }.items()
                for kind in ("stream", "not streamed")
            ),
            messages(),
        ),
    ),
    Variant(
        "reasoning parser",
        ("--reasoning-parser", "deepseek_r1"),
        (*chat_streams(), chat("not streamed"), responses(), messages()),
    ),
    Variant("per-request metrics", ("--enable-per-request-metrics",), (*USUAL, responses())),
)  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """What a client got; `headers` are those that must be the same on both ways."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


async def ask(clients: Clients, call: Call) -> Answer:
    async with clients.raw.stream("POST", call.path, json=call.document) as response:
        body = b"".join([piece async for piece in response.aiter_raw()])
    left_out = {"date", "x-tokgauge-id", "x-accel-buffering", "content-length", "transfer-encoding"}
    headers = [(n, v) for n, v in response.headers.multi_items() if n.lower() not in left_out]
    for pattern, replacement in VARYING:
        body = pattern.sub(replacement, body)
    return Answer(response.status_code, headers, body)


def compare_variant(variant: Variant, sides: Sides, report: Reports) -> None:
    """Every call direct and, three times in a row, through the proxy; then the counters."""
    for number in range(1, ROUNDS + 1):
        differing = asyncio.run(_differing(variant.calls, sides))
        told = "; ".join(differing) or "equal"
        report.line(
            variant.name, f"bytes of {len(variant.calls)} answers, round {number}", "", told,
            not differing,
        )  # fmt: skip
    _counters(variant, sides, report)


async def _differing(calls: Sequence[Call], sides: Sides) -> list[str]:
    found = []
    async with Clients(sides.engine) as direct, Clients(sides.proxy) as proxied:
        for call in calls:
            await ask(direct, call)  # fills the prefix cache, from which logits differ a little
            difference: str | None = None
            given: list[Answer] = []
            for _ in range(ATTEMPTS):
                given.append(await ask(direct, call))
                seen = await ask(proxied, call)
                difference = None if seen in given else _difference(given[-1], seen)
                if difference is None:
                    break
            if difference is not None:
                found.append(f"{call.name}: {difference}")
    return found


def _difference(expected: Answer, seen: Answer) -> str:
    if (expected.status, expected.headers) != (seen.status, seen.headers):
        return f"{expected.status} {expected.headers} direct, {seen.status} {seen.headers}"
    one, other = expected.body, seen.body
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    at = min(len(one), len(other)) if at is None else at
    start = max(0, at - 60)
    return f"at byte {at}: {one[start : at + 60]!r} direct, {other[start : at + 60]!r}"


def _counters(variant: Variant, sides: Sides, report: Reports) -> None:
    """What the proxy counts of the same calls is what the engine counts."""
    phase = variant.name
    sides.begin()
    asyncio.run(_all(variant.calls, sides.proxy))
    engine, proxy = sides.gained()
    report.equal(
        phase, "completion tokens", int(engine.total("generation_tokens_total") or 0),
        int(proxy.total("completion_tokens_total", source="usage") or 0),
    )  # fmt: skip
    report.equal(
        phase, "completion tokens not from usage", 0,
        int(proxy.total("completion_tokens_total", source="events") or 0),
    )  # fmt: skip
    report.equal(
        phase, "prompt tokens", int(engine.total("prompt_tokens_total") or 0),
        int(proxy.total("prompt_tokens_total") or 0),
    )  # fmt: skip
    report.equal(
        phase, "finish reasons",
        +by_label(engine, "request_success_total", "finished_reason"),
        _engine_words(by_label(proxy, "finish_reasons_total", "reason")),
    )  # fmt: skip
    report.equal(phase, "outcomes", Counter({("ok",): len(variant.calls)}),
                 by_label(proxy, "requests_total", "outcome"))  # fmt: skip
    report.equal(phase, "measurement errors", 0, int(proxy.total("measurement_errors_total") or 0))
    report.equal(phase, "unparsed responses", 0, int(proxy.total("unparsed_responses_total") or 0))


def _engine_words(reasons: Counter[tuple[str, ...]]) -> Counter[tuple[str, ...]]:
    """The engine does not know why a client was told `tool_calls`: the model had stopped."""
    words: Counter[tuple[str, ...]] = Counter()
    for (reason,), count in reasons.items():
        words["stop" if reason == "tool_calls" else reason,] += count
    return words


async def _all(calls: Sequence[Call], url: str) -> None:
    async with Clients(url) as clients:
        for call in calls:
            await ask(clients, call)
