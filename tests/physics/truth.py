"""What is hidden: how well this card, this engine and this model really do, drawn from a seed."""

import random
from dataclasses import dataclass, replace
from typing import Literal

from tests.physics.hardware import (
    BYTES_PER_WEIGHT,
    CARDS,
    FAST,
    MODELS,
    SMALL,
    Card,
    Model,
    Precision,
)

Kind = Literal["dense", "moe", "4bit", "speculation", "small"]
KINDS: tuple[Kind, ...] = ("dense", "moe", "4bit", "speculation", "small")
"""`small`: a small model on a fast card, where fixed costs rule."""

BLOCK = 16
"""Tokens in a block of the KV cache."""


@dataclass(frozen=True, slots=True)
class Published:
    """What a user can look up before measuring anything. All of one card, TP 1."""

    card: str
    memory: str
    bandwidth: float
    """Theoretical [bytes/s]."""
    flops: float
    """Dense, in the precision that the products of matrices run in [1/s]."""
    model: str
    precision: Precision
    layers: int
    dense_bytes: float
    """Weights that every step reads, output head included, input embedding not [bytes]."""
    expert_bytes: float
    """Of one expert, over all layers [bytes]; 0 without experts."""
    experts: int
    experts_per_token: int
    parameters_per_token: float
    """Weights that take part in the products for one token."""
    kv_bytes_per_token: float
    draft_tokens: int
    """Speculative tokens per sequence and step; 0 without speculation."""
    draft_bytes: float
    """Weights read for one draft token [bytes]; 0 where drafts need no model."""
    eager: bool
    max_num_seqs: int
    token_budget: int
    kv_cache_tokens: int
    max_model_len: int
    tensor_parallel: int = 1


@dataclass(frozen=True, slots=True)
class Truth:
    """Seconds, bytes and shares as they are. `efficiency` shares are of what is attainable."""

    seed: int
    card: Card
    model: Model
    precision: Precision

    attainable: float
    """Share of the theoretical bandwidth that long reads get."""
    tiers: tuple[tuple[int, float], ...]
    """(up to so many tokens, efficiency of reading weights): another kernel for each range."""
    dequantising: float
    """Efficiency on top for weights of 4 bits."""
    grouped: float
    """Efficiency on top for the experts' weights."""
    attention: float
    """Efficiency of reading keys and values."""
    one_sequence: float
    """Share of the attainable bandwidth that one sequence's keys and values can draw."""
    ramp: float
    """A kernel's start and end, when it does not fill the card [s]."""
    gap: float
    """Between two kernels of a CUDA graph [s]."""
    tensor_peak: float
    """Share of the peak FLOP rate that large products reach."""
    tensor_half: float
    """Tokens at which half of it is reached, in tiles of 128 rows; with smaller ones earlier."""
    prefill_attention: float
    """Share of the peak FLOP rate that attention over prompts reaches."""
    leak: float
    """How much of the shorter of reading and computing is not hidden by the longer."""

    eager: bool
    launch: float
    """CPU time to launch one kernel [s]."""
    asynchronous: bool
    """Whether the CPU's work for the next step is hidden behind the GPU's."""
    cpu_step: float
    cpu_sequence: float
    exposed: float
    """What asynchronous scheduling cannot hide [s]."""
    sampler_passes: int
    """How often sampling walks over the logits of a sequence."""
    jitter: float
    """Sigma of the log-normal factor on each step."""
    hiccups: float
    """Per second, each of some `hiccup` seconds."""
    hiccup: float
    output_delay: float
    """From the end of a step to the event at the client [s]."""

    routing_skew: float
    """Exponent of the experts' popularity; 0 is uniform."""
    routing_correlation: float
    """Tokens in a step count as tokens**this independent ones."""
    draft_tokens: int
    draft_bytes: float
    acceptance: float
    """Chance that a draft token is taken when the one before it was."""

    max_num_seqs: int
    token_budget: int
    kv_cache_tokens: int
    max_model_len: int

    @property
    def weight_bytes(self) -> float:
        """Of one weight in the layers."""
        return BYTES_PER_WEIGHT[self.precision]

    @property
    def flops(self) -> float:
        twice = self.precision == "fp8" and self.card.has_fp8
        return self.card.flops * (2 if twice else 1)

    @property
    def published(self) -> Published:
        model = self.model
        attention = model.layers * (model.qkv + model.out)
        feed_forward = model.layers * (model.up + model.down)
        always = attention if model.experts else attention + feed_forward
        router = model.layers * model.hidden * model.experts
        return Published(
            card=self.card.name,
            memory=self.card.memory,
            bandwidth=self.card.bandwidth,
            flops=self.flops,
            model=model.name,
            precision=self.precision,
            layers=model.layers,
            dense_bytes=always * self.weight_bytes + (router + model.head) * 2,
            expert_bytes=feed_forward * self.weight_bytes if model.experts else 0.0,
            experts=model.experts,
            experts_per_token=model.experts_per_token,
            parameters_per_token=(
                attention + feed_forward * (model.experts_per_token or 1) + router + model.head
            ),
            kv_bytes_per_token=model.layers * model.kv_layer_bytes,
            draft_tokens=self.draft_tokens,
            draft_bytes=self.draft_bytes,
            eager=self.eager,
            max_num_seqs=self.max_num_seqs,
            token_budget=self.token_budget,
            kv_cache_tokens=self.kv_cache_tokens,
            max_model_len=self.max_model_len,
        )


def drawn(
    seed: int,
    kind: Kind = "dense",
    card: Card | None = None,
    model: Model | None = None,
    precision: Precision | None = None,
    eager: bool | None = None,
) -> Truth:
    """The truth of this seed; card, model, precision and eager mode are drawn where not given."""
    rng = random.Random(f"{kind} {seed}")
    card, model, precision = _setting(rng, kind, card, model, precision)
    eager = rng.random() < 0.12 if eager is None else eager
    speculates = kind == "speculation"
    truth = Truth(
        seed=seed,
        card=card,
        model=model,
        precision=precision,
        attainable=rng.uniform(*_ATTAINABLE[card.memory]),
        tiers=_tiers(rng),
        dequantising=rng.uniform(0.66, 0.97) if precision == "int4" else 1.0,
        grouped=rng.uniform(0.7, 0.95),
        attention=rng.uniform(0.82, 1.0),
        one_sequence=rng.uniform(0.6, 1.0),
        ramp=rng.uniform(1.2e-6, 3.0e-6),
        gap=rng.uniform(0.6e-6, 1.6e-6),
        tensor_peak=rng.uniform(0.55, 0.82),
        tensor_half=rng.uniform(24, 96),
        prefill_attention=rng.uniform(0.3, 0.6),
        leak=rng.uniform(0.02, 0.08),
        eager=eager,
        launch=rng.uniform(5e-6, 11e-6),
        asynchronous=rng.random() < 0.5,
        cpu_step=rng.uniform(0.2e-3, 1.1e-3),
        cpu_sequence=rng.uniform(3e-6, 20e-6),
        exposed=rng.uniform(0.03e-3, 0.15e-3),
        sampler_passes=rng.choice((2, 4, 8)),
        jitter=rng.uniform(0.004, 0.03),
        hiccups=rng.uniform(0.0, 0.3),
        hiccup=rng.uniform(3e-3, 25e-3),
        output_delay=rng.uniform(0.2e-3, 1.2e-3),
        routing_skew=rng.uniform(0.1, 0.8),
        routing_correlation=rng.uniform(0.8, 1.0),
        draft_tokens=rng.choice((2, 3, 5)) if speculates else 0,
        draft_bytes=0.0,
        acceptance=rng.uniform(0.55, 0.85) if speculates else 0.0,
        max_num_seqs=rng.choice((128, 256)),
        token_budget=rng.choice((2048, 2048, 4096, 8192)),
        kv_cache_tokens=0,
        max_model_len=32_768,
    )
    if speculates and rng.random() < 0.7:  # a layer of its own that drafts; else n-grams
        layer = model.qkv + model.out + model.up + model.down
        truth = replace(truth, draft_bytes=2.0 * (layer + model.head))
    return replace(truth, kv_cache_tokens=_room(truth))


_ATTAINABLE = {"gddr": (0.8, 0.94), "hbm": (0.86, 0.96), "lpddr": (0.78, 0.92)}


def _setting(
    rng: random.Random,
    kind: Kind,
    card: Card | None,
    model: Model | None,
    precision: Precision | None,
) -> tuple[Card, Model, Precision]:
    """Something that fits, with 5 GB left for the cache. Raises ValueError when nothing does."""
    for _ in range(1000):
        a_card = card or rng.choice(CARDS)
        a_model = model or rng.choice(MODELS)
        a_precision = precision or _precision(rng, kind, a_card)
        free = a_card.memory_bytes * 0.9 - _resident(a_model, a_precision)
        if free <= 5e9:
            continue
        wanted = (
            bool(a_model.experts) == (kind == "moe")
            and (kind == "small") <= (a_model.name in SMALL and a_card.name in FAST)
            and (kind == "4bit") == (a_precision == "int4")
        )
        if wanted or (card and model and precision):
            return a_card, a_model, a_precision
    raise ValueError("no such engine fits")


def _precision(rng: random.Random, kind: Kind, card: Card) -> Precision:
    if kind == "4bit":
        return "int4"
    return "fp8" if card.has_fp8 and rng.random() < 0.25 else "bf16"


def _resident(model: Model, precision: Precision) -> float:
    layer = model.qkv + model.out + (model.up + model.down) * (model.experts or 1)
    return model.layers * layer * BYTES_PER_WEIGHT[precision] + 2 * 2 * model.head


def _tiers(rng: random.Random) -> tuple[tuple[int, float], ...]:
    """One vector is read best; few rows are what kernels are worst at; then it gets better."""
    return (
        (1, rng.uniform(0.94, 1.0)),
        (4, rng.uniform(0.84, 1.0)),
        (16, rng.uniform(0.88, 1.0)),
        (64, rng.uniform(0.9, 1.0)),
        (1 << 30, rng.uniform(0.92, 1.0)),
    )


def _room(truth: Truth) -> int:
    """Tokens that the KV cache holds in what the weights and 2 GB of work space leave free."""
    free = truth.card.memory_bytes * 0.9 - _resident(truth.model, truth.precision) - 2e9
    per_token = truth.model.layers * truth.model.kv_layer_bytes
    return int(free / per_token) // BLOCK * BLOCK
