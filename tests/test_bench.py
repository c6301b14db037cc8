"""The bench's own set-up, with the variables that its README tells people to set."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.candidates import tokgauge
from bench.candidates.launch import Place, from_pypi
from bench.processes import ROOT, Child, Cores, free_port
from tests.support.engine import ScriptedEngine
from tests.support.metrics import wait_until
from tests.support.process import status


def documented() -> set[str]:
    return set(re.findall(r"\$([A-Z_]{3,})", (ROOT / "bench" / "README.md").read_text()))


def test_the_proxy_starts_with_the_variables_of_the_bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert documented() == {"BENCH_CACHE"}
    for variable in documented():
        monkeypatch.setenv(variable, str(tmp_path))
    launcher = tmp_path / "tokgauge"  # the venv's, without having to be installed
    launcher.write_text(f"#!{sys.executable}\nfrom tokgauge.cli import main\nmain()\n")
    launcher.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "proxy"))
    with ScriptedEngine() as engine:
        place = Place(free_port(), engine.port, tmp_path)
        launch = tokgauge.start(place)
        assert launch.command is not None
        cores = Cores().candidates
        with Child(
            launch.command, cores, log=tmp_path / "log", environment=launch.environment
        ) as c:
            wait_until(
                lambda: c.exited is not None or status(place.port, "/tokgauge/readyz") == 200,
                60, "it answers",
            )  # fmt: skip
            assert c.exited is None, c.last_words()


def test_programs_from_pypi_lie_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path))
    asked: list[list[str]] = []

    def install(command: list[str], **_: object) -> None:
        asked.append(command)
        (tmp_path / "one" / "bin").mkdir(parents=True, exist_ok=True)
        (tmp_path / "one" / "bin" / "program").touch()

    monkeypatch.setattr(subprocess, "run", install)
    assert from_pypi("one", "one==1", "program") == tmp_path / "one" / "bin" / "program"
    assert asked[0][-1] == str(tmp_path / "one")
    before = len(asked)
    from_pypi("one", "one==1", "program")
    assert len(asked) == before, "it is there"
