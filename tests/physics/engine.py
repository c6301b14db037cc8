"""An engine in virtual time: continuous batching as vLLM has it, on a machine of hidden speed.

engine = Engine(drawn(7))
request = engine.submit(at=0.0, prompt_tokens=500, max_tokens=100)
engine.run_until(5.0)
request.event_times, engine.page()
"""

import heapq
import itertools
import math
import random
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.physics.conditions import Conditions
from tests.physics.machine import Chunk, Machine
from tests.physics.page import Counters
from tests.physics.requests import Request
from tests.physics.truth import BLOCK, Truth


@dataclass(frozen=True, slots=True)
class Gpu:
    """What NVML tells."""

    memory_clock: float
    """Share of the full one."""
    neighbours: tuple[float, ...]
    """Share of the time in which each other process ran [0 to 1]."""
    kernels: float
    """Share of the last second in which a kernel of the engine ran, if it had the card alone."""


@dataclass(slots=True)
class _Step:
    """What runs in the step under way."""

    end: float
    seconds: float
    decoding: list[Request]
    chunks: list[tuple[Request, int]]
    contexts: int


class StepLog:
    """Hidden: each step that has ended, in parallel arrays."""

    def __init__(self) -> None:
        self.ends = array("d")
        self.seconds = array("d")
        self.decodes = array("I")
        """Sequences that gained tokens without computing a prompt."""
        self.contexts = array("Q")
        """Tokens whose keys and values were read for them."""
        self.prompt_tokens = array("I")
        """Computed, those of preempted sequences too."""

    def add(
        self, end: float, seconds: float, decodes: int, contexts: int, prompt_tokens: int
    ) -> None:
        self.ends.append(end)
        self.seconds.append(seconds)
        self.decodes.append(decodes)
        self.contexts.append(contexts)
        self.prompt_tokens.append(prompt_tokens)


class Engine:
    """Serves requests in virtual time [s], which starts at 0."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth
        self.time = 0.0
        self.requests: list[Request] = []
        """All that were sent, in the order of `submit`."""
        self.log = StepLog()
        self.conditions = Conditions()
        self.machine = Machine(truth, self.conditions)
        self._rng = random.Random(f"run {truth.seed}")
        self._counters = Counters()
        self._changes: list[tuple[float, int, dict[str, Any]]] = []
        self._arrivals: list[tuple[float, int, Request]] = []
        self._order = itertools.count()
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._step: _Step | None = None
        self._now = 0.0
        """Where the scheduler stands: at the end of the last step, or idle."""
        self._own_blocks = 0
        self._acceptance: list[float] = []
        self._hiccup_at = self._next_hiccup(0.0)
        self._apply(self.conditions)

    # What a user can do and see

    def submit(
        self,
        at: float,
        prompt_tokens: int,
        max_tokens: int,
        cached: int = 0,
        then: Callable[[Request], None] | None = None,
    ) -> Request:
        """Send a request at that time; its answer has exactly `max_tokens`.

        cached: leading prompt tokens that the prefix cache has, of one prefix that all share.
        then: called when it has finished, and may submit the next one.
        """
        if at < self.time or min(prompt_tokens, max_tokens) < 1:
            raise ValueError("a request lies in the past or is empty")
        if prompt_tokens + max_tokens > min(self.truth.max_model_len, self._blocks * BLOCK):
            raise ValueError("a request does not fit into the engine")
        request = Request(
            sent_at=at,
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            cached_tokens=min(cached, prompt_tokens - 1) // BLOCK * BLOCK,
            delay=self.truth.output_delay * self._rng.uniform(0.8, 1.2),
            step_ends=self.log.ends,
            then=then,
        )
        self.requests.append(request)
        heapq.heappush(self._arrivals, (at, next(self._order), request))
        return request

    def page(self) -> bytes:
        """The /metrics page at `time`."""
        return self._counters.page(
            running=len(self._running),
            waiting=len(self._waiting),
            cache_usage=min(1.0, self._used_blocks() / self._blocks),
            blocks=self._blocks,
            block=BLOCK,
            drafting=bool(self.truth.draft_tokens),
        )

    def gpu(self) -> Gpu:
        share = self.conditions.neighbour
        return Gpu(self.conditions.memory_clock, (share,) if share else (), self._kernels())

    def _kernels(self) -> float:
        """Over the steps that ended in the last second, or the one under way."""
        log, found = self.log, 0.0
        index = len(log.ends) - 1
        while index >= 0 and log.ends[index] > self.time - 1.0:
            decodes, contexts = log.decodes[index], log.contexts[index]
            chunks = [(0, log.prompt_tokens[index])] if log.prompt_tokens[index] else []
            longest = contexts // decodes if decodes else 0
            took = self.machine.kernel_seconds(decodes, contexts, longest, chunks)
            began = max(log.ends[index] - log.seconds[index], self.time - 1.0)
            found += min(1.0, took / log.seconds[index]) * (log.ends[index] - began)
            index -= 1
        if index == len(log.ends) - 1 and self._step is not None:
            return 1.0
        return min(1.0, found)

    # What the world does

    def change(self, at: float, **conditions: Any) -> None:
        """From that time on these `Conditions` hold, beside those that hold already."""
        replace(self.conditions, **conditions)  # a wrong name fails here
        if at < self.time:
            raise ValueError("a change lies in the past")
        heapq.heappush(self._changes, (at, next(self._order), conditions))

    def run_until(self, time: float) -> None:
        """Let the virtual time pass. A step that ends later stays under way."""
        while self._advance(time):
            pass
        self.time = max(self.time, time)
        self._arrived(self.time)

    # The scheduler

    def _advance(self, limit: float) -> bool:
        """Do the next thing; False when it lies beyond `limit`."""
        step = self._step
        if step is not None:
            if step.end > limit:
                return False
            self._step = None
            self.time = max(self.time, step.end)
            self._finish(step)
        self._changed(self._now)
        self._arrived(self._now)
        decoding, chunks = self._schedule()
        if not decoding and not chunks:
            upcoming = self._upcoming()
            if upcoming > limit:
                self._now = max(self._now, limit)
                return False
            self._now = max(self._now, upcoming)
            return True
        if chunks or self.truth.draft_tokens:
            self._start(decoding, chunks)
        else:
            self._decode(decoding, limit)
        return True

    def _upcoming(self) -> float:
        """When something comes from outside."""
        arrival = self._arrivals[0][0] if self._arrivals else math.inf
        change = self._changes[0][0] if self._changes else math.inf
        return min(arrival, change)

    def _arrived(self, now: float) -> None:
        while self._arrivals and self._arrivals[0][0] <= now:
            self._waiting.append(heapq.heappop(self._arrivals)[2])

    def _changed(self, now: float) -> None:
        while self._changes and self._changes[0][0] <= now:
            self._apply(replace(self.conditions, **heapq.heappop(self._changes)[2]))

    def _apply(self, conditions: Conditions) -> None:
        self.conditions = conditions
        self.machine = Machine(self.truth, conditions)
        self._blocks = max(1, int(self.truth.kv_cache_tokens * conditions.cache) // BLOCK)
        taken = conditions.acceptance
        taken = self.truth.acceptance if taken is None else taken
        self._acceptance = [1 - taken ** (i + 1) for i in range(self.truth.draft_tokens)]
        while self._used_blocks() > self._blocks:
            self._preempt()

    def _schedule(self) -> tuple[list[Request], list[tuple[Request, int]]]:
        """Running requests first, then waiting ones, as far as tokens and blocks go."""
        budget = self.truth.token_budget
        decoding: list[Request] = []
        chunks: list[tuple[Request, int]] = []
        preempted = self._counters.preemptions
        index = 0
        while index < len(self._running) and budget > 0:
            request = self._running[index]
            missing = request.missing
            ahead = self.truth.draft_tokens if missing == 1 and request.completion_tokens else 0
            tokens = min(missing, budget)
            if not self._make_room(request, tokens + ahead):
                break  # it was the last one, and has been preempted itself
            if missing == 1 and request.completion_tokens:
                decoding.append(request)
            else:
                chunks.append((request, tokens))
            budget -= tokens + ahead
            index += 1
        if self._counters.preemptions == preempted:
            self._admit(chunks, budget)
        return decoding, chunks

    def _admit(self, chunks: list[tuple[Request, int]], budget: int) -> None:
        while self._waiting and budget > 0 and len(self._running) < self.truth.max_num_seqs:
            request = self._waiting[0]
            request.computed = request.cached_tokens
            tokens = min(request.missing, budget)
            shared = max(0, request.cached_tokens // BLOCK - self._shared_blocks())
            needed = _blocks_for(request.computed + tokens) - request.cached_tokens // BLOCK
            if self._used_blocks() + shared + needed > self._blocks:
                return
            self._waiting.popleft()
            self._running.append(request)
            request.blocks = needed
            self._own_blocks += needed
            if request.scheduled_at is None:
                request.scheduled_at = self._now
            chunks.append((request, tokens))
            budget -= tokens

    def _make_room(self, request: Request, tokens: int) -> bool:
        """Blocks for so many more tokens, others preempted for them; False if it is itself."""
        own = _blocks_for(request.computed + tokens) - request.cached_tokens // BLOCK
        more = own - request.blocks
        if more <= 0:
            return True
        while self._used_blocks() + more > self._blocks:
            if len(self._running) == 1:
                raise RuntimeError("a request is larger than the KV cache")
            if self._preempt() is request:
                return False
        request.blocks += more
        self._own_blocks += more
        return True

    def _preempt(self) -> Request:
        """The youngest gives up all its blocks and starts anew, before all that wait."""
        request = self._running.pop()
        self._release(request)
        request.computed = 0
        self._waiting.appendleft(request)
        self._counters.preemptions += 1
        return request

    def _release(self, request: Request) -> None:
        self._own_blocks -= request.blocks
        request.blocks = 0

    def _shared_blocks(self) -> int:
        return max((r.cached_tokens for r in self._running), default=0) // BLOCK

    def _used_blocks(self) -> int:
        return self._own_blocks + self._shared_blocks()

    # Steps

    def _start(self, decoding: list[Request], chunks: list[tuple[Request, int]]) -> None:
        contexts = [request.computed + 1 for request in decoding]
        parts: list[Chunk] = [(request.computed, tokens) for request, tokens in chunks]
        total = sum(contexts)
        seconds = self._seconds(len(decoding), total, max(contexts, default=0), parts)
        self._now += seconds
        self._step = _Step(self._now, seconds, decoding, chunks, total)

    def _seconds(self, decodes: int, contexts: int, longest: int, parts: list[Chunk]) -> float:
        seconds = self.machine.drawn_seconds(decodes, contexts, longest, parts, self._rng)
        if self._now >= self._hiccup_at:
            seconds += self._rng.expovariate(1 / self.truth.hiccup)
            self._hiccup_at = self._next_hiccup(self._now)
        return seconds

    def _next_hiccup(self, now: float) -> float:
        rate = self.truth.hiccups
        return now + self._rng.expovariate(rate) if rate else math.inf

    def _decode(self, decoding: list[Request], limit: float) -> None:
        """Steps of one token each, as long as nothing but contexts can change.

        Blocks are there for the first step; further ones are taken for all steps at once.
        """
        steps = self._steps_without_change(decoding)
        upcoming = min(self._upcoming(), limit)
        count = len(decoding)
        contexts = sum(request.computed for request in decoding) + count
        longest = max(request.computed for request in decoding) + 1
        done = 0
        while done < steps:
            seconds = self._seconds(count, contexts, longest, [])
            self._now = end = self._now + seconds
            if end > limit:
                self._step = _Step(end, seconds, decoding, [], contexts)
                break
            self.log.add(end, seconds, count, contexts, 0)
            done += 1
            contexts += count
            longest += 1
            if end >= upcoming:
                break
        if done:
            self._bring(decoding, done)
            self.time = max(self.time, self.log.ends[-1])
            self._end([request for request in decoding if not request.left])

    def _steps_without_change(self, decoding: list[Request]) -> int:
        """How long nobody finishes and the cache suffices; at least 1."""
        steps = min(request.left for request in decoding)
        free = self._blocks - self._used_blocks()
        while steps > 1 and self._more_blocks(decoding, steps) > free:
            steps //= 2
        return steps

    def _more_blocks(self, decoding: list[Request], steps: int) -> int:
        return sum(
            max(0, _blocks_for(r.computed + steps) - r.cached_tokens // BLOCK - r.blocks)
            for r in decoding
        )

    def _bring(self, decoding: list[Request], steps: int) -> None:
        """One token to each in each of the last `steps` steps, none of which ended it before."""
        first = len(self.log.ends) - steps
        for request in decoding:
            request.computed += steps
            more = _blocks_for(request.computed) - request.cached_tokens // BLOCK - request.blocks
            if more > 0:
                request.blocks += more
                self._own_blocks += more
            request.gained(first, 1, steps)
        self._counters.generation_tokens += steps * len(decoding)
        self._counters.step_tokens.observe(len(decoding), steps)

    def _finish(self, step: _Step) -> None:
        """The end of a step of any kind."""
        index = len(self.log.ends)
        prompt_tokens = sum(tokens for _, tokens in step.chunks)
        self.log.add(step.end, step.seconds, len(step.decoding), step.contexts, prompt_tokens)
        counters = self._counters
        prompts = generated = 0
        for request in step.decoding:
            tokens = self._accepted() if self.truth.draft_tokens else 1
            tokens = min(tokens, request.left)
            request.computed += tokens
            request.gained(index, tokens)
            generated += tokens
        for request, tokens in step.chunks:
            request.computed += tokens
            if request.missing:
                continue
            if not request.completion_tokens:
                prompts += request.prompt_tokens
                counters.cached_tokens += request.cached_tokens
                counters.first_token_seconds.observe(step.end - request.sent_at)
            request.gained(index, 1)
            generated += 1
        counters.prompt_tokens += prompts
        counters.generation_tokens += generated
        if generated:
            counters.step_tokens.observe(prompts + generated)
        self._end([r for r in (*step.decoding, *(c[0] for c in step.chunks)) if not r.left])

    def _accepted(self) -> int:
        """Tokens that a sequence gains in a step: drafts up to the first wrong one, and one."""
        accepted = bisect_right(self._acceptance, self._rng.random())
        self._counters.drafts += 1
        self._counters.draft_tokens += self.truth.draft_tokens
        self._counters.accepted_tokens += accepted
        return accepted + 1

    def _end(self, finished: list[Request]) -> None:
        for request in finished:
            self._running.remove(request)
            self._release(request)
            request.finish()
            assert request.scheduled_at is not None
            self._counters.finished += 1
            self._counters.queue_seconds.observe(request.scheduled_at - request.sent_at)
        for request in finished:
            if request.then is not None:
                request.then(request)


def _blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK)
