"""The figures of one run: values by candidate and figure, their medians and spread."""

from __future__ import annotations

import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One measured quantity, as a row of the table; `digits` are decimal places."""

    key: str
    title: str
    digits: int = 1


FIGURES = (
    Figure("step_cpu_us", "CPU per event, in step [µs]"),
    Figure("staggered_cpu_us", "CPU per event, staggered [µs]"),
    Figure("paced_streams", "… with this many streams", 0),
    Figure("step_reads_per_event", "reads per event, in step", 2),
    Figure("staggered_reads_per_event", "reads per event, staggered", 2),
    Figure("flat_events_per_second", "events per second, flat out", 0),
    Figure("request_cpu_us", "CPU per request, not streamed [µs]", 0),
    Figure("requests_per_second", "requests per second, not streamed", 0),
    Figure("low_ttft_p50_us", "added time to first event, 1 stream, p50 [µs]", 0),
    Figure("low_ttft_p99_us", "… p99 [µs]", 0),
    Figure("low_event_p50_us", "added time per event, 1 stream, p50 [µs]", 0),
    Figure("low_event_p99_us", "… p99 [µs]", 0),
    Figure("half_streams", "streams at half the capacity", 0),
    Figure("half_ttft_p50_us", "added time to first event, half capacity, p50 [µs]", 0),
    Figure("half_ttft_p99_us", "… p99 [µs]", 0),
    Figure("half_event_p50_us", "added time per event, half capacity, p50 [µs]", 0),
    Figure("half_event_p99_us", "… p99 [µs]", 0),
    Figure("idle_cpu_ms", "CPU while idle [ms/s]", 2),
    Figure("memory_mib", "resident memory, idle [MiB]"),
    Figure("memory_1000_kib", "memory per idle stream, 1,000 streams [KiB]"),
    Figure("memory_5000_kib", "memory per idle stream, 5,000 streams [KiB]"),
    Figure("growth_kib", "growth of memory over the requests [KiB]", 0),
    Figure("growth_requests", "… number of requests", 0),
    Figure("scrape_longest_ms", "longest delay of an event, scraped, ten pages open [ms]"),
    Figure("no_scrape_longest_ms", "… not scraped [ms]"),
    Figure("scrape_p99_ms", "p99 delay of an event, scraped [ms]", 2),
    Figure("no_scrape_p99_ms", "… not scraped [ms]", 2),
    Figure("scrape_p999_ms", "p99.9 delay of an event, scraped [ms]", 2),
    Figure("no_scrape_p999_ms", "… not scraped [ms]", 2),
)


class Results:
    """What was measured, what is void and why, and what is absent."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, list[float]]] = {}
        self.at_least: set[tuple[str, str]] = set()
        """Rates that engine and client limited: the candidate could do more."""
        self.void: dict[str, dict[str, list[str]]] = {}
        self.absent: dict[str, str] = {}
        self.cuts: list[str] = []
        """What ended before its end, and why."""
        self.versions: dict[str, str] = {}

    def add(self, name: str, key: str, value: float) -> None:
        """One more value of a figure."""
        self.values.setdefault(name, {}).setdefault(key, []).append(value)

    def annul(self, name: str, key: str, reason: str) -> None:
        """Say that a round could not be measured as it must be: it has no value, for `reason`."""
        self.void.setdefault(name, {}).setdefault(key, []).append(reason)

    def is_void(self, name: str, key: str) -> bool:
        """Whether no round of a figure counts."""
        return key in self.void.get(name, {}) and not self.values.get(name, {}).get(key)

    def median(self, name: str, key: str) -> float | None:
        """The median over the rounds that count; None when there is none."""
        values = self.values.get(name, {}).get(key)
        return statistics.median(values) if values else None

    def spread(self, name: str, key: str) -> float | None:
        """Half the range of the rounds as a share of their median."""
        values = self.values.get(name, {}).get(key, [])
        middle = self.median(name, key)
        if not middle or len(values) < 2:
            return None
        return (max(values) - min(values)) / 2 / abs(middle)
