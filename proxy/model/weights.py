"""How many bytes of weights one decode step reads, and how many the checkpoint holds.

Two bases, never mixed: `streamed` is what a step really reads; `checkpoint` is the whole file,
which the well-known rule of thumb divides by.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from proxy.model.errors import CheckpointError
from proxy.model.tensors import Role, Tensor, drafting_layers, expert_index, layer_index, role_of

__all__ = [
    "Basis",
    "Streamed",
    "WeightsFound",
    "WeightsUnknown",
    "estimate_weights",
    "expected_experts",
    "split_tensors",
]

Basis = Literal["streamed", "checkpoint"]


def expected_experts(experts: int, per_token: int, tokens: float) -> float:
    """Distinct experts of a layer that a step with `tokens` tokens reads: E(1-(1-k/E)^t).

    Under uniform, independent routing (MoESD, arXiv 2505.19645). Real routing is correlated, which
    makes it fewer. Between k and min(k*t, E) for one token or more.
    """
    return float(experts * (1 - (1 - per_token / experts) ** tokens))


@dataclass(frozen=True, slots=True)
class Streamed:
    """Bytes that a decode step reads."""

    dense_bytes: float
    """Read by every step."""
    expert_bytes: float = 0.0
    """One expert, summed over the layers that have experts."""
    experts: int = 0
    experts_per_token: int = 0

    def bytes_per_step(self, tokens: float = 1.0) -> float:
        """What a step reads that computes `tokens` tokens [bytes]; experts by expectation."""
        if not self.experts:
            return self.dense_bytes
        distinct = expected_experts(self.experts, self.experts_per_token, tokens)
        return self.dense_bytes + self.expert_bytes * distinct


@dataclass(frozen=True, slots=True)
class WeightsFound:
    """At least one of the two bases is known."""

    streamed: Streamed | None
    streamed_source: str | None
    """"settings" or "safetensors:/path" or "gguf:/path"."""
    checkpoint_bytes: float | None
    checkpoint_source: str | None
    streamed_unknown_because: str | None = None

    @property
    def basis(self) -> Basis:
        """The basis that ratios use: streamed where it is known."""
        return "checkpoint" if self.streamed is None else "streamed"

    def bytes_per_step(self, tokens: float = 1.0, basis: Basis | None = None) -> float | None:
        """Weight bytes of a step on one basis [bytes]; None where that basis is not known."""
        if (basis or self.basis) == "checkpoint":
            return self.checkpoint_bytes
        return None if self.streamed is None else self.streamed.bytes_per_step(tokens)


@dataclass(frozen=True, slots=True)
class WeightsUnknown:
    """Neither basis is known: why, and which setting helps."""

    reason: str
    what_to_set: str = "weights_bytes"


def estimate_weights(parameters: float, bits: float) -> WeightsFound:
    """The rule of thumb parameters x bits / 8: the checkpoint basis, and only an estimate."""
    return WeightsFound(
        streamed=None,
        streamed_source=None,
        checkpoint_bytes=parameters * bits / 8,
        checkpoint_source=f"estimate: {parameters:g} parameters x {bits:g} bits",
        streamed_unknown_because="parameters x bits does not tell what a step reads",
    )


def split_tensors(
    tensors: Iterable[Tensor],
    *,
    layers: int | None = None,
    experts: int | None = None,
    experts_per_token: int | None = None,
    tied: bool | None = None,
) -> Streamed:
    """What of these tensors a decode step of the text model reads.

    The input embedding counts only when no separate output head is there: then one matrix is
    both, and the head reads all of it. Raises CheckpointError when it cannot be told.
    """
    tensors = list(tensors)
    drafting = drafting_layers(tensors)
    by_role: dict[Role, list[Tensor]] = {role: [] for role in Role}
    for tensor in tensors:
        if layer_index(tensor.name) not in drafting:
            by_role[role_of(tensor, layers=layers, experts=experts)].append(tensor)
    dense = by_role[Role.DENSE] + by_role[Role.HEAD]
    present = {layer_index(tensor.name) for tensor in dense} - {None}
    if not present:
        raise CheckpointError("no decoder layers are recognised among its tensors")
    present |= drafting
    absent = next((number for number in range(layers or 0) if number not in present), None)
    if absent is not None:
        raise CheckpointError(f"layer {absent} of {layers} is not among its tensors")
    if not by_role[Role.HEAD]:
        if tied is False or not by_role[Role.EMBEDDING]:
            raise CheckpointError("its output head is not recognised among its tensors")
        dense += by_role[Role.EMBEDDING]
    dense_bytes = sum(tensor.bytes for tensor in dense)
    routed = by_role[Role.EXPERT]
    if not routed:
        if experts is not None and experts > 1:
            raise CheckpointError("its experts are not recognised among its tensors")
        return Streamed(float(dense_bytes))
    if experts is None or experts_per_token is None or experts_per_token > experts:
        raise CheckpointError("how many of its experts a token uses is not stated")
    _check_experts(routed, experts)
    return Streamed(
        float(dense_bytes),
        expert_bytes=sum(tensor.bytes for tensor in routed) / experts,
        experts=experts,
        experts_per_token=experts_per_token,
    )


def _check_experts(routed: list[Tensor], experts: int) -> None:
    """Every layer with single experts has all of them; raises CheckpointError otherwise."""
    numbers: dict[int | None, set[int]] = {}
    for tensor in routed:
        number = expert_index(tensor.name)
        if number is not None:
            numbers.setdefault(layer_index(tensor.name), set()).add(number)
        elif len(tensor.shape) >= 3 and experts not in tensor.shape:
            raise CheckpointError(f"tensor {tensor.name!r} does not hold {experts} experts")
    for layer, found in numbers.items():
        if len(found) != experts or max(found) != experts - 1:
            raise CheckpointError(
                f"layer {layer} has {len(found)} experts, config.json says {experts}"
            )
