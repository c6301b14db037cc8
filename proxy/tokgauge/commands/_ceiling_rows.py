"""The division for each card and each format of a model."""

from __future__ import annotations

from dataclasses import dataclass

from tokgauge.diagnosis.ceiling_inputs import compute_roof
from tokgauge.diagnosis.expected_time import Band, Interval, StepWork, band_of, normal_range, tells
from tokgauge.diagnosis.normal import setup_for
from tokgauge.diagnosis.typical import typical
from tokgauge.gpu.catalogue import Card
from tokgauge.model.ceiling import (
    ComputeRoof,
    StepCeiling,
    efficiency,
    serving_bandwidth,
    step_bytes,
    step_ceiling,
)
from tokgauge.model.kv import KvCache, KvUnknown
from tokgauge.model.weights import Basis, WeightsFound

__all__ = ["BASES", "Gpu", "Query", "Row", "Variant", "roof_of", "row_of", "verdict_of"]

BASES: tuple[Basis, ...] = ("streamed", "checkpoint")


@dataclass(frozen=True, slots=True)
class Query:
    """The conditions that every row shares."""

    context: float
    """Tokens in the context of each sequence."""
    batch: int
    tensor_parallel: int
    measured: float | None
    """Tokens per second of one stream."""


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    bandwidth: float
    """Of one card [bytes/s]."""
    memory_bytes: float | None
    source: str
    card: Card | None = None
    """None: not known, and then reading alone limits."""


@dataclass(frozen=True, slots=True)
class Variant:
    """The model in one format."""

    label: str
    weights: WeightsFound
    kv: KvCache | KvUnknown | None
    """Unknown: there is something in it whatever the context, so nothing can be said of speed."""


@dataclass(frozen=True, slots=True)
class Row:
    gpu: Gpu
    variant: Variant
    ceilings: dict[Basis, StepCeiling]
    shares: dict[Basis, float]
    normal: Interval | None
    """Of the share on the basis that judges; None where no range that tells is known."""
    fits: bool | None


def row_of(gpu: Gpu, variant: Variant, query: Query) -> Row:
    """The model in one format on one kind of card."""
    if isinstance(variant.kv, KvUnknown):
        return Row(gpu, variant, {}, {}, None, None)
    serving = serving_bandwidth(gpu.bandwidth, query.tensor_parallel)
    ceilings: dict[Basis, StepCeiling] = {}
    for basis in BASES:
        weights = variant.weights.bytes_per_step(query.batch, basis)
        if weights is not None:
            read = _with_kv(weights, variant.kv, query)
            ceilings[basis] = step_ceiling(serving, read, query.batch, roof_of(gpu, variant, query))
    shares: dict[Basis, float] = {}
    if query.measured is not None:
        shares = {
            basis: efficiency(query.measured, found.bytes_per_step, serving)
            for basis, found in ceilings.items()
        }
    judged = ceilings.get(variant.weights.basis)
    return Row(
        gpu, variant, ceilings, shares,
        None if judged is None else _normal(gpu, variant, query, judged.bytes_per_step),
        _fits(gpu, variant.weights, variant.kv, query),
    )  # fmt: skip


def _normal(gpu: Gpu, variant: Variant, query: Query, read: float) -> Interval | None:
    """By typical constants: see docs/normal.md."""
    serving = serving_bandwidth(gpu.bandwidth, query.tensor_parallel)
    setup = setup_for(
        serving, variant.weights.streamed, read,
        memory=gpu.card.memory_kind if gpu.card is not None else None,
        roof=roof_of(gpu, variant, query), tensor_parallel=query.tensor_parallel,
    )  # fmt: skip
    step = StepWork(steps=1, bytes=read, sequence_steps=query.batch, decoded_tokens=query.batch)
    expected = typical(setup).expected(step)
    if expected is None or not tells(expected):
        return None
    return normal_range(step.ideal_seconds(serving), expected)


def roof_of(gpu: Gpu, variant: Variant, query: Query) -> ComputeRoof | None:
    """What the cards can compute; None where they or the model do not tell."""
    return compute_roof(gpu.card, variant.weights.streamed, query.tensor_parallel)


def _with_kv(weights: float, kv: KvCache | None, query: Query) -> float:
    contexts = [query.context] * query.batch
    return step_bytes(weights, kv, contexts, tensor_parallel=query.tensor_parallel)


def _fits(gpu: Gpu, weights: WeightsFound, kv: KvCache | None, query: Query) -> bool | None:
    """Whether weights and KV cache fit into the cards' memory; None where it is not known."""
    if gpu.memory_bytes is None or weights.checkpoint_bytes is None:
        return None
    kept = _with_kv(weights.checkpoint_bytes, kv, query)
    return kept <= gpu.memory_bytes * query.tensor_parallel


def verdict_of(row: Row) -> Band | None:
    """On the basis that judges; None where it is not known."""
    share = row.shares.get(row.variant.weights.basis)
    return None if share is None or row.normal is None else band_of(share, row.normal)
