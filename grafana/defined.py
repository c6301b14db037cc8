"""What may be queried: the proxy's metrics, read from its list of them, and a few of the engine's.

Generation and tests use this one table, so that a dashboard cannot ask for what nobody exports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from prometheus_client.metrics import MetricWrapperBase
from tokgauge.export.prometheus import Metrics
from tokgauge.settings import DURATION_BUCKETS

TARGET_LABELS = frozenset({"job", "instance"})
"""Labels that Prometheus gives to every series."""

_ENGINE_LABELS = frozenset({"engine", "model_name"})


@dataclass(frozen=True, slots=True)
class Series:
    """What belongs to one name of series: its metric, its own labels, and the metric's HELP."""

    metric: str
    labels: frozenset[str]
    text: str


ENGINE: Mapping[str, Series] = {
    name: Series(name.removesuffix("_sum").removesuffix("_count"), _ENGINE_LABELS, "")
    for name in (
        "vllm:kv_cache_usage_perc",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:num_preemptions_total",
        "vllm:request_queue_time_seconds_sum",
        "vllm:request_queue_time_seconds_count",
    )
}
"""vLLM's own series that explain ours (vLLM 0.32, vllm/v1/metrics/loggers.py)."""


@cache
def proxy_series() -> Mapping[str, Series]:
    """Name of series → `Series`, for all that the proxy exports."""
    found: dict[str, Series] = {}
    registry = Metrics(DURATION_BUCKETS).registry
    for collector in registry._collector_to_names:
        for family in collector.collect():
            source: Any = collector if isinstance(collector, MetricWrapperBase) else family
            labels, text = frozenset(source._labelnames), family.documentation
            if family.type == "histogram":
                for suffix, extra in (("_bucket", {"le"}), ("_sum", set()), ("_count", set())):
                    found[family.name + suffix] = Series(family.name, labels | extra, text)
            else:
                name = family.name + ("_total" if family.type == "counter" else "")
                found[name] = Series(name, labels, text)
    return found


def series(name: str) -> Series:
    """The series of that name; raises KeyError when nobody exports it."""
    return ENGINE[name] if name in ENGINE else proxy_series()[name]


def help_text(metric: str) -> str:
    """HELP of one of the proxy's metrics (histograms without `_bucket`)."""
    return next(item.text for item in proxy_series().values() if item.metric == metric)
