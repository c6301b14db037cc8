"""What inputs say of waiting."""

from __future__ import annotations

from collections.abc import Callable

from tokgauge.diagnosis.efficiency import StepBytes, step_bytes
from tokgauge.diagnosis.expected_time import Interval, StepWork
from tokgauge.diagnosis.first_tokens import FirstTokens
from tokgauge.diagnosis.inputs import Inputs, Page, WindowSeen
from tokgauge.diagnosis.normal import costs_of, setup_of
from tokgauge.diagnosis.notes import FELT_WAIT
from tokgauge.diagnosis.waiting import Waits
from tokgauge.diagnosis.work import ONE_SHORT_STREAM

_PASSING = 2.0
"""Seconds that looks must lie apart: a queue that is seen for less may be a burst."""

Prefill = Callable[[float], Interval]
"""Seconds that a prompt of so many tokens takes while nothing else runs."""


def waits_of(inputs: Inputs) -> Waits:
    """All of it."""
    seen = inputs.seen if isinstance(inputs.seen, WindowSeen) else None
    rates = seen.rates if seen is not None else None
    pages = seen.pages if seen is not None else ()
    first_tokens = inputs.lately.first_tokens if inputs.lately is not None else FirstTokens()
    # Of those who have only just asked nobody knows how long they will wait.
    still = [seconds for seconds in inputs.unanswered if seconds > FELT_WAIT]
    prefill, prompt = _prefill(inputs), first_tokens.prompt_tokens()
    usages = [page.reading.kv_cache_usage for page in pages]
    return Waits(
        down=inputs.down,
        first_tokens=len(first_tokens) + len(still),
        first_token_seconds=first_tokens.median(still),
        still_waiting=len(still),
        longest_wait=max(still, default=None),
        prompt_seconds=prefill(prompt) if prefill is not None and prompt is not None else None,
        beyond_prompts=first_tokens.beyond_prompts(prefill) if prefill is not None else None,
        queued=(rates.queued or 0) if rates is not None else 0,
        queue_seconds=rates.queue_seconds if rates is not None else None,
        waiting=seen.last.waiting if seen is not None and seen.last is not None else None,
        queue_share=_queue_share(pages),
        kv_cache_usage=max((usage for usage in usages if usage is not None), default=None),
        preemptions_per_second=rates.preemptions_per_second if rates is not None else None,
    )


def _queue_share(pages: tuple[Page, ...]) -> float | None:
    known = [page.reading for page in pages if page.reading.waiting is not None]
    if not known or known[-1].at - known[0].at < _PASSING:
        return None
    return sum(bool(reading.waiting) for reading in known) / len(known)


def _prefill(inputs: Inputs) -> Prefill | None:
    """None where nothing tells how fast prompts are computed."""
    step = step_bytes(ONE_SHORT_STREAM, inputs.model, inputs.tensor_parallel)
    if inputs.several_models or not isinstance(step, StepBytes):
        return None
    setup = setup_of(inputs, step)
    if setup is None:
        return None
    costs = costs_of(inputs, setup, prompts=True)
    if costs.constants.prefill is None:
        return None

    def seconds(tokens: float) -> Interval:
        prompt = StepWork(
            steps=1, bytes=step.total(), sequence_steps=1, prompt_tokens=tokens, prompts=1
        )
        found = costs.expected(prompt)
        assert found is not None  # noqa: S101 - the rate is known
        return found

    return seconds
