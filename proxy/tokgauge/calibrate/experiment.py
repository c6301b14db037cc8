"""The experiment: measure loads while there is time, and fit the constants. No transport in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tokgauge.calibrate import plan
from tokgauge.calibrate.bench import Bench, Decoded, Load, Measured
from tokgauge.calibrate.errors import CalibrationError
from tokgauge.calibrate.plan import Pace
from tokgauge.diagnosis.expected_time import StepWork
from tokgauge.diagnosis.fit import Fitted, NotTold, Observation, fit

LONGEST = 170.0
"""Seconds that the experiment takes at most, about."""

_FOR_PROMPTS = 0.25
_OF_ONE_LOAD = 0.015
"""Of the time: 2.5 s of 170 s tell a step's time well."""

_OF_LONG_PROMPTS = 0.1
"""Of the time, for the prompts of one load: they only fill the cache."""

_SHORTEST_ROOM = 64
_WITHOUT_LIMIT = 8192
"""Tokens of context where the engine does not tell how long it may be."""

_LARGEST_PART = 0.6
"""Of the context: a long prompt leaves room for its answer."""

BytesOf = Callable[[Decoded], float]
"""Bytes that a step of this load reads."""


@dataclass(slots=True)
class Experiment:
    """What was measured. failed: why loads told nothing, in words, with how many."""

    observations: list[Observation] = field(default_factory=list)
    failed: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def constants(self, bandwidth: float | None) -> Fitted | NotTold:
        """Those that follow; bandwidth: theoretical, of all GPUs that serve a step [bytes/s]."""
        return fit(self.observations, "calibrated", bandwidth)


async def run_experiment(
    bench: Bench,
    bytes_of: BytesOf,
    *,
    context_length: int | None,
    beside_traffic: bool = False,
    at_most: float = LONGEST,
    progress: Callable[[str, float], None] = lambda what, done: None,
) -> Experiment:
    """Measure for `at_most` seconds of the bench's clock.

    context_length: tokens that a sequence may have, None where not known. progress: is told what
    is measured next and the share of the time that has passed. Raises `CalibrationError`.
    """
    made = _Run(
        bench, bytes_of, context_length or _WITHOUT_LIMIT, beside_traffic, at_most, progress
    )
    await made.all()
    return made.found


class _Run:
    def __init__(
        self, bench: Bench, bytes_of: BytesOf, context_length: int, beside_traffic: bool,
        at_most: float, progress: Callable[[str, float], None],
    ) -> None:  # fmt: skip
        self._bench, self._bytes_of = bench, bytes_of
        self._room = context_length
        self._longest = int(context_length * _LARGEST_PART)
        self._beside_traffic = beside_traffic
        self._began, self._at_most = bench.now(), at_most
        self._progress = progress
        self._together = 1 << 30
        self.found = Experiment()

    async def all(self) -> None:
        await self._nobody_else()
        pace = await self._first()
        affordable = pace.prompt_tokens_per_second * self._at_most * _OF_LONG_PROMPTS
        for sequences, context in plan.loads(self._longest, affordable):
            if sequences <= self._together:
                await self._steps(sequences, context, pace, 1 - _FOR_PROMPTS)
        for tokens in plan.prompts(self._longest):
            load = Load(1, tokens, 1)
            if self._fits(load, 0.0, pace, 1.0):
                await self._measure(load, f"prompt of {tokens} tokens")
        self.found.seconds = self._passed()

    async def _first(self) -> Pace:
        """Loads that only tell the speed, and before that how many tokens a word has.

        The first requests of an engine are slow ones, so they count nowhere.
        """
        room = max(1, min(_SHORTEST_ROOM, self._room // 4))
        context = max(1, min(512, self._longest // 16))
        await self._measured("warm-up", Load(1, context, room))
        context = max(1, min(512, self._longest // 3))
        seen = await self._measured("speed", Load(1, context, room))
        if seen.decoded is None:  # steps that only the engine counts take longer to be told
            longer = max(room, min(16 * room, self._room - context - 1))
            seen = await self._measured("speed", Load(1, context, longer))
        decoded = seen.decoded
        if decoded is None:
            raise CalibrationError("not_told", f"the steps are not known: {seen.because}")
        step = decoded.seconds / decoded.steps
        rate = (seen.prompt_tokens or context) / max(1e-3, seen.first_token or step)
        return Pace(step / self._bytes_of(decoded), rate, decoded.tokens_per_step)

    async def _measured(self, what: str, load: Load) -> Measured:
        self._progress(what, self._passed() / self._at_most)
        return await self._bench.measure(load)

    async def _steps(self, sequences: int, context: int, pace: Pace, share: float) -> None:
        read = self._bytes_of(
            Decoded(steps=1, seconds=1, sequences=sequences, context=sequences * context)
        )
        steps = self._at_most * _OF_ONE_LOAD / (read * pace.seconds_per_byte)
        tokens = plan.tokens_for(sequences, context, steps, pace, self._room - context - 1)
        load = Load(sequences, context, tokens)
        if self._fits(load, read, pace, share):
            await self._measure(load, f"{sequences} x {context} tokens of context")

    async def _measure(self, load: Load, what: str) -> None:
        seen = await self._measured(what, load)
        if load.tokens > 1:
            self._take_steps(seen, load)
        if seen.prompt_tokens and seen.first_token:
            work = StepWork(
                steps=0, bytes=0, sequence_steps=0, prompt_tokens=seen.prompt_tokens, prompts=1
            )
            self.found.observations.append(Observation(work, seen.first_token, starts=1.0))
        await self._nobody_else()

    def _take_steps(self, seen: Measured, load: Load) -> None:
        decoded = seen.decoded
        if decoded is None:
            because = seen.because or "nothing was told"
            self.found.failed[because] = self.found.failed.get(because, 0) + 1
            if seen.together is not None and seen.together < load.sequences:
                self._together = max(1, seen.together)
            return
        work = StepWork(
            steps=decoded.steps,
            bytes=decoded.steps * self._bytes_of(decoded),
            sequence_steps=decoded.steps * decoded.sequences,
        )
        self.found.observations.append(Observation(work, decoded.seconds))

    async def _nobody_else(self) -> None:
        if self._beside_traffic:
            return
        if (others := await self._bench.others()) is not None:
            raise CalibrationError(
                "busy",
                f"{others}: calibrate while the engine is idle, or say --beside-traffic (then the "
                "constants hold for an engine that is disturbed like that)",
            )

    def _passed(self) -> float:
        return self._bench.now() - self._began

    def _fits(self, load: Load, read: float, pace: Pace, share: float) -> bool:
        return self._passed() + pace.seconds(load, read) <= share * self._at_most
