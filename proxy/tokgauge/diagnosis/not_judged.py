"""Whether there is anything to judge, and why not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tokgauge.diagnosis.evidence import ALWAYS_BUSY, Evidence, is_slow, speculation_is_open
from tokgauge.diagnosis.verdict import NotJudgedReason

# One answer of a few sentences; below, a pause of the machine weighs as much as the decoding.
_MIN_TOKENS = 64
# Slower than any engine that works, so it is the traffic that is slow.
_MIN_TOKENS_PER_SECOND = 0.1
_MIN_BUSY = 0.1

WhyNotJudged = Literal[
    "nothing_decoded",
    "few_tokens",
    "hardly_busy",
    "too_little",
    "pauses_included",
    "range_too_wide",
    "no_efficiency",
    "speculation_unknown",
]

REASON_OF: Mapping[WhyNotJudged, NotJudgedReason] = {
    "nothing_decoded": "too_little_traffic",
    "few_tokens": "too_little_traffic",
    "hardly_busy": "too_little_traffic",
    "too_little": "too_little_traffic",
    "pauses_included": "too_little_traffic",
    "range_too_wide": "range_too_wide",
    "no_efficiency": "no_efficiency",
    "speculation_unknown": "speculation_unknown",
}


def too_weak(e: Evidence) -> WhyNotJudged | None:
    """Too few tokens, or too much of the window without decoding."""
    tokens = e.decoded_tokens
    if tokens == 0:
        return "nothing_decoded"
    if tokens is not None:
        seconds = e.window_seconds
        slow = seconds is not None and tokens < _MIN_TOKENS_PER_SECOND * seconds
        if tokens < _MIN_TOKENS or slow:
            return "few_tokens"
    if e.busy_ratio is not None and e.busy_ratio < _MIN_BUSY:
        return "hardly_busy"
    if e.no_efficiency is not None and e.no_efficiency.is_want_of_traffic:
        return "too_little"
    if is_slow(e) and e.mean_batch is not None and e.mean_batch < ALWAYS_BUSY:
        # Fewer than one sequence in a step: the average, and so the efficiency, holds pauses.
        return "pauses_included"
    return None


def range_tells(e: Evidence) -> bool:
    """Whether the normal range is narrow enough, or so far away that its width does not matter."""
    normal = e.normal
    if normal is None or normal.tells or normal.band == "suspect":
        return True
    return normal.share >= normal.range.high


def unclear_steps(e: Evidence) -> bool:
    """Whether the efficiency may hold tokens that were taken for steps."""
    return bool(e.speculative) and speculation_is_open(e)
