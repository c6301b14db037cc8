"""`tokgauge check` as a person runs it: real engines on sockets, simulated GPUs."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tokgauge.commands.check import command
from tokgauge.simulator.gpu import Scene
from tokgauge.simulator.gpu_scenes import founding_scene
from tokgauge.simulator.nvml import SimulatedNvml
from tokgauge.simulator.profile import EngineProfile
from tokgauge.simulator.server import running_engine

from tests.model import checkpoints, zoo
from tests.support.engine import (
    DONE,
    ROLE,
    Conversation,
    Script,
    ScriptedEngine,
    answer,
    chat_event,
    json_answer,
    send,
    stream,
    usage_event,
)

CHAT = "/v1/chat/completions"


@pytest.fixture(autouse=True)
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedNvml]:
    """The founding scene, seen from the host."""
    for name in [name for name in os.environ if name.startswith("TOKGAUGE_")]:
        monkeypatch.delenv(name)
    for module in ("tokgauge.gpu.nvml", "tokgauge.check.gpus"):
        monkeypatch.setattr(f"{module}.in_host_pid_namespace", lambda: True)
    library = SimulatedNvml(founding_scene())
    library.install()
    yield library
    library.uninstall()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints_in(tmp_path_factory.mktemp("models") / "Qwen2.5-7B")


def checkpoints_in(directory: Path) -> Path:
    checkpoints.write(directory, checkpoints.qwen2_5_7b())
    return directory


@pytest.fixture(scope="module")
def url(model: Path) -> Iterator[str]:
    with running_engine(EngineProfile(root=str(model), speed=20)) as address:
        yield address


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine(["qwen"]) as scripted:
        yield scripted


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def findings(*arguments: str, code: int = 0) -> dict[tuple[str, str], dict[str, Any]]:
    result = run(*arguments, "--json")
    assert result.exit_code == code, result.output
    document = json.loads(result.stdout)
    assert document["works"] is (code == 0)
    return {(found["area"], found["name"]): found for found in document["findings"]}


def test_everything_in_place(url: str, model: Path) -> None:
    found = findings("--upstream", url)
    looked = {key: one for key, one in found.items() if key[0] != "settings"}
    assert {key: one["state"] for key, one in looked.items()} == {
        ("engine", "reachable"): "ok",
        ("engine", "model Qwen/Qwen2.5-7B-Instruct"): "ok",
        ("engine", "metrics"): "ok",
        ("engine", "usage injection"): "ok",
        ("gpu", "NVML"): "ok",
        ("gpu", "GPU 0"): "ok",
        ("gpu", "GPU 0 processes"): "ok",
        ("gpu", "GPU 0 contention"): "ok",
        ("gpu", "GPU 1"): "ok",
        ("gpu", "GPU 1 processes"): "ok",
        ("gpu", "GPU 2"): "ok",
        ("gpu", "GPU 2 processes"): "ok",
        ("ceiling", "bandwidth"): "ok",
        ("ceiling", "weights, streamed"): "ok",
        ("ceiling", "weights, checkpoint"): "ok",
        ("ceiling", "KV cache"): "ok",
        ("ceiling", "ceiling, streamed"): "ok",
        ("ceiling", "ceiling, checkpoint"): "ok",
    }
    assert found["engine", "reachable"]["value"] == "0.32.0"
    assert found["engine", "metrics"]["value"] == "vllm"
    assert found["engine", "model Qwen/Qwen2.5-7B-Instruct"]["value"] == {
        "id": "Qwen/Qwen2.5-7B-Instruct",
        "root": str(model),
        "max_model_len": 32_768,
        "parent": None,
    }
    assert found["gpu", "GPU 0 processes"]["value"] == 6
    assert found["gpu", "GPU 0 contention"]["value"] == "idle_neighbours"
    assert found["gpu", "GPU 0"]["value"]["bandwidth_source"] == "catalogue"
    assert found["ceiling", "bandwidth"]["value"] == 768e9
    assert found["ceiling", "weights, streamed"]["value"] == 14_141_238_272
    assert found["ceiling", "weights, streamed"]["source"].startswith("safetensors:")
    assert found["ceiling", "KV cache"]["value"] == 57_344
    assert found["ceiling", "ceiling, streamed"]["value"] == pytest.approx(54.3, abs=0.05)
    assert found["ceiling", "ceiling, checkpoint"]["value"] == pytest.approx(50.4, abs=0.05)


def test_of_several_models_nobody_knows_yet_which_is_read() -> None:
    with ScriptedEngine(["one", "other"]) as engine:
        found = findings("--upstream", engine.url, "--gpu-bandwidth", "768e9")
        assert "lists several models (one, other)" in found["ceiling", "weights"]["text"]
        assert not any(name.startswith("ceiling, ") for _, name in found)
        given = ["--gpu-bandwidth", "768e9", "--weights-bytes", "14e9"]
        assert ("ceiling", "ceiling, streamed") in findings("--upstream", engine.url, *given)


def test_a_finding_has_its_keys(url: str) -> None:
    for found in findings("--upstream", url).values():
        assert list(found) == ["area", "name", "state", "text", "source", "value"]


def test_every_setting_has_its_source(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "tokgauge.toml"
    config.write_text(
        f'port = 9000\nhost = "0.0.0.0"\nlog_level = "debug"\n[[engines]]\nupstream = "{url}"\n'
    )
    monkeypatch.setenv("TOKGAUGE_LOG_LEVEL", "warning")
    monkeypatch.setenv("TOKGAUGE_HOST", "127.0.0.2")
    # What Kubernetes puts into every pod beside a Service of that name.
    monkeypatch.setenv("TOKGAUGE_PORT", "tcp://10.0.0.7:8080")
    found = findings("--config", str(config), "--log-level", "error", "--api-key", "sesame")
    settings = {name: one for (area, name), one in found.items() if area == "settings"}
    told = {name: (one["value"], one["source"]) for name, one in settings.items()}
    assert told["upstream"] == (url, str(config))
    assert told["port"] == (9000, str(config))
    assert told["host"] == ("127.0.0.2", "environment variable TOKGAUGE_HOST")
    assert told["log_level"] == ("error", "flag --log-level")
    assert told["workers"] == (1, "default")
    assert "sesame" not in json.dumps(settings)


def test_a_table_for_people(url: str) -> None:
    result = run("--upstream", url)
    assert result.exit_code == 0, result.output
    rows = [line for line in result.stdout.splitlines() if line.startswith(("ok", "warn", "miss"))]
    assert any("reachable" in row and "version 0.32.0" in row for row in rows)
    assert any("flag --upstream" in row for row in rows)
    assert any("54.3 tok/s" in row for row in rows)
    assert not any("default" in row for row in rows)
    assert "settings have their default" in result.stdout
    assert result.stdout.rstrip().endswith("Everything is in place.")


def test_a_real_process_without_an_engine() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from tokgauge.cli import main; main()"),
            *("check", "--upstream", "http://127.0.0.1:9", "--no-nvml"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert "missing | engine" in done.stdout
    assert "is the engine running" in done.stdout
    assert "Something that the proxy needs is missing" in done.stdout


# --- what is wrong or absent ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "upstream is not set"),
        (["--upstream", "localhost:8000"], "accepted: an address"),
        (["--upstream", "http://127.0.0.1:9", "--port", "many"], "flag --port"),
        (["--config", "/nowhere/tokgauge.toml"], "cannot read the settings file"),
    ],
)
def test_wrong_settings(arguments: list[str], words: str) -> None:
    found = findings(*arguments, code=1)
    assert found["settings", "settings"]["state"] == "missing"
    assert words in found["settings", "settings"]["text"]
    assert len(found) == 1


def test_wrong_usage() -> None:
    assert run("--upstraem", "http://127.0.0.1:9").exit_code == 2


def test_a_certificate_file_that_is_not_there() -> None:
    found = findings(
        "--upstream", "https://127.0.0.1:9", "--upstream-ca-file", "/nowhere.pem", code=1
    )
    assert found["engine", "reachable"]["state"] == "missing"
    assert "upstream_ca_file" in found["engine", "reachable"]["text"]


def test_something_else_listens(engine: ScriptedEngine) -> None:
    engine.on("/v1/models", send(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"))
    found = findings("--upstream", engine.url, code=1)
    assert "does not answer" in found["engine", "reachable"]["text"]


def test_without_gpus_it_works_and_says_what_to_set(url: str, nvml: SimulatedNvml) -> None:
    nvml.scene = Scene(gpus=(), errors={"nvmlInitWithFlags": 9})
    found = findings("--upstream", url)
    assert found["gpu", "NVML"]["state"] == "warning"
    assert "driver_not_loaded" in found["gpu", "NVML"]["text"]
    assert found["ceiling", "bandwidth"]["state"] == "warning"
    assert found["ceiling", "bandwidth"]["value"] is None
    assert "set gpu or gpu_bandwidth" in found["ceiling", "bandwidth"]["text"]
    assert ("ceiling", "ceiling, streamed") not in found
    named = findings("--upstream", url, "--gpu", "RTX A6000")
    assert named["ceiling", "ceiling, streamed"]["value"] == pytest.approx(54.3, abs=0.05)


def test_hidden_processes_are_a_warning(
    url: str, nvml: SimulatedNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("tokgauge.gpu.nvml", "tokgauge.check.gpus"):
        monkeypatch.setattr(f"{module}.in_host_pid_namespace", lambda: False)
    found = findings("--upstream", url)
    assert "--pid=host" in found["gpu", "process names"]["text"]
    assert found["gpu", "GPU 0 contention"]["value"] == "unknown"
    assert "6 without a name" in found["gpu", "GPU 0 processes"]["text"]
    told = findings("--upstream", url, "--engine-pids", "81204")
    assert told["gpu", "GPU 0 contention"]["value"] == "idle_neighbours"


def test_settings_win_over_what_is_found(url: str) -> None:
    found = findings(
        *("--upstream", url, "--gpu-bandwidth", "1e12", "--weights-bytes", "10e9"),
        *("--kv-bytes-per-token", "1000"),
    )
    assert found["ceiling", "bandwidth"]["value"] == 1e12
    assert "given in the settings" in found["ceiling", "bandwidth"]["source"]
    assert found["ceiling", "weights, streamed"]["source"] == "settings"
    assert found["ceiling", "KV cache"]["source"] == "settings"
    assert found["ceiling", "ceiling, streamed"]["value"] == 100


def test_an_engine_that_wants_a_key() -> None:
    with running_engine(EngineProfile(api_key="sesame", speed=20)) as url:
        found = findings("--upstream", url, code=1)
        assert found["engine", "models"]["state"] == "missing"
        assert "set api_key" in found["engine", "models"]["text"]
        assert "no model has a name" in found["engine", "usage injection"]["text"]
        named = findings("--upstream", url, "--models", "qwen")
        assert named["engine", "models"]["state"] == "ok"
        assert "401" in named["engine", "usage injection"]["text"]
        opened = findings("--upstream", url, "--api-key", "sesame")
        assert opened["engine", "usage injection"]["value"] is True


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        ("401 Unauthorized", {"error": {"message": "no"}}, "wants a key (401): set api_key"),
        ("403 Forbidden", {}, "wants a key (403): set api_key"),
        ("404 Not Found", {"detail": "Not Found"}, "answers 404"),
        ("500 Oh", {}, "answers 500"),
        ("200 OK", {"object": "list", "data": []}, "lists none"),
        ("200 OK", {"data": [{"id": ""}, {"id": 7}, "qwen", {"id": "a" * 5000}]}, "lists none"),
        ("200 OK", ["qwen"], "lists none"),
    ],
)
def test_an_engine_without_a_model_list(
    engine: ScriptedEngine, status: str, body: object, words: str
) -> None:
    engine.on("/v1/models", send(json_answer(body, status)))
    found = findings("--upstream", engine.url, code=1)["engine", "models"]
    assert found["state"] == "missing"
    assert words in found["text"]
    assert "their names can be set with models" in found["text"]
    assert findings("--upstream", engine.url, "--models", "a")["engine", "models"]["state"] == "ok"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("RTX A600", "near it: NVIDIA RTX A6000"),
        ("H10", "is no card of the table"),
        ("toaster", "is no card of the table: correct it"),
        ("A100", "means NVIDIA A100"),
    ],
)
def test_a_card_that_is_named_wrong(url: str, name: str, words: str) -> None:
    found = findings("--upstream", url, "--gpu", name, code=1)["ceiling", "gpu"]
    assert found["state"] == "missing"
    assert words in found["text"]
    assert "set gpu_bandwidth" in found["text"]
    given = findings("--upstream", url, "--gpu", name, "--gpu-bandwidth", "1e12")
    assert ("ceiling", "gpu") not in given


def by_wish(wished: Script) -> Script:
    """An engine that streams one token, and answers like this to the wish for usage."""

    async def script(c: Conversation) -> None:
        await (wished if b"include_usage" in c.request.body else stream(*ONE_TOKEN, DONE))(c)

    return script


async def _dies(conversation: Conversation) -> None:
    conversation.reset()


ONE_TOKEN = (ROLE, chat_event("Hi"), chat_event({}, finish="length"))


@pytest.mark.parametrize(
    ("script", "state", "value", "words"),
    [
        (by_wish(stream(*ONE_TOKEN, usage_event(1), DONE)), "ok", True, "accepted: streams"),
        (stream(*ONE_TOKEN, usage_event(1), DONE), "ok", True, "not needed"),
        (stream(*ONE_TOKEN, DONE), "warning", False, "sends no usage"),
        (by_wish(stream(*ONE_TOKEN)), "warning", False, "differs with it: only one"),
        (
            by_wish(stream(usage_event(1), *ONE_TOKEN, DONE)),
            "warning",
            False,
            "differs with it",
        ),
        (by_wish(stream()), "warning", False, "refuses stream_options"),
        (by_wish(_dies), "warning", False, "refuses stream_options"),
        (by_wish(send(json_answer({}, "404 Not Found"))), "warning", False, "refuses stream_opt"),
        (
            send(json_answer({"error": {"message": "unknown field stream_options"}}, "400 Bad")),
            "warning",
            False,
            "refuses stream_options",
        ),
        (send(json_answer({"detail": "no"}, "404 Not Found")), "warning", None, "404: no"),
    ],
)
def test_whether_usage_can_be_asked_for(
    engine: ScriptedEngine, script: Script, state: str, value: bool | None, words: str
) -> None:
    engine.on(CHAT, script)
    found = findings("--upstream", engine.url)["engine", "usage injection"]
    assert (found["state"], found["value"]) == (state, value)
    assert words in found["text"]
    asked = json.loads(bytes(engine.requests[0].body))
    assert asked["max_tokens"] == 1
    assert asked["stream_options"] == {"include_usage": True}


def test_no_token_is_generated_when_nothing_is_injected(engine: ScriptedEngine) -> None:
    found = findings("--upstream", engine.url, "--no-inject-usage")
    assert found["engine", "usage injection"]["state"] == "ok"
    assert all(request.method == "GET" for request in engine.background)


def test_an_engine_that_dies_while_it_is_asked(engine: ScriptedEngine) -> None:
    engine.on(CHAT, _dies)
    found = findings("--upstream", engine.url)
    assert found["engine", "usage injection"]["state"] == "warning"
    assert found["engine", "usage injection"]["value"] is None


def test_a_page_without_an_answer_has_no_status(engine: ScriptedEngine) -> None:
    engine.on("/metrics", _dies)
    told = findings("--upstream", engine.url)["engine", "metrics"]
    assert told["state"] == "warning"
    assert "GET /metrics gives no answer (" in told["text"]
    engine.on("/metrics", send(answer(b"", "404 Not Found")))
    told = findings("--upstream", engine.url)["engine", "metrics"]
    assert "GET /metrics answers 404" in told["text"]


def test_pages_that_are_not_there(engine: ScriptedEngine) -> None:
    engine.on("/metrics", send(answer(b"my_own_metric 1\n", content_type="text/plain")))
    found = findings("--upstream", engine.url)
    assert "its version is not told" in found["engine", "reachable"]["text"]
    assert found["engine", "metrics"]["state"] == "warning"
    assert found["ceiling", "weights"]["state"] == "warning"
    assert "weights_bytes" in found["ceiling", "weights"]["text"]


def test_a_mixture_has_a_size_and_no_rule_of_thumb(url: str, tmp_path: Path) -> None:
    directory = checkpoints.write(tmp_path, zoo.CASES["OlmoeForCausalLM"].build())
    found = findings("--upstream", url, "--model-path", str(directory), "--gpu", "RTX A6000")
    whole = found["ceiling", "weights, checkpoint"]
    assert whole["state"] == "ok"
    assert "and no rule of thumb by it: a step of a mixture of experts" in whole["text"]
    assert ("ceiling", "ceiling, streamed") in found
    assert ("ceiling", "ceiling, checkpoint") not in found


def test_a_class_that_is_not_understood_is_a_warning_with_its_reason(
    url: str, tmp_path: Path
) -> None:
    model = checkpoints.qwen2_5_half_b()
    model.config["architectures"] = ["NewcomerForCausalLM"]
    directory = checkpoints.write(tmp_path, model)
    found = findings("--upstream", url, "--model-path", str(directory), "--gpu", "RTX A6000")
    assert found["ceiling", "weights, streamed"]["state"] == "warning"
    assert "NewcomerForCausalLM is not among" in found["ceiling", "weights, streamed"]["text"]
    assert ("ceiling", "ceiling, streamed") not in found
    assert ("ceiling", "ceiling, checkpoint") not in found
