"""The experiment's bench: a real engine, over HTTP."""

from __future__ import annotations

import asyncio
from statistics import mean
from time import monotonic, process_time
from typing import Self

import httpx2
import msgspec

from tokgauge.calibrate.bench import Decoded, Load, Measured
from tokgauge.calibrate.errors import CalibrationError
from tokgauge.calibrate.prompts import Prompts
from tokgauge.calibrate.stream import Manner, RefusedError, Streamed, streamed
from tokgauge.engine import metrics_page
from tokgauge.engine.address import EngineAddress
from tokgauge.engine.facts import read_models
from tokgauge.engine.metrics_page import EngineReading
from tokgauge.model.served import ServedModel
from tokgauge.settings import Engine

_LEAST_STEPS = 12
_ONE_TOKEN_PER_EVENT = 1.02
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
        self._address = EngineAddress.of(
            engine.upstream, host_header=engine.upstream_host, ca_file=engine.upstream_ca_file
        )
        headers = {"host": self._address.own_host.decode("latin-1"), "accept-encoding": "identity"}
        if engine.api_key is not None:
            headers["authorization"] = f"Bearer {engine.api_key.get_secret_value()}"
        self._client = httpx2.AsyncClient(
            headers=headers, verify=self._address.tls_context() or False, trust_env=False,
            timeout=httpx2.Timeout(_ANSWER_SECONDS, connect=_PAGE_SECONDS),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
        )  # fmt: skip
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
            found = msgspec.json.decode(got.content, type=dict[str, object]).get("version")
        except (httpx2.HTTPError, OSError, msgspec.MsgspecError, UnicodeError):
            return None
        return found if isinstance(found, str) and got.status_code == 200 else None

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
        return self._seen(answers, looks, late)

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

    def _seen(self, answers: list[Streamed], looks: list[EngineReading], late: bool) -> Measured:
        alone = answers[0] if len(answers) == 1 and answers[0].arrivals else None
        prompt = first = None
        if alone is not None and alone.usage.prompt is not None:
            prompt = alone.usage.prompt - (alone.usage.cached_prompt or 0)
            first = alone.arrivals[0] - alone.sent_at
        merged = _tokens_per_event(answers) > _ONE_TOKEN_PER_EVENT
        self._merged = self._merged or merged  # then its page is looked at from now on
        decoded = _decoded(answers, looks)
        if late and not merged:
            decoded = "this machine could not read so many streams in time"
        return Measured(
            decoded=decoded if isinstance(decoded, Decoded) else None,
            because=decoded if isinstance(decoded, str) else None,
            together=_together(answers),
            prompt_tokens=prompt,
            first_token=first,
        )


def _decoded(answers: list[Streamed], looks: list[EngineReading]) -> Decoded | str:
    """What happened while all of them decoded, or why that is not known."""
    if any(len(answer.arrivals) < 2 for answer in answers):
        return "an answer had fewer than two tokens"
    if any(answer.usage.prompt is None or not answer.usage.completion for answer in answers):
        return "the engine does not tell the tokens of its answers (usage)"
    # The step in which the last prompt ends also computes that prompt: begin after the next one.
    begin = max(answer.arrivals[1] for answer in answers)
    end = min(answer.arrivals[-1] for answer in answers)
    inside = [[at for at in answer.arrivals if begin <= at <= end] for answer in answers]
    per_event = _tokens_per_event(answers)
    if min(len(times) for times in inside) < 2:
        return "the sequences did not run together long enough"
    before = [sum(at < begin for at in answer.arrivals) for answer in answers]
    context = sum(
        (answer.usage.prompt or 0) + per_event * (count + len(times) / 2)
        for answer, count, times in zip(answers, before, inside, strict=True)
    )
    if per_event > _ONE_TOKEN_PER_EVENT:
        return _by_the_engine(answers, [x for x in looks if begin <= x.at <= end], context)
    gaps = [len(times) - 1 for times in inside]
    if min(gaps) < _LEAST_STEPS:
        return "the sequences did not run together long enough"
    step = mean((times[-1] - times[0]) / gap for times, gap in zip(inside, gaps, strict=True))
    return Decoded(
        steps=mean(gaps), seconds=step * mean(gaps), sequences=len(answers), context=context
    )


def _together(answers: list[Streamed]) -> int:
    """The most answers between their first token and their last at one moment."""
    spans = [(a.arrivals[0], a.arrivals[-1]) for a in answers if a.arrivals]
    return max((sum(b <= begin < e for b, e in spans) for begin, _ in spans), default=0)


def _tokens_per_event(answers: list[Streamed]) -> float:
    """0 where nothing came."""
    events = sum(len(answer.arrivals) for answer in answers)
    return sum(answer.usage.completion or 0 for answer in answers) / max(1, events)


def _by_the_engine(
    answers: list[Streamed], looks: list[EngineReading], context: float
) -> Decoded | str:
    """By its own count of steps: an event stands for several tokens, or for several steps."""
    if len(looks) < 2:
        return "events carry several tokens, and the engine's page does not count its steps"
    rates = metrics_page.between(looks[0], looks[-1])
    per_second = rates.steps_per_second_per_engine
    if per_second is None or per_second * rates.seconds < _LEAST_STEPS:
        return "events carry several tokens, and the engine's page does not count its steps"
    return Decoded(
        steps=per_second * rates.seconds,
        seconds=rates.seconds,
        sequences=len(answers),
        context=context,
        tokens_per_step=rates.tokens_per_step or 1.0,
    )
