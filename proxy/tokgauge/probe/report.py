"""What an experiment means: sentences for a person, a document for a program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tokgauge.diagnosis.diagnose import diagnose
from tokgauge.diagnosis.evidence import Evidence
from tokgauge.diagnosis.verdict import Verdict
from tokgauge.measure.timeline import MIN_ARRIVALS_FOR_RATE, MIN_TOKENS_FOR_RATE
from tokgauge.model.ceiling import HEALTHY
from tokgauge.model.kv import KvCache, KvUnknown
from tokgauge.model.weights import WeightsFound, WeightsUnknown
from tokgauge.probe.ceiling import Ceiling
from tokgauge.probe.experiment import Experiment, Run
from tokgauge.probe.gpu import GpusSeen
from tokgauge.probe.server import Answer

__all__ = ["READING_SPEED", "document", "ending", "findings", "judge", "seconds"]

READING_SPEED = 10.0
"""Characters per second that a person reads at most, about."""

_RUNS_DIFFER = 1.2
"""Quotient of the speeds of the two answers from which on they differ."""

_OTHERS_MATTER = 0.1
"""Tokens for others, as a share of the own ones, above which the stream was not alone."""


def judge(experiment: Experiment, ceiling: Ceiling, seen: GpusSeen | None) -> Verdict:
    """The verdict on the decode rate. Nothing is judged by a figure that is not known.

    seen: the GPUs of this machine, None when the server runs on another one.
    """
    if experiment.decode_rate is None:
        return _not_judged(f"no decode rate: {_why_no_rate(experiment)}")
    share = ceiling.share
    if share is None:
        return _not_judged("; ".join(_missing(ceiling)))
    own = experiment.runs[-1].streamed.measurement.completion_tokens or 0
    others = experiment.tokens_of_others
    alone = others is not None and others <= _OTHERS_MATTER * own
    if others is not None and not alone and share < HEALTHY:
        return _not_judged(
            f"{share:.0%} of the ceiling, but the server generated {others} tokens for others "
            "meanwhile, and streams that share a step slow each other down: repeat it when idle"
        )
    per_step = experiment.tokens_per_step
    if per_step is not None and per_step > 1 and ceiling.draft_unknown_because is not None:
        return _not_judged(
            f"{share:.0%} of the ceiling by the model's own bytes, but it decodes speculatively "
            f"({per_step:.1f} tokens per step), and what drafting reads beside them is not known: "
            f"{ceiling.draft_unknown_because}"
        )
    if experiment.tokens_per_step is None and share <= 1:
        return _not_judged(
            f"{share:.0%} of the ceiling if every token took a step of its own, but that is not "
            "known: speculative decoding and merged events look alike from outside"
        )
    return diagnose(_evidence(experiment, ceiling, seen, alone=alone))


def _not_judged(why: str) -> Verdict:
    return Verdict("not_judged", f"Not judged: {why}.", reason="no_efficiency")


def _evidence(
    experiment: Experiment, ceiling: Ceiling, seen: GpusSeen | None, *, alone: bool
) -> Evidence:
    gpu = seen.last if seen is not None else None
    after = experiment.readings[1] if experiment.readings is not None else None
    neighbours = [one for found in seen.judged for one in found.neighbours] if seen else []
    return Evidence(
        efficiency=ceiling.share,
        basis=ceiling.basis,
        steps_source="streams",
        tokens_per_second=experiment.decode_rate,
        decoded_tokens=experiment.runs[-1].streamed.measurement.completion_tokens,
        mean_batch=1.0 if alone else None,
        busy_ratio=1.0 if alone else None,
        contention=seen.contention if seen is not None else "unknown",
        neighbours=len(neighbours) if gpu is not None else None,
        gpu_utilization=gpu.utilization_ratio if gpu is not None else None,
        memory_clock_mhz=gpu.memory_clock_mhz if gpu is not None else None,
        max_memory_clock_mhz=gpu.max_memory_clock_mhz if gpu is not None else None,
        throttle_reasons=gpu.throttle_reasons if gpu is not None else None,
        power_watts=gpu.power_watts if gpu is not None else None,
        kv_cache_usage=after.kv_cache_usage if after is not None else None,
        tokens_per_step=experiment.tokens_per_step,
    )


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
        others is not None and others > _OTHERS_MATTER * mine
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


def document(experiment: Experiment, ceiling: Ceiling, verdict: Verdict) -> dict[str, Any]:
    """Everything for `--json`; null is what is not known."""
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
        "ceiling": _ceiling(ceiling),
        "verdict": asdict(verdict),
        "findings": list(findings(experiment, verdict)),
        "notes": list(experiment.notes),
        "runs": [
            {"not_streamed": _answer(run.not_streamed), "streamed": _answer(run.streamed)}
            for run in experiment.runs
        ],
    }


def _ceiling(ceiling: Ceiling) -> dict[str, Any]:
    weights, kv = ceiling.weights, ceiling.kv
    found = weights if isinstance(weights, WeightsFound) else None
    return {
        "bandwidth_bytes_per_second": ceiling.bandwidth.bytes_per_second,
        "bandwidth_source": ceiling.bandwidth.source,
        "bandwidth_explanation": ceiling.bandwidth.explanation,
        "weights_source": {
            "streamed": None if found is None else found.streamed_source,
            "checkpoint": None if found is None else found.checkpoint_source,
        },
        "kv_bytes_per_token": kv.bytes_per_token if isinstance(kv, KvCache) else None,
        "kv_counted": ceiling.kv_counted,
        "context_tokens": ceiling.context,
        "limits": {basis: asdict(limit) for basis, limit in ceiling.limits.items()},
        "basis": ceiling.basis,
        "share": ceiling.share,
        "missing": list(_missing(ceiling)),
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


def _missing(ceiling: Ceiling) -> Iterator[str]:
    """What is unknown, and what to set."""
    if ceiling.bandwidth.bytes_per_second is None:
        yield f"bandwidth unknown: {ceiling.bandwidth.explanation}"
    if isinstance(ceiling.weights, WeightsUnknown):
        yield (
            f"weights unknown: {ceiling.weights.reason}: set --weights-bytes, or --params and "
            "--bits for an estimate"
        )
    elif ceiling.weights.bytes_per_step() is None:
        yield (
            f"weights read per token unknown: {ceiling.weights.streamed_unknown_because}: set "
            "--weights-bytes"
        )
    elif isinstance(ceiling.kv, KvUnknown) and not ceiling.kv.negligible_when_short:
        yield f"what a sequence keeps is unknown: {ceiling.kv.reason}"


def _why_no_rate(experiment: Experiment) -> str:
    run = experiment.runs[-1]
    if not run.streamed.streamed:
        return "the server did not stream"
    measured = run.streamed.measurement
    tokens = measured.completion_tokens
    if tokens is not None and tokens < MIN_TOKENS_FOR_RATE:
        return f"{tokens} tokens came, and it takes {MIN_TOKENS_FOR_RATE}"
    return (
        f"the tokens came in fewer than {MIN_ARRIVALS_FOR_RATE} pieces, so something on the way "
        "holds them back"
    )
