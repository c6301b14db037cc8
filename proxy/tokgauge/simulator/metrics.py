"""The metrics of the simulated engine under vLLM 0.32's names, labels and buckets."""

from __future__ import annotations

from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest

from tokgauge.simulator.profile import EngineProfile
from tokgauge.simulator.scheduler import Scheduler, Sequence

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"

_ITERATION = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40,
    80, 160, 640, 2560,
)  # fmt: skip
_LATENCY = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
_REQUEST_TIME = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
_PROMPT_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
_FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


def _one_two_five(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 ... as far as `limit`."""
    values = (m * 10**e for e in range(len(str(limit))) for m in (1, 2, 5))
    return tuple(value for value in values if value <= limit)


_TOKEN_COUNTS: tuple[float, ...] = ()
"""Buckets that follow from the model's length."""


class _Family(NamedTuple):
    kind: type[Counter] | type[Gauge] | type[Histogram]
    name: str
    text: str
    buckets: tuple[float, ...] = _TOKEN_COUNTS
    label: str | None = None
    """Beside those of every metric."""


# In the order in which vLLM lists them.
_FAMILIES = (
    _Family(Counter, "estimated_flops_per_gpu", "Estimated floating point operations per GPU."),
    _Family(Counter, "estimated_read_bytes_per_gpu", "Estimated bytes read from memory per GPU."),
    _Family(Gauge, "num_requests_running", "Requests in execution batches."),
    _Family(Gauge, "num_requests_waiting", "Requests waiting to be processed."),
    _Family(Gauge, "num_requests_waiting_by_reason", "Waiting requests by reason.", label="reason"),
    _Family(Gauge, "kv_cache_usage_perc", "KV-cache usage, 1 is 100 percent."),
    _Family(Counter, "prefix_cache_queries", "Queried tokens."),
    _Family(Counter, "prefix_cache_hits", "Cached tokens."),
    _Family(Counter, "num_preemptions", "Cumulative preemptions."),
    _Family(Counter, "prompt_tokens", "Prefill tokens processed."),
    _Family(Counter, "prompt_tokens_by_source", "Prompt tokens by source.", label="source"),
    _Family(Counter, "prompt_tokens_cached", "Cached prompt tokens."),
    _Family(Counter, "generation_tokens", "Generation tokens."),
    _Family(
        Counter, "request_success", "Successfully processed requests.", label="finished_reason"
    ),
    _Family(Histogram, "request_prompt_tokens", "Prefill tokens of a request."),
    _Family(Histogram, "request_generation_tokens", "Generation tokens of a request."),
    _Family(Histogram, "iteration_tokens_total", "Tokens per engine step.", _ITERATION),
    _Family(Histogram, "request_params_n", "The request parameter n.", (1, 2, 5, 10, 20)),
    _Family(Histogram, "request_params_max_tokens", "The request parameter max_tokens."),
    _Family(Histogram, "time_to_first_token_seconds", "Time to first token.", _TTFT),
    _Family(Histogram, "inter_token_latency_seconds", "Time between tokens.", _LATENCY),
    _Family(
        Histogram, "request_time_per_output_token_seconds", "Mean time per output token.", _LATENCY
    ),
    _Family(Histogram, "e2e_request_latency_seconds", "End to end latency.", _REQUEST_TIME),
    _Family(Histogram, "request_queue_time_seconds", "Time in the waiting phase.", _REQUEST_TIME),
    _Family(
        Histogram, "request_inference_time_seconds", "Time in the running phase.", _REQUEST_TIME
    ),
    _Family(Histogram, "request_prefill_time_seconds", "Time in the prefill phase.", _REQUEST_TIME),
    _Family(Histogram, "request_decode_time_seconds", "Time in the decode phase.", _REQUEST_TIME),
)
_SPECULATION = (
    _Family(Counter, "spec_decode_num_drafts", "Number of drafts."),
    _Family(Counter, "spec_decode_num_draft_tokens", "Draft tokens."),
    _Family(Counter, "spec_decode_num_accepted_tokens", "Accepted tokens."),
)


class EngineMetrics:
    """A registry of its own; implements the scheduler's Recorder."""

    def __init__(self, profile: EngineProfile) -> None:
        self._mfu = profile.mfu_metrics
        self._registry = CollectorRegistry()
        self._values = {"engine": "0", "model_name": profile.model}
        self._token_counts = _one_two_five(profile.max_model_len)
        self._metrics: dict[str, Any] = {}
        ProcessCollector(registry=self._registry)
        for family in _FAMILIES:
            self._register(family)
        waiting = self._metrics["num_requests_waiting_by_reason"]
        self._waiting = [
            self._metrics["num_requests_waiting"], waiting.labels(**self._values, reason="capacity")
        ]  # fmt: skip
        waiting.labels(**self._values, reason="deferred")
        by_source = self._metrics["prompt_tokens_by_source"]
        self._computed, self._hit, _ = (
            by_source.labels(**self._values, source=source) for source in _PROMPT_SOURCES
        )
        for reason in _FINISH_REASONS:
            self._finished(reason)
        self._info: Gauge | None = None
        if profile.tokens_per_step > 1:
            self._register_speculation()

    def _register(self, family: _Family) -> None:
        """Make the metric; the one of this model where it has no label besides."""
        labels = [*self._values, *([family.label] if family.label else [])]
        more: dict[str, Any] = {}
        if family.kind is Histogram:
            more["buckets"] = family.buckets or self._token_counts
        metric = family.kind(
            f"vllm:{family.name}", family.text, labels, registry=self._registry, **more
        )
        self._metrics[family.name] = metric if family.label else metric.labels(**self._values)

    def _finished(self, reason: str) -> Any:
        success = self._metrics["request_success"]
        return success.labels(**self._values, finished_reason=reason)

    def _cache_config(self, profile: EngineProfile) -> None:
        """Its size may change while the simulated engine runs."""
        size = profile.num_gpu_blocks * profile.block_size
        labels = {
            "block_size": str(profile.block_size),
            "cache_dtype": "auto",
            "enable_prefix_caching": "True",
            "engine": "0",
            "gpu_memory_utilization": "0.92",
            "kv_cache_max_concurrency": str(size / profile.max_model_len),
            "kv_cache_memory_bytes": "None",
            "kv_cache_size_tokens": str(size),
            "num_gpu_blocks": str(profile.num_gpu_blocks),
            "num_gpu_blocks_override": "None",
            "prefix_caching_hash_algo": "sha256",
            "sliding_window": "None",
        }
        if self._info is None:
            self._info = Gauge(
                "vllm:cache_config_info",
                "Information of the LLMEngine CacheConfig",
                [*labels],
                registry=self._registry,
            )
        self._info.clear()
        self._info.labels(**labels).set(1)

    def _register_speculation(self) -> None:
        for family in _SPECULATION:
            self._register(family)

    def step(self, tokens: int, read_bytes: float, flops: float) -> None:
        self._metrics["iteration_tokens_total"].observe(tokens)
        if self._mfu:
            self._metrics["estimated_read_bytes_per_gpu"].inc(read_bytes)
            self._metrics["estimated_flops_per_gpu"].inc(flops)

    def admitted(self, prompt_tokens: int, cached_tokens: int) -> None:
        self._metrics["prefix_cache_queries"].inc(prompt_tokens)
        self._metrics["prefix_cache_hits"].inc(cached_tokens)
        self._metrics["prompt_tokens_cached"].inc(cached_tokens)

    def first_token(self, sequence: Sequence, now: float) -> None:
        self._metrics["prompt_tokens"].inc(len(sequence.prompt))
        self._computed.inc(len(sequence.prompt) - sequence.cached)
        self._hit.inc(sequence.cached)
        self._metrics["time_to_first_token_seconds"].observe(now - sequence.arrived)

    def tokens(self, count: int, gap: float | None) -> None:
        self._metrics["generation_tokens"].inc(count)
        if gap is not None:
            self._metrics["inter_token_latency_seconds"].observe(gap)

    def speculated(self, drafted: int, accepted: int) -> None:
        if "spec_decode_num_drafts" not in self._metrics:
            self._register_speculation()
        self._metrics["spec_decode_num_drafts"].inc()
        self._metrics["spec_decode_num_draft_tokens"].inc(drafted)
        self._metrics["spec_decode_num_accepted_tokens"].inc(accepted)

    def preempted(self) -> None:
        self._metrics["num_preemptions"].inc()

    def finished(self, sequence: Sequence, reason: str, now: float) -> None:
        self._finished(reason).inc()
        seen = {
            "request_prompt_tokens": len(sequence.prompt),
            "request_generation_tokens": sequence.generated,
            "request_params_n": sequence.choices,
        }
        if sequence.requested_limit is not None:
            seen["request_params_max_tokens"] = sequence.requested_limit
        scheduled = sequence.arrived if sequence.scheduled is None else sequence.scheduled
        first = now if sequence.first_token is None else sequence.first_token
        times = {
            "e2e_request_latency_seconds": now - sequence.arrived,
            "request_queue_time_seconds": scheduled - sequence.arrived,
            "request_prefill_time_seconds": first - scheduled,
            "request_decode_time_seconds": now - first,
            "request_inference_time_seconds": now - scheduled,
        }
        if sequence.generated > 1:
            per_token = (now - first) / (sequence.generated - 1)
            times["request_time_per_output_token_seconds"] = per_token
        for name, value in {**seen, **times}.items():
            self._metrics[name].observe(value)

    def render(self, scheduler: Scheduler) -> bytes:
        """The page now."""
        self._cache_config(scheduler.profile)
        self._metrics["num_requests_running"].set(scheduler.running)
        for waiting in self._waiting:
            waiting.set(scheduler.waiting)
        self._metrics["kv_cache_usage_perc"].set(scheduler.cache_usage)
        return generate_latest(self._registry)
