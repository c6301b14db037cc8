"""The proxy's own pages under `/tokgauge/`."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from tokgauge import __version__
from tokgauge.engine.facts import EngineFacts
from tokgauge.export.published import Published, Sample
from tokgauge.http.error_responses import host_not_allowed
from tokgauge.http.request import REQUEST
from tokgauge.pages import status
from tokgauge.serve.workers import DRAINING

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


_SHOWN_HOST = 200


class AllowedHosts:
    """Under which names the pages may be read.

    A website can give this machine a name of its own and have a visitor's browser read pages under
    it (DNS rebinding). It cannot do so with an IP address, so those are always allowed, as are
    localhost and the address that the proxy listens on. names: further ones; `*` allows any.
    """

    def __init__(self, listens_on: str, names: Iterable[str]) -> None:
        self._names = {_bare(name) for name in ("localhost", listens_on, *names)}

    def allows(self, host: str) -> bool:
        """Whether a Host header, whose port does not matter, is one of them."""
        name = _bare(host)
        if name in self._names or "*" in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


_PORT = re.compile(r":\d*$")


def _bare(host: str) -> str:
    """A host in lower case, without port, brackets and the root's dot."""
    host = host.strip(" \t").lower()
    if host.count(":") == 1 or host.startswith("["):
        host = _PORT.sub("", host)
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1]
    return host.removesuffix(".")


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
    allowed: AllowedHosts,
    problems: Callable[[], list[str]],
) -> ASGIApp:
    """The ASGI application of the pages; `refresh` brings live figures up to now.

    problems: what is wrong and what to do, each in a sentence for a person.
    """

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
                "problems": problems(),
                "usage_injection": {
                    route: {"state": state, "why": why}
                    for route, (state, why) in readiness.facts.injection.states().items()
                },
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

    pages = Router(
        redirect_slashes=False,  # a redirect would repeat whatever Host it was asked under
        routes=[
            Route("/tokgauge/metrics", metrics),
            Route("/tokgauge/status", status_page),
            Route("/tokgauge/live", live),
            Route("/tokgauge/healthz", healthz),
            Route("/tokgauge/readyz", readyz),
        ],
    )

    async def under_an_allowed_name(scope: Scope, receive: Receive, send: Send) -> None:
        host = scope["extensions"][REQUEST].incoming.host
        if host is None or allowed.allows(host.decode("latin-1")):
            await pages(scope, receive, send)
            return
        refusal = host_not_allowed(host[:_SHOWN_HOST].decode("latin-1"))
        response = Response(refusal.body(), refusal.status, media_type="application/json")
        await response(scope, receive, send)

    return under_an_allowed_name


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
