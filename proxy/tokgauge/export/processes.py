"""`process_*` of every process of the proxy, by prometheus_client's own collector."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class Processes(Collector):
    """CPU, memory, descriptors and start time of each process, told apart by the label `process`.

    pids: gives the name of each process and its pid, at the time of the scrape.
    """

    def __init__(self, pids: Callable[[], Mapping[str, int]]) -> None:
        self._pids = pids

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not look at processes."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Called by the registry when it is scraped."""
        families: dict[str, Metric] = {}
        for name, pid in self._pids().items():
            collector = ProcessCollector(pid=partial(int, pid), registry=None)
            for found in collector.collect():
                family = families.get(found.name)
                if family is None:
                    kind = CounterMetricFamily if found.type == "counter" else GaugeMetricFamily
                    family = families[found.name] = kind(
                        found.name, found.documentation, labels=("process",)
                    )
                for sample in found.samples:
                    family.add_metric((name,), sample.value)  # type: ignore[attr-defined]
        yield from families.values()
