"""The metrics of the simulated engine under vLLM 0.32's names, labels and buckets."""

from __future__ import annotations

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
_FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


def _one_two_five(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 ... as far as `limit`."""
    values = (m * 10**e for e in range(len(str(limit))) for m in (1, 2, 5))
    return tuple(value for value in values if value <= limit)


class EngineMetrics:
    """A registry of its own; implements the scheduler's Recorder."""

    def __init__(self, profile: EngineProfile) -> None:
        self._mfu = profile.mfu_metrics
        self._registry = CollectorRegistry()
        self._values = {"engine": "0", "model_name": profile.model}
        ProcessCollector(registry=self._registry)
        # In the order in which vLLM lists them.
        self._flops = self._counter(
            "estimated_flops_per_gpu", "Estimated floating point operations per GPU."
        )
        self._read_bytes = self._counter(
            "estimated_read_bytes_per_gpu", "Estimated bytes read from memory per GPU."
        )
        self._running = self._gauge("num_requests_running", "Requests in execution batches.")
        self._waiting = self._gauge("num_requests_waiting", "Requests waiting to be processed.")
        by_reason = Gauge(
            "vllm:num_requests_waiting_by_reason",
            "Waiting requests by reason.",
            [*self._values, "reason"],
            registry=self._registry,
        )
        self._waiting_capacity = by_reason.labels(**self._values, reason="capacity")
        by_reason.labels(**self._values, reason="deferred")
        self._cache_usage = self._gauge("kv_cache_usage_perc", "KV-cache usage, 1 is 100 percent.")
        self._prefix_queries = self._counter("prefix_cache_queries", "Queried tokens.")
        self._prefix_hits = self._counter("prefix_cache_hits", "Cached tokens.")
        self._preemptions = self._counter("num_preemptions", "Cumulative preemptions.")
        self._prompt_tokens = self._counter("prompt_tokens", "Prefill tokens processed.")
        by_source = Counter(
            "vllm:prompt_tokens_by_source",
            "Number of prompt tokens by source.",
            [*self._values, "source"],
            registry=self._registry,
        )
        self._computed_tokens = by_source.labels(**self._values, source="local_compute")
        self._hit_tokens = by_source.labels(**self._values, source="local_cache_hit")
        by_source.labels(**self._values, source="external_kv_transfer")
        self._cached_tokens = self._counter("prompt_tokens_cached", "Cached prompt tokens.")
        self._generation_tokens = self._counter("generation_tokens", "Generation tokens.")
        success = Counter(
            "vllm:request_success",
            "Successfully processed requests.",
            [*self._values, "finished_reason"],
            registry=self._registry,
        )
        self._success = {
            reason: success.labels(**self._values, finished_reason=reason)
            for reason in _FINISH_REASONS
        }
        token_counts = _one_two_five(profile.max_model_len)
        self._request_prompt = self._histogram(
            "request_prompt_tokens", "Prefill tokens of a request.", token_counts
        )
        self._request_generation = self._histogram(
            "request_generation_tokens", "Generation tokens of a request.", token_counts
        )
        self._iteration = self._histogram(
            "iteration_tokens_total", "Tokens per engine step.", _ITERATION
        )
        self._params_n = self._histogram(
            "request_params_n", "The request parameter n.", (1, 2, 5, 10, 20)
        )
        self._params_max_tokens = self._histogram(
            "request_params_max_tokens", "The request parameter max_tokens.", token_counts
        )
        self._ttft = self._histogram("time_to_first_token_seconds", "Time to first token.", _TTFT)
        self._inter_token = self._histogram(
            "inter_token_latency_seconds", "Time between tokens.", _LATENCY
        )
        self._per_output_token = self._histogram(
            "request_time_per_output_token_seconds", "Mean time per output token.", _LATENCY
        )
        self._e2e = self._histogram(
            "e2e_request_latency_seconds", "End to end latency.", _REQUEST_TIME
        )
        self._queue = self._histogram(
            "request_queue_time_seconds", "Time in the waiting phase.", _REQUEST_TIME
        )
        self._inference = self._histogram(
            "request_inference_time_seconds", "Time in the running phase.", _REQUEST_TIME
        )
        self._prefill = self._histogram(
            "request_prefill_time_seconds", "Time in the prefill phase.", _REQUEST_TIME
        )
        self._decode = self._histogram(
            "request_decode_time_seconds", "Time in the decode phase.", _REQUEST_TIME
        )
        self._cache_config(profile)
        self._drafts: Counter | None = None
        if profile.tokens_per_step > 1:
            self._register_speculation()

    def _counter(self, name: str, text: str) -> Counter:
        metric = Counter(f"vllm:{name}", text, [*self._values], registry=self._registry)
        return metric.labels(**self._values)

    def _gauge(self, name: str, text: str) -> Gauge:
        metric = Gauge(f"vllm:{name}", text, [*self._values], registry=self._registry)
        return metric.labels(**self._values)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        metric = Histogram(
            f"vllm:{name}", text, [*self._values], buckets=buckets, registry=self._registry
        )
        return metric.labels(**self._values)

    def _cache_config(self, profile: EngineProfile) -> None:
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
        info = Gauge(
            "vllm:cache_config_info",
            "Information of the LLMEngine CacheConfig",
            [*labels],
            registry=self._registry,
        )
        info.labels(**labels).set(1)

    def _register_speculation(self) -> Counter:
        self._drafts = self._counter("spec_decode_num_drafts", "Number of drafts.")
        self._draft_tokens = self._counter("spec_decode_num_draft_tokens", "Draft tokens.")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Accepted tokens.")
        return self._drafts

    def step(self, tokens: int, read_bytes: float, flops: float) -> None:
        self._iteration.observe(tokens)
        if self._mfu:
            self._read_bytes.inc(read_bytes)
            self._flops.inc(flops)

    def admitted(self, prompt_tokens: int, cached_tokens: int) -> None:
        self._prefix_queries.inc(prompt_tokens)
        self._prefix_hits.inc(cached_tokens)
        self._cached_tokens.inc(cached_tokens)

    def first_token(self, sequence: Sequence, now: float) -> None:
        self._prompt_tokens.inc(len(sequence.prompt))
        self._computed_tokens.inc(len(sequence.prompt) - sequence.cached)
        self._hit_tokens.inc(sequence.cached)
        self._ttft.observe(now - sequence.arrived)

    def tokens(self, count: int, gap: float | None) -> None:
        self._generation_tokens.inc(count)
        if gap is not None:
            self._inter_token.observe(gap)

    def speculated(self, drafted: int, accepted: int) -> None:
        drafts = self._drafts or self._register_speculation()
        drafts.inc()
        self._draft_tokens.inc(drafted)
        self._accepted.inc(accepted)

    def preempted(self) -> None:
        self._preemptions.inc()

    def finished(self, sequence: Sequence, reason: str, now: float) -> None:
        self._success[reason].inc()
        self._request_prompt.observe(len(sequence.prompt))
        self._request_generation.observe(sequence.generated)
        self._params_n.observe(sequence.choices)
        if sequence.requested_limit is not None:
            self._params_max_tokens.observe(sequence.requested_limit)
        scheduled = sequence.arrived if sequence.scheduled is None else sequence.scheduled
        first = now if sequence.first_token is None else sequence.first_token
        self._e2e.observe(now - sequence.arrived)
        self._queue.observe(scheduled - sequence.arrived)
        self._prefill.observe(first - scheduled)
        self._decode.observe(now - first)
        self._inference.observe(now - scheduled)
        if sequence.generated > 1:
            self._per_output_token.observe((now - first) / (sequence.generated - 1))

    def render(self, scheduler: Scheduler) -> bytes:
        self._running.set(scheduler.running)
        self._waiting.set(scheduler.waiting)
        self._waiting_capacity.set(scheduler.waiting)
        self._cache_usage.set(scheduler.cache_usage)
        return generate_latest(self._registry)
