"""Whether there is anything to judge, and why not."""

from __future__ import annotations

from tokgauge.diagnosis.evidence import ALWAYS_BUSY, Evidence
from tokgauge.diagnosis.verdict import NotJudgedReason
from tokgauge.diagnosis.wording import (
    TELL_TOKENS_PER_STEP,
    count,
    percent,
    prefill_seen,
    reached,
    seconds,
)
from tokgauge.model.ceiling import band_of

# One answer of a few sentences; below, a pause of the machine weighs as much as the decoding.
_MIN_TOKENS = 64
# Slower than any engine that works, so it is the traffic that is slow.
_MIN_TOKENS_PER_SECOND = 0.1
_MIN_BUSY = 0.1
_PREFILL_DOMINATES = 0.5

Refusal = tuple[NotJudgedReason, str, str]
"""Reason, the sentence about it, and advice (may be empty)."""


def too_little(e: Evidence) -> Refusal | None:
    """Too few tokens, or too much of the window without decoding."""
    reason: NotJudgedReason = "too_little_traffic"
    advice = "Ask again while answers are being written, or take a longer window."
    window = "" if e.window_seconds is None else f" in {seconds(e.window_seconds)}"
    if e.decoded_tokens == 0:
        return reason, f"nothing was decoded{window}", ""
    if e.decoded_tokens is not None:
        seen = f"{count(e.decoded_tokens, 'token')} decoded{window}"
        slow = (
            e.window_seconds is not None
            and e.decoded_tokens < _MIN_TOKENS_PER_SECOND * e.window_seconds
        )
        if e.decoded_tokens < _MIN_TOKENS or slow:
            return reason, f"only {seen}, too little to tell", advice
    if e.busy_ratio is not None and e.busy_ratio < _MIN_BUSY:
        busy = f"the engine decoded during only {percent(e.busy_ratio)} of the time"
        return reason, f"{busy}, too little to tell", advice
    if e.enough_traffic is False:
        return reason, "there was too little traffic to tell", advice
    low = e.efficiency is not None and band_of(e.efficiency) in ("watch", "suspect")
    if low and e.mean_batch is not None and e.mean_batch < ALWAYS_BUSY:
        # Fewer than one sequence in a step: the average, and so the efficiency, holds pauses.
        idle = f"{e.mean_batch:.2f} sequences ran on average, so the figures include pauses"
        return reason, idle, advice
    return None


def prefill_dominates(e: Evidence) -> Refusal | None:
    """The ceiling is one of decoding, and mostly prompts were computed."""
    if e.prefill_share is None or e.prefill_share < _PREFILL_DOMINATES:
        return None
    why = f"{prefill_seen(e.prefill_share)}, and the ceiling holds for decoding only"
    return "prefill_dominated", why, "Judge it in a window with longer answers or fewer prompts."


def no_efficiency(e: Evidence) -> Refusal:
    """There is traffic, but no share of the ceiling is known for it."""
    why = "the share of the hardware's ceiling is not known"
    if e.efficiency_unknown_because is not None:
        why += f": {e.efficiency_unknown_because}"
    if e.request_ratio is not None:
        why += (
            f" (single requests ran at {percent(e.request_ratio)} of the ceiling of a stream that"
            " is alone, which says nothing about a shared GPU)"
        )
    advice = (
        "Run `tokgauge check`: it says which of bandwidth, bytes of the weights and step rate is"
        " missing."
    )
    return "no_efficiency", why, advice


def speculation_unknown(e: Evidence) -> Refusal:
    """The efficiency may hold tokens that were taken for steps."""
    why = (
        f"{reached(e)}, but speculative decoding is on and the tokens per step are not known, so"
        " several tokens of one step may have been counted as several steps"
    )
    return "speculation_unknown", why, TELL_TOKENS_PER_STEP
