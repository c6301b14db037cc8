"""The verdict, put together from what the other modules find."""

from __future__ import annotations

from tokgauge.diagnosis.causes import (
    causes_of,
    cleared_neighbours,
    cleared_power_cap,
    ruled_out_by,
    wrong_inputs,
)
from tokgauge.diagnosis.cross_checks import disagreements
from tokgauge.diagnosis.evidence import Evidence, sane, speculation_is_open
from tokgauge.diagnosis.not_judged import (
    Refusal,
    no_efficiency,
    prefill_dominates,
    speculation_unknown,
    too_little,
)
from tokgauge.diagnosis.notes import client_side_advice, notes, notes_on_health, where_to_look
from tokgauge.diagnosis.verdict import Cause, CauseKind, Level, Verdict
from tokgauge.diagnosis.wording import (
    CHECK_INPUTS,
    TELL_TOKENS_PER_STEP,
    percent_in_band,
    queue,
    reached,
    speed,
)
from tokgauge.model.ceiling import Band, band_of

_AS_GOOD_AS_IT_GETS = 0.85
# STREAM reads reach 97 % on the best card known (H100 NVL): more is no praise but a doubt.
_HARDLY_POSSIBLE = 0.97

_TITLES: dict[CauseKind, str] = {
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
    "speculative_decoding": "speculative decoding gives several tokens per step",
    "wrong_ceiling_inputs": "the bandwidth or the bytes behind the ceiling are wrong",
    "cached_weights": "a part of the weights stays in the GPU's cache",
}


def diagnose(evidence: Evidence) -> Verdict:
    """The verdict on this evidence.

    Numbers that cannot be (negative, not finite, shares above 1) count as unknown.
    """
    e = sane(evidence)
    refusal = too_little(e) or prefill_dominates(e)
    if refusal is not None:
        return _not_judged(e, refusal)
    if e.efficiency is None:
        return _not_judged(e, no_efficiency(e))
    band = band_of(e.efficiency)
    if band == "above":
        return _above(e, e.efficiency)
    if e.speculative and speculation_is_open(e):
        return _not_judged(e, speculation_unknown(e))
    if band == "healthy":
        return _healthy(e, e.efficiency)
    return _low(e, band)


def _not_judged(e: Evidence, refusal: Refusal) -> Verdict:
    reason, why, advice = refusal
    return Verdict(
        level="not_judged",
        headline=f"Not judged: {why}{queue(e)}.",
        ruled_out=cleared_neighbours(e),
        notes=tuple(notes(e)),
        advice=(*((advice,) if advice else ()), *client_side_advice(e)),
        reason=reason,
    )


def _above(e: Evidence, ratio: float) -> Verdict:
    seen = f"{percent_in_band(ratio)} of the ceiling"
    inputs = wrong_inputs(e, -1)
    doubts = [] if inputs is None else [inputs.evidence]
    if e.basis == "checkpoint":
        doubts.append("the whole checkpoint is counted, and a step reads less than that")
    plain = f"{seen} is more than one read of these bytes per step allows"
    causes = [
        Cause("wrong_ceiling_inputs", "; ".join(doubts) or plain, CHECK_INPUTS),
        Cause(
            "cached_weights",
            plain,
            "Only possible for weights of a few hundred MB on a card with a large L2 cache:"
            " compare their size with it.",
        ),
    ]
    if speculation_is_open(e) and e.speculative is not False:
        told = (
            "speculative decoding is on and its tokens per step are not known"
            if e.speculative
            else f"{seen}, and whether the engine decodes speculatively is not known"
        )
        first = e.speculative or not doubts
        causes.insert(0 if first else 1, Cause("speculative_decoding", told, TELL_TOKENS_PER_STEP))
    if doubts or e.speculative:
        because = f"most likely because {_TITLES[causes[0].kind]}"
    else:
        because = f"either {', or '.join(_TITLES[cause.kind] for cause in causes)}"
    return Verdict(
        level="above_ceiling",
        headline=f"Above the ceiling: {reached(e)}{speed(e)}; {because}{queue(e)}.",
        causes=tuple(causes),
        ruled_out=cleared_neighbours(e),
        notes=(*notes(e), *(text for sign, text in disagreements(e) if sign > 0)),
        advice=(*(cause.advice for cause in causes), *client_side_advice(e)),
    )


def _healthy(e: Evidence, ratio: float) -> Verdict:
    grade, advice = "", []
    if ratio > _HARDLY_POSSIBLE:
        grade = ", more than hardware usually gives"
        advice.append(CHECK_INPUTS)
    elif ratio >= _AS_GOOD_AS_IT_GETS:
        grade = ", as good as hardware gets"
    if e.waiting:
        advice.append(
            "The engine works at full speed and has more to do than it can: only more or faster"
            " GPUs, a larger batch limit or fewer requests shorten the queue."
        )
    return Verdict(
        level="healthy",
        headline=f"Healthy: {reached(e)}{speed(e)}{grade}{queue(e)}.",
        ruled_out=(*cleared_neighbours(e), *cleared_power_cap(e)),
        notes=(*notes(e), *notes_on_health(e)),
        advice=(*advice, *client_side_advice(e)),
    )


def _low(e: Evidence, band: Band) -> Verdict:
    causes, ruled_out = causes_of(e), ruled_out_by(e)
    level: Level = "watch" if band == "watch" else "suspect"
    opening = "Worth watching" if level == "watch" else "Slow"
    if causes:
        because = f"most likely because {_TITLES[causes[0].kind]}"
    else:
        because = "no cause stands out" if level == "watch" else "cause unknown"
    advice = tuple(cause.advice for cause in causes) or (where_to_look(e, ruled_out),)
    return Verdict(
        level=level,
        headline=f"{opening}: {reached(e)}{speed(e)}; {because}{queue(e)}.",
        causes=causes,
        ruled_out=ruled_out,
        notes=(*notes(e), *(text for sign, text in disagreements(e) if sign < 0)),
        advice=(*advice, *client_side_advice(e)),
    )
