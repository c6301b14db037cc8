"""Keeps what is known of the engine up to date: whether it is up, its models, its metrics page."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic

import httpx2

from tokgauge.engine import metrics_page
from tokgauge.engine.client import AnswerTooLarge, EngineClient
from tokgauge.engine.facts import PATIENT_ENGINES, EngineFacts, read_models, read_version
from tokgauge.engine.metrics_page import EngineReading

logger = logging.getLogger("tokgauge")

_POLL_TIMEOUT = 5.0
_FIRST_POLL_TIMEOUT = 1.0
_METRICS_TIMEOUT = 2.0


class EnginePoll:
    """Asks the engine, unless that disturbs it now.

    busy: whether any request runs. interval: seconds between questions for the models.
    """

    def __init__(
        self, client: EngineClient, facts: EngineFacts, busy: Callable[[], bool], interval: float
    ) -> None:
        self._client = client
        self._facts = facts
        self._busy = busy
        self._interval = interval
        self._models_known = False

    async def first(self) -> None:
        """One short try before the first request comes in, so that its model has a name."""
        await self._models(_FIRST_POLL_TIMEOUT)

    async def models(self) -> None:
        """Ask for the models.

        An engine that is not known to stand it while it generates is asked once, and again when it
        has been away: llama-cpp-python cuts a stream for any other request.
        """
        patient = self._facts.may_be_asked_while_busy
        if patient or not (self._busy() or (self._models_known and self._facts.up)):
            await self._models(_POLL_TIMEOUT)

    def pause(self) -> float:
        """Seconds until the next question."""
        # A model list is soon needed and soon there once the engine is: ask more often.
        return self._interval if self._facts.up else min(1.0, self._interval)

    async def _models(self, timeout: float) -> None:
        asked = await self._asked("/v1/models", timeout)
        if asked is None:
            self._models_known = False
            return
        cards, problem = await asyncio.to_thread(read_models, *asked)
        self._facts.models_problem = problem
        if cards is not None:
            self._facts.learn_models(cards)
            self._models_known = bool(cards)

    async def metrics(self) -> EngineReading | None:
        """Its metrics page, read; None where there is none that is understood.

        llama-cpp-python, which a question about its models disturbs, has no such page.
        """
        asked = await self._asked("/metrics", _METRICS_TIMEOUT)
        if asked is None or asked[0] != 200:
            return None
        reading = await asyncio.to_thread(metrics_page.read, asked[1], monotonic())
        restarted = reading.started_at != self._facts.started_at
        self._facts.started_at = reading.started_at or self._facts.started_at
        if reading.kind is None:
            return None
        self._facts.kind = reading.kind
        if reading.kind == "vllm" and (restarted or self._facts.version is None):
            self._facts.version = await self._version()
        if reading.kind in PATIENT_ENGINES:
            self._facts.may_be_asked_while_busy = True
            self._facts.is_vllm = reading.kind == "vllm"
        return reading

    async def _version(self) -> str | None:
        """As `GET /version` tells; vLLM's metrics page does not."""
        asked = await self._asked("/version", _METRICS_TIMEOUT)
        return read_version(*asked) if asked is not None else None

    async def _asked(self, target: str, timeout: float) -> tuple[int, bytes] | None:
        """Status and body of an answer within `timeout` seconds, None for none. Never raises."""
        try:
            asked = await self._client.ask("GET", target, b"", timeout)
        except AnswerTooLarge:
            return 200, b""  # as unreadable as a cut one
        except (httpx2.HTTPError, TimeoutError) as error:
            self._facts.reached(False, monotonic(), str(error) or type(error).__name__)
            logger.debug("the engine at %s does not answer: %r", self._client.address.url, error)
            return None
        self._facts.reached(True, monotonic())
        return asked
