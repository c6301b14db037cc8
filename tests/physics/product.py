"""What the product knows of an engine in virtual time: published facts, its page, the answers."""

from tokgauge.calibrate.answers import measured, merged
from tokgauge.calibrate.bench import Load, Measured
from tokgauge.calibrate.stream import Streamed
from tokgauge.diagnosis.answers import Answers
from tokgauge.diagnosis.decoding import Decoded, DecodingWatch, merge
from tokgauge.diagnosis.inputs import ModelBytes, Page, WindowSeen
from tokgauge.dialects.usage import Usage
from tokgauge.engine.metrics_page import EngineReading, between, read
from tokgauge.measure.record import Progress
from tokgauge.model.ceiling import ComputeRoof
from tokgauge.model.kv import kv_from_bytes_per_token
from tokgauge.model.weights import Draft, WeightsFound
from tokgauge.model.weights import Streamed as Weights

from tests.physics.engine import Engine
from tests.physics.requests import Request
from tests.physics.truth import Published

_LOOK = 1.0
"""Seconds between two looks of a window."""

_APART = 0.3e-3
"""Seconds between two requests of a client that sends several."""

_WATCHED = 0.2


class VirtualBench:
    """A `Bench`: clients of the engine, who see when events come, and its page."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._merged = False

    def now(self) -> float:
        """The engine's own time [s]."""
        return self._engine.time

    async def others(self) -> str | None:
        """Nobody else is there."""
        return None

    async def measure(self, load: Load) -> Measured:
        """See `Bench`."""
        engine = self._engine
        sent = [
            engine.submit(engine.time + _APART * i, load.context, load.tokens)
            for i in range(load.sequences)
        ]
        looks: list[EngineReading] = []
        while any(request.finished_at is None for request in sent):
            engine.run_until(engine.time + _WATCHED)
            if self._merged:
                looks.append(read(engine.page(), engine.time))
        answers = [_streamed(request) for request in sent]
        self._merged = self._merged or merged(answers)
        return measured(answers, looks)


def _streamed(request: Request) -> Streamed:
    usage = Usage(request.prompt_tokens, request.completion_tokens, request.cached_tokens)
    return Streamed(request.sent_at, 0, request.event_times, usage, finished=True)


def model_bytes(known: Published) -> ModelBytes:
    """What a step reads, by what a user can look up."""
    draft = None
    if known.draft_tokens:
        passes = known.draft_tokens if known.draft_bytes else 0
        draft = Draft(Weights(known.draft_bytes), passes, 1 + known.draft_tokens)
    streamed = Weights(
        known.dense_bytes,
        expert_bytes=known.expert_bytes,
        experts=known.experts,
        experts_per_token=known.experts_per_token,
        parameters=known.parameters_per_token,
        layers=known.layers,
        dequantised=known.precision == "int4",
        draft=draft,
    )
    return ModelBytes(
        WeightsFound(streamed, "settings", None, None),
        kv_from_bytes_per_token(known.kv_bytes_per_token),
        draft_unknown_because=None,
    )


def roof(known: Published) -> ComputeRoof:
    """What the card computes."""
    return ComputeRoof(known.flops, known.parameters_per_token)


def watched(engine: Engine, seconds: float) -> WindowSeen:
    """What a proxy that all requests pass sees in the next so many seconds."""
    watch = DecodingWatch(engine.time)
    end = engine.time + seconds
    first_events: dict[Request, float] = {}
    over = {request for request in engine.requests if request.finished_at is not None}
    pages: list[Page] = []
    parts: list[Decoded] = []
    while True:
        now = engine.time
        sent = [r for r in engine.requests if r not in over and r.sent_at <= now]
        live: list[Progress] = []
        for request in sent:
            progress = _progress(request, first_events)
            if request.finished_at is None:
                live.append(progress)
            else:
                over.add(request)
                watch.ended(progress)
        parts.append(watch.look(now, live))
        pages.append(Page(read(engine.page(), now), len(live)))
        if now >= end:
            break
        engine.run_until(min(end, now + _LOOK))
    first, last = pages[0].reading, pages[-1].reading
    return WindowSeen(
        decoded=merge(parts[1:]),
        answers=Answers(),
        pages=tuple(pages),
        last=last,
        rates=between(first, last),
    )


def _progress(request: Request, first_events: dict[Request, float]) -> Progress:
    if request not in first_events and request.completion_tokens:
        first_events[request] = request.event_times[0]
    most = float(request.prompt_tokens + request.max_tokens)
    return Progress(
        id=str(id(request)),
        opened_at=request.sent_at,
        requested="sim",
        answered="sim",
        generates=True,
        streamed=True,
        decodes_from=first_events.get(request),
        decoded_to=request.finished_at,
        token_events=request.completion_tokens,
        silent_since=None,
        sequences=1,
        context_at_most=most,
        context_at_least=0.0,
        calls_tools=False,
    )
