"""`tokgauge calibrate` against the simulated engine over real sockets."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner, Result
from tokgauge.commands.calibrate import command
from tokgauge.diagnosis.calibration_file import Entry, HoldsFor, matching, read_calibrations
from tokgauge.simulator.gpu import Scene
from tokgauge.simulator.nvml import SimulatedNvml
from tokgauge.simulator.profile import EngineProfile
from tokgauge.simulator.server import running_engine

pytestmark = pytest.mark.timed

KNOWN = (
    "--weights-bytes", "3GB", "--kv-bytes-per-token", "229376", "--gpu-bandwidth", "768 GB/s",
)  # fmt: skip
PROFILE = EngineProfile(
    weights_bytes=3e9, kv_bytes_per_token=229_376.0, max_num_seqs=4, max_model_len=8192
)
"""Slow enough that a busy machine keeps its pace, with a cache that matters."""


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without GPUs, and without the tester's own settings."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "NO_PROXY", "TOKGAUGE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    library = SimulatedNvml(Scene(gpus=()))
    library.install()
    yield
    library.uninstall()


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with running_engine(PROFILE) as url:
        yield url


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def test_it_tells_what_a_step_costs_and_stores_it(engine: str, tmp_path: Path) -> None:
    file = tmp_path / "calibration.json"
    result = run(engine, *KNOWN, "--seconds", "35", "--output", str(file), "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    true = PROFILE.bandwidth * PROFILE.efficiency
    bandwidth = found["effective_bandwidth_bytes_per_second"]
    assert bandwidth["low"] < true * 1.05
    assert true * 0.95 < bandwidth["high"] <= 768e9
    assert found["fixed_step_seconds"]["low"] < 1e-3  # it has none
    assert found["seconds"] < 60
    assert found["stored"] == str(file)
    (entry,) = read_calibrations(file)
    assert entry.holds_for.model == PROFILE.model
    assert entry.holds_for.weights_bytes == 3e9
    assert isinstance(matching([entry], HoldsFor(model=PROFILE.model)), Entry)


def test_without_the_bytes_it_says_what_to_set(engine: str) -> None:
    result = run(engine)
    assert result.exit_code == 3
    assert "the bytes of the weights are not known" in result.stderr
    assert "--weights-bytes" in result.stderr
    result = run(engine, "--weights-bytes", "3GB", "--json")
    assert result.exit_code == 3
    error = json.loads(result.stdout)["error"]
    assert error["kind"] == "inputs"
    assert "--kv-bytes-per-token" in error["message"]


def test_it_refuses_beside_the_traffic_of_others() -> None:
    with running_engine(PROFILE) as url:
        body = {"model": PROFILE.model, "prompt": "go on", "max_tokens": 4000, "stream": True}
        body |= {"ignore_eos": True}
        begun, enough = threading.Event(), threading.Event()

        def somebody() -> None:
            with httpx2.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
                for _ in response.iter_raw():
                    begun.set()
                    if enough.is_set():
                        return

        other = threading.Thread(target=somebody)
        other.start()
        try:
            assert begun.wait(20)
            result = run(url, *KNOWN, "--seconds", "30")
        finally:
            enough.set()
            other.join()
    assert result.exit_code == 3
    assert "1 request of others runs or waits on the engine" in result.stderr
    assert "--beside-traffic" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ftp://127.0.0.1",), "accepted: an address such as"),
        ((), "upstream is not set"),
        (("http://127.0.0.1:1", "--weights-bytes", "many"), "weights_bytes"),
        (("http://127.0.0.1:1", "--seconds", "1"), "--seconds"),
    ],
)
def test_wrong_usage_is_said(arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_damaged_file_is_known_before_anything_is_asked(tmp_path: Path) -> None:
    file = tmp_path / "calibration.json"
    file.write_text("{")
    result = run("http://127.0.0.1:1", "--output", str(file))
    assert result.exit_code == 2
    assert "is not a file of tokgauge calibrate" in result.stderr


def test_an_engine_that_is_not_there_is_said() -> None:
    result = run("http://127.0.0.1:1", *KNOWN)
    assert result.exit_code == 3
    assert "does not answer" in result.stderr


def test_a_model_that_is_not_listed_is_said(engine: str) -> None:
    result = run(engine, *KNOWN, "--model", "another")
    assert result.exit_code == 3
    assert PROFILE.model in result.stderr
