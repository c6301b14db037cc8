"""What users have: the openai and anthropic clients against the simulated engine."""

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from tokgauge.simulator import tokens
from tokgauge.simulator.profile import EngineProfile
from tokgauge.simulator.server import running_engine

MODEL = "Qwen/Qwen2.5-7B-Instruct"
HELLO: list[Any] = [{"role": "user", "content": "How fast is a token?"}]
KOREAN: list[Any] = [{"role": "user", "content": "토큰 속도를 설명해 주세요"}]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    },
    {"type": "function", "function": {"name": "get_time", "parameters": {}}},
]


@pytest.fixture
def client(fast: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{fast}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def test_chat_streamed_and_not(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=40)
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 40
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            max_tokens=40,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert len(tokens.pieces(text)) == 40
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.model_dump() == whole.usage.model_dump()
    assert [bool(c.system_fingerprint) for c in chunks] == [False] * (len(chunks) - 1) + [True]


def test_it_answers_in_korean_and_stops_by_itself(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=KOREAN)
    text = answer.choices[0].message.content or ""
    assert tokens.is_korean(text)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    # The end-of-text token is counted and has no text.
    assert answer.usage.completion_tokens == len(tokens.pieces(text)) + 1


@pytest.mark.parametrize("messages", [HELLO, KOREAN])
def test_tokenize_agrees_with_usage(client: openai.OpenAI, fast: str, messages: list[Any]) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=1)
    counted = httpx2.post(f"{fast}/tokenize", json={"model": MODEL, "messages": messages}).json()
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == counted["count"] == len(counted["tokens"])


def test_n_choices_differ_and_usage_sums_them(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, n=3, max_tokens=12)
    assert len({choice.message.content for choice in answer.choices}) == 3
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 36


def test_a_stop_string_cuts_the_text_and_is_named(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=30)
    text = whole.choices[0].message.content or ""
    stop = text[20:26]
    streamed = list(
        client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=30, stop=[stop], stream=True
        )
    )
    seen = "".join(c.choices[0].delta.content or "" for c in streamed)
    assert seen == text[: text.index(stop)]
    last = streamed[-1].choices[0]
    assert last.finish_reason == "stop"
    assert last.model_extra == {"stop_reason": stop, "token_ids": None}


def test_a_named_tool_is_called_in_pieces(client: openai.OpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    whole = client.chat.completions.create(
        model=MODEL, messages=HELLO, tools=TOOLS, tool_choice=named
    )
    assert whole.choices[0].finish_reason == "tool_calls"
    (call,) = whole.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "get_weather"
    deltas = [
        chunk.choices[0].delta.tool_calls[0]
        for chunk in client.chat.completions.create(
            model=MODEL, messages=HELLO, tools=TOOLS, tool_choice=named, stream=True
        )
        if chunk.choices[0].delta.tool_calls
    ]
    assert deltas[0].id
    assert deltas[0].function is not None
    assert deltas[0].function.name == "get_weather"
    assert all(delta.id is None for delta in deltas[1:])
    arguments = "".join((delta.function and delta.function.arguments) or "" for delta in deltas)
    assert arguments == call.function.arguments
    assert len(deltas) > 3


def test_two_tool_calls_on_demand_with_the_openai_accumulator(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=HELLO, tools=TOOLS, extra_headers={"x-simulate": "tool-calls=2"}
    ) as stream:
        final = stream.get_final_completion()
    calls = final.choices[0].message.tool_calls or []
    assert [call.function.name for call in calls] == ["get_weather", "get_time"]


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_comes_before_the_answer(field: Any) -> None:
    profile = EngineProfile(speed=50, reasoning_tokens=7, reasoning_field=field)
    with (
        running_engine(profile) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client,
    ):
        whole = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=12)
        chunks = client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=12, stream=True
        )
        extras = [(c.choices[0].delta.model_extra or {}).get(field) for c in chunks]
    thought = "".join(text for text in extras if text)
    assert len(tokens.pieces(thought)) == 7
    assert extras[0] is None
    assert all(extras[1:8])
    assert not any(extras[8:])
    assert (whole.choices[0].message.model_extra or {})[field] == thought
    assert whole.usage is not None
    assert whole.usage.completion_tokens_details is not None
    assert whole.usage.completion_tokens_details.reasoning_tokens == 7


def test_completions_with_several_prompts(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["one", "two"], max_tokens=5)
    assert [choice.index for choice in answer.choices] == [0, 1]
    events = list(
        client.completions.create(model=MODEL, prompt=["one", "two"], max_tokens=5, stream=True)
    )
    for choice in answer.choices:
        assert choice.text == "".join(
            e.choices[0].text for e in events if e.choices[0].index == choice.index
        )


def test_responses_streamed_and_not(client: openai.OpenAI) -> None:
    whole = client.responses.create(model=MODEL, input="Hello", max_output_tokens=9)
    assert whole.status == "incomplete"
    with client.responses.stream(model=MODEL, input="Hello", max_output_tokens=9) as stream:
        kinds = [event.type for event in stream]
    assert kinds.count("response.output_text.delta") == 9
    assert whole.usage is not None
    assert whole.usage.output_tokens == 9


def test_messages_with_the_anthropic_client(fast: str) -> None:
    with anthropic.Anthropic(base_url=fast, api_key="none", max_retries=0) as client:
        with client.messages.stream(model=MODEL, max_tokens=9, messages=HELLO) as stream:
            final = stream.get_final_message()
        assert final.stop_reason == "max_tokens"
        assert final.usage.output_tokens == 9
        counted = client.messages.count_tokens(model=MODEL, messages=HELLO)
        assert counted.input_tokens == final.usage.input_tokens
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(model="nope", max_tokens=9, messages=HELLO)


# The client asks for base64 by itself when it is not told.
@pytest.mark.parametrize("encoding", [openai.omit, "float"])
def test_embeddings(client: openai.OpenAI, encoding: Any) -> None:
    answer = client.embeddings.create(model=MODEL, input=["a", "b"], encoding_format=encoding)
    first, second = (item.embedding for item in answer.data)
    assert sum(x * x for x in first) == pytest.approx(1, abs=1e-4)
    assert first != second
    assert answer.usage.prompt_tokens == 2


def test_models(client: openai.OpenAI) -> None:
    (card,) = client.models.list().data
    assert card.id == MODEL
    assert card.model_extra is not None
    assert card.model_extra["root"] == MODEL
    assert card.model_extra["max_model_len"] == 32_768


def test_errors_become_the_clients_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="The model `nope` does not exist"):
        client.chat.completions.create(model="nope", messages=HELLO)
    with pytest.raises(openai.BadRequestError, match="cannot be greater than max_model_len"):
        client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=1_000_000)
    too_long: list[Any] = [{"role": "user", "content": "word " * 40_000}]
    with pytest.raises(openai.BadRequestError, match="maximum context length is 32768"):
        client.chat.completions.create(model=MODEL, messages=too_long)
    with pytest.raises(openai.BadRequestError, match="for a total of"):
        client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=32_768)
    with running_engine(EngineProfile(api_key="s3cret")) as url:
        guarded = client.with_options(base_url=f"{url}/v1")
        with pytest.raises(openai.AuthenticationError):
            guarded.models.list()
