"""This proxy as anybody runs it."""

from __future__ import annotations

import sys
from pathlib import Path

from tokgauge import __version__

from bench.candidates.launch import Launch, Place

NAME = "tokgauge"


def start(place: Place) -> Launch:
    command = Path(sys.executable).with_name("tokgauge")
    return Launch(
        (
            str(command), "serve", "--upstream", f"http://127.0.0.1:{place.engine_port}",
            "--port", str(place.port), "--log-level", "warning",
        )
    )  # fmt: skip


def version() -> str:
    return __version__
