"""The engine's counters, written as vLLM 0.32 writes its /metrics page."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

STARTED_AT = 1_790_000_000.0
"""Unix time at virtual time 0."""
_LABELS = 'engine="0",model_name="sim"'
_STEP_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_QUEUE_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_FIRST_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
    10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip


class Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        return sum(self._counts)

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times

    def lines(self, name: str) -> Iterable[str]:
        yield f"# TYPE {name} histogram"
        below = 0
        for bound, count in zip((*map(float, self._bounds), "+Inf"), self._counts, strict=True):
            below += count
            yield f'{name}_bucket{{{_LABELS},le="{bound}"}} {float(below)}'
        yield f"{name}_count{{{_LABELS}}} {float(below)}"
        yield f"{name}_sum{{{_LABELS}}} {float(self.sum)}"


class Counters:
    """What the engine counts, with vLLM's habits.

    A step without output (a part of a prompt alone) is not observed as an iteration. A prompt is
    counted when its first token comes, whole, with what the cache gave. The wait of a request is
    observed when it ends.
    """

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generation_tokens = 0
        self.preemptions = 0
        self.drafts = 0
        self.draft_tokens = 0
        self.accepted_tokens = 0
        self.finished = 0
        self.step_tokens = Histogram(_STEP_BUCKETS)
        self.queue_seconds = Histogram(_QUEUE_BUCKETS)
        self.first_token_seconds = Histogram(_FIRST_BUCKETS)

    def page(
        self,
        running: int,
        waiting: int,
        cache_usage: float,
        blocks: int,
        block: int,
        drafting: bool,
    ) -> bytes:
        lines = ["# TYPE process_start_time_seconds gauge"]
        lines.append(f"process_start_time_seconds {STARTED_AT}")
        lines += _sample("num_requests_running", "gauge", running)
        lines += _sample("num_requests_waiting", "gauge", waiting)
        lines += _sample("kv_cache_usage_perc", "gauge", cache_usage)
        lines += _sample("num_preemptions_total", "counter", self.preemptions)
        lines += _sample("prompt_tokens_total", "counter", self.prompt_tokens)
        lines += _sample("prompt_tokens_cached_total", "counter", self.cached_tokens)
        lines.append("# TYPE vllm:prompt_tokens_by_source_total counter")
        computed = self.prompt_tokens - self.cached_tokens
        for source, tokens in (
            ("local_compute", computed),
            ("local_cache_hit", self.cached_tokens),
        ):
            name = f'vllm:prompt_tokens_by_source_total{{{_LABELS},source="{source}"}}'
            lines.append(f"{name} {float(tokens)}")
        lines += _sample("generation_tokens_total", "counter", self.generation_tokens)
        if drafting:
            lines += _sample("spec_decode_num_drafts_total", "counter", self.drafts)
            lines += _sample("spec_decode_num_draft_tokens_total", "counter", self.draft_tokens)
            accepted = "spec_decode_num_accepted_tokens_total"
            lines += _sample(accepted, "counter", self.accepted_tokens)
        success = f'{{{_LABELS},finished_reason="length"}}'
        lines.append(f"vllm:request_success_total{success} {float(self.finished)}")
        lines += self.step_tokens.lines("vllm:iteration_tokens_total")
        lines += self.queue_seconds.lines("vllm:request_queue_time_seconds")
        lines += self.first_token_seconds.lines("vllm:time_to_first_token_seconds")
        config = f'block_size="{block}",cache_dtype="auto",engine="0",num_gpu_blocks="{blocks}"'
        lines.append(f"vllm:cache_config_info{{{config}}} 1.0")
        return ("\n".join(lines) + "\n").encode()


def _sample(name: str, kind: str, value: float) -> tuple[str, str]:
    return f"# TYPE vllm:{name} {kind}", f"vllm:{name}{{{_LABELS}}} {float(value)}"
