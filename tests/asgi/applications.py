"""Applications as users write them, run by servers in processes of their own."""

import tokgauge.asgi
from fastapi import FastAPI

from tests.asgi.documented import block

_written: dict[str, FastAPI] = {}
exec(block("python"), _written)
mounted = _written["api"]
"""What docs/asgi.md shows, with a route of its own."""


@mounted.get("/own")
def own() -> dict[str, str]:
    return {"answered by": "the host"}


forgotten = FastAPI()
forgotten.mount("/llm", tokgauge.asgi.app)
