"""Bytes of a step, the ceiling, achieved bandwidth and efficiency: steps per second x bytes ÷ B.

Pure arithmetic over what was observed; what cannot be known is a `NoEfficiency` with its reason.
The formulas are in `tokgauge.model.ceiling`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokgauge.diagnosis.inputs import ModelBytes
from tokgauge.diagnosis.work import NoEfficiency, StepShape, Work
from tokgauge.model import ceiling
from tokgauge.model.kv import KvCache, KvUnknown
from tokgauge.model.weights import Basis, WeightsUnknown

NEGLIGIBLE = 0.02
"""A part of the bytes that is smaller than this share may be left out of them."""

_BASES: tuple[Basis, ...] = ("streamed", "checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBytes:
    """What one step reads [bytes]: weights by basis, where that is known, and KV cache."""

    basis: Basis
    weights: Mapping[Basis, float]
    kv: float

    def total(self, basis: Basis | None = None) -> float:
        """All of it, on one of the bases that are known."""
        return self.weights[basis or self.basis] + self.kv


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCeiling:
    """The most that one stream can get on one basis, a token at each step."""

    bytes_per_step: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """ratio: achieved ÷ B, not clamped; None without B. achieved: bytes/s. basis: which weight
    bytes they count. by_basis: the ratio on each basis that is known.
    """

    ratio: float | None
    by_basis: Mapping[Basis, float]
    basis: Basis
    achieved: float
    weight_bytes: float
    kv_bytes_per_sequence: float


def step_bytes(
    shape: StepShape, model: ModelBytes | None, tensor_parallel: int
) -> StepBytes | NoEfficiency:
    """What a step of this shape reads."""
    if model is None:
        return NoEfficiency(why="inputs_unknown", weights="not read yet")
    found = model.weights
    if isinstance(found, WeightsUnknown):
        return NoEfficiency(why="inputs_unknown", weights=found.reason)
    drafted = model.verified if shape.verifies_drafts else None
    tokens = max(1.0, shape.sequences * (drafted or shape.tokens_per_step or 1.0))
    known = {basis: found.bytes_per_step(tokens, basis) for basis in _BASES}
    weights = {basis: read for basis, read in known.items() if read is not None}
    if found.basis not in weights:
        why = found.rule_of_thumb_fails_because or found.streamed_unknown_because
        return NoEfficiency(why="inputs_unknown", weights=why or "nothing tells them")
    kv = _kv_bytes(shape, model.kv, weights[found.basis], tensor_parallel)
    if isinstance(kv, NoEfficiency):
        return kv
    return StepBytes(basis=found.basis, weights=weights, kv=kv)


def stream_ceilings(bandwidth: float, step: StepBytes) -> Mapping[Basis, StreamCeiling]:
    """The division on each basis that is known."""
    return {
        basis: StreamCeiling(
            bytes_per_step=step.total(basis),
            tokens_per_second=ceiling.single_stream_ceiling(bandwidth, step.total(basis)),
        )
        for basis in step.weights
    }


def efficiency_of(work: Work, step: StepBytes, bandwidth: float | None) -> Efficiency:
    """The efficiency of this work. `bandwidth` [bytes/s] is that of all GPUs that serve a step."""
    by_basis = (
        {
            basis: ceiling.efficiency(work.rate, step.total(basis), bandwidth)
            for basis in step.weights
        }
        if bandwidth is not None
        else {}
    )
    return Efficiency(
        ratio=by_basis.get(step.basis),
        by_basis=by_basis,
        basis=step.basis,
        achieved=ceiling.achieved_bandwidth(work.rate, step.total()),
        weight_bytes=step.weights[step.basis],
        kv_bytes_per_sequence=step.kv / _running(work.shape),
    )


def _kv_bytes(
    shape: StepShape, kv: KvCache | KvUnknown, weight_bytes: float, tensor_parallel: int
) -> float | NoEfficiency:
    context, bound = shape.context_tokens, shape.context_tokens_at_most
    if isinstance(kv, KvUnknown):
        some = context or bound
        # A state of unknown size is moved at each step, however short the context.
        short = shape.short_context and kv.negligible_when_short
        if short or (some is not None and _hardly_matters(kv, some, weight_bytes)):
            return 0.0
        return NoEfficiency(why="inputs_unknown", kv_cache=kv.reason)
    sequences = _running(shape)

    def read(tokens: float) -> float:
        return kv.bytes_read(tokens / sequences) * sequences * kv.copies(tensor_parallel)

    if context is not None:
        return read(context)
    if shape.short_context:
        return 0.0
    if bound is not None:
        least, most = read(shape.context_tokens_at_least), read(bound)
        # Half-way between what is possible, where neither end is further off than what is small.
        if most - least <= 2 * NEGLIGIBLE * (weight_bytes + least):
            return (least + most) / 2
    return NoEfficiency(why="context_unknown")


def _hardly_matters(kv: KvUnknown, context: float, weight_bytes: float) -> bool:
    """Whether an unknown cache is small beside the weights: the largest take half a MB a token."""
    return kv.negligible_when_short and context * 512 * 1024 < NEGLIGIBLE * weight_bytes


def _running(shape: StepShape) -> float:
    """Sequences of a step, which has at least one."""
    return max(1.0, shape.sequences)


def request_ratio(
    decode_rate: float, tokens_per_step: float, model: ModelBytes, bandwidth: float,
    mean_context: float, tensor_parallel: int,
) -> float | None:  # fmt: skip
    """Steps per second of one sequence ÷ those of the single-stream ceiling at its own context.

    Below 1 also because of the batch that it shared: only of a request that ran alone does it say
    how well the card was used.
    """
    shape = StepShape(context_tokens=mean_context, tokens_per_step=tokens_per_step)
    step = step_bytes(shape, model, tensor_parallel)
    if isinstance(step, NoEfficiency):
        return None
    steps = decode_rate / tokens_per_step
    return steps / ceiling.single_stream_ceiling(bandwidth, step.total())
