"""Whether the engine answers, and what it tells of itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import httpx2
import msgspec

from tokgauge.check.asking import Asking
from tokgauge.check.finding import Finding, State
from tokgauge.check.injection import injection
from tokgauge.dialects.answer import UNREADABLE
from tokgauge.engine import metrics_page as engine_metrics
from tokgauge.engine.client import EngineClient
from tokgauge.engine.facts import read_models
from tokgauge.engine.metrics_page import EngineReading
from tokgauge.model.served import ServedModel
from tokgauge.settings import Engine, Settings


@dataclass(slots=True)
class EngineSeen:
    """What the engine told."""

    findings: list[Finding] = field(default_factory=list)
    models: tuple[ServedModel, ...] = ()
    reading: EngineReading | None = None

    @property
    def bases(self) -> tuple[ServedModel, ...]:
        """The models with weights of their own."""
        return tuple(card for card in self.models if card.parent is None)


async def look_at_engine(settings: Settings) -> EngineSeen:
    """Ask the engine for what the proxy would ask it."""
    seen = EngineSeen()
    address = settings.engine.upstream
    try:
        client = EngineClient(settings.engine)
    except OSError as error:  # of the file with certificates
        seen.findings.append(Finding("engine", "reachable", "missing", str(error)))
        return seen
    asking = Asking(client)
    try:
        try:
            status, body = await asking.get("/v1/models")
        except (httpx2.HTTPError, TimeoutError) as error:
            reason = str(error) or "no answer in time"
            seen.findings.append(
                Finding(
                    "engine",
                    "reachable",
                    "missing",
                    f"{address} does not answer ({reason}): is the engine running, and are host "
                    "and port right?",
                    address,
                    False,
                )
            )
            return seen
        version = await _version(asking)
        told = "its version is not told" if version is None else f"version {version}"
        seen.findings.append(
            Finding("engine", "reachable", "ok", f"{address} answers; {told}", address, version)
        )
        _note_models(seen, settings.engine, status, body)
        await _note_metrics(seen, asking)
        model = seen.bases[0].id if seen.bases else next(iter(settings.engine.models), None)
        seen.findings.append(await injection(asking, settings, model))
    finally:
        await client.close()
    return seen


async def _version(asking: Asking) -> str | None:
    try:
        status, body = await asking.get("/version")
        told: Any = msgspec.json.decode(body) if status == 200 else None
    except (httpx2.HTTPError, TimeoutError, *UNREADABLE):
        return None
    version = told.get("version") if isinstance(told, dict) else None
    return version if isinstance(version, str) else None


def _note_models(seen: EngineSeen, engine: Engine, status: int, body: bytes) -> None:
    cards, problem = read_models(status, body)
    seen.models = cards or ()
    if problem is not None:
        state: State = "ok" if engine.models else "missing"
        seen.findings.append(Finding("engine", "models", state, problem, "GET /v1/models"))
        return
    for card in seen.models:
        length = card.max_model_len
        text = "context length not told" if length is None else f"context of {length} tokens"
        if card.parent is not None:
            text += f", adapter of {card.parent}"
        seen.findings.append(
            Finding(
                "engine",
                f"model {card.id}",
                "ok",
                text,
                "GET /v1/models",
                {"id": card.id, "root": card.root, "max_model_len": length, "parent": card.parent},
            )
        )


async def _note_metrics(seen: EngineSeen, asking: Asking) -> None:
    reading = None
    try:
        status, page = await asking.get("/metrics")
    except (httpx2.HTTPError, TimeoutError) as error:
        why = f"gives no answer ({error or 'it takes too long'})"
    else:
        why = f"answers {status}"
        if status == 200:
            reading = engine_metrics.read(page, monotonic())
            why = reading.problem or "names no known engine"
    if reading is not None and reading.kind is not None:
        seen.reading = reading
        finding = Finding(
            "engine",
            "metrics",
            "ok",
            f"{reading.kind}: its steps, batch and KV cache can be read",
            "GET /metrics",
            reading.kind,
        )
    else:
        finding = Finding(
            "engine",
            "metrics",
            "warning",
            f"GET /metrics {why}: steps are then counted from the streams that pass the proxy",
            "GET /metrics",
        )
    seen.findings.append(finding)
