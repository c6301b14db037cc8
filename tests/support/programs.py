"""Programs that some tests start. A machine may lack them, CI may not."""

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

import pytest

_INSTALLED_BY = {
    "prometheus": "apt-get install prometheus",
    "promtool": "apt-get install prometheus",
    "alertmanager": "apt-get install prometheus-alertmanager",
    "amtool": "apt-get install prometheus-alertmanager",
    "chromium": "apt-get install chromium",
    "gcc": "apt-get install gcc libc6-dev",
    "hadolint": "make test",
    "kubectl": "apt-get install kubernetes-client",
    "systemd-analyze": "apt-get install systemd",
}
"""Program → what installs it; with apt-get on Debian."""


def program(name: str) -> str:
    """The program's path. Without it the test is skipped, in CI it fails."""
    return (
        # pip's, in a virtual environment that need not be activated, is of the version wanted.
        shutil.which(name, path=str(Path(sys.executable).parent))
        or shutil.which(name)
        # As Debian names those of the Prometheus project.
        or shutil.which(f"prometheus-{name}")
        or _missing(name)
    )


def _missing(name: str) -> NoReturn:
    message = f"{name} is not installed ({_INSTALLED_BY[name]})"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)
