"""What engines call their figures on /metrics, by engine and version, the newest name first.

vLLM: vllm/v1/metrics/loggers.py and perf.py (0.8 to 0.32); SGLang: its production metrics page;
llama.cpp: tools/server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

__all__ = [
    "CACHE_CONFIG",
    "COMPUTED",
    "KIND_OF",
    "NAMES",
    "OF_ONE_MODEL",
    "PROCESS_START",
    "WANTED",
    "EngineKind",
]

EngineKind = Literal["vllm", "sglang", "llamacpp"]

NAMES: Mapping[EngineKind, Mapping[str, tuple[str, ...]]] = {
    "vllm": {
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
        "kv_cache_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "preemptions_total": ("vllm:num_preemptions_total", "vllm:num_preemptions"),
        "iterations_total": ("vllm:iteration_tokens_total_count",),
        "prompt_tokens_total": ("vllm:prompt_tokens_total", "vllm:prompt_tokens"),
        "computed_prompt_tokens_total": ("vllm:prompt_tokens_by_source_total",),
        "prefix_cache_hits_total": (
            "vllm:prefix_cache_hits_total",
            "vllm:prefix_cache_hits",
            "vllm:gpu_prefix_cache_hits_total",
            "vllm:gpu_prefix_cache_hits",
        ),
        "generation_tokens_total": ("vllm:generation_tokens_total", "vllm:generation_tokens"),
        "spec_drafts_total": (
            "vllm:spec_decode_num_drafts_total",
            "vllm:spec_decode_num_drafts",
        ),
        "spec_accepted_total": (
            "vllm:spec_decode_num_accepted_tokens_total",
            "vllm:spec_decode_num_accepted_tokens",
        ),
        "queued_total": ("vllm:request_queue_time_seconds_count",),
        "queue_seconds_sum": ("vllm:request_queue_time_seconds_sum",),
        "estimated_read_bytes_total": (
            "vllm:estimated_read_bytes_per_gpu_total",
            "vllm:estimated_read_bytes_per_gpu",
        ),
    },
    "sglang": {
        "running": ("sglang:num_running_reqs",),
        "waiting": ("sglang:num_queue_reqs",),
        "kv_cache_usage": ("sglang:token_usage",),
        "kv_cache_tokens_capacity": ("sglang:max_total_num_tokens",),
        "preemptions_total": ("sglang:num_retracted_requests_total",),
        "prompt_tokens_total": ("sglang:prompt_tokens_total",),
        "generation_tokens_total": ("sglang:generation_tokens_total",),
        "queued_total": ("sglang:queue_time_seconds_count",),
        "queue_seconds_sum": ("sglang:queue_time_seconds_sum",),
        "estimated_read_bytes_total": ("sglang:estimated_read_bytes_per_gpu_total",),
    },
    "llamacpp": {
        "running": ("llamacpp:requests_processing",),
        "waiting": ("llamacpp:requests_deferred",),
        "kv_cache_usage": ("llamacpp:kv_cache_usage_ratio",),
        "iterations_total": ("llamacpp:n_decode_total",),
        "prompt_tokens_total": ("llamacpp:prompt_tokens_total",),
        "computed_prompt_tokens_total": ("llamacpp:prompt_tokens_total",),
        "generation_tokens_total": ("llamacpp:tokens_predicted_total",),
        "spec_drafts_total": ("llamacpp:spec_decode_num_drafts_total",),
        "spec_accepted_total": ("llamacpp:spec_decode_num_accepted_tokens_total",),
    },
}
KIND_OF: Mapping[str, EngineKind] = {
    name: kind for kind, fields in NAMES.items() for names in fields.values() for name in names
}
COMPUTED = "local_compute"
"""The label `source` of prompt tokens that no cache gave."""
CACHE_CONFIG = "vllm:cache_config_info"
PROCESS_START = "process_start_time_seconds"
WANTED = frozenset({*KIND_OF, CACHE_CONFIG, PROCESS_START})

# Steps of two models read different bytes: their sum is no number of either.
OF_ONE_MODEL = frozenset(
    {
        "kv_cache_tokens_capacity",
        "iterations_total",
        "computed_prompt_tokens_total",
        "prefix_cache_hits_total",
        "spec_drafts_total",
        "spec_accepted_total",
        "estimated_read_bytes_total",
    }
)
