"""Memory of a plan: what vLLM takes of each card, and how many users it leaves room for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokgauge.model.kv import KvCache

__all__ = ["RULE_OF_THUMB", "Fit", "Format", "Hardware", "Memory", "Rule", "Wish", "plan_memory"]

RULE_OF_THUMB = 1.2
"""Weights x 1.2 for the weights, the cache and all that runs beside them."""

_MOST_USERS = 1_000_000
_MOST_CARDS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Hardware:
    """Cards of one kind, and what vLLM does with each."""

    card_bytes: float
    cards_per_node: int
    heads: int | None
    """Attention heads, which tensor parallelism has to divide; None: not known."""
    utilization: float
    """Share of a card that vLLM uses (--gpu-memory-utilization)."""
    activations_bytes: float
    """Of one card, while a prompt is computed."""
    cuda_graphs_bytes: float
    """Of one card."""

    @property
    def usable_bytes(self) -> float:
        """What one card has for weights and cache."""
        reserved = self.activations_bytes + self.cuda_graphs_bytes
        return self.card_bytes * self.utilization - reserved


@dataclass(frozen=True, slots=True)
class Wish:
    """users: at one time. context: tokens of each."""

    users: int
    context: float


@dataclass(frozen=True, slots=True)
class Format:
    """The model in one precision. nominal_bytes: parameters x bits / 8, for the rule of thumb."""

    label: str
    bits: float | None
    weights_bytes: float
    nominal_bytes: float


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule of thumb, which holds the cache already."""

    bytes: float
    cards: int
    nodes: int


@dataclass(frozen=True, slots=True)
class Fit:
    """What a number of cards leaves room for. users 0: the weights alone do not fit."""

    cards: int
    tensor_parallel: int
    pipeline_parallel: int
    cache_bytes: float
    """Left for the KV cache, over all cards."""
    users: int
    """With the wished context."""
    context: int
    """Of each of the wished users [tokens]."""


@dataclass(frozen=True, slots=True)
class Memory:
    """One format's needs. `by` names what the number of cards follows from."""

    label: str
    bits: float | None
    by: str
    weights_bytes: float
    kv_bytes: float | None
    activations_bytes: float
    cuda_graphs_bytes: float
    needed_bytes: float
    """Weights, cache, activations and graphs, or by the rule of thumb; over all cards."""
    cards: int
    """The smallest number that is enough."""
    nodes: int
    tensor_parallel: int
    pipeline_parallel: int
    rule_of_thumb: Rule
    fits: tuple[Fit, ...]

    @property
    def cards_used(self) -> int:
        """Cards of the tensor and pipeline sizes, which may be more than are needed."""
        return self.tensor_parallel * self.pipeline_parallel


def plan_memory(form: Format, kv: KvCache | None, wish: Wish, hardware: Hardware) -> Memory | None:
    """Memory of one format. kv None: not known, and then the rule of thumb alone counts.

    None when no number of cards is enough, since each has less than it needs for itself.
    """
    rule_bytes = form.nominal_bytes * RULE_OF_THUMB
    tensor, pipeline = _parallel(lambda _: rule_bytes, hardware.card_bytes, hardware)
    rule = Rule(
        rule_bytes,
        _whole(rule_bytes / hardware.card_bytes),
        math.ceil(tensor * pipeline / hardware.cards_per_node),
    )
    if kv is None:
        return Memory(
            form.label, form.bits, "rule of thumb", form.weights_bytes, None, 0.0, 0.0, rule_bytes,
            rule.cards, rule.nodes, tensor, pipeline, rule, (),
        )  # fmt: skip
    if hardware.usable_bytes <= 0:
        return None
    each = kv.bytes_kept(wish.context)

    def needed(tensor_parallel: int) -> float:
        return form.weights_bytes + wish.users * each * kv.copies(tensor_parallel)

    tensor, pipeline = _parallel(needed, hardware.usable_bytes, hardware)
    cards = _whole(needed(tensor) / hardware.usable_bytes)
    used = tensor * pipeline
    return Memory(
        label=form.label,
        bits=form.bits,
        by="memory",
        weights_bytes=form.weights_bytes,
        kv_bytes=wish.users * each * kv.copies(tensor),
        activations_bytes=hardware.activations_bytes * used,
        cuda_graphs_bytes=hardware.cuda_graphs_bytes * used,
        needed_bytes=needed(tensor)
        + (hardware.activations_bytes + hardware.cuda_graphs_bytes) * used,
        cards=cards,
        nodes=math.ceil(used / hardware.cards_per_node),
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        rule_of_thumb=rule,
        fits=tuple(_fits(form, kv, wish, hardware, used)),
    )


def _parallel(total: Callable[[int], float], each: float, hardware: Hardware) -> tuple[int, int]:
    """(tensor parallel, pipeline parallel).

    Tensor parallelism exchanges data in every layer, so it stays inside a node: the smallest power
    of two that fits and divides the heads. What one node cannot hold goes into pipeline stages.
    """
    sizes = _tensor_sizes(hardware)
    for size in sizes:
        if total(size) <= size * each:
            return size, 1
    return sizes[-1], min(_MOST_CARDS, _whole(total(sizes[-1]) / (sizes[-1] * each)))


def _tensor_sizes(hardware: Hardware) -> Sequence[int]:
    sizes = [1]
    while (size := sizes[-1] * 2) <= hardware.cards_per_node:
        if (hardware.heads or size) % size:
            break
        sizes.append(size)
    return sizes


def _fits(form: Format, kv: KvCache, wish: Wish, hardware: Hardware, chosen: int) -> list[Fit]:
    """What each size of a node holds, and what the chosen number does."""
    sizes = [(size, 1) for size in _tensor_sizes(hardware)]
    largest = sizes[-1][0]
    if chosen > largest:
        sizes.append((largest, chosen // largest))
    found = []
    for tensor, pipeline in sizes:
        cards = tensor * pipeline
        room = cards * hardware.usable_bytes - form.weights_bytes
        copies = kv.copies(tensor)
        each = kv.bytes_kept(wish.context) * copies
        users = min(_MOST_USERS, int(room // each)) if each and room > 0 else 0
        context = _longest(kv, room / copies / wish.users)
        found.append(Fit(cards, tensor, pipeline, max(0.0, room), users, context))
    return found


def _longest(kv: KvCache, room: float) -> int:
    """Tokens of context that one sequence can keep in `room` bytes: windows end, states do not."""
    if kv.bytes_kept(1) > room:
        return 0
    low, high = 1, 2
    while kv.bytes_kept(high) <= room and high < 2**40:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if kv.bytes_kept(middle) <= room else (low, middle)
    return low


def _whole(count: float) -> int:
    """The next whole number; what is above by rounding errors only stays below."""
    return math.ceil(round(count, 9))
