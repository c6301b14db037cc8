"""The proxy that one writes first: Starlette and httpx2 with a StreamingResponse."""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of

from bench.candidates.launch import Launch, Place

NAME = "Starlette + httpx2"


def start(place: Place) -> Launch:
    engine = f"http://127.0.0.1:{place.engine_port}"
    return Launch((sys.executable, "-m", "bench.plain_proxy", engine, str(place.port)))


def version() -> str:
    return f"{version_of('starlette')} + {version_of('httpx2')}"
