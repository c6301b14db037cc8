"""`tokgauge probe` against the simulated engine's physics and against odd servers."""

import http.server
import json
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from click.testing import CliRunner, Result
from tokgauge.commands.probe import command
from tokgauge.simulator.gpu import Scene
from tokgauge.simulator.gpu_scenes import founding_scene
from tokgauge.simulator.nvml import SimulatedNvml
from tokgauge.simulator.profile import EngineProfile
from tokgauge.simulator.server import running_engine

from tests.model import checkpoints
from tests.support.engine import (
    DONE,
    EVENT_STREAM,
    ROLE,
    Conversation,
    Script,
    ScriptedEngine,
    answer,
    chat_event,
    event,
    json_answer,
    send,
    stream,
    usage_event,
)

pytestmark = pytest.mark.timed

CHAT = "/v1/chat/completions"
TOKENS = 40


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedNvml]:
    """A machine without GPUs, and without the tester's own key and proxies."""
    for name in ("OPENAI_API_KEY", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    library = SimulatedNvml(Scene(gpus=()))
    library.install()
    yield library
    library.uninstall()


@pytest.fixture(scope="module")
def fast() -> Iterator[str]:
    """A default engine, 20 times as fast: 812 tokens per second."""
    with running_engine(EngineProfile(speed=20)) as url:
        yield url


@pytest.fixture(scope="module")
def scripted_engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine(["qwen"]) as engine:
        yield engine


@pytest.fixture
def engine(scripted_engine: ScriptedEngine) -> ScriptedEngine:
    scripted_engine.forget()
    scripted_engine.models = ["qwen"]
    return scripted_engine


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def document(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    loaded: dict[str, Any] = json.loads(result.stdout)
    return loaded


def body(text: str = "word " * TOKENS, usage: bool = True, finish: str = "length") -> bytes:
    message = {"role": "assistant", "content": text}
    found: dict[str, Any] = {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
    }
    if usage:
        found["usage"] = {"prompt_tokens": 5, "completion_tokens": TOKENS}
    return json_answer(found)


def tokens(count: int = TOKENS) -> list[bytes]:
    return [chat_event("word ") for _ in range(count)]


def plain_stream(*after: bytes, gap: float = 0.004) -> Script:
    return stream(ROLE, *tokens(), chat_event({}, finish="length"), *after, DONE, gap=gap)


def refuse(status: str, message: str) -> Script:
    return send(json_answer({"error": {"message": message, "code": status[:3]}}, status))


# --- the founding experiment ---------------------------------------------------------------------


def test_the_founding_experiment(tmp_path: Path) -> None:
    checkpoints.write(tmp_path / "Qwen2.5-7B", checkpoints.qwen2_5_7b())
    with running_engine(EngineProfile(root=str(tmp_path / "Qwen2.5-7B"))) as url:
        done = subprocess.run(
            [
                *(sys.executable, "-c", "from tokgauge.cli import main; main()"),
                *("probe", url, "--gpu", "RTX A6000", "--max-tokens", "128", "--json"),
            ],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    summary, ceiling = found["summary"], found["ceiling"]
    assert summary["decode_tokens_per_second"] == pytest.approx(40.6, rel=0.03)
    assert summary["end_to_end_tokens_per_second"]["not_streamed"] == pytest.approx(40, rel=0.05)
    assert summary["silent_wait_seconds"]["not_streamed"] == pytest.approx(128 / 40.6, rel=0.1)
    assert summary["silent_wait_seconds"]["streamed"] < 1
    assert summary["truncated"] is True
    assert ceiling["limits"]["streamed"]["tokens_per_second"] == pytest.approx(54.3, abs=0.1)
    assert ceiling["limits"]["checkpoint"]["tokens_per_second"] == pytest.approx(50.4, abs=0.1)
    assert ceiling["limits"]["streamed"]["share"] == pytest.approx(0.75, abs=0.025)
    assert ceiling["limits"]["checkpoint"]["share"] == pytest.approx(0.80, abs=0.03)
    assert ceiling["share"] == ceiling["limits"]["streamed"]["share"]
    assert found["verdict"]["level"] == "healthy"
    assert found["runs"][0]["streamed"]["truncated_by"] == "request"
    assert found["context_length"] == 32_768


def test_the_table_for_people(fast: str) -> None:
    given = ("--bandwidth", "15.36TB/s", "--weights-bytes", "14.141GB", "--max-tokens", "200")
    result = run(fast + "/v1/", *given)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == f"Qwen/Qwen2.5-7B-Instruct at {fast}"
    for start in (
        "silent wait ",
        "decode rate, tok/s ",
        "ceiling on streamed bytes: 15360 GB/s / 14.14 GB = 1086.2 tok/s; reached: ",
        "* not streamed: 0.",
        "* both answers: cut at max_tokens after 200 tokens: the answer was not finished",
        "* text appears at ",
    ):
        assert any(line.startswith(start) for line in lines), (start, result.stdout)
    assert "of the hardware's ceiling (streamed bytes)" in result.stdout
    assert result.stderr == ""


def test_what_is_unknown_is_said_with_what_to_set(fast: str) -> None:
    result = run(fast, "--max-tokens", "100")
    assert result.exit_code == 0, result.output
    assert "bandwidth: unknown (NVML shows no GPU here: name the card with --gpu)" in result.stdout
    assert "set --weights-bytes, or --params and --bits" in result.stdout
    assert "the bandwidth is not known: NVML shows no GPU here" in result.stdout
    assert "ceiling on" not in result.stdout


def test_an_estimate_is_called_one(fast: str) -> None:
    result = run(fast, "--max-tokens", "100", "--params", "7.62B", "--bandwidth", "15.36TB")
    assert result.exit_code == 0, result.output
    assert "ceiling on checkpoint bytes: 15360 GB/s / 15.24 GB" in result.stdout
    assert "ceiling on streamed bytes: 15360 GB/s / 14.14 GB" in result.stdout
    assert "weights read per token: from estimate: 7.62e+09 parameters x 16 bits" in result.stdout


def test_the_card_comes_from_nvml_when_the_server_is_here(
    no_gpu: SimulatedNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokgauge.gpu.nvml.in_host_pid_namespace", lambda: True)
    no_gpu.scene = founding_scene()
    with running_engine(EngineProfile(speed=2)) as url:
        found = document(url, "--weights-bytes", "7.07GB", "--max-tokens", "160")
    assert found["ceiling"]["bandwidth_bytes_per_second"] == 768e9
    assert found["ceiling"]["bandwidth_source"] == "catalogue"
    assert found["verdict"]["level"] in ("healthy", "watch"), "a loaded machine tests more slowly"
    cleared = [one["kind"] for one in found["verdict"]["ruled_out"]]
    assert "active_neighbour" in cleared, "idle neighbours are no culprits"


def test_slow_for_no_visible_reason_is_suspect_and_accuses_nobody() -> None:
    with running_engine() as url:
        found = document(
            url, "--bandwidth", "5TB/s", "--weights-bytes", "14.141GB", "--max-tokens", "80"
        )
    assert found["verdict"]["level"] == "suspect"
    assert found["verdict"]["causes"] == []
    assert found["summary"]["tokens_of_others"] == 0


def test_speculative_decoding_is_divided_out() -> None:
    given = ["--bandwidth", "7.68TB/s", "--weights-bytes", "14.141GB", "--max-tokens", "400"]
    ngram = '{"method": "ngram", "num_speculative_tokens": 2}'
    with running_engine(EngineProfile(speed=10, tokens_per_step=2)) as url:
        found = document(url, *given, "--speculative-config", ngram)
        silent = document(url, *given)
    assert silent["verdict"]["level"] == "not_judged"
    assert "--speculative-config" in silent["verdict"]["headline"]
    assert found["summary"]["decode_tokens_per_second"] == pytest.approx(812, rel=0.2)
    assert found["summary"]["tokens_per_step"] == pytest.approx(2, rel=0.2)
    assert found["ceiling"]["share"] == pytest.approx(0.75, rel=0.15)
    # Nothing is known of the model's layers: the range is too wide, unless it is at its upper end.
    assert found["verdict"]["level"] in ("healthy", "not_judged")


def test_several_runs_give_medians(fast: str) -> None:
    found = document(fast, "--runs", "3", "--max-tokens", "60", "--prompt", "Hello")
    rates = [one["streamed"]["decode_tokens_per_second"] for one in found["runs"]]
    assert len(rates) == 3
    assert found["summary"]["decode_tokens_per_second"] == sorted(rates)[1]
    assert found["summary"]["decode_tokens_per_second_range"] == [min(rates), max(rates)]


def test_the_document_has_its_keys(fast: str) -> None:
    found = document(fast, "--max-tokens", "20", "--gpu", "A6000", "--params", "7.62B")
    assert list(found) == [
        "url", "model", "root", "context_length", "max_tokens", "summary", "ceiling", "verdict",
        "findings", "notes", "runs",
    ]  # fmt: skip
    assert list(found["summary"]) == [
        "decode_tokens_per_second", "decode_tokens_per_second_range",
        "time_to_first_token_seconds", "silent_wait_seconds", "end_to_end_tokens_per_second",
        "tokens_per_step", "tokens_of_others", "characters_per_second", "reading_speed_ratio",
        "truncated",
    ]  # fmt: skip
    assert list(found["ceiling"]) == [
        "bandwidth_bytes_per_second", "bandwidth_source", "bandwidth_explanation",
        "weights_source", "kv_bytes_per_token", "kv_counted", "context_tokens", "limits", "basis",
        "share", "missing",
    ]  # fmt: skip
    assert list(found["ceiling"]["limits"]["checkpoint"]) == [
        "bytes_per_step", "tokens_per_second", "share",
    ]  # fmt: skip
    assert list(found["verdict"]) == [
        "level", "headline", "causes", "ruled_out", "notes", "advice", "reason",
    ]  # fmt: skip
    assert list(found["runs"][0]) == ["not_streamed", "streamed"]
    assert list(found["runs"][0]["streamed"]) == [
        "streamed", "duration_seconds", "time_to_first_token_seconds",
        "time_to_first_output_seconds", "silent_wait_seconds", "decode_tokens_per_second",
        "end_to_end_tokens_per_second", "prompt_tokens", "cached_prompt_tokens",
        "completion_tokens", "reasoning_tokens", "token_source", "token_events",
        "tokens_per_event", "characters", "finish_reason", "truncated_by",
    ]  # fmt: skip


# --- odd servers ---------------------------------------------------------------------------------


def test_both_ways_ask_the_same(engine: ScriptedEngine) -> None:
    engine.on(CHAT, send(body()), plain_stream(usage_event(TOKENS)))
    found = document(engine.url, "--max-tokens", "40", "--prompt", "Hi", "--api-key", "sesame")
    first, second = (json.loads(bytes(request.body)) for request in engine.requests)
    assert second.pop("stream_options") == {"include_usage": True}
    assert (first.pop("stream"), second.pop("stream")) == (False, True)
    assert first == second
    assert first == {
        "model": "qwen",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 40,
        "temperature": 0,
    }
    for request in (*engine.requests, *engine.background):
        assert request.header("authorization") == b"Bearer sesame"
    assert found["runs"][0]["streamed"]["characters"] == 5 * TOKENS
    assert found["runs"][0]["not_streamed"]["characters"] == 5 * TOKENS


def test_the_key_may_come_from_the_environment(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
    engine.on(CHAT, send(body()), plain_stream(usage_event(TOKENS)))
    document(engine.url)
    assert engine.requests[0].header("authorization") == b"Bearer from-environment"


def test_no_key_sends_none_and_proxies_are_not_used(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    engine.on(CHAT, send(body()), plain_stream(usage_event(TOKENS)))
    document(engine.url)
    assert engine.requests[0].header("authorization") is None


def test_a_server_that_refuses_stream_options(engine: ScriptedEngine) -> None:
    refusal = refuse("400 Bad Request", "Unknown parameter: stream_options")
    engine.on(CHAT, send(body()), refusal, plain_stream())
    result = run(engine.url)
    assert result.exit_code == 0, result.output
    assert b"stream_options" not in engine.requests[2].body
    assert "note: the server refuses stream_options" in result.stdout
    assert "note: the server reports no usage on the stream" in result.stdout
    cut = f"both answers: cut after {TOKENS} tokens, by which limit the server does not tell"
    assert cut in result.stdout


def test_a_server_with_the_newer_name_of_the_limit(engine: ScriptedEngine) -> None:
    refusal = refuse("400 Bad Request", "Use 'max_completion_tokens' instead of 'max_tokens'.")
    sampled = refuse("400 Bad Request", "Unsupported value: 'temperature' does not support 0")
    engine.on(CHAT, refusal, sampled, send(body()), plain_stream(usage_event(TOKENS)))
    found = document(engine.url, "--max-tokens", "40")
    asked = json.loads(bytes(engine.requests[3].body))
    assert asked["max_completion_tokens"] == 40
    assert "max_tokens" not in asked
    assert "temperature" not in asked
    assert len(found["notes"]) == 2
    assert found["runs"][0]["streamed"]["truncated_by"] == "request"


def test_a_model_without_chat_template_is_asked_to_complete(engine: ScriptedEngine) -> None:
    def completion(text: str, finish: str | None = None) -> dict[str, Any]:
        return {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}

    engine.on(CHAT, refuse("400 Bad Request", "the tokenizer has no chat template"))
    whole = completion("word " * TOKENS, "length") | {"usage": {"completion_tokens": TOKENS}}
    pieces = [event(completion("word ")) for _ in range(TOKENS - 1)]
    engine.on(
        "/v1/completions",
        send(json_answer(whole)),
        stream(*pieces, event(completion("word ", "length")), DONE, gap=0.004),
    )
    found = document(engine.url)
    assert found["runs"][0]["streamed"]["completion_tokens"] == TOKENS
    assert found["runs"][0]["streamed"]["characters"] == 5 * TOKENS
    assert found["summary"]["decode_tokens_per_second"] is not None


def test_llama_cpp_style(engine: ScriptedEngine) -> None:
    def spaced(delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        document = {"object": "chat.completion.chunk", "choices": [choice]}
        return b"data: " + json.dumps(document).encode() + b"\n\n"

    words = [spaced({"content": "word "}) for _ in range(TOKENS)]
    pieces = (spaced({"role": "assistant"}), *words, spaced({}, "stop"), DONE)
    scripts = send(body(usage=False, finish="stop")), stream(*pieces, gap=0.004)
    engine.on(CHAT, *scripts)
    result = run(engine.url)
    assert result.exit_code == 0, result.output
    assert "the server reports no usage on the whole answer" in result.stdout
    assert "streamed: finished after 40 tokens (stop)" in result.stdout
    engine.on(CHAT, *scripts)
    found = document(engine.url)
    assert found["runs"][0]["streamed"]["token_source"] == "events"
    assert found["summary"]["decode_tokens_per_second"] is not None
    assert found["summary"]["end_to_end_tokens_per_second"]["not_streamed"] is None
    assert found["summary"]["truncated"] is False


def test_a_server_that_does_not_stream(engine: ScriptedEngine) -> None:
    engine.on(CHAT, send(body()))
    found = document(engine.url)
    assert found["summary"]["decode_tokens_per_second"] is None
    assert found["verdict"]["level"] == "not_judged"
    assert "the server did not stream" in found["verdict"]["headline"]
    assert any("did not stream" in note for note in found["notes"])


def test_too_few_tokens_give_no_rate(engine: ScriptedEngine) -> None:
    few = stream(ROLE, *tokens(5), chat_event({}, finish="stop"), usage_event(5), DONE)
    engine.on(CHAT, send(body()), few)
    found = document(engine.url)
    assert found["summary"]["decode_tokens_per_second"] is None
    assert "5 tokens came, and it takes 16" in found["verdict"]["headline"]


def test_merged_events_are_not_judged(engine: ScriptedEngine) -> None:
    engine.on(CHAT, send(body()), plain_stream(usage_event(4 * TOKENS)))
    found = document(engine.url, "--bandwidth", "100TB/s", "--weights-bytes", "14GB")
    assert found["summary"]["tokens_per_step"] is None
    assert found["verdict"]["level"] == "not_judged"
    assert "look alike from outside" in found["verdict"]["headline"]


def test_a_server_that_is_busy_with_others_is_not_suspected(engine: ScriptedEngine) -> None:
    def page(generated: int) -> Script:
        text = (
            "# TYPE vllm:generation_tokens counter\n"
            f'vllm:generation_tokens_total{{engine="0",model_name="qwen"}} {generated}\n'
            "# TYPE vllm:num_requests_running gauge\n"
            'vllm:num_requests_running{engine="0",model_name="qwen"} 3\n'
        )
        return send(answer(text.encode(), content_type="text/plain"))

    engine.on(CHAT, send(body()), plain_stream(usage_event(TOKENS)))
    engine.on(
        "/metrics", page(1000), page(1000 + TOKENS), page(1000 + 2 * TOKENS + 200)
    )  # fmt: skip
    found = document(engine.url, "--bandwidth", "100TB/s", "--weights-bytes", "14GB")
    assert found["summary"]["tokens_of_others"] == 200
    assert found["verdict"]["level"] == "not_judged"
    assert "200 tokens for others" in found["verdict"]["headline"]


@pytest.mark.parametrize(
    ("running", "waiting", "others", "said"),
    [
        (0, 0, 0, "with nobody else there"),
        (2, 5, 0, "with up to 7 requests of theirs running or waiting"),
        (0, 0, 300, "(300 and 0 tokens)"),
    ],
)
def test_runs_that_differ_do_not_blame_streaming(
    engine: ScriptedEngine, running: int, waiting: int, others: int, said: str
) -> None:
    def page(generated: int) -> Script:
        labels = '{engine="0",model_name="qwen"}'
        text = (
            f"# TYPE vllm:generation_tokens counter\nvllm:generation_tokens_total{labels} "
            f"{generated}\n# TYPE vllm:num_requests_running gauge\n"
            f"vllm:num_requests_running{labels} {running}\n"
            f"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{labels} {waiting}\n"
        )
        return send(answer(text.encode(), content_type="text/plain"))

    async def slowly(conversation: Conversation) -> None:
        await conversation.pause(1.0)
        await conversation.send(body())

    engine.on(CHAT, slowly, plain_stream(usage_event(TOKENS)))
    first = 1000 + TOKENS + others
    engine.on("/metrics", page(1000), page(first), page(first + TOKENS))
    found = document(engine.url)
    line = next(line for line in found["findings"] if line.startswith("not streamed and streamed"))
    assert said in line
    assert "streaming" not in line or "not streaming" in line


def test_the_first_of_several_models_is_asked(engine: ScriptedEngine) -> None:
    engine.models = ["qwen", "gemma"]
    engine.on(CHAT, send(body()), plain_stream(usage_event(TOKENS)))
    found = document(engine.url)
    assert found["model"] == "qwen"
    assert any("lists 2 models" in note and "gemma" in note for note in found["notes"])
    engine.on(CHAT, send(body()), plain_stream(usage_event(TOKENS)))
    assert document(engine.url, "--model", "gemma")["notes"] == []
    assert json.loads(bytes(engine.requests[-1].body))["model"] == "gemma"


def test_a_server_without_a_list_of_models(engine: ScriptedEngine) -> None:
    engine.on("/v1/models", send(json_answer({"detail": "Not Found"}, "404 Not Found")))
    engine.on(CHAT, send(body()), plain_stream(usage_event(TOKENS)))
    assert document(engine.url, "--model", "anything")["model"] == "anything"


def test_an_error_page_is_told_in_one_line(engine: ScriptedEngine) -> None:
    page = (
        b"<!DOCTYPE html>\n<html><head><title>502\n Bad Gateway</title></head><body>\n<h1>no</h1>"
    )
    engine.on(CHAT, send(answer(page, content_type="text/html", status="502 Bad Gateway")))
    result = run(engine.url)
    assert result.exit_code == 3
    assert "fails with 502: a web page, titled '502 Bad Gateway'" in result.output
    assert "<h1>" not in result.output
    assert len(result.output.strip().splitlines()) == 1


# --- what cannot be measured ---------------------------------------------------------------------

HTML = send(answer(b"<html>Welcome</html>", content_type="text/html"))
EMPTY_LIST = send(json_answer({"object": "list", "data": []}))
UNAUTHORIZED = send(json_answer({"error": "Unauthorized"}, "401 Unauthorized"))
MISSING = send(json_answer({"detail": "Not Found"}, "404 Not Found"))
REDIRECT = send(answer(b"", "307 Temporary Redirect", extra=[("location", "http://x/v1/models")]))
BROKEN = send(answer(b"out of memory", "500 Internal Server Error", content_type="text/plain"))


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        (HTML, "not_openai", "something else than a list of models"),
        (EMPTY_LIST, "no_model", "lists no models"),
        (UNAUTHORIZED, "unauthorized", "--api-key"),
        (MISSING, "not_openai", "Give the part before /v1"),
        (REDIRECT, "refused", "redirects (307)"),
        (BROKEN, "server_error", "500: out of memory"),
        (send(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), "not_openai", "does not answer as an HTTP server"),
    ],
)
def test_a_list_of_models_that_is_none(
    engine: ScriptedEngine, script: Script, kind: str, words: str
) -> None:
    engine.on("/v1/models", script)
    result = run(engine.url, "--json")
    assert result.exit_code == 3
    found = json.loads(result.stdout)
    assert list(found) == ["error"]
    assert found["error"]["kind"] == kind
    assert words in found["error"]["message"]
    assert result.stderr == f"Error: {found['error']['message']}\n"


async def _silent(conversation: Conversation) -> None:
    await conversation.until_peer_leaves()


async def _reset(conversation: Conversation) -> None:
    await conversation.send(EVENT_STREAM)
    await conversation.chunk(ROLE, *tokens(5))
    await conversation.pause(0.05)
    conversation.reset()


async def _falls_silent(conversation: Conversation) -> None:
    await conversation.send(EVENT_STREAM)
    await conversation.chunk(ROLE, *tokens(5))
    await conversation.until_peer_leaves()


UNKNOWN = send(
    json_answer(
        {"error": {"message": "The model `qwen` does not exist.", "code": 404}}, "404 Not Found"
    )
)


@pytest.mark.parametrize(
    ("scripts", "kind", "words"),
    [
        ([UNKNOWN], "unknown_model", "does not know the model 'qwen'; it lists: qwen"),
        ([UNAUTHORIZED], "unauthorized", "OPENAI_API_KEY"),
        ([refuse("400 Bad Request", "no such thing")], "refused", "400: no such thing"),
        ([MISSING], "not_openai", "answers 404"),
        ([send(json_answer({"hello": "world"}))], "not_openai", "something else than"),
        ([_silent], "timeout", "raise it"),
        ([send(body()), stream(ROLE, *tokens(5), end=False)], "cut", "after 5 token events"),
        ([send(body()), _reset], "cut", "after 5 token events"),
        ([send(body()), stream(ROLE, *tokens(5))], "cut", "without saying that the answer is"),
        ([send(body()), _falls_silent], "timeout", "after 5 token events"),
        (
            [send(body()), stream(ROLE, *tokens(5), event({"error": {"message": "dead"}}), DONE)],
            "stream_error",
            "after 5 token events",
        ),
        (
            [send(body()), stream(ROLE, chat_event({}, finish="stop"), usage_event(0), DONE)],
            "no_tokens",
            "without a single token",
        ),
    ],
)
def test_an_answer_that_is_none(
    engine: ScriptedEngine, scripts: list[Script], kind: str, words: str
) -> None:
    engine.on(CHAT, *scripts)
    result = run(engine.url, "--timeout", "1", "--json")
    assert result.exit_code == 3, result.output
    found = json.loads(result.stdout)["error"]
    assert found["kind"] == kind
    assert words in found["message"]


def test_nobody_listens() -> None:
    result = run("http://127.0.0.1:9")
    assert result.exit_code == 3
    assert result.stdout == ""
    assert "cannot be reached" in result.stderr
    assert "is the server running" in result.stderr


def test_what_a_server_says_does_not_steer_the_terminal(engine: ScriptedEngine) -> None:
    engine.on(CHAT, refuse("400 Bad Request", "\x1b]0;owned\x07 no"))
    result = run(engine.url)
    assert result.exit_code == 3
    assert "\x1b" not in result.stderr
    assert "owned" in result.stderr


def test_the_systems_certificates_decide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"data": []}')

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(http.server.HTTPServer):
        def handle_error(self, *_: object) -> None:
            pass  # the first client refuses the certificate

    with Quiet(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            url = f"https://127.0.0.1:{server.server_port}"
            refused = run(url, "--json")
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
            accepted = run(url, "--json")
        finally:
            server.shutdown()
            thread.join()
    assert "certificate verify failed" in json.loads(refused.stdout)["error"]["message"].lower()
    assert json.loads(accepted.stdout)["error"]["kind"] == "no_model"


def test_a_slow_drip_ends_at_the_limit(engine: ScriptedEngine) -> None:
    engine.on(CHAT, send(body()), stream(ROLE, *tokens(100), gap=0.1))
    result = run(engine.url, "--timeout", "1")
    assert result.exit_code == 3
    assert "did not end within 1 s" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["localhost:8000"], "is not an address such as"),
        (["http://user@127.0.0.1:8000"], "is not an address such as"),
        (["http://127.0.0.1:99999"], "is not an address such as"),
        (["http://[::1:8000"], "is not an address such as"),
        (["http://a\x7fb:80"], "is not an address such as"),
        (["http://" + "a" * 70 + ":80"], "is not an address such as"),
        (["http://127.0.0.1:9", "--gpu", "A6000", "--bandwidth", "768GB"], "not both"),
        (["http://127.0.0.1:9", "--gpu", "Voodoo"], "not in the table"),
        (["http://127.0.0.1:9", "--bits", "4"], "--bits belongs to --params"),
        (["http://127.0.0.1:9", "--params", "7B", "--weights-bytes", "14GB"], "not both"),
        (["http://127.0.0.1:9", "--max-tokens", "0"], "--max-tokens"),
        (["http://127.0.0.1:9", "--api-key", "schlüssel"], "printable ASCII"),
        (["http://127.0.0.1:9", "--prompt", "\udcff"], "not valid UTF-8"),
        ([], "Missing argument"),
    ],
)
def test_wrong_usage(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
