"""Figures of the moment: what is not known has no sample."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from time import monotonic
from typing import TypedDict

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tokgauge.diagnosis.figures import Figures
from tokgauge.export.families import Family


class Sample(TypedDict):
    """One sample in JSON."""

    labels: dict[str, str]
    value: float


class Published(Collector):
    """The last set of figures, as a collector of Prometheus; what is not in it has no sample."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = tuple(families)
        self._figures: Figures | None = None

    def publish(self, figures: Figures) -> None:
        """Replace the figures."""
        self._figures = figures

    @property
    def current(self) -> Figures | None:
        """The figures, None when there are none or they are stale."""
        figures = self._figures
        return figures if figures is not None and figures.is_fresh(monotonic()) else None

    def samples(self) -> dict[str, list[Sample]] | None:
        """The figures for JSON: name without `tokgauge_` → samples; None when there are none.

        What is not known has no sample, and JSON knows no NaN.
        """
        figures = self.current
        if figures is None:
            return None
        return {
            family.name.removeprefix("tokgauge_"): [
                {"labels": dict(zip(family.labels, labels, strict=True)), "value": value}
                for labels, value in figures.samples.get(family.name, ())
                if isfinite(value)
            ]
            for family in self._families
        }

    def collect(self) -> Iterator[Metric]:
        """Called by the registry when it is scraped, in any thread."""
        figures = self.current
        samples: Mapping[str, list[tuple[tuple[str, ...], float]]] = (
            figures.samples if figures is not None else {}
        )
        for family in self._families:
            kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            metric = kind(family.name, family.text, labels=family.labels)
            for labels, value in samples.get(family.name, ()):
                metric.add_metric(labels, value)
            yield metric
