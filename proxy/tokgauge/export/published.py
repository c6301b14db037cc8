"""Figures of the moment that one process finds out and every process shows.

In one process they stay in memory. Worker processes share them through a file, because
prometheus_client's multiprocess mode knows no values that disappear.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import TypedDict

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

STALE_AFTER = 15.0
"""Seconds after which figures that nobody renews are no longer shown."""


class Figures(msgspec.Struct, frozen=True):
    """One set of figures.

    at: monotonic seconds (one clock for all processes of a machine). samples: metric name → label
    values and value. The rest is what other processes need to know themselves.
    """

    at: float
    samples: dict[str, list[tuple[tuple[str, ...], float]]]
    bandwidth: float | None = None
    contention: str | None = None
    tokens_per_step: float | None = None
    kv_cache_dtype: str | None = None
    engine_is_patient: bool = False
    engine_started_at: float | None = None
    verdict: dict[str, object] | None = None
    """The verdict as plain JSON values: see `tokgauge.diagnosis.verdict`."""


class Family(msgspec.Struct, frozen=True):
    """Name, help text and labels of one published metric."""

    name: str
    text: str
    labels: tuple[str, ...] = ()
    counter: bool = False


class Sample(TypedDict):
    """One sample in JSON."""

    labels: dict[str, str]
    value: float


class Published(Collector):
    """The last set of figures, as a collector of Prometheus; what is not in the set has no sample.

    file: where worker processes share them, None for one process.
    """

    def __init__(self, families: Iterable[Family], file: Path | None = None) -> None:
        self._families = tuple(families)
        self._file = file
        self._figures: Figures | None = None

    def publish(self, figures: Figures) -> None:
        """Replace the figures."""
        self._figures = figures
        if self._file is not None:
            temporary = self._file.with_suffix(f".{os.getpid()}")
            temporary.write_bytes(msgspec.msgpack.encode(figures))
            temporary.replace(self._file)

    def load(self) -> None:
        """Take what another process has published."""
        if self._file is None:
            return
        try:
            self._figures = msgspec.msgpack.decode(self._file.read_bytes(), type=Figures)
        except (OSError, msgspec.MsgspecError):
            return  # nobody has published yet

    @property
    def current(self) -> Figures | None:
        """The figures, None when there are none or they are stale."""
        figures = self._figures
        if figures is None or monotonic() - figures.at > STALE_AFTER:
            return None
        return figures

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
        if self._file is not None:
            self.load()
        figures = self.current
        samples: Mapping[str, list[tuple[tuple[str, ...], float]]] = (
            figures.samples if figures is not None else {}
        )
        for family in self._families:
            kind = CounterMetricFamily if family.counter else GaugeMetricFamily
            metric = kind(family.name, family.text, labels=family.labels)
            for labels, value in samples.get(family.name, ()):
                metric.add_metric(labels, value)
            yield metric
