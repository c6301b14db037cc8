"""Reading `/tokgauge/metrics` as Prometheus does, and comparing two scrapes."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from tests.support.client import fetch

Key = tuple[str, frozenset[tuple[str, str]]]


def wait_until(condition: Callable[[], bool], timeout: float = 5.0, what: str = "") -> None:
    """Poll until the condition holds; fail when it does not within `timeout` seconds."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout} s: {what or condition}")
        time.sleep(0.01)


@dataclass
class Scrape:
    """The samples of one scrape, or of the difference of two. Names carry no `tokgauge_`."""

    samples: dict[Key, float]
    names: frozenset[str]
    text: str = ""

    def total(self, name: str, **labels: str) -> float | None:
        """The sum of all samples of `name` that carry these labels; None when there is none."""
        wanted = set(labels.items())
        found = [v for (n, has), v in self.samples.items() if n == name and wanted <= has]
        return sum(found) if found else None

    def labels(self, name: str) -> list[dict[str, str]]:
        return [dict(labels) for n, labels in self.samples if n == name]

    def count(self, histogram: str, **labels: str) -> float:
        """How often a histogram was observed (0 when it has no series)."""
        return self.total(f"{histogram}_count", **labels) or 0.0

    def mean(self, histogram: str, **labels: str) -> float:
        count = self.count(histogram, **labels)
        assert count, f"{histogram} was never observed"
        return (self.total(f"{histogram}_sum", **labels) or 0.0) / count

    def since(self, earlier: "Scrape") -> "Scrape":
        """What was added since; samples that did not change are left out."""
        grown = {
            key: value - earlier.samples.get(key, 0.0)
            for key, value in self.samples.items()
            if value != earlier.samples.get(key, 0.0)
        }
        return Scrape(grown, self.names)

    @property
    def outcomes(self) -> dict[str, float]:
        """Requests by outcome."""
        result: dict[str, float] = {}
        for (name, labels), value in self.samples.items():
            if name == "requests_total":
                outcome = dict(labels)["outcome"]
                result[outcome] = result.get(outcome, 0.0) + value
        return result


def read_page(port: int) -> str:
    response = fetch(port, "GET", "/tokgauge/metrics")
    assert response.status == 200, response.head
    return response.body.decode()


def scrape(port: int) -> Scrape:
    return parse(read_page(port))


def parse(text: str) -> Scrape:
    samples: dict[Key, float] = {}
    names: set[str] = set()
    for family in text_string_to_metric_families(text):
        names.add(family.name.removeprefix("tokgauge_"))
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                key = sample.name.removeprefix("tokgauge_"), frozenset(sample.labels.items())
                samples[key] = sample.value
    return Scrape(samples, frozenset(names), text)


class Watch:
    """What the metrics gain with the end of exchanges, since its making or the last `after`.

    Leaves out the buckets of histograms, which are most of the page and most of the time.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.before = parse(_without_buckets(read_page(port)))

    def after(self, count: int = 1, timeout: float = 5.0) -> Scrape:
        """Wait until `count` exchanges have ended, and give what they added."""
        end = time.monotonic() + timeout
        before = self.before.total("requests_total") or 0.0
        while True:
            page = _without_buckets(read_page(self._port))
            ended = sum(map(float, _REQUESTS.findall(page))) - before
            if ended >= count:
                assert ended == count, f"{ended} exchanges ended, not {count}"
                now = parse(page)
                gained = now.since(self.before)
                self.before = now
                return gained
            if time.monotonic() > end:
                raise AssertionError(f"{ended} of {count} exchanges ended within {timeout} s")
            time.sleep(0.01)


_REQUESTS = re.compile(r"(?m)^tokgauge_requests_total{.*} (\S+)$")


def _without_buckets(page: str) -> str:
    return re.sub(r"(?m)^\w+_bucket{.*\n", "", page)
