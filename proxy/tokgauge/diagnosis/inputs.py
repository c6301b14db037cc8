"""All that a judgement is made of, as it was collected: by `serve`, `probe` or `check`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tokgauge.diagnosis.answers import Answers
from tokgauge.diagnosis.decoding import Decoded
from tokgauge.diagnosis.expected_time import Costs
from tokgauge.engine.facts import Down
from tokgauge.engine.metrics_page import EngineRates, EngineReading
from tokgauge.gpu.bandwidth import Bandwidth
from tokgauge.gpu.contention import Contention, State
from tokgauge.gpu.readings import GpuReading
from tokgauge.model.ceiling import ComputeRoof
from tokgauge.model.kv import KvCache, KvUnknown
from tokgauge.model.weights import Streamed, WeightsFound, WeightsUnknown

OTHERS_MATTER = 0.1
"""Tokens for others, as a share of the own ones, above which a stream was not alone."""

RateUnknown = Literal["not_streamed", "few_tokens", "few_arrivals"]


@dataclass(frozen=True, slots=True)
class ModelBytes:
    """What a model's decode steps read."""

    weights: WeightsFound | WeightsUnknown
    kv: KvCache | KvUnknown
    draft_unknown_because: str | None = "what drafting reads is not known: set speculative_config"
    """Why a step of speculative decoding reads more than this; None where drafting is counted."""

    @property
    def streamed(self) -> Streamed | None:
        """Of the weights, what a step reads; None where that is not known."""
        return self.weights.streamed if isinstance(self.weights, WeightsFound) else None

    @property
    def verified(self) -> int | None:
        """Tokens of one sequence that a step computes, drafted ones too; None where not known."""
        streamed = self.streamed
        return streamed.draft.verified if streamed is not None and streamed.draft else None


@dataclass(frozen=True, slots=True)
class Page:
    """A reading of the engine's page, and how many sequences of the proxy's own ran then."""

    reading: EngineReading
    own_sequences: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSeen:
    """What passed through the proxy in a window, and what the engine told over the same time.

    pages: all of the window. last: that of the last look, None when there was none then.
    tokens_per_event: mean over the latest streams with usage, None before the first.
    """

    decoded: Decoded
    answers: Answers
    pages: tuple[Page, ...] = ()
    last: EngineReading | None = None
    rates: EngineRates | None = None
    tokens_per_event: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSeen:
    """One answer that was asked for and measured.

    decode_rate [tokens/s] with the reason why there is none, and what that takes at least.
    tokens_per_step: None when not known. context_tokens: mean over its steps. tokens_of_others:
    that the server generated meanwhile, None when it does not tell.
    """

    decode_rate: float | None
    no_rate_because: RateUnknown | None = None
    needed: int | None = None
    tokens: int | None = None
    tokens_per_step: float | None = None
    context_tokens: float | None = None
    tokens_of_others: int | None = None
    kv_cache_usage: float | None = None

    @property
    def alone(self) -> bool | None:
        """Whether the server worked for hardly anybody else meanwhile."""
        if self.tokens_of_others is None:
            return None
        return self.tokens_of_others <= OTHERS_MATTER * (self.tokens or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What is known of one model over one window. Absent is what is not known.

    bandwidth: of all GPUs that serve a step. model: None until its files were looked at.
    several_models: it is not known whose weights are read. roof: what the GPUs compute. calibrated:
    what a step costs here, measured on an idle engine. fitted: the same as the traffic shows it.
    seen: None without traffic. gpus: those of the engine. contention: the worst state of the time
    judged. lately: answers that ended within some windows, None where nobody counts them.
    unanswered: how long streams have waited for their first token so far [s]. down: since when the
    engine cannot be reached, and why; None while it can, and when nobody knows.
    """

    bandwidth: Bandwidth
    model: ModelBytes | None = None
    several_models: bool = False
    tensor_parallel: int = 1
    roof: ComputeRoof | None = None
    calibrated: Costs | None = None
    fitted: Costs | None = None
    seen: WindowSeen | StreamSeen | None = None
    gpus: tuple[GpuReading, ...] = ()
    contention: State = "unknown"
    contentions: tuple[Contention, ...] = ()
    lately: Answers | None = None
    unanswered: tuple[float, ...] = ()
    down: Down | None = None
