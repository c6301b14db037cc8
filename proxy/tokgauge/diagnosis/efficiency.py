"""Achieved bandwidth and efficiency of a window: steps per second x bytes per step ÷ B.

Pure arithmetic over what was observed; what cannot be known is a `NotJudged` with its reason. The
formulas are in `tokgauge.model.ceiling`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tokgauge.model import ceiling
from tokgauge.model.kv import KvCache, KvUnknown
from tokgauge.model.weights import Basis, WeightsFound

MIN_STEPS = 30
"""Fewer steps in a window say more about its edges than about the engine."""

MIN_BUSY_SECONDS = 1.0

PREFILL_SHARE_LIMIT = 0.3
"""A window of which more than about this share of time went into prefills is not judged."""

_NOMINAL_RIDGE = 200
"""Prompt tokens whose computing takes about as long as reading the weights once: FLOP/s divided by
bandwidth is 153 on an A100, 202 on an A6000, 295 on an H100 with 16-bit weights."""

NEGLIGIBLE = 0.02
"""A part of the bytes that is smaller than this share may be left out of them."""


@dataclass(frozen=True, slots=True)
class Window:
    """What was observed of decoding in one window.

    steps: engine steps while it decoded. busy_seconds: time in which it decoded. steps_source: the
    engine's own count, or the event rate of the streams. sequences: mean number running while
    decoding. context_tokens: sum over the running sequences, mean; context_tokens_at_most: a bound
    where only that is known. tokens_per_step: of one sequence; None when unknown. prefill_share:
    about which share of the time went into prefills (see `prefill_share`), None when unknown.
    """

    steps: float
    busy_seconds: float
    steps_source: Literal["engine", "streams"]
    sequences: float
    context_tokens: float | None
    context_tokens_at_most: float | None
    tokens_per_step: float | None
    prefill_share: float | None
    context_tokens_at_least: float = 0.0


@dataclass(frozen=True, slots=True)
class Efficiency:
    """ratio: achieved ÷ B, not clamped. achieved: bytes/s. basis: which weight bytes it counts.

    checkpoint_ratio: the same on the checkpoint basis, None where that is not known. weight_bytes,
    kv_bytes_per_sequence: what a step reads, on `basis`.
    """

    ratio: float | None
    checkpoint_ratio: float | None
    basis: Basis
    achieved: float
    weight_bytes: float
    kv_bytes_per_sequence: float


@dataclass(frozen=True, slots=True)
class NotJudged:
    """Why there is no efficiency."""

    reason: str


def efficiency_of(
    window: Window, weights: WeightsFound, kv: KvCache | KvUnknown, bandwidth: float | None,
    tensor_parallel: int,
) -> Efficiency | NotJudged:  # fmt: skip
    """The efficiency of a window. `bandwidth` [bytes/s] is that of all GPUs that serve a step."""
    if window.busy_seconds < MIN_BUSY_SECONDS or window.steps < MIN_STEPS:
        return NotJudged(
            f"too little traffic: {window.steps:.0f} steps in {window.busy_seconds:.1f} s of "
            f"decoding (at least {MIN_STEPS} steps and {MIN_BUSY_SECONDS:g} s are needed)"
        )
    if window.prefill_share is not None and window.prefill_share > PREFILL_SHARE_LIMIT:
        return NotJudged(
            f"{window.prefill_share:.0%} of the time went into prefills, which the decode model "
            "does not cover"
        )
    draft = weights.streamed.draft if weights.streamed is not None else None
    computed = draft.verified if draft is not None else window.tokens_per_step or 1.0
    tokens_in_step = window.sequences * computed
    weight_bytes = weights.bytes_per_step(max(1.0, tokens_in_step))
    if weight_bytes is None:
        return NotJudged("the bytes of the weights are not known")
    kv_bytes = _kv_bytes(window, kv, weight_bytes, tensor_parallel)
    if isinstance(kv_bytes, NotJudged):
        return kv_bytes
    bytes_per_step = weight_bytes + kv_bytes
    rate = window.steps / window.busy_seconds
    achieved = ceiling.achieved_bandwidth(rate, bytes_per_step)
    whole = weights.bytes_per_step(basis="checkpoint")
    by_checkpoint = None
    if whole is not None and bandwidth is not None:
        by_checkpoint = ceiling.efficiency(rate, whole + kv_bytes, bandwidth)
    return Efficiency(
        ratio=achieved / bandwidth if bandwidth is not None else None,
        checkpoint_ratio=by_checkpoint,
        basis=weights.basis,
        achieved=achieved,
        weight_bytes=weight_bytes,
        kv_bytes_per_sequence=kv_bytes / _running(window),
    )


def prefill_share(prompt_tokens_per_step: float) -> float:
    """About which share of the time goes into prefills, for deciding whether to judge at all."""
    return prompt_tokens_per_step / (prompt_tokens_per_step + _NOMINAL_RIDGE)


def _kv_bytes(
    window: Window, kv: KvCache | KvUnknown, weight_bytes: float, tensor_parallel: int
) -> float | NotJudged:
    if isinstance(kv, KvUnknown):
        context = window.context_tokens or window.context_tokens_at_most
        if context is not None and _hardly_matters(kv, context, weight_bytes):
            return 0.0
        return NotJudged(f"the bytes of the KV cache are not known: {kv.reason}")
    sequences = _running(window)

    def read(tokens: float) -> float:
        return kv.bytes_read(tokens / sequences) * sequences * kv.copies(tensor_parallel)

    if window.context_tokens is not None:
        return read(window.context_tokens)
    bound = window.context_tokens_at_most
    if bound is not None:
        least, most = read(window.context_tokens_at_least), read(bound)
        # Half-way between what is possible, where neither end is further off than what is small.
        if most - least <= 2 * NEGLIGIBLE * (weight_bytes + least):
            return (least + most) / 2
    return NotJudged(
        "the engine does not tell how much context its sequences have, and it may be long"
    )


def _hardly_matters(kv: KvUnknown, context: float, weight_bytes: float) -> bool:
    """Whether an unknown cache is small beside the weights: the largest take half a MB a token."""
    return kv.negligible_when_short and context * 512 * 1024 < NEGLIGIBLE * weight_bytes


def _running(window: Window) -> float:
    """Sequences of a step, which has at least one."""
    return max(1.0, window.sequences)


def request_ratio(
    decode_rate: float, tokens_per_step: float, weights: WeightsFound, kv: KvCache | KvUnknown,
    bandwidth: float, mean_context: float,
) -> float | None:  # fmt: skip
    """Steps per second of one sequence ÷ those of the single-stream ceiling at its own context.

    Below 1 also because of the batch that it shared: only of a request that ran alone does it say
    how well the card was used.
    """
    draft = weights.streamed.draft if weights.streamed is not None else None
    computed = draft.verified if draft is not None else tokens_per_step
    weight_bytes = weights.bytes_per_step(computed)
    if weight_bytes is None:
        return None
    if isinstance(kv, KvUnknown):
        if not _hardly_matters(kv, mean_context, weight_bytes):
            return None
        limit = ceiling.single_stream_ceiling(bandwidth, weight_bytes)
    else:
        limit = ceiling.single_stream_ceiling(bandwidth, weight_bytes, kv, mean_context)
    return decode_rate / tokens_per_step / limit
