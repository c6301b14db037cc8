"""What an experiment means: sentences for a person, a document for a program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from proxy.exchange import MIN_ARRIVALS_FOR_RATE, MIN_TOKENS_FOR_RATE
from proxy.model.kv import KvCache
from proxy.model.weights import WeightsFound, WeightsUnknown
from proxy.probe.ceiling import Ceiling
from proxy.probe.experiment import Experiment, Run
from proxy.probe.server import Answer

__all__ = ["READING_SPEED", "Verdict", "document", "ending", "findings", "judge", "seconds"]

READING_SPEED = 10.0
"""Characters per second that a person reads at most, about."""

_TOKENS_PER_EVENT_LIMIT = 1.1
"""Above it an event is not one token: one read of the weights gave several, or events were merged,
and from outside nobody can tell which."""

Level = Literal["healthy", "watch", "suspect", "above_ceiling", "not_judged"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How well the hardware was used, and why in one sentence."""

    level: Level
    text: str


def judge(experiment: Experiment, ceiling: Ceiling) -> Verdict:
    """The verdict on the decode rate. Nothing is judged by a figure that is not known."""
    if experiment.decode_rate is None:
        return Verdict("not_judged", f"no decode rate: {_why_no_rate(experiment)}")
    share, basis = ceiling.share, ceiling.basis
    if share is None or basis is None:
        return Verdict("not_judged", "; ".join(_missing(ceiling)))
    per_event = experiment.typical(lambda run: run.streamed.measurement.tokens_per_event)
    if share <= 1 and per_event is not None and per_event > _TOKENS_PER_EVENT_LIMIT:
        return Verdict(
            "not_judged",
            f"{share:.0%} of the ceiling for one token per step, but {per_event:.1f} tokens came "
            "per event: with speculative decoding the share is smaller than that, with merged "
            "events it is right",
        )
    found = f"{share:.0%} of what the memory bandwidth allows ({basis} bytes)"
    idle = "If the server had other requests meanwhile, that alone explains it: repeat it when idle"
    if ceiling.band == "above":
        return Verdict(
            "above_ceiling",
            f"{share:.0%} of the ceiling is more than one read of the weights per token allows: "
            "speculative decoding, wrong inputs, or weights that partly stay in a large cache",
        )
    if ceiling.band == "healthy":
        return Verdict("healthy", f"{found}: the card is well used")
    if ceiling.band == "watch":
        return Verdict("watch", f"{found}: less than a well-used card gives. {idle}")
    return Verdict(
        "suspect",
        f"{found}: something takes the rest. {idle}; otherwise tokgauge serve finds what it is",
    )


def findings(experiment: Experiment, ceiling: Ceiling) -> Iterator[str]:
    """What a person should know, most tangible first."""
    unseen = experiment.typical(lambda run: run.not_streamed.measurement.silent_wait)
    streamed = experiment.typical(lambda run: run.streamed.measurement.silent_wait)
    if unseen is not None:
        line = f"not streamed: {seconds(unseen)} without seeing anything"
        if streamed is not None and experiment.runs[-1].streamed.streamed:
            line += f"; streamed: {seconds(streamed)}"
        yield line
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
    verdict = judge(experiment, ceiling)
    yield f"{verdict.level.replace('_', ' ')}: {verdict.text}"


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
    }[measured.truncations[0]]
    return f"{by}: the answer was not finished"


def seconds(value: float) -> str:
    """A duration for a person."""
    return f"{value:.1f} s" if value >= 1 else f"{value:.2f} s"


def document(experiment: Experiment, ceiling: Ceiling) -> dict[str, Any]:
    """Everything for `--json`; null is what is not known."""
    verdict = judge(experiment, ceiling)
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
        "findings": list(findings(experiment, ceiling)),
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
