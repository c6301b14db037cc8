"""The Dockerfile, held against hadolint's rules."""

import subprocess
from pathlib import Path

from tests.support.programs import program

ROOT = Path(__file__).parents[2]


def test_hadolint_has_no_complaints() -> None:
    linted = subprocess.run(
        [program("hadolint"), str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert linted.returncode == 0, linted.stdout
