"""The simulated engine against recorded answers of vLLM 0.32: ids, times and texts masked."""

import gzip
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from tokgauge.simulator.profile import EngineProfile
from tokgauge.simulator.server import running_engine

from tests.simulator.raw import Raw, exchange, read_response, shape_of

CAPTURES = Path(__file__).parent.parent / "captures"
CHAT = "/v1/chat/completions"
USER = {"model": "qwen", "messages": [{"role": "user", "content": "Hello world, how are you?"}]}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
CONTINUOUS = {
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
PROMPT = {"model": "qwen", "prompt": "Hello world"}
NINE = {"model": "qwen", "messages": [{"role": "user", "content": "Hi"}]}


def recorded(name: str) -> Raw:
    return read_response(BytesIO((CAPTURES / f"{name}.http").read_bytes()))


def chat(**fields: Any) -> dict[str, Any]:
    return {**USER, **fields}


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [
        ("chat_stream", CHAT, chat(max_tokens=8, stream=True)),
        ("chat_stream_usage", CHAT, chat(max_tokens=8, **USAGE)),
        ("chat_stream_contusage", CHAT, chat(max_tokens=8, **CONTINUOUS)),
        ("chat_stream_maxtok1", CHAT, chat(max_tokens=1, **USAGE)),
        (
            "chat_stream_contusage_only",
            CHAT,
            chat(max_tokens=4, stream=True, stream_options={"continuous_usage_stats": True}),
        ),
        (
            "chat_stream_usage_false",
            CHAT,
            chat(max_tokens=4, stream=True, stream_options={"include_usage": False}),
        ),
        ("chat_stream_options_null", CHAT, chat(max_tokens=4, stream=True, stream_options=None)),
        ("chat_natural_stop_stream_true", CHAT, chat(stream=True)),
        ("chat_natural_stop_stream_false", CHAT, chat()),
        ("chat_nonstream_length", CHAT, chat(max_tokens=8)),
        ("chat_nonstream_n2", CHAT, chat(max_tokens=5, n=2)),
        ("comp_nonstream", "/v1/completions", {**PROMPT, "max_tokens": 6}),
        ("comp_stream", "/v1/completions", {**PROMPT, "max_tokens": 6, "stream": True}),
        ("comp_stream_usage", "/v1/completions", {**PROMPT, "max_tokens": 6, **USAGE}),
        ("comp_stream_contusage", "/v1/completions", {**PROMPT, "max_tokens": 6, **CONTINUOUS}),
        (
            "comp_stream_twoprompts",
            "/v1/completions",
            {"model": "qwen", "prompt": ["a", "b"], "max_tokens": 4, **USAGE},
        ),
        (
            "comp_stream_echo",
            "/v1/completions",
            {**PROMPT, "max_tokens": 3, "echo": True, "stream": True},
        ),
        (
            "responses_stream",
            "/v1/responses",
            {"input": "Hi", "max_output_tokens": 5, "temperature": 0, "stream": True},
        ),
        (
            "responses_nonstream",
            "/v1/responses",
            {"input": "Hi", "max_output_tokens": 5, "temperature": 0},
        ),
        ("messages_stream", "/v1/messages", {**NINE, "max_tokens": 5, "stream": True}),
        ("messages_nonstream", "/v1/messages", {**NINE, "max_tokens": 5}),
        ("messages_err", "/v1/messages", {**NINE, "model": "nope", "max_tokens": 5}),
        ("messages_count_tokens", "/v1/messages/count_tokens", NINE),
    ],
)
def test_answers_have_the_recorded_shape(
    recorded_twin: str, name: str, path: str, body: dict[str, Any]
) -> None:
    # The recorded model stopped at once in two cases and never by itself in the others.
    headers = {"x-simulate": "tokens=0"} if "natural" in name else {}
    body = {**body, "ignore_eos": "natural" not in name}
    ours = exchange(recorded_twin, "POST", path, body, headers=headers)
    assert shape_of(ours) == shape_of(recorded(f"vllm_ascii/{name}"))


def test_two_choices_have_the_recorded_events(recorded_twin: str) -> None:
    # Which choice comes first in a step is chance in vLLM, so the order is not compared.
    body = chat(max_tokens=5, n=2, ignore_eos=True, **USAGE)
    ours = shape_of(exchange(recorded_twin, "POST", CHAT, body))["body"]
    theirs = shape_of(recorded("vllm_ascii/chat_stream_n2"))["body"]
    assert ours[:2] == theirs[:2]
    assert ours[-2:] == theirs[-2:]
    assert sorted(map(str, ours)) == sorted(map(str, theirs))


def test_stream_interval_sends_one_then_four_tokens() -> None:
    profile = EngineProfile(
        model="qwen", max_model_len=512, speed=50, tokens_per_event=4, prompt_tokens_details=True
    )
    body = chat(max_tokens=13, ignore_eos=True, **CONTINUOUS)
    with running_engine(profile) as url:
        ours = exchange(url, "POST", CHAT, body, headers={"x-request-id": "abc"})
    theirs = recorded("vllm_opts/stream_interval4_forced_usage")
    assert shape_of(ours)["body"] == shape_of(theirs)["body"]


def test_the_request_id_becomes_part_of_the_id(recorded_twin: str) -> None:
    body = chat(max_tokens=2, stream=True, ignore_eos=True)
    ours = exchange(recorded_twin, "POST", CHAT, body, headers={"X-Request-Id": "my-req-2"})
    theirs = recorded("vllm_ascii/xreqid_stream")
    assert b'"id":"chatcmpl-my-req-2"' in ours.chunks[0]
    assert shape_of(ours) == shape_of(theirs)


def test_a_connection_that_shall_close_is_announced(recorded_twin: str) -> None:
    body = chat(max_tokens=2, stream=True, ignore_eos=True)
    ours = exchange(recorded_twin, "POST", CHAT, body, headers={"connection": "close"})
    assert shape_of(ours) == shape_of(recorded("vllm_ascii/conn_close_stream"))


@pytest.mark.parametrize("messages", ["hello", ["hello"], 5])
def test_messages_that_are_none_are_a_validation_error(
    recorded_twin: str, messages: object
) -> None:
    raw = exchange(recorded_twin, "POST", CHAT, {"messages": messages})
    assert raw.status == "HTTP/1.1 400 Bad Request"
    assert json.loads(raw.body)["error"]["param"] == "body.messages"


@pytest.mark.parametrize(
    ("name", "method", "path", "body"),
    [
        ("err_404", "GET", "/nope", None),
        ("err_405_get_chat", "GET", CHAT, None),
        ("err_405_post_models", "POST", "/v1/models", {}),
        ("err_badjson", "POST", CHAT, b'{"model": "qwen", }'),
        ("err_ctx", "POST", CHAT, chat(messages=[{"role": "user", "content": "x" * 17_999}])),
        ("err_emptybody", "POST", CHAT, b""),
        ("err_emptymessages", "POST", CHAT, chat(messages=[])),
        ("err_maxtok0", "POST", CHAT, chat(max_tokens=0)),
        ("err_maxtok0_stream", "POST", CHAT, chat(max_tokens=0, stream=True)),
        ("err_maxtok_huge", "POST", CHAT, chat(max_tokens=100_000)),
        ("err_maxtok_neg", "POST", CHAT, chat(max_tokens=-1)),
        ("err_nomessages", "POST", CHAT, {"model": "qwen", "max_tokens": 4}),
        ("err_notobject", "POST", CHAT, [1, 2]),
        ("err_so_nostream", "POST", CHAT, chat(stream_options={"include_usage": True})),
        ("err_temp", "POST", CHAT, chat(temperature=-3)),
        ("err_unknown_model", "POST", CHAT, chat(model="nope")),
        ("err_unknown_model_stream", "POST", CHAT, chat(model="nope", stream=True)),
        ("options_plain", "OPTIONS", CHAT, None),
        ("gzip_request", "POST", CHAT, gzip.compress(json.dumps(USER).encode(), mtime=0)),
        ("health", "GET", "/health", None),
        ("load", "GET", "/load", None),
    ],
)
def test_errors_are_the_recorded_bytes(
    recorded_twin: str, name: str, method: str, path: str, body: object
) -> None:
    ours = exchange(recorded_twin, method, path, body)
    theirs = recorded(f"vllm/{name}")
    if name == "err_ctx":
        # The recorded prompt's length with its template was 18,050 characters.
        pad = 18_050 - int(
            json.loads(ours.body)["error"]["message"].split("contains ")[1].split()[0]
        )
        body = chat(messages=[{"role": "user", "content": "x" * (17_999 + pad)}])
        ours = exchange(recorded_twin, method, path, body)
    assert ours.body == theirs.body
    assert _headers(ours) == _headers(theirs)
    assert ours.status == theirs.status


def _headers(raw: Raw) -> list[tuple[str, str]]:
    return [header for header in raw.headers if header[0] != "date"]


@pytest.mark.parametrize(
    ("name", "kind"), [("no_content_type", "*/*"), ("text_plain", "text/plain")]
)
def test_only_json_is_taken(recorded_twin: str, name: str, kind: str) -> None:
    ours = exchange(recorded_twin, "POST", CHAT, USER, headers={"content-type": kind})
    assert ours.body == recorded(f"vllm/{name}").body


@pytest.mark.parametrize(("name", "path"), [("head_chat", CHAT), ("head_models", "/v1/models")])
def test_head_is_not_allowed(recorded_twin: str, name: str, path: str) -> None:
    ours = exchange(recorded_twin, "HEAD", path)
    assert shape_of(ours)["headers"] == [
        (n, "*" if n in {"date", "content-length"} else v)
        for n, v in read_response(
            BytesIO((CAPTURES / f"vllm/{name}.http").read_bytes()), head=True
        ).headers
    ]
    assert ours.status == "HTTP/1.1 405 Method Not Allowed"


def test_preflight_is_refused_as_recorded(recorded_twin: str) -> None:
    headers = {
        "origin": "http://example.org",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    ours = exchange(recorded_twin, "OPTIONS", CHAT, headers=headers)
    theirs = recorded("vllm/options_chat")
    assert (_headers(ours), ours.body) == (_headers(theirs), theirs.body)


def test_a_trailing_slash_redirects_to_an_absolute_address(recorded_twin: str) -> None:
    ours = exchange(recorded_twin, "POST", CHAT + "/", USER)
    assert shape_of(ours) == shape_of(recorded("vllm/trailing_slash"))
    assert ours.header("location") == recorded_twin + CHAT


def test_models_and_tokenize_have_the_recorded_shape(recorded_twin: str) -> None:
    ours = exchange(recorded_twin, "GET", "/v1/models")
    assert shape_of(ours) == shape_of(recorded("vllm/models"))
    ours = exchange(recorded_twin, "POST", "/tokenize", PROMPT)
    assert shape_of(ours) == shape_of(recorded("vllm/tokenize"))
    ours = exchange(recorded_twin, "POST", "/tokenize", USER)
    assert shape_of(ours) == shape_of(recorded("vllm/tokenize_chat"))


def test_version_and_ping(recorded_twin: str) -> None:
    assert exchange(recorded_twin, "GET", "/version").body == b'{"version":"0.32.0"}'
    for method in ("GET", "POST"):
        ping = exchange(recorded_twin, method, "/ping")
        assert (ping.status, ping.body) == ("HTTP/1.1 200 OK", b"")


def test_a_killed_engine_sends_the_recorded_error_and_done(recorded_twin: str) -> None:
    body = chat(max_tokens=50, stream=True)
    ours = exchange(recorded_twin, "POST", CHAT, body, headers={"x-simulate": "error-after=1"})
    theirs = recorded("vllm/stream_enginecore_killed")
    assert ours.chunks[-2:] == theirs.chunks[-2:]
    assert ours.complete
    assert len(ours.chunks) == 3
    ours = exchange(recorded_twin, "POST", CHAT, USER, headers={"x-simulate": "error-after"})
    assert ours.body == recorded("vllm/chat_after_engine_death").body


def test_a_key_guards_only_the_api() -> None:
    with running_engine(EngineProfile(api_key="s3cret", speed=50)) as url:
        refused = exchange(url, "GET", "/v1/models")
        theirs = recorded("vllm_opts/noauth_models")
        assert refused.body == theirs.body == b'{"error":"Unauthorized"}'
        assert refused.status == theirs.status
        assert refused.header("vary") is None
        for path in ("/health", "/metrics", "/version"):
            assert exchange(url, "GET", path).status == "HTTP/1.1 200 OK"
        key = {"authorization": "Bearer s3cret"}
        assert exchange(url, "GET", "/v1/models", headers=key).status == "HTTP/1.1 200 OK"
