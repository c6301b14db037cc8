"""Figures of ended exchanges and of the moment → Prometheus.

Computes nothing: what is not in a `Record` or a live figure gets no sample.
"""

from __future__ import annotations

import platform
from collections.abc import Collection, Sequence
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
)

from tokgauge import __version__
from tokgauge.diagnosis.live import Live
from tokgauge.export.families import COUNTED, PUBLISHED, Family
from tokgauge.export.histogram import Histogram
from tokgauge.export.published import Published
from tokgauge.measure.record import INJECTION_STATES, Record

disable_created_metrics()  # type: ignore[no-untyped-call]

_CONTENDED = {"none": "false", "idle_neighbours": "false", "active_neighbours": "true"}


class Metrics:
    """All metrics of the proxy, in one registry.

    duration_buckets: upper bounds of the histograms of time, in seconds.
    """

    def __init__(self, duration_buckets: Sequence[float]) -> None:
        self.registry = CollectorRegistry()
        self.published = Published(PUBLISHED)
        self.registry.register(self.published)
        self._histograms: dict[str, Histogram] = {}
        self._others: dict[str, Counter | Gauge] = {}
        self._children: dict[tuple[str, ...], Any] = {}
        for family in COUNTED:
            self._make(family, duration_buckets)
        self.measurement_errors = self._others["measurement_errors_total"]
        self.records_lost = self._others["records_lost_total"]
        self._child("build_info", __version__, platform.python_version()).set(1)

    def _make(self, family: Family, duration_buckets: Sequence[float]) -> None:
        name = family.name.removeprefix("tokgauge_")
        if family.kind == "histogram":
            buckets = family.buckets or duration_buckets
            made = Histogram(family.name, family.text, family.labels, buckets)
            self.registry.register(made)
            self._histograms[name] = made
        else:
            kind = Counter if family.kind == "counter" else Gauge
            self._others[name] = kind(
                family.name, family.text, family.labels, registry=self.registry
            )

    def record(self, done: Record, model: str) -> None:
        """Count one ended exchange under the label `model`."""
        self._count(done, model)
        self._observe(done, model)
        if done.gaps:
            self.add_gaps(model, done.gaps, done.gaps_total)

    def _count(self, done: Record, model: str) -> None:
        child = self._child
        code = str(done.status) if done.status is not None else ""
        child("requests_total", model, done.route, _stream(done), done.outcome, code).inc()
        for reason in done.finish_reasons:
            child("finish_reasons_total", model, reason).inc()
        for limit in done.truncations:
            child("truncations_total", model, limit).inc()
        if done.prompt_tokens is not None:
            child("prompt_tokens_total", model).inc(done.prompt_tokens)
        if done.cached_prompt_tokens is not None:
            child("cached_prompt_tokens_total", model).inc(done.cached_prompt_tokens)
        if done.reasoning_tokens is not None:
            child("reasoning_tokens_total", model).inc(done.reasoning_tokens)
        if done.completion_tokens is not None:
            tokens = done.completion_tokens
            child("completion_tokens_total", model, done.token_source).inc(tokens)
        if done.retried:
            child("upstream_retries_total").inc()
        for why in done.unread:
            child("unparsed_responses_total", why).inc()

    def _observe(self, done: Record, model: str) -> None:
        source = done.token_source or ""
        contended = _CONTENDED.get(done.contention or "", "unknown")
        alone = None if done.alone is None else "true" if done.alone else "false"
        self._seen("request_duration_seconds", done.duration, model, done.route, _stream(done))
        self._seen("time_to_first_token_seconds", done.time_to_first_token, model)
        self._seen("time_to_first_output_seconds", done.time_to_first_output, model)
        self._seen("silent_wait_seconds", done.silent_wait, model, _stream(done))
        self._seen("time_per_output_token_seconds", done.time_per_output_token, model, source)
        self._seen("decode_tokens_per_second", done.decode_tokens_per_second, model, source)
        if alone is not None:
            self._seen("request_ceiling_ratio", done.ceiling_ratio, model, alone, contended)
        self._seen("proxy_overhead_seconds", done.overhead)

    def _seen(self, name: str, value: float | None, *labels: str) -> None:
        if value is not None:
            self._histograms[name].observe(labels, value)

    def add_gaps(self, model: str, counts: Sequence[int], total: float) -> None:
        """Add gaps between events: how many in each bucket, and their sum in seconds."""
        self._histograms["inter_chunk_latency_seconds"].add((model,), counts, total)

    def set_live(self, live: Live, up: bool | None, upstream: str) -> None:
        """Figures of the moment."""
        for model, count in live.in_flight.items():
            self._child("requests_in_flight", model).set(count)
        for model, rate in live.output_rate.items():
            self._child("output_tokens_per_second", model).set(rate)
        self._child("streams_stalled").set(live.stalled)
        if up is not None:
            self._child("upstream_up", upstream).set(up)

    def set_usage_injection(self, route: str, states: Collection[str]) -> None:
        """The states that hold for a route, each in one relay at least."""
        for each in INJECTION_STATES:
            self._child("usage_injection", route, each).set(each in states)

    def add_token_events(self, model: str, events: int) -> None:
        """Count token events of running streams."""
        self._child("token_events_total", model).inc(events)

    def _child(self, name: str, *labels: Any) -> Any:
        key = (name, *labels)
        found = self._children.get(key)
        if found is None:
            metric = self._others[name]
            found = self._children[key] = metric.labels(*labels) if labels else metric
        return found


def _stream(done: Record) -> str:
    return "true" if done.stream else "false"
