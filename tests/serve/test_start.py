"""A start that fails ends the process with its reason; one that succeeds has its relay."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.client import fetch
from tests.support.engine import ScriptedEngine
from tests.support.metrics import wait_until
from tests.support.process import CODE, environment, run, serving, status

pytestmark = pytest.mark.timeout(240)

WORKERS = pytest.mark.parametrize("workers", ["1", "2"])


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as engine:
        yield engine


def failed(*options: str, workers: str, port: int = 0, **variables: Any) -> str:
    """What a start says that must fail."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = port or probe.getsockname()[1]
    options = ("--port", str(port), "--no-nvml", "--workers", workers, *options)
    ended = run("serve", *options, **variables)
    assert ended.returncode == 3
    assert "Traceback" not in ended.stderr
    return ended.stderr


def test_the_port_is_taken(engine: ScriptedEngine) -> None:
    said = failed("--upstream", engine.url, workers="2", port=engine.port)
    assert f"cannot listen on 127.0.0.1:{engine.port}: Address already in use" in said


def test_certificates_that_cannot_be_read(engine: ScriptedEngine, tmp_path: Path) -> None:
    broken = tmp_path / "ca.pem"
    broken.write_text("not a certificate")
    url = engine.url.replace("http:", "https:")
    said = failed("--upstream", url, "--upstream-ca-file", str(broken), workers="1")
    assert "upstream_ca_file" in said


def test_a_calibration_that_cannot_be_read(engine: ScriptedEngine, tmp_path: Path) -> None:
    broken = tmp_path / "calibration.json"
    options = ("--upstream", engine.url, "--calibration", str(broken))
    assert f"{broken} cannot be read" in failed(*options, workers="1")
    broken.write_text("{}")
    assert f"{broken} is not a file of tokgauge calibrate" in failed(*options, workers="1")


def test_an_extra_that_is_missing(engine: ScriptedEngine, tmp_path: Path) -> None:
    (tmp_path / "opentelemetry.py").write_text("raise ImportError('not here')")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    said = failed("--upstream", engine.url, "--otel", workers="1", PYTHONPATH=path)
    assert "pip install 'tokgauge[otel]'" in said


@WORKERS
def test_a_request_log_on_a_closed_standard_output(engine: ScriptedEngine, workers: str) -> None:
    options = ["--upstream", engine.url, "--port", "0", "--request-log", "-", "--no-nvml"]
    command = [sys.executable, "-c", CODE, "serve", *options, "--workers", workers]
    ended = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command],
        stderr=subprocess.PIPE, text=True, timeout=60, env=environment(),
    )  # fmt: skip
    assert ended.returncode == 3
    assert "standard output is closed" in ended.stderr
    assert "Traceback" not in ended.stderr


@WORKERS
@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("tokgauge.serve.relay_app", "Room"),
        ("tokgauge.serve.relay_app", "AsyncExitStack"),
        ("tokgauge.serve.analyst", "Monitor"),
        ("tokgauge.serve.analyst", "EnginePoll"),
    ],
)
def test_a_bug_at_the_start_ends_it_with_its_reason(
    engine: ScriptedEngine, workers: str, tmp_path: Path, module: str, name: str
) -> None:
    """A failure that nobody thought of, in the making of a relay or the analyst or in its start."""
    (tmp_path / "sitecustomize.py").write_text(_BREAK.format(module=module, name=name))
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    options = ["--upstream", engine.url, "--port", "0", "--no-nvml", "--workers", workers]
    ended = run("serve", *options, PYTHONPATH=path)
    assert ended.returncode == 3
    assert "a fault of our own" in ended.stderr


_BREAK = """
import importlib.abc, sys

class Break(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != {module!r}:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def broken(module):
            run(module)
            def fail(*_, **__):
                raise RuntimeError("a fault of our own")
            module.{name} = fail
        spec.loader.exec_module = broken
        return spec

sys.meta_path.insert(0, Break())
"""


@WORKERS
def test_closed_standard_streams_become_nobodys_connection(
    engine: ScriptedEngine, workers: str
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--upstream", engine.url, "--port", str(port), "--no-nvml", "--workers", workers]
    command = [sys.executable, "-c", CODE, "serve", *options]
    popen = subprocess.Popen(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], env=environment()
    )
    try:
        wait_until(lambda: status(port, "/tokgauge/readyz") == 200, 60, "ready")
        assert fetch(port, "GET", "/v1/models").status == 200
        for process in [psutil.Process(popen.pid), *psutil.Process(popen.pid).children()]:
            for number in (0, 1, 2):
                target = os.readlink(f"/proc/{process.pid}/fd/{number}")
                assert target == "/dev/null" or target.startswith("pipe:"), target
    finally:
        popen.terminate()
        assert popen.wait(30) == 0


def test_the_request_log_on_an_output_that_nobody_reads_any_more(engine: ScriptedEngine) -> None:
    with serving(engine.url, "--request-log", "-") as proxy:
        assert proxy.popen.stdout is not None
        proxy.popen.stdout.close()
        for _ in range(3):
            assert status(proxy.port, "/v1/models") == 200
        proxy.popen.terminate()
        assert proxy.ended() == 0
    assert "the request log cannot be written" in proxy.text
