"""What an experiment means: sentences for a person, a document for a program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tokgauge.diagnosis.assess import Assessment
from tokgauge.diagnosis.inputs import OTHERS_MATTER, Inputs, StreamSeen
from tokgauge.diagnosis.verdict import Verdict
from tokgauge.diagnosis.wording import in_words
from tokgauge.model.kv import KvCache, KvUnknown
from tokgauge.model.weights import WeightsFound, WeightsUnknown
from tokgauge.probe.experiment import Experiment, Run
from tokgauge.probe.server import Answer

__all__ = ["READING_SPEED", "context_counted", "document", "ending", "findings", "seconds"]

READING_SPEED = 10.0
"""Characters per second that a person reads at most, about."""

_RUNS_DIFFER = 1.2
"""Quotient of the speeds of the two answers from which on they differ."""


def findings(experiment: Experiment, verdict: Verdict) -> Iterator[str]:
    """What a person should know, most tangible first."""
    unseen = experiment.typical(lambda run: run.not_streamed.measurement.silent_wait)
    streamed = experiment.typical(lambda run: run.streamed.measurement.silent_wait)
    if unseen is not None:
        line = f"not streamed: {seconds(unseen)} without seeing anything"
        if streamed is not None and experiment.runs[-1].streamed.streamed:
            line += f"; streamed: {seconds(streamed)}"
        yield line
    if difference := _difference(experiment):
        yield difference
    yield _endings(experiment.runs[-1], experiment.question.max_tokens)
    pace = experiment.characters_per_second
    if pace is None:
        yield "pace of the text: unknown"
    else:
        times = pace / READING_SPEED
        than = f"{times:.0f} times as fast as" if times >= 1.5 else f"{times:.1f} times as fast as"
        yield (
            f"text appears at {pace:.0f} characters/s, {than} a person reads "
            f"({READING_SPEED:.0f} characters/s)"
        )
    yield verdict.headline
    for cause in verdict.causes:
        yield f"possible cause ({cause.kind.replace('_', ' ')}): {cause.evidence}"
    for cleared in verdict.ruled_out:
        yield f"not the cause: {cleared.evidence}"
    if verdict.level in ("watch", "suspect"):
        if experiment.tokens_of_others is None:
            yield "other requests at the same time would explain it too: repeat it when idle"
        yield from verdict.advice[:1]


def _difference(experiment: Experiment) -> str | None:
    """Why the two answers took different times; None where they did not, or it cannot be said."""
    run = experiment.runs[-1]
    ours = (run.not_streamed, run.streamed)
    speeds = [answer.tokens_per_second for answer in ours]
    slow, fast = min((s or 0.0) for s in speeds), max((s or 0.0) for s in speeds)
    if not slow or fast / slow < _RUNS_DIFFER or not run.streamed.streamed:
        return None
    took = " and ".join(seconds(answer.measurement.duration) for answer in ours)
    of_others = (experiment.tokens_of_others_before, experiment.tokens_of_others)
    own = [answer.measurement.completion_tokens or 0 for answer in ours]
    busy = any(
        others is not None and others > OTHERS_MATTER * mine
        for others, mine in zip(of_others, own, strict=True)
    )
    if busy or experiment.requests_of_others:
        during = " and ".join("unknown" if n is None else str(n) for n in of_others)
        queue = experiment.requests_of_others
        waiting = f", with up to {queue} requests of theirs running or waiting" if queue else ""
        return (
            f"not streamed and streamed took {took}, and the server worked for others meanwhile "
            f"({during} tokens{waiting}): that, not streaming, may be the difference; repeat it "
            "when idle"
        )
    if None not in of_others:
        return (
            f"not streamed and streamed took {took}, with nobody else there: repeat it with "
            "--runs 5 before reading anything into that"
        )
    return (
        f"not streamed and streamed took {took}; whether others were served meanwhile is not "
        "known, so it says nothing about streaming: repeat it with --runs 5"
    )


def ending(answer: Answer, max_tokens: int) -> str:
    """How an answer ended, in words."""
    measured = answer.measurement
    tokens = measured.completion_tokens
    after = "" if tokens is None else f" after {tokens} tokens"
    if not measured.truncations:
        reason = measured.finish_reasons[0] if measured.finish_reasons else "no reason told"
        return f"finished{after} ({reason})"
    by = {
        "request": f"cut at max_tokens{after}",
        "context": f"cut at the model's context length{after}",
        "unknown": f"cut{after}, by which limit the server does not tell (asked: {max_tokens})",
    }[str(measured.truncations[0])]
    return f"{by}: the answer was not finished"


def seconds(value: float) -> str:
    """A duration for a person."""
    return f"{value:.1f} s" if value >= 1 else f"{value:.2f} s"


def context_counted(inputs: Inputs) -> float | None:
    """Tokens of context whose KV cache is among the bytes of a step; None when it is not."""
    if inputs.model is None or not isinstance(inputs.model.kv, KvCache):
        return None
    return inputs.seen.context_tokens if isinstance(inputs.seen, StreamSeen) else None


def document(experiment: Experiment, inputs: Inputs, assessment: Assessment) -> dict[str, Any]:
    """Everything for `--json`; null is what is not known."""
    verdict = in_words(assessment.speed)
    rates = [run.streamed.measurement.decode_tokens_per_second for run in experiment.runs]
    known = [rate for rate in rates if rate is not None]
    pace = experiment.characters_per_second
    return {
        "url": experiment.url,
        "model": experiment.card.id,
        "root": experiment.card.root,
        "context_length": experiment.card.max_model_len,
        "max_tokens": experiment.question.max_tokens,
        "summary": {
            "decode_tokens_per_second": experiment.decode_rate,
            "decode_tokens_per_second_range": [min(known), max(known)] if known else None,
            "time_to_first_token_seconds": experiment.typical(
                lambda run: run.streamed.measurement.time_to_first_token
            ),
            "silent_wait_seconds": {
                "not_streamed": experiment.typical(
                    lambda run: run.not_streamed.measurement.silent_wait
                ),
                "streamed": experiment.typical(lambda run: run.streamed.measurement.silent_wait),
            },
            "end_to_end_tokens_per_second": {
                "not_streamed": experiment.typical(lambda run: run.not_streamed.tokens_per_second),
                "streamed": experiment.typical(lambda run: run.streamed.tokens_per_second),
            },
            "tokens_per_step": experiment.tokens_per_step,
            "tokens_of_others": experiment.tokens_of_others,
            "characters_per_second": pace,
            "reading_speed_ratio": None if pace is None else pace / READING_SPEED,
            "truncated": any(
                answer.measurement.truncations
                for run in experiment.runs
                for answer in (run.not_streamed, run.streamed)
            ),
        },
        "ceiling": _ceiling(experiment, inputs, assessment),
        "verdict": asdict(verdict),
        "findings": list(findings(experiment, verdict)),
        "notes": list(experiment.notes),
        "runs": [
            {"not_streamed": _answer(run.not_streamed), "streamed": _answer(run.streamed)}
            for run in experiment.runs
        ],
    }


def _ceiling(experiment: Experiment, inputs: Inputs, assessment: Assessment) -> dict[str, Any]:
    weights = inputs.model.weights if inputs.model is not None else None
    kv = inputs.model.kv if inputs.model is not None else None
    found = weights if isinstance(weights, WeightsFound) else None
    efficiency = assessment.efficiency
    shares = efficiency.by_basis if efficiency is not None else {}
    basis = next(iter(assessment.ceilings), None)
    return {
        "bandwidth_bytes_per_second": inputs.bandwidth.bytes_per_second,
        "bandwidth_source": inputs.bandwidth.source,
        "bandwidth_explanation": inputs.bandwidth.explanation,
        "weights_source": {
            "streamed": None if found is None else found.streamed_source,
            "checkpoint": None if found is None else found.checkpoint_source,
        },
        "kv_bytes_per_token": kv.bytes_per_token if isinstance(kv, KvCache) else None,
        "kv_counted": context_counted(inputs) is not None,
        "context_tokens": experiment.mean_context,
        "limits": {
            name: {**asdict(ceiling), "share": shares.get(name)}
            for name, ceiling in assessment.ceilings.items()
        },
        "basis": basis,
        "share": shares.get(basis) if basis is not None else None,
        "missing": list(_missing(inputs)),
    }


def _answer(answer: Answer) -> dict[str, Any]:
    measured = answer.measurement
    return {
        "streamed": answer.streamed,
        "duration_seconds": measured.duration,
        "time_to_first_token_seconds": measured.time_to_first_token,
        "time_to_first_output_seconds": measured.time_to_first_output,
        "silent_wait_seconds": measured.silent_wait,
        "decode_tokens_per_second": measured.decode_tokens_per_second,
        "end_to_end_tokens_per_second": answer.tokens_per_second,
        "prompt_tokens": measured.prompt_tokens,
        "cached_prompt_tokens": measured.cached_prompt_tokens,
        "completion_tokens": measured.completion_tokens,
        "reasoning_tokens": measured.reasoning_tokens,
        "token_source": measured.token_source,
        "token_events": measured.token_events,
        "tokens_per_event": measured.tokens_per_event,
        "characters": answer.characters,
        "finish_reason": measured.finish_reasons[0] if measured.finish_reasons else None,
        "truncated_by": measured.truncations[0] if measured.truncations else None,
    }


def _endings(run: Run, max_tokens: int) -> str:
    """How both answers ended; one sentence when they ended alike."""
    ends = [ending(answer, max_tokens) for answer in (run.not_streamed, run.streamed)]
    if ends[0] == ends[1]:
        return f"both answers: {ends[0]}"
    return f"not streamed: {ends[0]}; streamed: {ends[1]}"


def _missing(inputs: Inputs) -> Iterator[str]:
    """What is unknown, and what to set."""
    if inputs.bandwidth.bytes_per_second is None:
        yield f"bandwidth unknown: {inputs.bandwidth.explanation}"
    if inputs.model is None:
        return
    weights, kv = inputs.model.weights, inputs.model.kv
    if isinstance(weights, WeightsUnknown):
        yield (
            f"weights unknown: {weights.reason}: set --weights-bytes, or --params and --bits for "
            "an estimate"
        )
    elif weights.bytes_per_step() is None:
        yield (
            f"weights read per token unknown: {weights.streamed_unknown_because}: set "
            "--weights-bytes"
        )
    elif isinstance(kv, KvUnknown) and not kv.negligible_when_short:
        yield f"what a sequence keeps is unknown: {kv.reason}"
