"""How long a step takes, kernel by kernel.

A forward pass is a row of kernels. One that multiplies by weights reads them and computes; the
longer of the two counts, and a little of the shorter leaks out. Every kernel has a start and an
end in which the card is not full, and a gap to the next. The CPU schedules, launches and samples.
"""

import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from tests.physics.conditions import Conditions
from tests.physics.truth import Truth

CAPTURED = 512
"""Largest step in tokens for which there is a CUDA graph."""
_CAPTURE_SIZES: tuple[int, ...] = (1, 2, 4, *range(8, 257, 8), *range(272, CAPTURED + 1, 16))
_VECTOR_ROWS = 4
"""Up to here the products run without tensor cores, at the speed of memory."""
_SMALL_KERNELS = 4
"""Of a layer: norms, rotary embedding, writing keys and values, activation."""
_UNFUSED_KERNELS = 6
_SAMPLER_KERNELS = 8
_PIECES = 4
"""Launches of a layer where only parts of it are CUDA graphs."""
_SMALL_TILE, _LARGE_TILE = 16, 128
_EXPERT_TILE = 16
"""An expert's rows are filled up to this many."""

Chunk = tuple[int, int]
"""Part of a prompt: tokens that are in the cache before it, and its own."""


@dataclass(frozen=True, slots=True)
class Constants:
    """The truth in the usual terms, for scoring. The physics know none of these."""

    fixed_seconds: float
    """A step of one sequence without context, less reading the weights at `weights_bandwidth`."""
    sequence_seconds: float
    """Slope of a step's time from 8 to 32 sequences without context, less what MoE reads more."""
    weights_bandwidth: float
    """At which one token's weights are read, starts and gaps of kernels left out [bytes/s]."""
    attention_bandwidth: float
    """At which many sequences' keys and values are read [bytes/s]."""
    prefill_flops: float
    """2 x parameters per token x tokens over the time of a step of 2048 prompt tokens [1/s]."""


class Machine:
    """Card, engine and model under given conditions. Noise is added by `drawn_seconds` only."""

    def __init__(self, truth: Truth, conditions: Conditions) -> None:
        self._truth = truth
        self._conditions = conditions
        self._eager = truth.eager or conditions.eager
        self._read = truth.card.bandwidth * truth.attainable * conditions.memory_clock
        self._popularity = _popularity(truth)
        self._by_tokens: dict[int, float] = {}
        self._by_rows: dict[int, float] = {}
        self._distinct: dict[int, float] = {}

    def drawn_seconds(
        self,
        decodes: int,
        contexts: int,
        longest: int,
        chunks: Sequence[Chunk],
        rng: random.Random,
    ) -> float:
        """A step as it happens: experts, jitter and the neighbour's share drawn."""
        truth, share = self._truth, self._conditions.neighbour
        spread = rng.gauss(1.0, 0.05) if truth.model.experts else 1.0
        taken = min(0.95, share * rng.uniform(0.6, 1.4)) if share else 0.0
        seconds = self._seconds(decodes, contexts, longest, chunks, spread, taken)
        return seconds * math.exp(rng.gauss(0.0, truth.jitter))

    def seconds(
        self, decodes: int, contexts: int, longest: int, chunks: Sequence[Chunk] = ()
    ) -> float:
        """A step without chance.

        contexts: sum over the decoding sequences of the tokens whose keys and values are read;
        longest: the largest of them.
        """
        return self._seconds(decodes, contexts, longest, chunks, 1.0, self._conditions.neighbour)

    def experts(self, tokens: int) -> float:
        """Mean number of distinct experts of a layer that so many tokens visit."""
        found = self._distinct.get(tokens)
        if found is None:
            alike = math.pow(tokens, self._truth.routing_correlation)
            found = sum(1 - math.pow(1 - chance, alike) for chance in self._popularity)
            self._distinct[tokens] = found
        return found

    def constants(self) -> Constants:
        published = self._truth.published
        always = published.dense_bytes
        active = always + published.expert_bytes * published.experts_per_token
        reading = self._weights_reading(1)
        few, many = self.seconds(8, 0, 0), self.seconds(32, 0, 0)
        more_experts = self.experts(32) - self.experts(8) if published.experts else 0.0
        more = more_experts * published.expert_bytes * reading / active
        prompt = self.seconds(0, 0, 0, [(0, 2048)])
        return Constants(
            fixed_seconds=self.seconds(1, 0, 0) - reading,
            sequence_seconds=(many - few - more) / 24,
            weights_bandwidth=active / reading,
            attention_bandwidth=self._read * self._truth.attention,
            prefill_flops=2 * published.parameters_per_token * 2048 / prompt,
        )

    def _seconds(
        self,
        decodes: int,
        contexts: int,
        longest: int,
        chunks: Sequence[Chunk],
        spread: float,
        taken: float,
    ) -> float:
        truth = self._truth
        gpu = self._kernels(decodes, contexts, longest, chunks, spread)
        tokens = self._computed(decodes, chunks)
        launching = self._launching(tokens) * self._conditions.stolen_cpu
        gpu = max(gpu / (1 - taken), launching)
        sequences = decodes + len(chunks)
        cpu = truth.cpu_step + truth.cpu_sequence * sequences
        cpu *= self._conditions.stolen_cpu
        grammar = self._conditions.guided * sequences
        if truth.asynchronous:
            exposed = truth.exposed * self._conditions.stolen_cpu
            return max(gpu, cpu) + exposed + grammar
        return gpu + cpu + grammar

    def kernel_seconds(
        self, decodes: int, contexts: int, longest: int, chunks: Sequence[Chunk] = ()
    ) -> float:
        """How long kernels of the step run, if nobody else's do; see `seconds`."""
        return self._kernels(decodes, contexts, longest, chunks, 1.0)

    def _computed(self, decodes: int, chunks: Sequence[Chunk]) -> int:
        return decodes * (1 + self._truth.draft_tokens) + sum(own for _, own in chunks)

    def _kernels(
        self, decodes: int, contexts: int, longest: int, chunks: Sequence[Chunk], spread: float
    ) -> float:
        truth = self._truth
        tokens = self._computed(decodes, chunks)
        gpu = self._weights(tokens) + self._attention(contexts, longest, chunks)
        if truth.model.experts:
            gpu += self._expert_seconds(tokens, spread)
        gpu += self._after(decodes * (1 + truth.draft_tokens) + len(chunks))
        if truth.draft_tokens:
            gpu += self._drafting()
        return gpu

    def _weights(self, tokens: int) -> float:
        """All kernels of the layers but attention and experts."""
        padded = self._padded(tokens)
        found = self._by_tokens.get(padded)
        if found is None:
            model = self._truth.model
            found = self._product(model.hidden, model.qkv, padded)
            found += self._product(model.heads * model.head_dim, model.out, padded)
            if model.experts:
                found += self._product(model.hidden, model.hidden * model.experts, padded, 2.0)
                found += 3 * self._small(padded)
            else:
                found += self._product(model.hidden, model.up, padded)
                found += self._product(model.ffn, model.down, padded)
            kernels = _SMALL_KERNELS + (_UNFUSED_KERNELS if self._eager else 0)
            found += kernels * self._small(padded)
            found *= model.layers
            self._by_tokens[padded] = found
        return found

    def _padded(self, tokens: int) -> int:
        """CUDA graphs exist for some sizes only; the rest of the rows is filled up."""
        if self._eager or tokens > CAPTURED:
            return tokens
        return _CAPTURE_SIZES[bisect_left(_CAPTURE_SIZES, tokens)]

    def _product(self, inner: int, weights: int, rows: int, each: float | None = None) -> float:
        """A kernel that multiplies `rows` rows by a matrix of `inner` x weights / inner."""
        truth = self._truth
        size = weights * (truth.weight_bytes if each is None else each)
        efficiency = _tier(truth, rows) * (1.0 if each else truth.dequantising)
        reading = size / (self._read * efficiency)
        reading += rows * (inner + weights / inner) * 2 / self._read
        computing = self._computing(weights * _tiled(rows), rows)
        return self._overlapped(reading, computing) + self._edge(1.0)

    def _computing(self, products: float, rows: float) -> float:
        """Multiply-adds on tensor cores, which few rows do not fill."""
        if rows <= _VECTOR_ROWS:
            return 0.0
        truth = self._truth
        half = truth.tensor_half * _tile(rows) / _LARGE_TILE
        filled = _tiled(rows) / (_tiled(rows) + half)
        dequantising = 0.5 + 0.5 * truth.dequantising
        return 2 * products / (truth.flops * truth.tensor_peak * filled * dequantising)

    def _overlapped(self, reading: float, computing: float) -> float:
        return max(reading, computing) + self._truth.leak * min(reading, computing)

    def _edge(self, size: float) -> float:
        """Start, end and gap of a kernel; `size` 1 for one that could fill the card."""
        gap = self._truth.gap * (3 if self._eager else 1)
        return self._truth.ramp * size + gap

    def _small(self, rows: int) -> float:
        return rows * self._truth.model.hidden * 8 / self._read + self._edge(0.5)

    def _expert_seconds(self, tokens: int, spread: float) -> float:
        """Grouped products of one step: only the visited experts are read."""
        truth, model = self._truth, self._truth.model
        lowest, most = model.experts_per_token, min(model.experts, model.experts_per_token * tokens)
        visited = min(most, max(lowest, self.experts(tokens) * spread))
        weights = model.up + model.down
        efficiency = _tier(truth, tokens) * truth.dequantising * truth.grouped
        reading = visited * weights * truth.weight_bytes / (self._read * efficiency)
        rows = max(tokens * model.experts_per_token, visited * _EXPERT_TILE)
        computing = self._computing(weights * rows, rows / visited)
        return model.layers * (self._overlapped(reading, computing) + 2 * self._edge(1.0))

    def _attention(self, contexts: int, longest: int, chunks: Sequence[Chunk]) -> float:
        truth, model = self._truth, self._truth.model
        each = model.kv_layer_bytes / self._read
        decoding = max(contexts * each / truth.attention, longest * each / truth.one_sequence)
        prompts = 0.0
        rate = truth.flops if truth.precision != "fp8" else truth.card.flops
        for before, own in chunks:
            pairs = own * (before + own / 2)
            computing = 4 * pairs * model.heads * model.head_dim
            computing /= rate * truth.prefill_attention
            prompts += self._overlapped((before + own) * each, computing)
        return model.layers * (decoding + prompts + self._edge(1.0))

    def _after(self, rows: int) -> float:
        """Output head and sampling."""
        found = self._by_rows.get(rows)
        if found is None:
            model = self._truth.model
            logits = rows * model.vocab * 4 * self._truth.sampler_passes
            found = self._product(model.hidden, model.head, rows, 2.0)
            found += logits / self._read + _SAMPLER_KERNELS * self._edge(0.5)
            self._by_rows[rows] = found
        return found

    def _drafting(self) -> float:
        """Draft tokens come one after the other, each a small pass of its own."""
        truth = self._truth
        one = truth.draft_bytes / self._read + 10 * self._edge(0.5) if truth.draft_bytes else 0.0
        return truth.draft_tokens * one

    def _launching(self, tokens: int) -> float:
        truth = self._truth
        if self._eager:
            kernels = 5 + _SMALL_KERNELS + _UNFUSED_KERNELS + (3 if truth.model.experts else 0)
            return truth.model.layers * kernels * truth.launch
        if tokens > CAPTURED:
            return truth.model.layers * _PIECES * truth.launch
        return 0.0

    def _weights_reading(self, tokens: int) -> float:
        """Reading the weights alone, without starts, gaps and everything else."""
        truth, published = self._truth, self._truth.published
        tier = self._read * _tier(truth, tokens)
        sixteen = truth.model.head + truth.model.layers * truth.model.hidden * truth.model.experts
        layers = published.dense_bytes - sixteen * 2
        experts = published.expert_bytes * published.experts_per_token
        return (
            sixteen * 2 / tier
            + layers / (tier * truth.dequantising)
            + experts / (tier * truth.dequantising * truth.grouped)
        )


def _tier(truth: Truth, rows: int) -> float:
    return next(efficiency for up_to, efficiency in truth.tiers if rows <= up_to)


def _tile(rows: float) -> int:
    """Rows that a product's tile has: kernels for few rows have small ones."""
    return _SMALL_TILE if rows <= _LARGE_TILE else _LARGE_TILE


def _tiled(rows: float) -> float:
    return math.ceil(rows / _tile(rows)) * _tile(rows)


def _popularity(truth: Truth) -> tuple[float, ...]:
    """Chance of each expert to be among a token's; they sum up to the experts of a token."""
    model = truth.model
    if not model.experts:
        return ()
    wanted = [(rank + 1) ** -truth.routing_skew for rank in range(model.experts)]
    scale = model.experts_per_token / sum(wanted)
    for _ in range(50):  # nobody is visited more often than always
        total = sum(min(1.0, scale * share) for share in wanted)
        scale *= model.experts_per_token / total
    return tuple(min(1.0, scale * share) for share in wanted)
