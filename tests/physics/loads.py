"""Traffic: users who ask again when they have their answer, or requests that come by themselves."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tests.physics.engine import Engine
from tests.physics.requests import Request
from tests.physics.truth import Truth

Range = tuple[int, int]

LoadKind = Literal[
    "one", "batch", "short", "long", "prompts", "mixed", "cached", "open", "pauses", "chunks"
]
LOADS: tuple[LoadKind, ...] = (
    "one", "batch", "short", "long", "prompts", "mixed", "cached", "open", "pauses", "chunks"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Load:
    """Sizes in tokens, times in seconds. Either `users` or `rate`."""

    prompt: Range
    output: Range
    users: int = 0
    """Closed loop: each sends its next request when it has its answer."""
    rate: float = 0.0
    """Open loop: requests per second, whatever the engine does."""
    think: float = 0.0
    """Mean time between an answer and the user's next request."""
    cached: float = 0.0
    """Share of the prompt that the prefix cache has."""
    pauses: tuple[float, float] | None = None
    """(work, idle), over and over: nothing is sent in the idle time."""
    long_prompts: tuple[float, int] | None = None
    """(every so many seconds, one prompt of so many tokens) beside the rest."""

    def start(self, engine: Engine, seed: int, until: float, at: float | None = None) -> None:
        """Send from `at` (now) on; nothing is sent after `until`."""
        at = engine.time if at is None else at
        sender = _Sender(self, engine, random.Random(f"load {seed}"), at, until)
        for _ in range(self.users):
            sender.send(at + sender.rng.random() * min(1.0, 0.02 * self.users))
        for time in sender.arrivals():
            sender.send(time, alone=True)
        if self.long_prompts:
            sender.send_long_prompts(*self.long_prompts)


class _Sender:
    def __init__(
        self, load: Load, engine: Engine, rng: random.Random, start: float, until: float
    ) -> None:
        self.rng = rng
        self._load = load
        self._engine = engine
        self._start = start
        self._until = until

    def send(self, at: float, alone: bool = False) -> None:
        """A request of a user who goes on, or of one who asks once."""
        at = self._awake(at)
        if at >= self._until:
            return
        load = self._load
        prompt = self.rng.randint(*load.prompt)
        self._engine.submit(
            at,
            prompt,
            self.rng.randint(*load.output),
            cached=int(load.cached * load.prompt[0]),
            then=None if alone else self._again,
        )

    def arrivals(self) -> Iterator[float]:
        time = self._start
        while self._load.rate:
            time += self.rng.expovariate(self._load.rate)
            if time >= self._until:
                return
            if self._awake(time) == time:
                yield time

    def send_long_prompts(self, every: float, tokens: int) -> None:
        time = self._start
        while (time := time + every * self.rng.uniform(0.7, 1.3)) < self._until:
            self._engine.submit(time, tokens, 16)

    def _again(self, request: Request) -> None:
        assert request.finished_at is not None
        think = self._load.think
        self.send(request.finished_at + (self.rng.expovariate(1 / think) if think else 0.0))

    def _awake(self, time: float) -> float:
        """That time, or the end of the pause that it falls into."""
        if self._load.pauses is None:
            return time
        work, idle = self._load.pauses
        since = (time - self._start) % (work + idle)
        return time if since < work else time + work + idle - since


def drawn_load(truth: Truth, kind: LoadKind, seed: int) -> Load:
    """A load that fits into the engine's KV cache, so that a healthy one never preempts.

    Closed loops begin with everybody's prompt: let them warm up for some virtual seconds before
    judging that anybody waits. `one` hardly varies the bytes of a step; `long` varies them most.
    """
    rng = random.Random(f"{kind} {seed} {truth.seed}")
    prompt, output, users = _sizes(rng, kind)
    most = int(0.8 * truth.kv_cache_tokens)
    prompt = _within(prompt, most // 2)
    output = _within(output, most // 2)
    users = max(1, min(users, most // (prompt[1] + output[1]), truth.max_num_seqs))
    if kind == "open":
        return Load(prompt, output, rate=_bearable_rate(truth, prompt, output, users))
    return Load(
        prompt,
        output,
        users=users,
        think=rng.choice((0.0, 0.5)) if kind == "mixed" else 0.0,
        cached=rng.uniform(0.5, 0.95) if kind == "cached" else 0.0,
        pauses=(rng.uniform(2, 6), rng.uniform(2, 6)) if kind == "pauses" else None,
        long_prompts=(rng.uniform(3, 6), min(16_000, most // 4)) if kind == "chunks" else None,
    )


def _sizes(rng: random.Random, kind: LoadKind) -> tuple[Range, Range, int]:
    """Prompt, output, users."""
    users = int(2 ** rng.uniform(1, 6))
    if kind == "one":
        return (100, 600), (200, 800), 1
    if kind == "short":
        return (50, 150), (50, 250), users
    if kind == "long":
        return (4_000, 14_000), (200, 600), min(users, 16)
    if kind == "prompts":
        return (1_000, 4_000), (16, 80), min(users, 16)
    if kind in ("mixed", "cached", "chunks"):
        return (400, 2_500), (100, 500), users
    return (100, 1_000), (150, 600), users


def _within(sizes: Range, most: int) -> Range:
    return min(sizes[0], most), min(sizes[1], most)


def _bearable_rate(truth: Truth, prompt: Range, output: Range, users: int) -> float:
    """Requests per second that keep about so many running, at half of what the engine can."""
    machine = Engine(truth).machine
    context = sum(prompt) // 2 + sum(output) // 4
    step = machine.seconds(users, users * context, context)
    prefill = machine.seconds(0, 0, 0, [(0, sum(prompt) // 2)])
    answer = sum(output) / 2 * step / users + prefill
    return 0.5 / answer
