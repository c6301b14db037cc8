"""The state of a simulated engine, and the part of a request that all dialects share."""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections.abc import Iterator
from typing import Any

from tokgauge.simulator import errors, tokens
from tokgauge.simulator.connection import Connection
from tokgauge.simulator.faults import Faults
from tokgauge.simulator.metrics import EngineMetrics
from tokgauge.simulator.profile import EngineProfile
from tokgauge.simulator.scheduler import Generation, Piece, Scheduler, Sequence

FINGERPRINT = "vllm-0.32.0-c35ef081"
_CHARACTERS_PER_TOKEN = 13  # vLLM's bound above which it does not even tokenize


class Job:
    """One generating request after validation."""

    def __init__(self, connection: Connection, body: dict[str, Any], faults: Faults) -> None:
        self.connection = connection
        self.body = body
        self.faults = faults
        self.created = int(time.time())
        self.prompts: list[str] = []
        self.prompt_ids: list[list[int]] = []
        self.tool_names: list[str] = []
        self.choices = 1
        self.reasoning = 0
        self.generation: Generation

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompt_ids))

    @property
    def completion_tokens(self) -> int:
        return sum(s.generated for s in self.generation.sequences)

    @property
    def reasoning_tokens(self) -> int:
        """Each choice thinks first."""
        return sum(min(self.reasoning, s.generated) for s in self.generation.sequences)

    @property
    def cached_tokens(self) -> int:
        return sum(s.cached for s in self.generation.sequences[:: self.choices])

    def request_id(self, prefix: str) -> str:
        """The id of the response, made of the client's X-Request-Id when it sent one."""
        given = self.connection.headers.get(b"x-request-id")
        name = given.decode("latin-1") if given else self.body.get("request_id")
        return f"{prefix}-{name or hex_id()}"


class Engine:
    """Profile, batch and counters. `profile` may be replaced while it runs."""

    def __init__(self, profile: EngineProfile) -> None:
        self.metrics = EngineMetrics(profile)
        self.scheduler = Scheduler(profile, self.metrics)
        self.chance = random.Random(0)  # noqa: S311 - not for secrets
        self.load = 0

    @property
    def profile(self) -> EngineProfile:
        return self.scheduler.profile

    @profile.setter
    def profile(self, profile: EngineProfile) -> None:
        self.scheduler.profile = profile

    def check_model(self, body: dict[str, Any]) -> None:
        model = body.get("model")
        if model and model != self.profile.model:
            raise errors.unknown_model(model, self.profile.model)

    def check_sampling(self, body: dict[str, Any]) -> None:
        temperature = body.get("temperature")
        if isinstance(temperature, (int, float)) and temperature < 0:
            value = float(temperature)
            text = f"temperature must be non-negative, got {value}."
            raise errors.parameter(text, "temperature", value)
        if body.get("stream_options") is not None and not body.get("stream"):
            text = "Stream options can only be defined when `stream=True`."
            raise errors.parameter(text, "stream_options")

    def check_prompt(self, prompt: str) -> list[int]:
        """Token ids of the prompt, or the error for one that is too long."""
        limit = self.profile.max_model_len
        head = f"This model's maximum context length is {limit} tokens. However, "
        tail = " Please reduce the length of the input prompt."
        bound = limit * _CHARACTERS_PER_TOKEN
        if len(prompt) > bound:
            text = (
                f"{head}your prompt contains {len(prompt)} characters (more than {bound} "
                f"characters, which is the upper bound for {limit} input tokens).{tail}"
            )
            raise errors.parameter(text, "input_text", len(prompt))
        ids = tokens.token_ids(prompt)
        if len(ids) >= limit:
            text = f"{head}your prompt contains {len(ids)} input tokens.{tail}"
            raise errors.parameter(text, "input_tokens", len(ids))
        return ids

    def check_max_tokens(self, requested: object, prompt_length: int) -> int:
        """The limit of new tokens."""
        limit = self.profile.max_model_len
        if not isinstance(requested, int):
            return limit - prompt_length
        if requested < 1:
            text = f"max_tokens must be at least 1, got {requested}."
            raise errors.parameter(text, "max_tokens", requested)
        if requested > limit:
            text = (
                f"max_tokens={requested} cannot be greater than max_model_len={limit}. "
                "Please request fewer output tokens."
            )
            raise errors.parameter(text, "max_tokens", requested)
        if requested + prompt_length > limit:
            text = (
                f"This model's maximum context length is {limit} tokens. However, you requested "
                f"{requested} output tokens and your prompt contains {prompt_length} input "
                f"tokens, for a total of {requested + prompt_length} tokens. Please reduce the "
                "length of the input prompt or the number of requested output tokens."
            )
            raise errors.parameter(text, "input_tokens", prompt_length)
        return requested

    def start(
        self,
        job: Job,
        prompts: list[str],
        *,
        requested_tokens: object,
        choices: int = 1,
        korean: bool,
        reasoning: int = 0,
        tools: list[dict[str, Any]] | None = None,
    ) -> None:
        """Validate, make the sequences and queue them."""
        self.check_sampling(job.body)
        job.prompts = prompts
        job.prompt_ids = [self.check_prompt(prompt) for prompt in prompts]
        job.choices = choices
        job.reasoning = reasoning
        limits = [self.check_max_tokens(requested_tokens, len(ids)) for ids in job.prompt_ids]
        stop = job.body.get("stop") or job.body.get("stop_sequences") or ()
        stops = (stop,) if isinstance(stop, str) else tuple(map(str, stop))
        job.tool_names = [tool["name"] for tool in tools or ()]
        sequences = []
        for number, (prompt, ids) in enumerate(zip(prompts, job.prompt_ids, strict=True)):
            for choice in range(choices):
                index = number * choices + choice
                salt = int(job.body.get("seed") or 0) + index
                chance = random.Random(tokens.seed(prompt, salt))  # noqa: S311 - not for secrets
                # Written here and not while a step runs: an odd schema fails this request only.
                calls = [tokens.pieces(_arguments(tool, chance)) for tool in tools or ()]
                source = self._answer(job, chance, korean, calls)
                sequences.append(
                    Sequence(
                        index=index,
                        prompt=ids,
                        source=source,
                        limit=limits[number],
                        requested_limit=(
                            requested_tokens if isinstance(requested_tokens, int) else None
                        ),
                        choices=choices,
                        stop=stops,
                        slow=job.faults.slow,
                        ttft=job.faults.ttft,
                    )
                )
        job.generation = Generation(sequences)
        self.scheduler.submit(job.generation)

    def _answer(
        self,
        job: Job,
        chance: random.Random,
        korean: bool,
        calls: list[list[str]],
    ) -> Iterator[Piece]:
        prose = tokens.prose(chance, korean)
        for _ in range(job.reasoning):
            yield Piece(next(prose), "reasoning")
        for call, texts in enumerate(calls):
            yield Piece("", "tool", call)
            for text in texts:
                yield Piece(text, "tool", call)
        if calls:
            return
        mean = self.profile.natural_tokens
        length = job.faults.tokens
        if length is None:
            length = chance.randint(max(1, mean // 2), max(1, mean * 3 // 2))
        endless = bool(job.body.get("ignore_eos"))
        held = ""
        number = 0
        while endless or number < length:
            number += 1
            text = held + next(prose)
            held = ""
            if job.faults.empty_deltas and number % 2 and number != length:
                held, text = text, ""
            yield Piece(text)


def _arguments(tool: dict[str, Any], chance: random.Random) -> str:
    """Arguments that have the right types for the tool's schema."""
    properties = (tool.get("parameters") or {}).get("properties") or {"query": {"type": "string"}}
    values: dict[str, object] = {}
    for name, schema in properties.items():
        if schema.get("enum"):
            values[name] = schema["enum"][0]
            continue
        values[name] = {
            "integer": chance.randint(1, 9),
            "number": chance.randint(1, 9) + 0.5,
            "boolean": True,
            "array": [],
            "object": {},
        }.get(schema.get("type"), "Seoul")
    return json.dumps(values, ensure_ascii=False)


async def watch_client(job: Job) -> None:
    """Abort the job when its client goes away; to be run beside the answering."""
    await job.connection.disconnected()
    job.generation.abort()


def hex_id() -> str:
    return uuid.uuid4().hex[:16]


class Watched:
    """Context in which a client that leaves aborts the job."""

    def __init__(self, job: Job) -> None:
        self._job = job

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(watch_client(self._job))

    async def __aexit__(self, *_: object) -> None:
        self._job.generation.abort()
        self._task.cancel()
