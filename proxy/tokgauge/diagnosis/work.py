"""How many steps the engine made, and what one of them served: from what was seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tokgauge.diagnosis.expected_time import Interval
from tokgauge.diagnosis.inputs import Page, StreamSeen, WindowSeen
from tokgauge.engine.metrics_page import EngineRates, EngineReading

MIN_STEPS = 30
"""Fewer steps in a window say more about its edges than about the engine."""

MIN_BUSY_SECONDS = 1.0

_START = 0.03
"""What a request takes at most beside its prefill until its first token arrives [s]: tokenising,
scheduling, HTTP. Nobody decodes in that time when it is alone."""

_FEW_TOKENS_PER_EVENT = 1.02
"""Up to here an event stands for one step; above, several steps or several tokens are in one."""

_FOREIGN_MATTERS = 0.1
"""Share of the running sequences that are not ours above which others use the engine."""

WhyNoEfficiency = Literal[
    "inputs_unknown",
    "draft_unknown",
    "context_unknown",
    "several_models",
    "no_stream",
    "few_steps",
    "mostly_prefill",
    "traffic_of_others",
    "steps_merged",
    "not_streamed",
    "few_tokens",
    "few_arrivals",
    "others_served",
    "steps_unknown",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoEfficiency:
    """Why there is no efficiency, with the numbers that belong to it.

    bandwidth, weights, kv_cache, draft: why each of the inputs is not known, where it is not.
    share: of the time or of the ceiling.
    """

    why: WhyNoEfficiency
    bandwidth: str | None = None
    weights: str | None = None
    kv_cache: str | None = None
    draft: str | None = None
    steps: float | None = None
    busy_seconds: float | None = None
    tokens: float | None = None
    needed: int | None = None
    share: float | None = None

    @property
    def is_want_of_traffic(self) -> bool:
        """Whether more traffic would help."""
        return self.why in ("no_stream", "few_steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """What one step serves.

    sequences: mean number running while decoding. context_tokens: sum over the running sequences,
    mean; the other two: bounds where only those are known. tokens_per_step: of one
    sequence; None when unknown. short_context: whoever saw it knows that the context is short, so a
    KV cache of unknown size may be left out. verifies_drafts: computes what was drafted, where the
    engine drafts.
    """

    sequences: float = 1.0
    context_tokens: float | None = None
    context_tokens_at_most: float | None = None
    context_tokens_at_least: float = 0.0
    tokens_per_step: float | None = None
    short_context: bool = False
    verifies_drafts: bool = True


ONE_SHORT_STREAM = StepShape(
    context_tokens=0.0, tokens_per_step=1.0, short_context=True, verifies_drafts=False
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What was observed of decoding.

    steps: engine steps while it decoded. busy_seconds: time in which it decoded. steps_source: the
    engine's own count, or the event rate of the streams. working_seconds: time in which it decoded
    or computed a prompt. prompt_tokens: computed in that time; None when nobody tells. prompts:
    that they belong to, 0 when nobody tells. uncounted: what of it may have gone into things that
    are not counted here [s].
    """

    steps: float
    busy_seconds: float
    working_seconds: float
    steps_source: Literal["engine", "streams"]
    shape: StepShape
    prompt_tokens: Interval | None = None
    prompts: float = 0.0
    uncounted: float = 0.0

    @property
    def rate(self) -> float:
        """Steps per second while it decoded."""
        return self.steps / self.busy_seconds


def work_of(seen: WindowSeen | StreamSeen | None) -> Work | NoEfficiency:
    """The work that was seen."""
    if seen is None:
        return NoEfficiency(why="no_stream")
    return _of_stream(seen) if isinstance(seen, StreamSeen) else _of_window(seen)


def stream_shape(seen: StreamSeen) -> StepShape:
    """What a step served while one stream was measured."""
    return StepShape(
        context_tokens=seen.context_tokens,
        tokens_per_step=seen.tokens_per_step,
        short_context=True,
    )


def _of_stream(seen: StreamSeen) -> Work | NoEfficiency:
    if seen.decode_rate is None:
        why = seen.no_rate_because or "not_streamed"
        return NoEfficiency(why=why, tokens=seen.tokens, needed=seen.needed)
    return Work(
        steps=seen.decode_rate / (seen.tokens_per_step or 1.0),
        busy_seconds=1.0,
        working_seconds=1.0,
        steps_source="streams",
        shape=stream_shape(seen),
    )


def _of_window(seen: WindowSeen) -> Work | NoEfficiency:
    decoded, rates = seen.decoded, seen.rates
    if rates is not None and rates.steps_per_second_per_engine is not None:
        return _by_the_engine(seen, rates, rates.steps_per_second_per_engine)
    per_event = seen.tokens_per_event
    if per_event is not None and per_event > _FEW_TOKENS_PER_EVENT:
        return NoEfficiency(why="steps_merged", tokens=per_event)
    if not decoded.event_seconds:
        return NoEfficiency(why="no_stream")
    busy = decoded.busy_seconds
    return Work(
        steps=decoded.sequence_events / decoded.event_seconds * busy,
        busy_seconds=busy,
        working_seconds=busy,
        uncounted=decoded.shared_wait_seconds,
        steps_source="streams",
        shape=StepShape(
            sequences=decoded.sequence_seconds / busy if busy else 0.0,
            context_tokens_at_most=decoded.context_tokens_at_most,
            context_tokens_at_least=decoded.context_tokens_at_least,
            tokens_per_step=tokens_per_step(seen),
        ),
    )


def _by_the_engine(
    seen: WindowSeen, rates: EngineRates, steps_per_second: float
) -> Work | NoEfficiency:
    decoded = seen.decoded
    busy = decoded.busy_seconds
    working = busy + decoded.solo_wait_seconds
    sequences = decoded.sequence_seconds / busy if busy else 0.0
    loaded = [page.reading for page in seen.pages if page.reading.running]
    ours = traffic_is_ours(seen.pages)
    if not ours:
        # How long it was busy is only known when it always was.
        if len(loaded) < len(seen.pages):
            return NoEfficiency(why="traffic_of_others")
        busy = working = rates.seconds
    if loaded:
        sequences = sum(reading.running or 0 for reading in loaded) / len(loaded)
    engines = (seen.pages[-1].reading.engines or 1) if seen.pages else 1
    prompts = _prompt_tokens(rates, engines)
    return Work(
        steps=steps_per_second * rates.seconds,
        busy_seconds=busy,
        working_seconds=busy if prompts is None else working,
        prompt_tokens=prompts,
        prompts=decoded.first_tokens / engines if ours else 0.0,
        uncounted=decoded.shared_wait_seconds
        if prompts is None
        else min(decoded.first_tokens * _START, decoded.solo_wait_seconds) + _begun(seen),
        steps_source="engine",
        shape=StepShape(
            sequences=sequences / engines,
            context_tokens=_context(loaded),
            context_tokens_at_most=decoded.context_tokens_at_most,
            context_tokens_at_least=decoded.context_tokens_at_least,
            tokens_per_step=tokens_per_step(seen),
        ),
    )


def _begun(seen: WindowSeen) -> float:
    """Time in which a prompt may have been computed that is counted when its first token comes [s].

    With a queue who waits does so for something else, however long.
    """
    if seen.last is None or seen.last.waiting:
        return 0.0
    return min(seen.decoded.open_wait_seconds, seen.decoded.seconds)


def traffic_is_ours(pages: tuple[Page, ...]) -> bool:
    """Whether the proxy's own requests account for those that the engine runs."""
    pairs = [
        (page.reading.running, page.own_sequences)
        for page in pages
        if page.reading.running is not None
    ]
    running = sum(theirs for theirs, _ in pairs)
    foreign = sum(max(0, theirs - ours) for theirs, ours in pairs)
    return foreign <= _FOREIGN_MATTERS * running


def tokens_per_step(seen: WindowSeen | StreamSeen | None) -> float | None:
    """Tokens that one sequence gains per step: by the engine, else by its events."""
    if not isinstance(seen, WindowSeen):
        return seen.tokens_per_step if seen is not None else None
    if seen.rates is not None and seen.rates.tokens_per_step is not None:
        return seen.rates.tokens_per_step
    return 1.0 if _one_token_an_event(seen) else None


def speculates(seen: WindowSeen | StreamSeen | None) -> bool | None:
    """Whether the engine decodes speculatively."""
    if not isinstance(seen, WindowSeen):
        return None
    if seen.last is not None and seen.last.spec_drafts_total is not None:
        return seen.last.spec_drafts_total > 0
    return False if _one_token_an_event(seen) else None


def _one_token_an_event(seen: WindowSeen) -> bool:
    return seen.tokens_per_event is not None and seen.tokens_per_event <= _FEW_TOKENS_PER_EVENT


def unfit(work: Work) -> NoEfficiency | None:
    """Why the work of a window says nothing about decoding; None when it does."""
    if work.busy_seconds < MIN_BUSY_SECONDS or work.steps < MIN_STEPS:
        return NoEfficiency(why="few_steps", steps=work.steps, busy_seconds=work.busy_seconds)
    return None


def _prompt_tokens(rates: EngineRates, engines: int) -> Interval | None:
    """Computed by each of the engines; between the ends where the prefix cache is not told."""
    most = rates.prompt_tokens_per_second
    if most is None:
        return None
    computed = rates.computed_prompt_tokens_per_second
    seconds = rates.seconds / engines
    if computed is not None:
        return Interval(computed * seconds, computed * seconds)
    return Interval(0.0, most * seconds)


def _context(loaded: list[EngineReading]) -> float | None:
    """Tokens of context of all sequences that one step serves, mean over the readings."""
    told = [
        reading.context_tokens_per_engine
        for reading in loaded
        if reading.context_tokens_per_engine is not None
    ]
    return sum(told) / len(told) if told else None
