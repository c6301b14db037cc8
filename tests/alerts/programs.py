"""Programs of the Prometheus project, as Debian's and the project's own packages name them."""

import os
import shutil

import pytest

_DEBIAN = {
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "alertmanager": "prometheus-alertmanager",
    "amtool": "prometheus-alertmanager",
}


def program(name: str) -> str:
    """The program's path. Without it the test is skipped, in CI it fails."""
    path = shutil.which(name) or shutil.which(f"prometheus-{name}")
    if path is not None:
        return path
    message = f"{name} is not installed (Debian: apt-get install {_DEBIAN[name]})"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)
