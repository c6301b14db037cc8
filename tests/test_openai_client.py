"""The real `openai` and `anthropic` clients see through the proxy what they see without it."""

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import anthropic
import openai
import pytest
from tokgauge.simulator.profile import EngineProfile
from tokgauge.simulator.server import running_engine

from tests.conftest import start_proxy
from tests.support.metrics import Watch, wait_until

MODEL = EngineProfile().model
ASK: list[Any] = [{"role": "user", "content": "Tell me about fjords."}]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a place",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
        },
    }
]
IDS = re.compile(r"\b(chatcmpl|cmpl|embd|resp|msg|chatcmpl-tool|call|rs|modelperm)[-_][\w-]+")
TIMES = {"created", "created_at", "completed_at"}


@dataclass
class Pair:
    """Where the clients are pointed at: the engine itself, and the proxy before it."""

    direct: str
    proxied: str
    port: int


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    profile = EngineProfile(speed=20.0)
    with (
        running_engine(profile) as direct,
        start_proxy(upstream=direct, models=(MODEL,)) as proxy,
    ):
        yield Pair(direct, proxy.url, proxy.port)


@pytest.fixture(scope="module")
def thinking_pair() -> Iterator[Pair]:
    profile = EngineProfile(speed=20.0, reasoning_tokens=6)
    with (
        running_engine(profile) as direct,
        start_proxy(upstream=direct, models=(MODEL,)) as proxy,
    ):
        yield Pair(direct, proxy.url, proxy.port)


def masked(value: Any) -> Any:
    """The object without what differs from one call to the next: ids and times."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    if isinstance(value, dict):
        return {k: 0 if k in TIMES and v else masked(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [masked(v) for v in value]
    return IDS.sub(r"\1-ID", value) if isinstance(value, str) else value


def openai_client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="sk-test", max_retries=0, timeout=20)


def async_openai_client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-test", max_retries=0, timeout=20)


Call = Callable[[Any], Any]

CALLS: dict[str, Call] = {
    "chat": lambda c: c.chat.completions.create(model=MODEL, messages=ASK, max_tokens=12),
    "chat_stream": lambda c: c.chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=12, stream=True
    ),
    "chat_stream_usage": lambda c: c.chat.completions.create(
        model=MODEL,
        messages=ASK,
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
    ),
    "chat_n": lambda c: c.chat.completions.create(model=MODEL, messages=ASK, max_tokens=5, n=2),
    "chat_tools": lambda c: c.chat.completions.create(
        model=MODEL, messages=ASK, tools=TOOLS, extra_headers={"x-simulate": "tool-calls=2"}
    ),
    "chat_tools_stream": lambda c: c.chat.completions.create(
        model=MODEL,
        messages=ASK,
        tools=TOOLS,
        stream=True,
        extra_headers={"x-simulate": "tool-calls=2"},
    ),
    "chat_empty_deltas": lambda c: c.chat.completions.create(
        model=MODEL,
        messages=ASK,
        max_tokens=12,
        stream=True,
        extra_headers={"x-simulate": "empty-deltas"},
    ),
    "completions": lambda c: c.completions.create(model=MODEL, prompt="Once", max_tokens=12),
    "completions_stream": lambda c: c.completions.create(
        model=MODEL, prompt=["Once", "Twice"], max_tokens=12, stream=True
    ),
    "responses": lambda c: c.responses.create(model=MODEL, input="Hi", max_output_tokens=12),
    "responses_stream": lambda c: c.responses.create(
        model=MODEL, input="Hi", max_output_tokens=12, stream=True
    ),
    "embeddings": lambda c: c.embeddings.create(model=MODEL, input=["a", "b"]),
}

STREAMS = [name for name in CALLS if "stream" in name or name == "chat_empty_deltas"]
# With two sequences the order of events depends on the engine's steps, not on the proxy.
UNORDERED = {"completions_stream"}


def but_for_fingerprints(answer: Any) -> Any:
    if not isinstance(answer, list):
        return answer
    return [{k: v for k, v in chunk.items() if k != "system_fingerprint"} for chunk in answer]


def in_order(name: str, answer: Any) -> Any:
    return sorted(answer, key=str) if name in UNORDERED else answer


def in_one_read(ask: Callable[[], Any], expected: Any) -> Any:
    """What `ask` gives, asked again when nothing but a fingerprint is missing.

    vLLM moves it to the hidden usage event; it is moved back when both come in one read, which
    they do unless the machine is busy.
    """
    for _ in range(5):
        seen = ask()
        if seen == expected or but_for_fingerprints(seen) != but_for_fingerprints(expected):
            break
    return seen


def outcome(client: openai.OpenAI, call: Call) -> Any:
    answer = call(client)
    return masked(list(answer) if isinstance(answer, openai.Stream) else answer)


async def async_outcome(url: str, call: Call) -> Any:
    async with async_openai_client(url) as client:
        answer = await call(client)
        if isinstance(answer, openai.AsyncStream):
            return masked([chunk async for chunk in answer])
        return masked(answer)


@pytest.mark.parametrize("name", CALLS)
def test_openai_sync(pair: Pair, name: str) -> None:
    with openai_client(pair.direct) as direct, openai_client(pair.proxied) as proxied:
        expected = in_order(name, outcome(direct, CALLS[name]))
        seen = in_one_read(lambda: in_order(name, outcome(proxied, CALLS[name])), expected)
    assert seen == expected
    assert seen


@pytest.mark.parametrize("name", CALLS)
def test_openai_async(pair: Pair, name: str) -> None:
    def ask(url: str) -> Any:
        return in_order(name, asyncio.run(async_outcome(url, CALLS[name])))

    expected = ask(pair.direct)
    seen = in_one_read(lambda: ask(pair.proxied), expected)
    assert seen == expected


def test_openai_unasked_stream_has_choices_in_every_chunk(pair: Pair) -> None:
    with openai_client(pair.proxied) as client:
        for _ in range(5):
            chunks = list(CALLS["chat_stream"](client))
            assert all(chunk.choices for chunk in chunks)
            assert all(chunk.usage is None for chunk in chunks)
            if chunks[-1].system_fingerprint:  # see `in_one_read`
                break
    assert chunks[-1].system_fingerprint


def test_openai_reasoning(thinking_pair: Pair) -> None:
    with (
        openai_client(thinking_pair.direct) as direct,
        openai_client(thinking_pair.proxied) as proxied,
    ):
        for call in (CALLS["chat"], CALLS["chat_stream"]):
            expected = outcome(direct, call)
            assert in_one_read(partial(outcome, proxied, call), expected) == expected


def test_openai_models(pair: Pair) -> None:
    with openai_client(pair.direct) as direct, openai_client(pair.proxied) as proxied:
        expected = masked(list(direct.models.list()))
        assert masked(list(proxied.models.list())) == expected
        assert [card["id"] for card in expected] == [MODEL]


def test_openai_stream_helper(pair: Pair) -> None:
    """The SDK's accumulating helper, which checks the order of events itself."""
    finals = []
    for url in (pair.direct, pair.proxied):
        with (
            openai_client(url) as client,
            client.chat.completions.stream(
                model=MODEL, messages=ASK, extra_headers={"x-simulate": "tokens=8"}
            ) as stream,
        ):
            for _ in stream:
                pass
            finals.append(masked(stream.get_final_completion()))
    assert finals[0] == finals[1]


ERRORS = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    403: openai.PermissionDeniedError,
    404: openai.NotFoundError,
    409: openai.ConflictError,
    422: openai.UnprocessableEntityError,
    429: openai.RateLimitError,
    500: openai.InternalServerError,
    503: openai.InternalServerError,
}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("status", ERRORS)
def test_openai_errors(pair: Pair, status: int, stream: bool) -> None:
    caught = []
    for url in (pair.direct, pair.proxied):
        with openai_client(url) as client, pytest.raises(ERRORS[status]) as raised:
            client.chat.completions.create(
                model=MODEL,
                messages=ASK,
                stream=stream,
                extra_headers={"x-simulate": f"status={status}"},
            )
        error = raised.value
        assert isinstance(error, openai.APIStatusError)
        caught.append((error.status_code, error.message, error.body, type(error)))
    assert caught[0] == caught[1]


def test_openai_unknown_model_and_bad_request(pair: Pair) -> None:
    for fields in ({"model": "nope"}, {"model": MODEL, "temperature": -7}):
        bodies = []
        for url in (pair.direct, pair.proxied):
            with openai_client(url) as client, pytest.raises(openai.APIStatusError) as raised:
                client.chat.completions.create(messages=ASK, **fields)
            bodies.append((type(raised.value), raised.value.body))
        assert bodies[0] == bodies[1]


def test_openai_error_within_a_stream(pair: Pair) -> None:
    seen = []
    for url in (pair.direct, pair.proxied):
        with openai_client(url) as client:
            chunks = 0
            with pytest.raises(openai.APIError) as raised:  # noqa: PT012  the loop meets it
                for _ in client.chat.completions.create(
                    model=MODEL,
                    messages=ASK,
                    stream=True,
                    extra_headers={"x-simulate": "error-after=3"},
                ):
                    chunks += 1
            seen.append((chunks, raised.value.message))
    assert seen[0] == seen[1]


def test_openai_stream_cut_in_the_middle_is_an_error(pair: Pair) -> None:
    """Cut by the engine: never dressed up as success."""
    watch = Watch(pair.port)
    seen = []
    for url in (pair.direct, pair.proxied):
        with openai_client(url) as client:
            chunks = 0
            with pytest.raises(openai.APIConnectionError) as raised:  # noqa: PT012
                for _ in client.chat.completions.create(
                    model=MODEL,
                    messages=ASK,
                    stream=True,
                    extra_headers={"x-simulate": "cut-after=4"},
                ):
                    chunks += 1
        seen.append((chunks, type(raised.value), str(raised.value)))
    assert seen[0] == seen[1]
    assert seen[0][0] >= 3
    assert watch.after().outcomes == {"upstream_incomplete": 1}


def test_openai_engine_down() -> None:
    with (
        start_proxy(upstream="http://127.0.0.1:9") as proxy,
        openai_client(proxy.url) as client,
        pytest.raises(openai.InternalServerError) as raised,
    ):
        client.chat.completions.create(model=MODEL, messages=ASK)
    assert raised.value.status_code == 502
    assert "127.0.0.1:9" in raised.value.message
    assert raised.value.type
    assert raised.value.code


def test_openai_client_that_breaks_off(pair: Pair) -> None:
    watch = Watch(pair.port)
    with openai_client(pair.proxied) as client:
        stream = client.chat.completions.create(
            model=MODEL, messages=ASK, stream=True, max_tokens=4000
        )
        for number, _ in enumerate(stream):
            if number == 3:
                break
        stream.close()
    gained = watch.after()
    assert gained.outcomes == {"client_closed": 1}
    assert (gained.total("completion_tokens_total", source="events") or 0) >= 3


@pytest.mark.parametrize("name", STREAMS)
def test_openai_streams_are_measured(pair: Pair, name: str) -> None:
    with openai_client(pair.proxied) as client:
        outcome(client, CALLS[name])  # after the first one usage is asked for
    watch = Watch(pair.port)
    with openai_client(pair.proxied) as client:
        outcome(client, CALLS[name])
    gained = watch.after()
    assert gained.outcomes == {"ok": 1}
    assert gained.total("completion_tokens_total", model=MODEL, source="usage")
    assert gained.count("time_to_first_token_seconds", model=MODEL) == 1


def test_openai_many_at_once(pair: Pair) -> None:
    async def all_at_once() -> list[str]:
        async with async_openai_client(pair.proxied) as client:

            async def one(number: int) -> str:
                stream = await client.chat.completions.create(
                    model=MODEL,
                    messages=[{"role": "user", "content": f"Number {number}"}],
                    max_tokens=20,
                    stream=True,
                )
                return "".join([c.choices[0].delta.content or "" async for c in stream])

            return await asyncio.gather(*map(one, range(40)))

    watch = Watch(pair.port)
    assert all(asyncio.run(all_at_once()))
    gained = watch.after(40)
    assert gained.outcomes == {"ok": 40}
    assert gained.total("completion_tokens_total", source="usage") == 800


def anthropic_client(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="sk-test", max_retries=0, timeout=20)


def test_anthropic_whole_and_streamed(pair: Pair) -> None:
    seen = []
    for url in (pair.direct, pair.proxied):
        with anthropic_client(url) as client:
            whole = client.messages.create(model=MODEL, max_tokens=12, messages=ASK)
            with client.messages.stream(model=MODEL, max_tokens=12, messages=ASK) as stream:
                texts = list(stream.text_stream)
                final = stream.get_final_message()
            seen.append((masked(whole), texts, masked(final)))
    assert seen[0] == seen[1]
    assert seen[1][2]["stop_reason"] == "max_tokens"


def test_anthropic_async(pair: Pair) -> None:
    async def events(url: str) -> Any:
        async with anthropic.AsyncAnthropic(
            base_url=url, api_key="sk-test", max_retries=0, timeout=20
        ) as client:
            stream = await client.messages.create(
                model=MODEL, max_tokens=12, messages=ASK, stream=True
            )
            return masked([event async for event in stream])

    assert asyncio.run(events(pair.proxied)) == asyncio.run(events(pair.direct))


def test_anthropic_errors(pair: Pair) -> None:
    bodies = []
    for url in (pair.direct, pair.proxied):
        with anthropic_client(url) as client, pytest.raises(anthropic.NotFoundError) as raised:
            client.messages.create(model="nope", max_tokens=12, messages=ASK)
        bodies.append(raised.value.body)
    assert bodies[0] == bodies[1]


def test_anthropic_streams_are_measured(pair: Pair) -> None:
    watch = Watch(pair.port)
    with (
        anthropic_client(pair.proxied) as client,
        client.messages.stream(model=MODEL, max_tokens=12, messages=ASK) as stream,
    ):
        stream.until_done()
    gained = watch.after()
    assert gained.outcomes == {"ok": 1}
    assert gained.total("completion_tokens_total", source="usage") == 12
    assert gained.total("truncations_total", limit="request") == 1
    assert gained.count("time_to_first_token_seconds") == 1


def test_the_model_list_is_learned_from_the_simulated_engine(pair: Pair) -> None:
    with start_proxy(upstream=pair.direct, models=(), poll_interval=0.1) as proxy:

        def known() -> bool:
            watch = Watch(proxy.port)
            with openai_client(proxy.url) as client:
                outcome(client, CALLS["chat"])
            return watch.after().total("requests_total", model=MODEL) == 1

        wait_until(known, 10, "the model's name becomes a label")
