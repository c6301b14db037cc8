"""Why nothing is judged, and why there is no efficiency, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tokgauge.diagnosis.evidence import Evidence
from tokgauge.diagnosis.not_judged import WhyNotJudged
from tokgauge.diagnosis.phrases import count, percent, reached, seconds
from tokgauge.diagnosis.work import (
    MIN_BUSY_SECONDS,
    MIN_STEPS,
    NoEfficiency,
    WhyNoEfficiency,
)

TELL_TOKENS_PER_STEP = (
    "Let tokgauge read the engine's /metrics, where drafts and accepted tokens are counted."
)


def _no_efficiency(e: Evidence) -> str:
    """There is traffic, but no share of the ceiling is known for it."""
    no = e.no_efficiency
    if no is not None and no.share is not None and no.why in _WITH_A_SHARE:
        return _WITH_A_SHARE[no.why](no)
    why = "the share of the hardware's ceiling is not known"
    if no is not None and no.why in _NO_EFFICIENCY:
        why += f": {_NO_EFFICIENCY[no.why](no)}"
    if e.request_ratio is not None:
        why += (
            f" (single requests ran at {percent(e.request_ratio)} of the ceiling of a stream that"
            " is alone, which says nothing about a shared GPU)"
        )
    return why


def _inputs(no: NoEfficiency) -> str:
    """What of the division is not known, each with its reason."""
    parts = (
        ("the bandwidth is not known", no.bandwidth),
        ("the bytes of the weights are not known", no.weights),
        ("the bytes of the KV cache are not known", no.kv_cache),
    )
    return "; ".join(f"{what}: {because}" for what, because in parts if because is not None)


_NO_EFFICIENCY: Mapping[WhyNoEfficiency, Callable[[NoEfficiency], str]] = {
    "inputs_unknown": _inputs,
    "draft_unknown": lambda no: f"it decodes speculatively, and {no.draft}",
    "context_unknown": lambda no: (
        "the engine does not tell how much context its sequences have, and it may be long"
    ),
    "several_models": lambda no: (
        "the engine lists several models, and its answers do not tell which one it reads"
    ),
    "no_stream": lambda no: "too little traffic: no stream was decoded",
    "few_steps": lambda no: (
        f"too little traffic: {no.steps:.0f} steps in {no.busy_seconds:.1f} s of decoding (at"
        f" least {MIN_STEPS} steps and {MIN_BUSY_SECONDS:g} s are needed)"
    ),
    "mostly_prefill": lambda no: (
        f"prompts should take about {no.share:.0%} of the time, and the ceiling is one of decoding"
    ),
    "traffic_of_others": lambda no: (
        "the engine also serves requests that do not come through this proxy, and was not busy all"
        " the time"
    ),
    "steps_merged": lambda no: (
        f"events carry {no.tokens:.1f} tokens, and the engine does not tell whether that is one"
        " step (speculative decoding) or several"
    ),
    "not_streamed": lambda no: "no decode rate: the server did not stream",
    "few_tokens": lambda no: (
        f"no decode rate: {no.tokens:.0f} tokens came, and it takes {no.needed}"
    ),
    "few_arrivals": lambda no: (
        f"no decode rate: the tokens came in fewer than {no.needed} pieces, so"
        " something on the way holds them back"
    ),
}

_WITH_A_SHARE: Mapping[WhyNoEfficiency, Callable[[NoEfficiency], str]] = {
    "others_served": lambda no: (
        f"{no.share:.0%} of the ceiling, but the server generated {no.tokens:.0f} tokens for"
        " others meanwhile, and streams that share a step slow each other down: repeat it when"
        " idle"
    ),
    "draft_unknown": lambda no: (
        f"{no.share:.0%} of the ceiling by the model's own bytes, but it decodes speculatively"
        f" ({no.tokens:.1f} tokens per step), and {no.draft}"
    ),
    "steps_unknown": lambda no: (
        f"{no.share:.0%} of the ceiling if every token took a step of its own, but that is not"
        " known: speculative decoding and merged events look alike from outside"
    ),
}


def _few_tokens(e: Evidence) -> str:
    seen = f"{count(e.decoded_tokens or 0, 'token')} decoded{_in_window(e)}"
    return f"only {seen}, too little to tell"


def _in_window(e: Evidence) -> str:
    return "" if e.window_seconds is None else f" in {seconds(e.window_seconds)}"


WHY: Mapping[WhyNotJudged, Callable[[Evidence], str]] = {
    "nothing_decoded": lambda e: f"nothing was decoded{_in_window(e)}",
    "few_tokens": _few_tokens,
    "hardly_busy": lambda e: (
        f"the engine decoded during only {percent(e.busy_ratio or 0.0)} of the time, too little to"
        " tell"
    ),
    "too_little": lambda e: "there was too little traffic to tell",
    "pauses_included": lambda e: (
        f"{e.mean_batch or 0.0:.2f} sequences ran on average, so the figures include pauses"
    ),
    "range_too_wide": lambda e: f"{reached(e)}, and that is too wide a range to tell",
    "no_efficiency": _no_efficiency,
    "speculation_unknown": lambda e: (
        f"{reached(e)}, but speculative decoding is on and the tokens per step are not known, so"
        " several tokens of one step may have been counted as several steps"
    ),
}

_LONGER_WINDOW = "Ask again while answers are being written, or take a longer window."
WHAT_THEN: Mapping[WhyNotJudged, str] = {
    "few_tokens": _LONGER_WINDOW,
    "hardly_busy": _LONGER_WINDOW,
    "too_little": _LONGER_WINDOW,
    "pauses_included": _LONGER_WINDOW,
    "range_too_wide": (
        "Let tokgauge know the model's files (model_path) and the card (gpu): layers, type of the"
        " weights and kind of memory narrow the range. `tokgauge calibrate` measures it."
    ),
    "no_efficiency": (
        "Run `tokgauge check`: it says which of bandwidth, bytes of the weights and step rate is"
        " missing."
    ),
    "speculation_unknown": TELL_TOKENS_PER_STEP,
}
