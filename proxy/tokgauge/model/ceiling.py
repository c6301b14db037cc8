"""The speed limit of decoding: memory bandwidth divided by the bytes that a step must read.

The share of it that a run reaches is known as MBU, model bandwidth utilisation. Everything here is
arithmetic on bytes [bytes], speeds [bytes/s] and steps [1/s]; whoever calls knows where the figures
came from. The limit holds for decode steps alone: a step that also computes a prefill is outside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tokgauge.model.kv import KvCache

__all__ = [
    "ComputeRoof",
    "StepCeiling",
    "achieved_bandwidth",
    "efficiency",
    "ridge_batch",
    "serving_bandwidth",
    "single_stream_ceiling",
    "step_bytes",
    "step_ceiling",
]


def serving_bandwidth(per_gpu: float, tensor_parallel: int = 1) -> float:
    """Bandwidth that serves one step [bytes/s].

    Cards under tensor parallelism read at the same time, so they add up. Pipeline stages read one
    after another and do not; data-parallel copies serve other sequences. The two all-reduces per
    layer are not in it: an upper bound.
    """
    return per_gpu * tensor_parallel


def step_bytes(
    weight_bytes: float,
    kv: KvCache | None = None,
    contexts: Sequence[float] = (),
    *,
    tensor_parallel: int = 1,
) -> float:
    """Bytes that one step reads over all cards [bytes].

    weight_bytes: of this step (experts by its tokens). contexts: tokens in the context of every
    running sequence. With more cards than KV heads, heads are kept, and read, more than once.
    """
    if kv is None or not contexts:
        return weight_bytes
    read = sum(kv.bytes_read(context) for context in contexts)
    return weight_bytes + read * kv.copies(tensor_parallel)


def single_stream_ceiling(
    bandwidth: float, weight_bytes: float, kv: KvCache | None = None, context: float = 0.0
) -> float:
    """Tokens per second of one sequence that runs alone: B / (W + KV of its context)."""
    return bandwidth / step_bytes(weight_bytes, kv, (context,))


@dataclass(frozen=True, slots=True)
class ComputeRoof:
    """What limits large batches when memory does not."""

    flops: float
    """Dense FLOP/s of the cards that serve, in the precision of the matrix products."""
    matmul_parameters: float
    """Parameters that every token is multiplied with (of a MoE only the active ones)."""

    def seconds(self, tokens: float) -> float:
        """Shortest time for the products of `tokens` tokens: 2 x P x t / F [s]."""
        return 2 * self.matmul_parameters * tokens / self.flops


@dataclass(frozen=True, slots=True)
class StepCeiling:
    """What a card allows of a decode step with a batch, one token for each sequence."""

    sequences: int
    bytes_per_step: float
    steps_per_second: float
    tokens_per_second_per_stream: float
    tokens_per_second: float
    """All sequences together."""
    limited_by: Literal["reading", "computing"] = "reading"


def step_ceiling(
    bandwidth: float, bytes_per_step: float, sequences: int = 1, roof: ComputeRoof | None = None
) -> StepCeiling:
    """Limit of a step that reads `bytes_per_step` for `sequences` sequences.

    roof: what the cards can compute; without it only reading limits.
    """
    steps = bandwidth / bytes_per_step
    computed = math.inf if roof is None else 1 / roof.seconds(sequences)
    limited_by: Literal["reading", "computing"] = "computing" if computed < steps else "reading"
    steps = min(steps, computed)
    return StepCeiling(
        sequences=sequences,
        bytes_per_step=bytes_per_step,
        steps_per_second=steps,
        tokens_per_second_per_stream=steps,
        tokens_per_second=steps * sequences,
        limited_by=limited_by,
    )


def ridge_batch(
    bandwidth: float,
    weight_bytes: float,
    roof: ComputeRoof,
    kv_bytes_per_sequence: float = 0.0,
) -> float:
    """Sequences at which computing takes as long as reading: (W/B) / (2P/F - kv/B).

    Infinite when it never does: then each further sequence adds more reading than computing
    ("Mind the Memory Gap", arXiv 2503.08311).
    """
    per_sequence = roof.seconds(1) - kv_bytes_per_sequence / bandwidth
    return weight_bytes / bandwidth / per_sequence if per_sequence > 0 else math.inf


def achieved_bandwidth(steps_per_second: float, bytes_per_step: float) -> float:
    """Bytes per second that the steps have read at least [bytes/s]."""
    return steps_per_second * bytes_per_step


def efficiency(steps_per_second: float, bytes_per_step: float, bandwidth: float) -> float:
    """Achieved bandwidth as a share of the cards' own. Never cut off at 1."""
    return achieved_bandwidth(steps_per_second, bytes_per_step) / bandwidth
