"""A histogram over our own counts, as a custom collector of prometheus_client.

prometheus_client's own `Histogram` observes one value at a time and compares it with one bound
after the other. Gaps between events come as counts per bucket already, many at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Histogram(Collector):
    """Counts of observed values by bucket, for each combination of label values.

    buckets: upper bounds, rising, without +Inf. One thread writes; any thread may collect.
    """

    def __init__(
        self, name: str, text: str, labels: Sequence[str], buckets: Sequence[float]
    ) -> None:
        self.name = name
        self.text = text
        self.labels = tuple(labels)
        self._bounds = tuple(buckets)
        self._bound_names = (*(floatToGoString(bound) for bound in buckets), "+Inf")  # type: ignore[no-untyped-call]
        self._series: dict[tuple[str, ...], _Series] = {}
        if not self.labels:
            self._of(())  # it is there from the beginning, as prometheus_client's own are

    def observe(self, values: tuple[str, ...], value: float) -> None:
        """Count one value under these label values."""
        series = self._of(values)
        series.counts[bisect_left(self._bounds, value)] += 1
        series.total += value

    def add(self, values: tuple[str, ...], counts: Sequence[int], total: float) -> None:
        """Count many: `counts[i]` values up to the i-th bound and above the one before; the last
        entry counts those above every bound. total: their sum.
        """
        series = self._of(values)
        for index, count in enumerate(counts):
            if count:
                series.counts[index] += count
        series.total += total

    def _of(self, values: tuple[str, ...]) -> _Series:
        series = self._series.get(values)
        if series is None:
            series = self._series[values] = _Series(len(self._bound_names))
        return series

    def describe(self) -> Iterator[Metric]:
        """The name alone: registering must not take a look at the values."""
        yield HistogramMetricFamily(self.name, self.text, labels=self.labels)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry when it is scraped."""
        family = HistogramMetricFamily(self.name, self.text, labels=self.labels)
        for values, series in list(self._series.items()):
            up_to = 0
            buckets: list[tuple[str, float]] = []
            for name, count in zip(self._bound_names, list(series.counts), strict=True):
                up_to += count
                buckets.append((name, float(up_to)))
            family.add_metric(values, buckets=buckets, sum_value=series.total)
        yield family


class _Series:
    __slots__ = ("counts", "total")

    def __init__(self, size: int) -> None:
        self.counts = [0] * size
        self.total = 0.0
