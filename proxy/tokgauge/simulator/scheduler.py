"""Continuous batching: which sequences run, how long each step takes, what comes out of it.

One coroutine makes the steps on an absolute schedule (each step is due when the one before was
due plus its duration), so late timers cause jitter but no drift: the mean rate is the physics'.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple, Protocol

from tokgauge.simulator.profile import EngineProfile

_MAX_LAG = 1.0  # seconds behind schedule (a stopped machine) that are given up, not caught up


class Piece(NamedTuple):
    """One token before it is decoded into an event."""

    text: str
    kind: str = "text"
    """text, reasoning or tool."""
    call: int = 0
    """Number of the tool call."""


class Output(NamedTuple):
    """What one event of a stream carries."""

    choice: int
    text: str
    kind: str
    call: int
    completion_tokens: int
    """Tokens of this sequence so far."""
    finish_reason: str | None
    stop_reason: str | None


class Recorder(Protocol):
    """Where the scheduler reports what the engine's metrics count."""

    def step(self, tokens: int, read_bytes: float, flops: float) -> None: ...
    def admitted(self, prompt_tokens: int, cached_tokens: int) -> None: ...
    def first_token(self, sequence: Sequence, now: float) -> None: ...
    def tokens(self, count: int, gap: float | None) -> None: ...
    def speculated(self, drafted: int, accepted: int) -> None: ...
    def preempted(self) -> None: ...
    def finished(self, sequence: Sequence, reason: str, now: float) -> None: ...


class Generation:
    """One request: its sequences and the events that they have produced."""

    def __init__(self, sequences: list[Sequence]) -> None:
        self.sequences = sequences
        self._outputs: deque[Output] = deque()
        self._open = len(sequences)
        self._ready = asyncio.Event()
        self.aborted = False
        for sequence in sequences:
            sequence.generation = self

    def put(self, output: Output) -> None:
        self._outputs.append(output)
        if output.finish_reason is not None:
            self._open -= 1
        self._ready.set()

    def abort(self) -> None:
        """Nobody wants the rest: its sequences leave before the next step."""
        self.aborted = True
        self._ready.set()

    async def outputs(self) -> AsyncIterator[Output]:
        """The events in order; ends after the last finish event or when aborted."""
        while not self.aborted:
            if self._outputs:
                yield self._outputs.popleft()
                continue
            if self._open == 0:
                return
            self._ready.clear()
            await self._ready.wait()


class Sequence:
    """One choice being generated."""

    def __init__(
        self,
        *,
        index: int,
        prompt: list[int],
        source: Iterator[Piece],
        limit: int,
        requested_limit: int | None,
        choices: int,
        stop: tuple[str, ...] = (),
        slow: float = 1.0,
        ttft: float | None = None,
    ) -> None:
        self.index = index
        self.prompt = prompt
        self.source = source
        self.limit = limit
        self.requested_limit = requested_limit
        self.choices = choices
        self.slow = slow
        self.ttft = ttft
        self.stop = stop
        self.generation: Generation
        self.generated = 0
        self.prefill_left = 0
        self.cached = 0
        self.preemptions = 0
        self.arrived = 0.0
        self.eligible = 0.0
        self.scheduled: float | None = None
        self.first_token: float | None = None
        self.last_token: float | None = None
        self.finish_reason: str | None = None
        self.stop_reason: str | None = None
        self._credit = 0.0
        self._text = ""
        self._sent = 0
        self._held = max((len(text) for text in stop), default=1) - 1
        self._pending: list[Piece] = []
        self._events = 0

    @property
    def context(self) -> int:
        """Tokens whose keys and values a step of this sequence reads."""
        return len(self.prompt) + self.generated - self.prefill_left

    def due_tokens(self, per_step: float) -> int:
        """How many tokens the step that has just ended gives to this sequence."""
        self._credit += per_step / self.slow
        count = int(self._credit)
        self._credit -= count
        return count

    def produce(self, count: int, tokens_per_event: int) -> int:
        """Take up to `count` tokens from the source and hand events on; the number taken."""
        taken = 0
        while taken < count and self.finish_reason is None:
            piece = next(self.source, None)
            if piece and self._pending and (piece.kind, piece.call) != self._pending[-1][1:]:
                self._flush()
            taken += 1
            self.generated += 1
            if piece is None:
                self.finish_reason = "stop"
            else:
                self._pending.append(piece)
                self._match_stop(piece)
                if self.finish_reason is None and self.generated >= self.limit:
                    self.finish_reason = "length"
        # The first token goes alone; later ones are gathered over steps to tokens_per_event.
        enough = 1 if self._events == 0 else tokens_per_event
        if self.finish_reason is not None or len(self._pending) >= enough:
            self._flush()
        return taken

    def _match_stop(self, piece: Piece) -> None:
        if not self.stop or piece.kind != "text":
            return
        self._text += piece.text
        found = [(at, text) for text in self.stop if (at := self._text.find(text)) >= 0]
        if found:
            at, text = min(found)
            self._text = self._text[:at]
            self.finish_reason = "stop"
            self.stop_reason = text

    def _flush(self) -> None:
        kind, call = self._pending[-1][1:] if self._pending else ("text", 0)
        if self.stop and kind == "text":
            # Text that may be the start of a stop string is held back until it is decided.
            end = len(self._text)
            if self.finish_reason is None:
                end = max(self._sent, end - self._held)
            text = self._text[self._sent : end]
            self._sent = end
        else:
            text = "".join(piece.text for piece in self._pending)
        self._pending.clear()
        self._events += 1
        self.generation.put(
            Output(
                self.index, text, kind, call, self.generated, self.finish_reason, self.stop_reason
            )
        )


class _Step(NamedTuple):
    decode: list[Sequence]
    prefill: list[tuple[Sequence, int]]
    seconds: float
    read_bytes: float
    flops: float


class Scheduler:
    """The batch of one engine. `run` must be running for anything to come out."""

    def __init__(self, profile: EngineProfile, recorder: Recorder) -> None:
        self.profile = profile
        self._recorder = recorder
        self._held: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._work = asyncio.Event()
        self._cached_blocks: OrderedDict[int, None] = OrderedDict()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._held)

    @property
    def cache_usage(self) -> float:
        """Share of the KV-cache blocks in use, 0 to 1."""
        return min(1.0, sum(map(self._blocks, self._running)) / self.profile.num_gpu_blocks)

    def submit(self, generation: Generation) -> None:
        now = time.monotonic()
        for sequence in generation.sequences:
            sequence.arrived = sequence.eligible = now
            if sequence.ttft is None:
                sequence.ttft = self.profile.ttft_seconds
            if sequence.ttft is None:
                self._waiting.append(sequence)
            else:
                # The first token comes at the end of the step that the sequence joins.
                step = self.profile.step_seconds(len(sequence.prompt), 1)
                sequence.eligible += max(0.0, sequence.ttft - step) / self.profile.speed
                self._held.append(sequence)
        self._work.set()

    async def run(self) -> None:
        """Make steps until cancelled."""
        due = time.monotonic()
        while True:
            self._drop_aborted()
            self._admit(time.monotonic())
            if not self._running:
                await self._wait_for_work()
                due = time.monotonic()
                continue
            step = self._plan()
            due += step.seconds / self.profile.speed
            now = time.monotonic()
            if now - due > _MAX_LAG:
                due = now
            await asyncio.sleep(max(0.0, due - now))
            self._finish(step, time.monotonic())

    async def _wait_for_work(self) -> None:
        self._work.clear()
        delay = None
        if self._held:
            first = min(sequence.eligible for sequence in self._held)
            delay = max(0.0, first - time.monotonic())
        try:
            async with asyncio.timeout(delay):
                await self._work.wait()
        except TimeoutError:
            pass

    def _drop_aborted(self) -> None:
        self._running = [s for s in self._running if not s.generation.aborted]
        if any(s.generation.aborted for s in self._waiting):
            self._waiting = deque(s for s in self._waiting if not s.generation.aborted)
        self._held = [s for s in self._held if not s.generation.aborted]

    def _admit(self, now: float) -> None:
        if self._held:
            for sequence in [s for s in self._held if s.eligible <= now]:
                self._held.remove(sequence)
                self._waiting.append(sequence)
        used = sum(map(self._blocks, self._running))
        while self._waiting and len(self._running) < self.profile.max_num_seqs:
            sequence = self._waiting[0]
            tokens = len(sequence.prompt) + sequence.generated
            blocks = tokens // self.profile.block_size + 1
            if self._running and used + blocks > self.profile.num_gpu_blocks:
                return
            used += blocks
            self._waiting.popleft()
            self._running.append(sequence)
            cached = 0
            if sequence.scheduled is None:
                sequence.scheduled = now
                cached = sequence.cached = self._look_up_prefix(sequence.prompt)
                self._recorder.admitted(len(sequence.prompt), cached)
            sequence.prefill_left = 0 if sequence.ttft is not None else tokens - cached

    def _look_up_prefix(self, prompt: list[int]) -> int:
        """Tokens of the prompt whose blocks were seen before; remembers its blocks."""
        size = self.profile.block_size
        key, hits, missed = 0, 0, False
        for start in range(0, len(prompt) - size + 1, size):
            key = hash((key, *prompt[start : start + size]))
            if key in self._cached_blocks:
                self._cached_blocks.move_to_end(key)
                hits += 0 if missed else size
            else:
                missed = True
                self._cached_blocks[key] = None
        while len(self._cached_blocks) > self.profile.num_gpu_blocks:
            self._cached_blocks.popitem(last=False)
        # At least one token must be computed to have something to sample from.
        return hits - size if hits == len(prompt) else hits

    def _blocks(self, sequence: Sequence) -> int:
        tokens = len(sequence.prompt) + sequence.generated
        return tokens // self.profile.block_size + 1

    def _preempt_until_it_fits(self) -> None:
        used = sum(map(self._blocks, self._running))
        while used > self.profile.num_gpu_blocks and len(self._running) > 1:
            victim = self._running.pop()
            used -= self._blocks(victim)
            victim.preemptions += 1
            victim.ttft = None  # what was thrown away is computed again
            self._waiting.appendleft(victim)
            self._recorder.preempted()

    def _plan(self) -> _Step:
        profile = self.profile
        self._preempt_until_it_fits()
        decode = [s for s in self._running if not s.prefill_left]
        budget = max(1, profile.max_num_batched_tokens - len(decode))
        prefill = []
        for sequence in self._running:
            if sequence.prefill_left and budget > 0:
                if profile.chunked_prefill:
                    share = min(sequence.prefill_left, budget)
                else:
                    share = sequence.prefill_left
                    decode = []
                prefill.append((sequence, share))
                budget -= share
        context = sum(s.context for s in decode) + sum(s.context + n for s, n in prefill)
        per_sequence = math.ceil(profile.tokens_per_step)
        batch = len(decode) * per_sequence + sum(n for _, n in prefill)
        return _Step(
            decode,
            prefill,
            profile.step_seconds(context, batch),
            profile.step_bytes(context),
            2.0 * profile.matmul_params * batch,
        )

    def _finish(self, step: _Step, now: float) -> None:
        made = sum(n for _, n in step.prefill)
        for sequence, share in step.prefill:
            if sequence.generation.aborted:
                continue
            sequence.prefill_left -= share
            if not sequence.prefill_left:
                made += self._emit(sequence, 1, now)
        for sequence in step.decode:
            if sequence.generation.aborted:
                continue
            if sequence.first_token is None:
                count = 1
            else:
                count = sequence.due_tokens(self.profile.tokens_per_step)
                if self.profile.tokens_per_step > 1.0:
                    drafted = math.ceil(self.profile.tokens_per_step) - 1
                    self._recorder.speculated(drafted, max(0, count - 1))
            if count:
                made += self._emit(sequence, count, now)
        self._running = [s for s in self._running if s.finish_reason is None]
        self._recorder.step(made, step.read_bytes, step.flops)

    def _emit(self, sequence: Sequence, count: int, now: float) -> int:
        taken = sequence.produce(count, self.profile.tokens_per_event)
        if sequence.first_token is None:
            sequence.first_token = now
            self._recorder.first_token(sequence, now)
        gap = None if sequence.last_token is None else now - sequence.last_token
        sequence.last_token = now
        self._recorder.tokens(taken, gap)
        if sequence.finish_reason is not None:
            self._recorder.finished(sequence, sequence.finish_reason, now)
        return taken
