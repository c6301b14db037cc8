"""The experiment's bench: a real engine, over HTTP."""

from __future__ import annotations

import asyncio
from time import monotonic, process_time
from typing import Self

import httpx2

from tokgauge.calibrate.answers import measured, merged
from tokgauge.calibrate.bench import Load, Measured
from tokgauge.calibrate.errors import CalibrationError
from tokgauge.calibrate.prompts import Prompts
from tokgauge.calibrate.stream import Manner, RefusedError, Streamed, streamed
from tokgauge.engine import metrics_page
from tokgauge.engine.client import http_client
from tokgauge.engine.facts import read_models, read_version
from tokgauge.engine.metrics_page import EngineReading
from tokgauge.model.served import ServedModel
from tokgauge.settings import Engine

_ANSWER_SECONDS = 120.0
_PAGE_SECONDS = 10.0
_LOOK_INTERVAL = 0.2
_SETTLES_WITHIN = 1.5
"""Seconds until an engine's page no longer counts what has ended."""

_FOREIGN_TOKENS = 0.02
_READER_SHARE = 0.8
"""Share of one processor above which the times are those of the reader."""


class EngineBench:
    """Use it in an `async with` statement. Raises OSError for a wrong file of certificates."""

    def __init__(self, engine: Engine) -> None:
        self._address, self._client = http_client(
            engine,
            {"accept-encoding": "identity"},
            timeout=httpx2.Timeout(_ANSWER_SECONDS, connect=_PAGE_SECONDS),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
        )
        self._prompts = Prompts()
        self._manner: Manner | None = None
        self._before: EngineReading | None = None
        self._own_tokens = 0
        self._merged = False
        self.has_page: bool | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def models(self) -> tuple[ServedModel, ...]:
        """The models with weights of their own. Raises `CalibrationError`."""
        try:
            got = await self._client.get(self._address.url + "/v1/models", timeout=_PAGE_SECONDS)
        except (httpx2.HTTPError, OSError) as error:
            raise CalibrationError(
                "unreachable",
                f"{self._address.url} does not answer ({str(error) or type(error).__name__}): is "
                "the engine running, and are host and port right?",
            ) from error
        cards, problem = read_models(got.status_code, got.content)
        if not cards:
            raise CalibrationError("no_model", problem or "the engine lists no model")
        return tuple(card for card in cards if card.parent is None) or cards

    async def version(self) -> str | None:
        """As `GET /version` tells (vLLM); None where it does not."""
        try:
            got = await self._client.get(self._address.url + "/version", timeout=_PAGE_SECONDS)
        except (httpx2.HTTPError, OSError):
            return None
        return read_version(got.status_code, got.content)

    async def reading(self) -> EngineReading | None:
        """The engine's own page; None where there is none that is known."""
        try:
            got = await self._client.get(self._address.url + "/metrics", timeout=_PAGE_SECONDS)
        except (httpx2.HTTPError, OSError):
            return None
        found = await asyncio.to_thread(metrics_page.read, got.content, monotonic())
        known = got.status_code == 200 and found.kind is not None
        self.has_page = known
        return found if known else None

    def choose(self, model: str) -> None:
        """The model that is asked from now on."""
        self._manner = Manner(model)

    def now(self) -> float:
        """Monotonic seconds."""
        return monotonic()

    async def others(self) -> str | None:
        """By the engine's page: requests that are not ours, or tokens since the last question."""
        until = monotonic() + _SETTLES_WITHIN
        while True:
            found = await self.reading()
            if found is None or found.running is None:
                return None
            busy = found.running + (found.waiting or 0)
            if not busy or monotonic() > until:
                break
            await asyncio.sleep(_LOOK_INTERVAL)
        own, self._own_tokens, before = self._own_tokens, 0, self._before
        self._before = found
        if busy:
            what = (
                "1 request of others runs or waits"
                if busy == 1
                else (f"{busy} requests of others run or wait")
            )
            return f"{what} on the engine"
        if found.kind != "vllm" or before is None:
            return None  # others count the tokens of a request when it ends
        if found.generation_tokens_total is None or before.generation_tokens_total is None:
            return None
        foreign = found.generation_tokens_total - before.generation_tokens_total - own
        if foreign <= _FOREIGN_TOKENS * own:
            return None
        return f"the engine generated {foreign} tokens for others meanwhile"

    async def measure(self, load: Load) -> Measured:
        """See `Bench`."""
        looks: list[EngineReading] = []
        watch = self.has_page and self._merged
        watching = asyncio.create_task(self._watch(looks)) if watch else None
        began, used = monotonic(), process_time()
        try:
            answers = await self._answers(load)
        finally:
            if watching is not None:
                watching.cancel()
        for answer in answers:
            self._own_tokens += answer.usage.completion or len(answer.arrivals)
            if answer.usage.prompt is not None:
                self._prompts.counted(answer.words, answer.usage.prompt)
        late = process_time() - used > _READER_SHARE * (monotonic() - began)
        self._merged = self._merged or merged(answers)  # then its page is looked at from now on
        return measured(answers, looks, late=late)

    async def _answers(self, load: Load) -> list[Streamed]:
        while True:
            tasks = [asyncio.create_task(self._one(load)) for _ in range(load.sequences)]
            try:
                return await asyncio.gather(*tasks)
            except RefusedError as refused:
                bent = self._asked().bends() if refused.may_be_a_parameter else False
                if not bent:
                    raise
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, load: Load) -> Streamed:
        prompt, words = self._prompts.made(load.context)
        url = self._address.url
        return await streamed(self._client, url, self._asked(), prompt, words, load.tokens)

    def _asked(self) -> Manner:
        if self._manner is None:
            raise RuntimeError("choose a model first")
        return self._manner

    async def _watch(self, looks: list[EngineReading]) -> None:
        while True:
            found = await self.reading()
            if found is not None:
                looks.append(found)
            await asyncio.sleep(_LOOK_INTERVAL)
