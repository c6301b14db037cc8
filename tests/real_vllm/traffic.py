"""The mixed requests: what is sent with the real clients, and what each must count as.

Each `Request` sends itself through the clients it is given and returns a `Seen`: what a client can
know by itself of its own exchange, which is the reference for the proxy's counters.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx2
import openai

from tests.real_vllm.processes import CONTEXT_LENGTH, MODEL

END_OF_TURN_TOKEN = "2"
SOMETIMES_STOPS = {END_OF_TURN_TOKEN: 3.5}
"""A bias that makes the random model end its turn after some ten tokens."""

REQUEST_SECONDS = 120.0

PROMPTS = (
    "How fast was the last answer?",
    "한국어로 짧게 대답해 주세요. 첫 토큰은 언제 왔습니까?",
    "Which share of the memory bandwidth is that?",
    "메모리 대역폭은 초당 몇 기가바이트입니까?",
    "x",
)
TWO_CHOICES_PROMPT = "두 가지 대답을 주세요: one and two."
TOO_LONG_PROMPT = "the proxy measures the answer " * 1000


@dataclass
class Clients:
    """Real clients, all pointed at one address, none of which tries again by itself."""

    url: str

    def __post_init__(self) -> None:
        self.openai = openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key="x", max_retries=0, timeout=REQUEST_SECONDS
        )
        self.anthropic = anthropic.AsyncAnthropic(
            base_url=self.url, api_key="x", max_retries=0, timeout=REQUEST_SECONDS
        )
        self.raw = httpx2.AsyncClient(base_url=self.url, timeout=REQUEST_SECONDS)

    async def __aenter__(self) -> Clients:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.openai.close()
        await self.anthropic.close()
        await self.raw.aclose()


@dataclass
class Seen:
    """One exchange as its client saw it."""

    code: int = 200
    finish_reasons: list[str] = field(default_factory=list)
    """One a choice, under the names of chat completions."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    usage_events: int = 0
    events_without_choices: int = 0


@dataclass(frozen=True)
class Request:
    """One request and what the proxy must make of it.

    wants_usage: whether a stream's client is to see usage; None where the dialect has it anyway.
    cut_by: the values of `truncations_total{limit}` that are right for a choice cut by length.
    """

    name: str
    route: str
    stream: bool
    send: Callable[[Clients], Awaitable[Seen]]
    code: int = 200
    choices: int = 1
    sequences_per_prompt: int = 1
    wants_usage: bool | None = None
    model_label: str = MODEL
    cut_by: tuple[str, ...] = ("request",)


# what clients see


def _finish_names(reason: str | None) -> str | None:
    names = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length"}
    return names.get(reason, reason) if reason else None


async def _openai(call: Awaitable[Any]) -> Seen:
    """Chat completions and completions, streamed or not."""
    seen = Seen()
    try:
        answer = await call
        if not isinstance(answer, openai.AsyncStream):
            seen.finish_reasons = [choice.finish_reason for choice in answer.choices]
            _take_usage(seen, answer.usage)
            return seen
        async for event in answer:
            seen.finish_reasons += [c.finish_reason for c in event.choices if c.finish_reason]
            seen.events_without_choices += not event.choices
            if event.usage is not None:
                seen.usage_events += 1
                _take_usage(seen, event.usage)
    except openai.APIStatusError as error:
        seen.code = error.status_code
    return seen


def _take_usage(seen: Seen, usage: Any) -> None:
    seen.prompt_tokens, seen.completion_tokens = usage.prompt_tokens, usage.completion_tokens


async def _responses(call: Awaitable[Any]) -> Seen:
    answer = await call
    if isinstance(answer, openai.AsyncStream):
        events = [event async for event in answer]
        answer = events[-1].response
    seen = Seen()
    seen.prompt_tokens = answer.usage.input_tokens
    seen.completion_tokens = answer.usage.output_tokens
    seen.finish_reasons = ["length" if answer.incomplete_details else "stop"]
    return seen


async def _messages(call: Awaitable[Any]) -> Seen:
    seen = Seen()
    try:
        answer = await call
    except anthropic.APIStatusError as error:
        seen.code = error.status_code
        return seen
    if not isinstance(answer, anthropic.AsyncStream):
        reason = _finish_names(answer.stop_reason)
        seen.prompt_tokens = answer.usage.input_tokens
        seen.completion_tokens = answer.usage.output_tokens
    else:
        reason = None
        async for event in answer:
            if event.type == "message_delta":
                reason = _finish_names(event.delta.stop_reason)
                seen.completion_tokens = event.usage.output_tokens
            elif event.type == "message_start":
                seen.prompt_tokens = event.message.usage.input_tokens
    seen.finish_reasons = [reason] if reason else []
    return seen


async def _raw_post(clients: Clients, path: str, content: bytes) -> Seen:
    response = await clients.raw.post(
        path, content=content, headers={"content-type": "application/json"}
    )
    return Seen(code=response.status_code)


async def _list_models(clients: Clients) -> Seen:
    assert (await clients.openai.models.list()).data
    return Seen()


# what is sent

USAGE: dict[str, tuple[dict[str, Any], bool]] = {
    "not asked": ({}, False),
    "asked": ({"stream_options": {"include_usage": True}}, True),
    "false": ({"stream_options": {"include_usage": False}}, False),
    "continuous": (
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        True,
    ),
}


def chat(
    prompt: str, *, stream: bool = False, usage: str = "not asked", name: str = "chat",
    code: int = 200, model: str = MODEL, n: int = 1, cut_by: tuple[str, ...] = ("request",),
    label: str = MODEL, **more: Any,
) -> Request:  # fmt: skip
    """A chat completion; `more` goes to the client as it is."""
    options, wants = USAGE[usage] if stream else ({}, True)
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        **({"stream": True} if stream else {}),
        **({"n": n} if n > 1 else {}),
        **options,
        **more,
    }
    return Request(
        name, "chat_completions", stream,
        lambda clients: _openai(clients.openai.chat.completions.create(**body)),
        code=code, choices=n, sequences_per_prompt=n, model_label=label,
        wants_usage=wants if stream else None,
        cut_by=cut_by if n == 1 else ("request", "unknown"),
    )  # fmt: skip


def completion(
    prompt: str | list[str], *, stream: bool = False, usage: str = "not asked",
    name: str = "completion", code: int = 200, model: str = MODEL,
    cut_by: tuple[str, ...] = ("request",), label: str = MODEL, **more: Any,
) -> Request:  # fmt: skip
    """A completion of one or several prompts; `more` goes to the client as it is."""
    options, wants = USAGE[usage] if stream else ({}, True)
    body = {
        "model": model,
        "prompt": prompt,
        **({"stream": True} if stream else {}),
        **options,
        **more,
    }
    choices = len(prompt) if isinstance(prompt, list) else 1
    return Request(
        name, "completions", stream,
        lambda clients: _openai(clients.openai.completions.create(**body)),
        code=code, choices=choices, model_label=label, wants_usage=wants if stream else None,
        cut_by=cut_by if choices == 1 else ("request", "unknown"),
    )  # fmt: skip


def responses(prompt: str, *, stream: bool, max_output_tokens: int) -> Request:
    body: dict[str, Any] = {
        "model": MODEL,
        "input": prompt,
        "max_output_tokens": max_output_tokens,
        **({"stream": True} if stream else {}),
    }
    return Request(
        "responses", "responses", stream,
        lambda clients: _responses(clients.openai.responses.create(**body)),
    )  # fmt: skip


def messages(
    prompt: str, *, stream: bool, max_tokens: int, model: str = MODEL, code: int = 200,
    label: str = MODEL, **more: Any,
) -> Request:  # fmt: skip
    body = {
        "model": model,
        "max_tokens": max_tokens,
        "messages": [{"role": "user", "content": prompt}],
        **({"stream": True} if stream else {}),
        **more,
    }
    return Request(
        "messages", "messages", stream,
        lambda clients: _messages(clients.anthropic.messages.create(**body)),
        code=code, model_label=label,
    )  # fmt: skip


def _errors() -> list[Request]:
    unknown: dict[str, Any] = {"name": "unknown model", "model": "nope", "code": 404}
    bad = b'{"model": "qwen", "messages": ['
    return [
        chat("x", label="other", **unknown),
        chat("x", stream=True, label="other", **unknown),
        completion("x", label="other", **unknown),
        messages("x", stream=False, max_tokens=4, model="nope", code=404, label="other"),
        chat(TOO_LONG_PROMPT, name="too long", code=400),
        chat(TOO_LONG_PROMPT, name="too long", code=400, stream=True),
        completion(TOO_LONG_PROMPT, name="too long", code=400, max_tokens=4),
        chat("x", name="bad value", code=400, temperature=-3),
        Request(
            "bad JSON", "chat_completions", False,
            lambda clients: _raw_post(clients, "/v1/chat/completions", bad),
            code=400, model_label="other",
        ),
        Request(
            "bad JSON", "completions", False,
            lambda clients: _raw_post(clients, "/v1/completions", b"\xff\x00"),
            code=400, model_label="other",
        ),
    ]  # fmt: skip


def teaching() -> list[Request]:
    """A stream of each kind that teaches the proxy how it ends; usage is asked for from then on."""
    return [
        chat(PROMPTS[0], stream=True, max_tokens=8),
        chat(TWO_CHOICES_PROMPT, stream=True, n=2, max_tokens=8, temperature=1.0),
        completion(PROMPTS[0], stream=True, max_tokens=8),
        completion(list(PROMPTS[:2]), stream=True, max_tokens=8),
    ]


def mixed(count: int) -> list[Request]:
    """`count` requests of all kinds in a mixed order, the same at each call."""
    chance = random.Random(20)
    prompts = itertools.cycle(PROMPTS)
    ends: dict[str, Any] = {"logit_bias": SOMETIMES_STOPS, "temperature": 1.0}
    stops: dict[str, Any] = {"stop": ["e", " "], "temperature": 1.0, "name": "stop string"}

    def some() -> int:
        return chance.randint(2, 60)

    found: list[Request] = [*_errors(), *_errors()]
    # No limit of its own: these run to the end of the model's context.
    to_the_end: dict[str, Any] = {
        "name": "to the end", "cut_by": ("context",), "extra_body": {"ignore_eos": True},
    }  # fmt: skip
    found += [chat(next(prompts), stream=True, usage=usage, **to_the_end) for usage in USAGE]
    found.append(chat(next(prompts), **to_the_end))
    found += [
        Request("models", "models", False, _list_models, model_label="other") for _ in range(3)
    ]
    kinds: list[Callable[[], Request]] = [
        lambda: chat(next(prompts), max_tokens=some(), **ends),
        lambda: chat(next(prompts), stream=True, max_tokens=some(), **ends),
        *(
            lambda usage=usage: chat(
                next(prompts), stream=True, usage=usage, max_completion_tokens=some(), **ends
            )
            for usage in USAGE
        ),
        lambda: chat(next(prompts), stream=True, max_tokens=1, name="one token"),
        lambda: chat(next(prompts), max_tokens=50, **stops),
        lambda: chat(next(prompts), stream=True, max_tokens=50, **stops),
        lambda: chat(TWO_CHOICES_PROMPT, n=2, max_tokens=some(), name="n=2", **ends),
        *(
            lambda usage=usage: chat(
                TWO_CHOICES_PROMPT, stream=True, usage=usage, n=2, max_tokens=some(), name="n=2",
                **ends,
            )
            for usage in ("not asked", "asked")
        ),
        lambda: completion(next(prompts), max_tokens=some(), **ends),
        *(
            lambda usage=usage: completion(
                next(prompts), stream=True, usage=usage, max_tokens=some(), **ends
            )
            for usage in USAGE
        ),
        lambda: completion(
            [next(prompts), next(prompts)], max_tokens=some(), name="two prompts", **ends
        ),
        *(
            lambda usage=usage: completion(
                [next(prompts), next(prompts)], stream=True, usage=usage, max_tokens=some(),
                name="two prompts", **ends,
            )
            for usage in ("not asked", "asked")
        ),
        # 16 tokens, by the server's default: a limit that the request does not show.
        lambda: completion(
            next(prompts), stream=True, name="server's default", cut_by=("unknown",),
            extra_body={"ignore_eos": True},
        ),
        lambda: completion(
            next(prompts), stream=True, echo=True, max_tokens=some(), name="echo", **ends
        ),
        lambda: responses(next(prompts), stream=False, max_output_tokens=some()),
        lambda: responses(next(prompts), stream=True, max_output_tokens=some()),
        lambda: messages(next(prompts), stream=False, max_tokens=some()),
        lambda: messages(next(prompts), stream=True, max_tokens=some()),
        lambda: messages(next(prompts), stream=True, max_tokens=50, stop_sequences=["e", " "]),
    ]  # fmt: skip
    makers = itertools.cycle(kinds)
    while len(found) < count:
        found.append(next(makers)())
    chance.shuffle(found)
    return found[:count]


async def send_all(requests: list[Request], url: str, at_once: int) -> list[Seen]:
    """Send them, `at_once` at a time; the answers in the order of the requests."""
    free = asyncio.Semaphore(at_once)
    async with Clients(url) as clients:

        async def one(request: Request) -> Seen:
            async with free:
                return await request.send(clients)

        return await asyncio.gather(*map(one, requests))


# clients that leave

LONG: dict[str, Any] = {"max_tokens": CONTEXT_LENGTH - 80, "extra_body": {"ignore_eos": True}}
"""More than a second of tokens: who leaves early leaves before the end."""


async def leave_stream(clients: Clients, events: int) -> int:
    """Close a stream after so many events with a token; gives how many that were."""
    stream = await clients.openai.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": PROMPTS[0]}],
        stream=True,
        **LONG,
    )
    seen = 0
    async for chunk in stream:
        seen += not chunk.choices[0].delta.role
        if seen == events:
            break
    await stream.close()
    return seen


async def leave_wait(url: str, after: float) -> None:
    """Give up the wait for an answer that is not streamed, `after` seconds after asking."""
    asked = asyncio.Event()

    async def trace(event: str, _: object) -> None:
        if event == "http11.send_request_body.complete":
            asked.set()

    async def watch(request: httpx2.Request) -> None:
        request.extensions = {**request.extensions, "trace": trace}

    async with openai.AsyncOpenAI(
        base_url=f"{url}/v1",
        api_key="x",
        max_retries=0,
        timeout=REQUEST_SECONDS,
        http_client=openai.DefaultAsyncHttpxClient(event_hooks={"request": [watch]}),
    ) as client:
        call = asyncio.create_task(
            client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": PROMPTS[1]}], **LONG
            )
        )
        await asyncio.wait_for(asked.wait(), REQUEST_SECONDS)
        await asyncio.sleep(after)
        if not call.cancel():
            raise AssertionError("the answer came before its client left")
        with suppress(asyncio.CancelledError):
            await call
