"""The proxy's own pages under `/tokgauge/`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tokgauge import __version__
from tokgauge.export.prometheus import Metrics
from tokgauge.export.published import Sample
from tokgauge.http.error_responses import host_not_allowed
from tokgauge.http.hosts import AllowedHosts
from tokgauge.pages import status

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


_SHOWN_HOST = 200

Lifespan = Callable[[Starlette], AbstractAsyncContextManager[None]]


class Shown(Protocol):
    """Whose figures the pages show."""

    metrics: Metrics
    injection: Mapping[str, tuple[str, str]]

    @property
    def problems(self) -> list[str]:
        """What of settings and engine costs figures, and what to do."""

    async def refresh(self) -> None:
        """Bring all figures up to now."""

    def not_ready(self) -> str | None:
        """Why new requests are not welcome, None when they are."""


def own_pages(shown: Shown, allowed: AllowedHosts, lifespan: Lifespan) -> Starlette:
    """The application of the pages. lifespan: what runs beside them."""
    registry = shown.metrics.registry

    async def metrics(request: Request) -> Response:
        await shown.refresh()
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), media_type=None, headers={"content-type": content_type})

    async def live(request: Request) -> Response:
        await shown.refresh()
        published = shown.metrics.published
        figures = published.current
        return JSONResponse(
            {
                "verdict": figures.verdict if figures is not None else None,
                "figures": published.samples(),
                "live": _live_samples(registry),
                "usage_injection": {
                    route: {"state": state, "why": why}
                    for route, (state, why) in shown.injection.items()
                },
                "problems": shown.problems,
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
        await shown.refresh()
        reason = shown.not_ready()
        if reason is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", "reason": reason}, status_code=503)

    application = Starlette(
        routes=[
            Route("/tokgauge/metrics", metrics),
            Route("/tokgauge/status", status_page),
            Route("/tokgauge/live", live),
            Route("/tokgauge/healthz", healthz),
            Route("/tokgauge/readyz", readyz),
        ],
        middleware=[Middleware(_UnderAllowedNames, allowed=allowed)],
        lifespan=lifespan,
    )
    # A redirect would repeat whatever Host it was asked under.
    application.router.redirect_slashes = False
    return application


class _UnderAllowedNames:
    """Shows nothing under a name that a website may have given to this machine."""

    def __init__(self, app: ASGIApp, allowed: AllowedHosts) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host") if scope["type"] == "http" else None
        if host is None or self._allowed.allows(host):
            await self._app(scope, receive, send)
            return
        refusal = host_not_allowed(host[:_SHOWN_HOST])
        response = Response(refusal.body(), refusal.status, media_type="application/json")
        await response(scope, receive, send)


def _live_samples(registry: CollectorRegistry) -> dict[str, list[Sample]]:
    """The samples of `_LIVE`; a name without samples has an empty list."""
    found: dict[str, list[Sample]] = {name.removeprefix("tokgauge_"): [] for name in sorted(_LIVE)}
    for family in registry.restricted_registry(_LIVE).collect():
        for sample in family.samples:
            if sample.name in _LIVE:
                found[sample.name.removeprefix("tokgauge_")].append(
                    {"labels": sample.labels, "value": sample.value}
                )
    return found
