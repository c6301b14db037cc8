"""How many bytes of weights one decode step reads, and how many the checkpoint holds.

Two bases, never mixed: `streamed` is what a step really reads; `checkpoint` is the whole file,
which the well-known rule of thumb divides by. The rule holds for a dense model that is loaded as it
is stored; for any other the whole file is a size, and nothing to divide by.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from tokgauge.model.errors import CheckpointError
from tokgauge.model.tensors import (
    UNPACKED,
    Role,
    Tensor,
    drafting_layers,
    expert_index,
    layer_index,
    layer_path,
    role_of,
)

__all__ = [
    "Basis",
    "Draft",
    "Streamed",
    "WeightsFound",
    "WeightsUnknown",
    "expected_experts",
    "split_tensors",
]

Basis = Literal["streamed", "checkpoint"]


def expected_experts(
    experts: int, per_token: int, tokens: float, choices: int | None = None
) -> float:
    """Distinct experts of a layer that a step with `tokens` tokens reads: E(1-(1-k/C)^t).

    choices: what a token chooses from, more than `experts` where some have no weights.
    Under uniform, independent routing (MoESD, arXiv 2505.19645). Real routing is correlated, which
    makes it fewer. Between k and min(k*t, E) for one token or more, where C is E.
    """
    return float(experts * (1 - (1 - per_token / (choices or experts)) ** tokens))


@dataclass(frozen=True, slots=True)
class Draft:
    """Drafting in a step of speculative decoding."""

    weights: Streamed
    """Read by one pass."""
    passes: int
    """In a step, one after another."""
    verified: int
    """Tokens of one sequence that the model itself computes in the step."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """Bytes that a decode step reads."""

    dense_bytes: float
    """Read by every step."""
    expert_bytes: float = 0.0
    """One expert, summed over the layers that have experts."""
    experts: int = 0
    experts_per_token: int = 0
    choices: int | None = None
    """What a token chooses its experts from; None: from `experts`."""
    parameters: float | None = None
    """Weights that a token is multiplied with, its experts included; None: not told."""
    speedup: float = 1.0
    """How much faster than in 16 bits a card may multiply at most: 2 for weights in floats of 8
    bits, 4 for those of 4. Integers of 4 bits are multiplied in 16."""
    head_bytes: float | None = None
    """Of these, the output head; None: not told."""
    layers: int | None = None
    """Decoder layers that a token passes in a step, one that runs again counted again; None: not
    told."""
    dequantised: bool | None = None
    """Whether most of it is stored in fewer than 16 bits, so that reading it takes more than
    copying; None: not told."""
    draft: Draft | None = None
    """What drafting reads beside it."""

    def bytes_per_step(self, tokens: float = 1.0) -> float:
        """What a step reads that computes `tokens` tokens [bytes]; experts by expectation.

        With a draft `tokens` are those that are verified, several of each sequence.
        """
        read = self.dense_bytes
        if self.experts:
            chosen = expected_experts(self.experts, self.experts_per_token, tokens, self.choices)
            read += self.expert_bytes * chosen
        if self.draft is not None:
            sequences = max(1.0, tokens / self.draft.verified)
            read += self.draft.passes * self.draft.weights.bytes_per_step(sequences)
        return read


@dataclass(frozen=True, slots=True)
class WeightsFound:
    """At least one of the two bases is known."""

    streamed: Streamed | None
    streamed_source: str | None
    """"settings" or "safetensors:/path" or "gguf:/path" or "estimate: …"."""
    checkpoint_bytes: float | None
    checkpoint_source: str | None
    streamed_unknown_because: str | None = None
    rule_of_thumb_fails_because: str | None = None
    """Why a share of the whole checkpoint would mislead, though its size is known."""

    @property
    def basis(self) -> Basis:
        """The basis that ratios use: streamed where it is known."""
        return "checkpoint" if self.streamed is None else "streamed"

    def bytes_per_step(self, tokens: float = 1.0, basis: Basis | None = None) -> float | None:
        """Weight bytes of a step on one basis [bytes]; None where it tells nothing true."""
        if (basis or self.basis) == "checkpoint":
            return None if self.rule_of_thumb_fails_because else self.checkpoint_bytes
        return None if self.streamed is None else self.streamed.bytes_per_step(tokens)


@dataclass(frozen=True, slots=True)
class WeightsUnknown:
    """Neither basis is known, and why. The setting weights_bytes helps."""

    reason: str


def split_tensors(
    tensors: Iterable[Tensor],
    *,
    layers: int | None = None,
    experts: int | None = None,
    experts_per_token: int | None = None,
    choices: int | None = None,
    tied: bool | None = None,
    reads: Sequence[tuple[str, int]] = (),
    quant_bits: int | None = None,
) -> Streamed:
    """What of these tensors a decode step of the text model reads.

    The input embedding counts only when no separate output head is there: then one matrix is
    both, and the head reads all of it. reads: parts of names whose tensors a step reads more than
    once. Raises CheckpointError when it cannot be told.
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
    head = by_role[Role.HEAD] or by_role[Role.EMBEDDING]
    routed = by_role[Role.EXPERT]
    size = _Sizes(reads, tensors=tensors, quant_bits=quant_bits)
    passed = sum(map(size.times, {layer for t in dense if (layer := layer_path(t.name))}))
    number, per_token = _routing(routed, experts, experts_per_token)
    share = per_token / (choices or number) if number else 0.0
    parameters, of_experts = size.parameters(dense), size.parameters(routed)
    known = parameters is not None and of_experts is not None
    return Streamed(
        size.bytes(dense),
        expert_bytes=size.bytes(routed) / number if number else 0.0,
        experts=number,
        experts_per_token=per_token,
        choices=choices if number else None,
        parameters=(parameters or 0.0) + (of_experts or 0.0) * share if known else None,
        speedup=_speedup([*dense, *routed]),
        head_bytes=size.bytes(head),
        layers=passed,
        dequantised=_dequantised([*dense, *routed]),
    )


def _routing(routed: list[Tensor], experts: int | None, per_token: int | None) -> tuple[int, int]:
    """Experts of a layer, and those of a token; 0 without any. Raises CheckpointError in doubt."""
    if not routed:
        if experts is not None and experts > 1:
            raise CheckpointError("its experts are not recognised among its tensors")
        return 0, 0
    if experts is None or per_token is None or per_token > experts:
        raise CheckpointError("how many of its experts a token uses is not stated")
    _check_experts(routed, experts)
    return experts, per_token


_INTEGERS = frozenset(("I8", "I16", "U16", "U32", "I64", "U64", "BOOL"))


class _Sizes:
    """Bytes that a step reads, and weights that a token is multiplied with."""

    def __init__(
        self, reads: Sequence[tuple[str, int]], tensors: Sequence[Tensor],
        quant_bits: int | None,
    ) -> None:  # fmt: skip
        self._reads = reads
        self._packed = 32 // quant_bits if quant_bits in (2, 4, 8) else None
        found = {tensor.name for tensor in tensors}
        if reads and not all(
            any(part in name.split(".") for name in found) for part, times in reads if times > 1
        ):
            raise CheckpointError("the layers that a step reads several times are not recognised")

    def bytes(self, tensors: Iterable[Tensor]) -> float:
        return float(sum(self.times(t.name) * _read_bytes(t) for t in tensors))

    def parameters(self, tensors: Iterable[Tensor]) -> float | None:
        total = 0.0
        for tensor in tensors:
            weights = self._weights(tensor)
            if weights is None:
                return None
            total += self.times(tensor.name) * weights
        return total

    def times(self, name: str) -> int:
        """How often a step reads a tensor, or passes a layer, of this name."""
        parts = name.split(".")
        for part, times in self._reads:
            # Adapters inside of a shared block belong to one of its uses.
            if part in parts and not any(p.endswith("_adapter_list") for p in parts):
                return times
        return 1

    def _weights(self, tensor: Tensor) -> float | None:
        """Weights that the tensor multiplies with; None where its packing is not known."""
        last = tensor.name.rsplit(".", 1)[-1]
        if len(tensor.shape) < 2 or last in ("scales", "qzeros", "g_idx", "absmax"):
            return 0.0
        if "scale" in last or "quant_" in last or last.endswith("_bias"):
            return 0.0
        if tensor.dtype in UNPACKED:
            return float(prod(tensor.shape))
        if tensor.dtype == "I32":
            return None if self._packed is None else float(prod(tensor.shape) * self._packed)
        if tensor.dtype == "U8":
            # Two weights of four bits in a byte: MXFP4, NVFP4, NF4.
            return 2.0 * prod(tensor.shape)
        # GGUF tells the shape in weights, whatever their type.
        return float(prod(tensor.shape)) if tensor.dtype not in _INTEGERS else None


def _read_bytes(tensor: Tensor) -> float:
    """Bytes of one reading.

    The projection up from a compressed KV cache is kept in the model's 16 bits by vLLM whatever it
    is stored in, and by others as it is stored: half-way is within 1.4 % of a step in both.
    """
    if ".kv_b_proj.weight" in tensor.name and tensor.dtype in ("F8_E4M3", "F8_E5M2"):
        return tensor.bytes * 1.5
    return float(tensor.bytes)


def _speedup(tensors: Iterable[Tensor]) -> float:
    """By the narrowest floats among them."""
    dtypes = {tensor.dtype for tensor in tensors}
    if "U8" in dtypes or "F4" in dtypes:
        return 4.0
    return 2.0 if dtypes & {"F8_E4M3", "F8_E5M2", "I8"} else 1.0


def _dequantised(tensors: Iterable[Tensor]) -> bool:
    """Whether more weights are stored in 8 bits or fewer than in 16 or more.

    A byte of a quantised tensor holds one weight at least, whatever its packing.
    """
    narrow, wide = 0.0, 0.0
    for tensor in tensors:
        if tensor.dtype in ("BF16", "F16", "F32"):
            wide += tensor.bytes / 2
        else:
            narrow += tensor.bytes
    return narrow > wide


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
