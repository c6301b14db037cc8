"""The systemd unit, read by systemd where it is there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tokgauge.settings import Settings

from tests.support.programs import program

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "tokgauge.service"


def value(key: str) -> str:
    found = re.findall(rf"^{key}=(.*)$", UNIT.read_text(), re.MULTILINE)
    assert len(found) == 1, key
    return str(found[0])


def test_it_stops_by_draining() -> None:
    settings = Settings(upstream="http://127.0.0.1:8000")
    assert value("Type") == "exec"
    assert value("KillSignal") == "SIGTERM"
    limit = float(value("TimeoutStopSec").removesuffix("s"))
    assert limit > settings.drain_delay + settings.drain_timeout


@pytest.mark.parametrize("check", [["verify"], ["security", "--offline=yes", "--threshold=25"]])
def test_systemd_accepts_it(check: list[str], tmp_path: Path) -> None:
    """`verify` refuses a program that is not there, `security` what is too open (0 to 100)."""
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/tokgauge/bin/tokgauge", sys.executable))
    done = subprocess.run(
        [program("systemd-analyze"), *check, str(copy)], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert UNIT.name not in done.stderr, done.stderr
