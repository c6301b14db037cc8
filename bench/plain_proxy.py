"""The comparison: a proxy as one writes it first, on uvicorn with uvloop and httptools."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

_METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]
_OWN = {"host", "connection", "content-length", "transfer-encoding"}


def make_app(engine: str) -> Starlette:
    """A proxy in front of `engine`."""
    client = httpx2.AsyncClient(
        base_url=engine,
        timeout=None,
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
    )

    async def relay(request: Request) -> StreamingResponse:
        response = await client.send(
            client.build_request(
                request.method,
                request.url.path,
                headers=[(k, v) for k, v in request.headers.items() if k not in _OWN],
                content=await request.body(),
            ),
            stream=True,
        )
        headers = {k: v for k, v in response.headers.items() if k not in _OWN - {"content-length"}}
        return StreamingResponse(
            response.aiter_raw(),
            response.status_code,
            headers,
            background=BackgroundTask(response.aclose),
        )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    return Starlette(routes=[Route("/{path:path}", relay, methods=_METHODS)], lifespan=lifespan)


if __name__ == "__main__":
    uvicorn.run(
        make_app(sys.argv[1]),
        host="127.0.0.1",
        port=int(sys.argv[2]),
        loop="uvloop",
        http="httptools",
        ws="none",
        access_log=False,
        log_level="warning",
        backlog=4096,
    )
