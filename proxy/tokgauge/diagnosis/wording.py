"""Turns a judgement into words: the only place where its sentences are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from tokgauge.diagnosis.causes import POWER_BRAKE, POWER_CAP, THERMAL, cache_is_full
from tokgauge.diagnosis.cross_checks import CrossCheck, Source, disagreements
from tokgauge.diagnosis.evidence import Evidence, memory_clock_is_low
from tokgauge.diagnosis.judgement import Judgement
from tokgauge.diagnosis.notes import FELT_WAIT, ClientSide, Note
from tokgauge.diagnosis.phrases import (
    count,
    memory_clock,
    neighbours_run,
    per_time,
    percent,
    prefill_seen,
    queue,
    reached,
    seconds,
    sequences,
    share_in_band,
    speed,
    waiting,
)
from tokgauge.diagnosis.verdict import Cause, CauseKind, RuledOut, Verdict
from tokgauge.diagnosis.wording_not_judged import TELL_TOKENS_PER_STEP, WHAT_THEN, WHY

_CHECK_INPUTS = (
    "Run `tokgauge check` to see where the bandwidth and the bytes of the weights come from, "
    "and set the right ones."
)
_LARGER_CACHE = (
    "Give the KV cache more room (more GPU memory for it, an fp8 KV cache, a smaller max_model_len)"
)

_TITLES: Mapping[CauseKind, str] = {
    "active_neighbour": "somebody else is computing on the engine's GPU",
    "thermal_throttling": "the GPU is too hot and slows down",
    "power_throttling": "the GPU slows down to save power",
    "hardware_slowdown": "the GPU's hardware slows it down",
    "memory_clock_low": "the GPU's memory runs below its full clock",
    "preemption": "the engine interrupts running requests for want of KV cache",
    "kv_cache_full": "the KV cache is full",
    "long_prefills": "long prompts are computed between the decode steps",
    "compute_bound": "the batch is so large that computing is the limit, not memory",
    "cpu_bound": "the GPU waits for the engine's CPU between steps",
    "slow_engine": "the engine itself takes long for each step",
    "slow_card": "the GPU's memory is read more slowly than it should be",
    "slow_prefill": "prompts are computed more slowly than they should be",
    "speculative_decoding": "speculative decoding gives several tokens per step",
    "wrong_ceiling_inputs": "the bandwidth or the bytes behind the ceiling are wrong",
    "cached_weights": "a part of the weights stays in the GPU's cache",
}

_ADVICE: Mapping[CauseKind, str] = {
    "active_neighbour": (
        "Move that work to another GPU or time, or stop it; nvidia-smi shows the processes."
    ),
    "thermal_throttling": "Look at fans, airflow and inlet temperature.",
    "power_throttling": (
        "Raise the power limit (nvidia-smi -pl) as far as the card and supply allow."
    ),
    "hardware_slowdown": "Look at the cooling and at the power cables and supply of the card.",
    "memory_clock_low": "See whether clocks are locked, and release them (nvidia-smi -rmc, -rac).",
    "preemption": f"{_LARGER_CACHE} or lower the batch limit (max_num_seqs).",
    "kv_cache_full": f"{_LARGER_CACHE}.",
    "long_prefills": (
        "Use prefix caching for prompts that repeat, smaller prefill chunks"
        " (max_num_batched_tokens), or a second engine for prefill."
    ),
    "compute_bound": (
        "This is no fault: the card's arithmetic is in full use. For more speed per stream lower"
        " the batch limit (max_num_seqs), for more throughput add GPUs."
    ),
    "cpu_bound": (
        "Look at the engine's CPU: cores given to it, --enforce-eager (switch it off, so that"
        " CUDA graphs are used), guided decoding, logging, other work on the host."
    ),
    "slow_engine": (
        "Look at what the engine does between steps: --enforce-eager (switch it off, so that CUDA"
        " graphs are used), its CPU cores and other work on the host, guided decoding, logging."
    ),
    "slow_card": (
        "Look at the memory clock, at throttling and at others on the GPU (nvidia-smi -q), and at"
        " the kernels that the engine has for this type of weights."
    ),
    "slow_prefill": (
        "Look at the core clock and the power cap (nvidia-smi -q -d CLOCK,PERFORMANCE), and at the"
        " engine's attention backend."
    ),
    "speculative_decoding": TELL_TOKENS_PER_STEP,
    "wrong_ceiling_inputs": _CHECK_INPUTS,
    "cached_weights": (
        "Only possible for weights of a few hundred MB on a card with a large L2 cache:"
        " compare their size with it."
    ),
}
_ADVICE_ON_POWER_BRAKE = "Look at the power supply of the server: it asks the card to brake."
_CLIENT_SIDE: Mapping[ClientSide, str] = {
    "stream": "Let the clients stream (`stream: true`): the first words come at once.",
    "ask_for_more_tokens": (
        "Let the clients ask for more tokens (max_tokens) where answers are cut off;"
        " tokgauge_truncations_total tells which were cut by the model's context instead."
    ),
}


def in_words(judgement: Judgement) -> Verdict:
    """The judgement for people."""
    e = judgement.evidence
    causes = tuple(
        Cause(kind, _CAUSES[kind](judgement), _advice_on(kind, e)) for kind in judgement.causes
    )
    ruled_out = tuple(RuledOut(kind, _RULED_OUT[kind](e)) for kind in judgement.ruled_out)
    return Verdict(
        level=judgement.level,
        headline=_headline(judgement),
        causes=causes,
        ruled_out=ruled_out,
        notes=(
            *(_NOTES[note](e) for note in judgement.notes),
            *(_cross_check(check, e) for check in judgement.cross_checks),
        ),
        advice=(
            *(_advice(judgement) if not causes else (cause.advice for cause in causes)),
            *(_CLIENT_SIDE[kind] for kind in judgement.client_side_advice),
        ),
        reason=judgement.reason,
    )


def _headline(judgement: Judgement) -> str:
    e, causes = judgement.evidence, judgement.causes
    if judgement.why is not None:
        return f"Not judged: {WHY[judgement.why](e)}{queue(e)}."
    opening = {
        "healthy": "Healthy",
        "watch": "Worth watching",
        "suspect": "Slow",
        "above_ceiling": "Above the ceiling",
    }[judgement.level]
    if judgement.level == "healthy":
        grades = {
            "hardly_possible": ", more than hardware usually gives",
            "as_good_as_it_gets": ", as good as hardware gets",
        }
        ending = grades[judgement.grade] if judgement.grade is not None else ""
    elif not causes:
        unclear = "no cause stands out" if judgement.level == "watch" else "cause unknown"
        ending = f"; {unclear}"
    elif judgement.certain:
        ending = f"; most likely because {_TITLES[causes[0]]}"
    else:
        ending = f"; either {', or '.join(_TITLES[kind] for kind in causes)}"
    return f"{opening}: {reached(e)}{speed(e)}{ending}{queue(e)}."


# Causes


def _advice_on(kind: CauseKind, e: Evidence) -> str:
    if kind == "power_throttling" and POWER_BRAKE in (e.throttle_reasons or ()):
        return _ADVICE_ON_POWER_BRAKE
    return _ADVICE[kind]


def _throttling(blamed: frozenset[str], *, with_power: bool = False) -> Callable[[Judgement], str]:
    def seen(judgement: Judgement) -> str:
        e = judgement.evidence
        told = blamed & (e.throttle_reasons or frozenset())
        parts = [f"the driver reports {', '.join(sorted(told))}"] if told else []
        if clock := memory_clock(e):
            parts.append(clock)
        if with_power and e.power_watts is not None:
            parts.append(f"the card draws {e.power_watts:,.0f} W")
        return "; ".join(parts)

    return seen


def _preemption(judgement: Judgement) -> str:
    e = judgement.evidence
    seen = f"{per_time(e.preemptions_per_second or 0.0)} interrupted and computed again later"
    return seen if e.kv_cache_usage is None else f"{seen}; {_cache(e)}"


def _cache(e: Evidence) -> str:
    return f"the KV cache is {percent(e.kv_cache_usage or 0.0)} full"


def _compute_bound(judgement: Judgement) -> str:
    e = judgement.evidence
    return (
        f"{e.mean_batch or 0.0:,.0f} sequences run together; from {e.ridge_batch or 0.0:,.0f} on"
        " this GPU computes longer than it reads"
    )


def _gpu_busy(e: Evidence) -> str:
    return f"the GPU is busy {percent(e.gpu_utilization or 0.0)} of the time"


def _above(e: Evidence) -> str:
    return f"{share_in_band(e.efficiency or 0.0, e)} of the ceiling"


def _above_plainly(judgement: Judgement) -> str:
    seen = _above(judgement.evidence)
    return f"{seen} is more than one read of these bytes per step allows"


def _speculation(judgement: Judgement) -> str:
    e = judgement.evidence
    if e.speculative:
        return "speculative decoding is on and its tokens per step are not known"
    return f"{_above(e)}, and whether the engine decodes speculatively is not known"


def _wrong_inputs(judgement: Judgement) -> str:
    e, above = judgement.evidence, judgement.level == "above_ceiling"
    doubts = [_cross_check(check, e) for check in disagreements(e, "lower" if above else "higher")]
    if above and e.basis == "checkpoint":
        doubts.append("the whole checkpoint is counted, and a step reads less than that")
    return "; ".join(doubts) or _above_plainly(judgement)


def _slow_engine(judgement: Judgement) -> str:
    seen = "a step costs more than usual, whatever it reads"
    normal = judgement.evidence.normal
    if normal is not None and normal.like_eager:
        seen += ": as much as without CUDA graphs"
    return seen


_CAUSES: Mapping[CauseKind, Callable[[Judgement], str]] = {
    "active_neighbour": lambda j: neighbours_run(j.evidence),
    "thermal_throttling": _throttling(THERMAL),
    "power_throttling": _throttling(frozenset({POWER_BRAKE, POWER_CAP}), with_power=True),
    "hardware_slowdown": _throttling(frozenset({"hw_slowdown"})),
    "memory_clock_low": _throttling(frozenset({"applications_clocks_setting"})),
    "preemption": _preemption,
    "kv_cache_full": lambda j: f"{_cache(j.evidence)} and {waiting(j.evidence.waiting or 0)}",
    "long_prefills": lambda j: prefill_seen(j.evidence),
    "compute_bound": _compute_bound,
    "cpu_bound": lambda j: f"{_gpu_busy(j.evidence)} although requests run all the while",
    "slow_engine": _slow_engine,
    "slow_card": lambda _: "steps that read more take longer than this card needs for reading it",
    "slow_prefill": lambda _: "prompts take longer than this card needs for computing them",
    "speculative_decoding": _speculation,
    "wrong_ceiling_inputs": _wrong_inputs,
    "cached_weights": _above_plainly,
}


def _cross_check(check: CrossCheck, e: Evidence) -> str:
    return _CROSS_CHECKS[check.source](e)


def _off(ratio: float | None) -> str:
    difference = (ratio or 0.0) - 1
    return f"{percent(abs(difference))} {'more' if difference > 0 else 'less'}"


_CROSS_CHECKS: Mapping[Source, Callable[[Evidence], str]] = {
    "other_bandwidth": lambda e: (
        f"the other source of the bandwidth says {_off(e.bandwidth_ratio)} than the one in use"
    ),
    "engine_read_bytes": lambda e: (
        f"the engine's own estimate of the bytes read is {_off(e.engine_read_ratio)} than ours"
    ),
    "measured_bandwidth": lambda e: (
        f"the card itself measures {percent(e.measured_ratio or 0.0)} of its bandwidth in use,"
        f" {percent(e.efficiency or 0.0)} is what the tokens explain"
    ),
}


# What is ruled out


def _neighbours_at_rest(e: Evidence) -> str:
    if e.contention == "none":
        return "nobody else uses the engine's GPU"
    held = (
        ""
        if e.neighbour_memory_bytes is None
        else f" ({e.neighbour_memory_bytes / 1024**2:,.0f} MiB)"
    )
    one = e.neighbours == 1
    who = "other processes" if e.neighbours is None else count(e.neighbours, "other process")
    verb = "only holds" if one else "only hold"
    return f"{who} on the GPU {verb} memory{held} and {'does' if one else 'do'} not compute"


def _cache_suffices(e: Evidence) -> str:
    if cache_is_full(e):
        return f"{_cache(e)}, but nobody waits and hardly any request is interrupted"
    return f"{_cache(e)} and hardly any request is interrupted"


def _reading_limits(e: Evidence) -> str:
    limit = (
        "with contexts as long as these, reading stays the limit"
        if e.ridge_batch == math.inf
        else f"computing becomes the limit from {e.ridge_batch or 0.0:,.0f} on"
    )
    return f"{sequences(e.mean_batch or 0.0)} a step; {limit}"


_RULED_OUT: Mapping[CauseKind, Callable[[Evidence], str]] = {
    "active_neighbour": _neighbours_at_rest,
    "power_throttling": lambda e: (
        f"the power cap is active, which is normal under load: {memory_clock(e)}"
    ),
    "memory_clock_low": memory_clock,
    "kv_cache_full": _cache_suffices,
    "long_prefills": prefill_seen,
    "compute_bound": _reading_limits,
    "cpu_bound": _gpu_busy,
    "slow_engine": lambda _: "what a step costs beside reading is usual",
    "slow_card": lambda _: "the memory is read as fast as it should be",
}


# Advice without a cause, and notes


def _advice(judgement: Judgement) -> Iterator[str]:
    e = judgement.evidence
    if judgement.why is not None:
        if judgement.why in WHAT_THEN:
            yield WHAT_THEN[judgement.why]
    elif judgement.level != "healthy":
        yield _where_to_look(judgement)
    else:
        if judgement.grade == "hardly_possible":
            yield _CHECK_INPUTS
        if e.waiting:
            yield (
                "The engine works at full speed and has more to do than it can: only more or"
                " faster GPUs, a larger batch limit or fewer requests shorten the queue."
            )


def _where_to_look(judgement: Judgement) -> str:
    """Nothing is accused: first what could not be checked."""
    e, cleared = judgement.evidence, judgement.ruled_out
    unknown = [
        text
        for known, text in (
            ("active_neighbour" in cleared, "whether others compute on the GPU (nvidia-smi)"),
            (memory_clock_is_low(e) is not None, "the memory clock (nvidia-smi -q -d CLOCK)"),
            (e.throttle_reasons is not None, "throttling (nvidia-smi -q -d PERFORMANCE)"),
            ("kv_cache_full" in cleared, "KV cache and preemptions (the engine's /metrics)"),
            ("long_prefills" in cleared, "how much of the time goes into prefill"),
            ("compute_bound" in cleared, "whether the batch is compute-bound"),
            ("cpu_bound" in cleared, "whether the GPU waits for the CPU (nvidia-smi dmon)"),
        )
        if not known
    ]
    if unknown:
        return f"Not known here and worth a look: {'; '.join(unknown)}."
    return f"The usual causes are ruled out. {_CHECK_INPUTS} Then profile the engine."


def _not_streamed(e: Evidence) -> str:
    wait = (
        ""
        if e.silent_wait_seconds is None or e.silent_wait_seconds < FELT_WAIT
        else f"; half of those came only after {seconds(e.silent_wait_seconds)} or more,"
        " with nothing to see until then"
    )
    return f"{percent(e.unstreamed_ratio or 0.0)} of the answers were not streamed{wait}"


_NOTES: Mapping[Note, Callable[[Evidence], str]] = {
    "speculation_divided_out": lambda e: (
        f"speculative decoding: {e.tokens_per_step or 1.0:.1f} tokens per step, divided out"
    ),
    "not_streamed": _not_streamed,
    "cut_off": lambda e: (
        f"{percent(e.truncated_ratio or 0.0)} of the answers were cut off by a token limit"
    ),
    "fast_beside_a_neighbour": lambda e: f"{neighbours_run(e)}; the engine is fast all the same",
    "step_is_shared": lambda e: (
        f"a stream gets {percent(e.request_ratio or 0.0)} of the ceiling of one that is alone,"
        f" because {e.mean_batch or 0.0:,.0f} sequences share each step: that is normal"
    ),
}
