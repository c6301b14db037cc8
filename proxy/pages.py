"""The proxy's own pages under `/tokgauge/`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from proxy import __version__, status
from proxy.engine import EngineFacts
from proxy.published import Published, Sample
from proxy.workers import DRAINING

PREFIX = b"/tokgauge"

_LIVE = frozenset(
    f"tokgauge_{name}"
    for name in (
        "upstream_up",
        "requests_in_flight",
        "streams_stalled",
        "output_tokens_per_second",
        "time_to_first_token_seconds_sum",
        "time_to_first_token_seconds_count",
        "silent_wait_seconds_sum",
        "silent_wait_seconds_count",
    )
)
"""Samples of the metrics that `/tokgauge/live` shows beside the published figures."""

_FOR_BROWSERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_NOT_A_PAGE = "default-src 'none'; frame-ancestors 'none'"


@dataclass
class Readiness:
    """Whether new requests are welcome."""

    facts: EngineFacts
    shared: Path | None = None
    draining: bool = False

    def reason_against(self) -> str | None:
        """Why not, None when they are."""
        if self.draining or (self.shared is not None and (self.shared / DRAINING).exists()):
            return "shutting down"
        if self.facts.up is None:
            return "the engine has not been reached yet"
        return None if self.facts.up else "the engine cannot be reached"


def is_own(path: bytes) -> bool:
    """Whether a raw request path belongs to the proxy itself."""
    return path == PREFIX or path.startswith(PREFIX + b"/")


def own_pages(
    registry: CollectorRegistry,
    refresh: Callable[[], None],
    readiness: Readiness,
    published: Published,
) -> Starlette:
    """The ASGI application of the pages; `refresh` brings live figures up to now."""

    async def metrics(request: Request) -> Response:
        refresh()
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        # In a thread: rendering thousands of series takes longer than an event may wait.
        body = await asyncio.to_thread(encode, registry)
        return Response(body, media_type=None, headers={"content-type": content_type})

    async def live(request: Request) -> Response:
        refresh()
        published.load()
        figures = published.current
        return JSONResponse(
            {
                "verdict": figures.verdict if figures is not None else None,
                "figures": published.samples(),
                # In a thread like the metrics: workers' values are read from files.
                "live": await asyncio.to_thread(_live_samples, registry),
                "version": __version__,
            },
            headers=_FOR_BROWSERS | {"Content-Security-Policy": _NOT_A_PAGE},
        )

    async def status_page(request: Request) -> Response:
        return HTMLResponse(
            status.PAGE, headers=_FOR_BROWSERS | {"Content-Security-Policy": status.POLICY}
        )

    async def healthz(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(request: Request) -> Response:
        reason = readiness.reason_against()
        if reason is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", "reason": reason}, status_code=503)

    return Starlette(
        routes=[
            Route("/tokgauge/metrics", metrics),
            Route("/tokgauge/status", status_page),
            Route("/tokgauge/live", live),
            Route("/tokgauge/healthz", healthz),
            Route("/tokgauge/readyz", readyz),
        ]
    )


def _live_samples(registry: CollectorRegistry) -> dict[str, list[Sample]]:
    """The samples of `_LIVE`, of all workers; a name without samples has an empty list."""
    found: dict[str, list[Sample]] = {name.removeprefix("tokgauge_"): [] for name in sorted(_LIVE)}
    for family in registry.collect():
        for sample in family.samples:
            if sample.name in _LIVE:
                found[sample.name.removeprefix("tokgauge_")].append(
                    {"labels": sample.labels, "value": sample.value}
                )
    return found
