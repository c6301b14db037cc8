"""A directory of metrics without room costs figures for as long, and no traffic."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.test_signals import serving_processes
from tests.support.client import JSON, fetch
from tests.support.engine import ScriptedEngine, json_answer, send
from tests.support.metrics import scrape, wait_until
from tests.support.process import serving

pytestmark = pytest.mark.timeout(240)

MODELS = [f"model-{number}" for number in range(40)]
PATH = "/v1/completions"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> Path:
    junk = place / "junk"
    with junk.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return junk


def test_no_room_for_metrics(small: Path) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    reply = json_answer({"choices": [{"index": 0, "text": "a"}], "usage": usage})
    with ScriptedEngine(MODELS) as engine:
        engine.on(PATH, send(reply))
        with serving(engine.url, "--workers", "2", TMPDIR=str(small)) as proxy:
            asked = 0

            def ask_all() -> None:
                nonlocal asked
                for model in MODELS:
                    body = json.dumps({"model": model, "prompt": "a"}).encode()
                    assert fetch(proxy.port, "POST", PATH, [JSON], body).status == 200
                asked += len(MODELS)

            wait_until(lambda: len(serving_processes(proxy)) == 2, 30, "two workers")
            junk = fill(small)
            ask_all()
            workers = serving_processes(proxy)
            os.kill(workers[0].pid, signal.SIGKILL)
            wait_until(
                lambda: len(serving_processes(proxy)) == 2 and not workers[0].is_running(),
                60, "another one takes its place, which has no file at all",
            )  # fmt: skip
            before = {one.pid for one in serving_processes(proxy)}
            for _ in range(3):
                ask_all()
            assert fetch(proxy.port, "GET", "/tokgauge/metrics").status == 200
            wait_until(lambda: "No space left on device" in proxy.text, 10, "it says so")
            assert {one.pid for one in serving_processes(proxy)} == before, "nobody died"

            junk.unlink()
            lost = len(MODELS)  # what the killed one had not written

            def all_there() -> bool:
                ask_all()
                total = scrape(proxy.port).total("requests_total", route="completions") or 0
                return asked - lost <= total <= asked

            wait_until(all_there, 60, "what waited has been written")
            assert scrape(proxy.port).total("observer_errors_total", where="metrics_files")
            proxy.signal(signal.SIGTERM)
            assert proxy.ended() == 0
        assert not [name for name in os.listdir(small) if name.startswith("tokgauge")]
