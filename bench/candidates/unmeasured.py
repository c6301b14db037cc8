"""This proxy with taps that measure nothing: the price of measuring is the difference."""

from __future__ import annotations

import sys

from tokgauge import __version__

from bench.candidates.launch import Launch, Place

NAME = "tokgauge, unmeasured"


def start(place: Place) -> Launch:
    engine = f"http://127.0.0.1:{place.engine_port}"
    return Launch((sys.executable, "-m", "bench.unmeasured", engine, str(place.port)))


def version() -> str:
    return __version__
