"""What the answers of a load show of the engine's steps. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from tokgauge.calibrate.bench import Decoded, Measured
from tokgauge.calibrate.stream import Streamed
from tokgauge.engine import metrics_page
from tokgauge.engine.metrics_page import EngineReading

_LEAST_STEPS = 12
_ONE_TOKEN_PER_EVENT = 1.02


def measured(
    answers: Sequence[Streamed], looks: Sequence[EngineReading], *, late: bool = False
) -> Measured:
    """What follows from answers that ran together, and looks at the engine's page meanwhile.

    late: whoever read the answers was too busy to tell when they came.
    """
    alone = answers[0] if len(answers) == 1 and answers[0].arrivals else None
    prompt = first = None
    if alone is not None and alone.usage.prompt is not None:
        prompt = alone.usage.prompt - (alone.usage.cached_prompt or 0)
        first = alone.arrivals[0] - alone.sent_at
    decoded = _decoded(answers, looks)
    if late and not merged(answers):
        decoded = "this machine could not read so many streams in time"
    return Measured(
        decoded=decoded if isinstance(decoded, Decoded) else None,
        because=decoded if isinstance(decoded, str) else None,
        together=_together(answers),
        prompt_tokens=prompt,
        first_token=first,
    )


def merged(answers: Sequence[Streamed]) -> bool:
    """Whether events carry several tokens, so that they do not show the steps."""
    return _tokens_per_event(answers) > _ONE_TOKEN_PER_EVENT


def _decoded(answers: Sequence[Streamed], looks: Sequence[EngineReading]) -> Decoded | str:
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
    if merged(answers):
        return _by_the_engine(answers, [x for x in looks if begin <= x.at <= end], context)
    gaps = [len(times) - 1 for times in inside]
    if min(gaps) < _LEAST_STEPS:
        return "the sequences did not run together long enough"
    step = mean((times[-1] - times[0]) / gap for times, gap in zip(inside, gaps, strict=True))
    return Decoded(
        steps=mean(gaps), seconds=step * mean(gaps), sequences=len(answers), context=context
    )


def _together(answers: Sequence[Streamed]) -> int:
    """The most answers between their first token and their last at one moment."""
    spans = [(a.arrivals[0], a.arrivals[-1]) for a in answers if a.arrivals]
    return max((sum(b <= begin < e for b, e in spans) for begin, _ in spans), default=0)


def _tokens_per_event(answers: Sequence[Streamed]) -> float:
    """0 where nothing came."""
    events = sum(len(answer.arrivals) for answer in answers)
    return sum(answer.usage.completion or 0 for answer in answers) / max(1, events)


def _by_the_engine(
    answers: Sequence[Streamed], looks: Sequence[EngineReading], context: float
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
