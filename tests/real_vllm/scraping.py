"""What both sides counted: the proxy's and the engine's metrics, as differences of two scrapes."""

from __future__ import annotations

import re
import time
from collections import Counter

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from tests.support.metrics import Scrape

SETTLE_SECONDS = 15.0

BUSY = re.compile(r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} [1-9]", re.MULTILINE)


def parsed(text: str, prefix: str) -> Scrape:
    """The samples of a page of metrics whose names begin with `prefix`, without it."""
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith(prefix) and not sample.name.endswith("_created"):
                key = sample.name.removeprefix(prefix), frozenset(sample.labels.items())
                samples[key] = sample.value
    return Scrape(samples, frozenset(name for name, _ in samples), text)


def by_label(gained: Scrape, name: str, *labels: str) -> Counter[tuple[str, ...]]:
    """The samples of `name`, summed by the values of `labels`."""
    sums: Counter[tuple[str, ...]] = Counter()
    for (sample, has), value in gained.samples.items():
        if sample == name:
            having = dict(has)
            sums[tuple(having[label] for label in labels)] += int(value)
    return sums


class Sides:
    """The addresses of both, and their counters at one moment."""

    def __init__(self, engine: str, proxy: str, client: httpx2.Client) -> None:
        self.engine = engine
        self.proxy = proxy
        self._client = client
        self.begin()

    def begin(self) -> None:
        """A phase begins: what is counted from here on is its own."""
        self._engine_before, self._proxy_before = self._settled()

    def gained(self) -> tuple[Scrape, Scrape]:
        """What engine and proxy counted since `begin`, once nothing runs any more."""
        engine, proxy = self._settled()
        return engine.since(self._engine_before), proxy.since(self._proxy_before)

    def engine_now(self) -> Scrape:
        return parsed(self._page(f"{self.engine}/metrics"), "vllm:")

    def proxy_now(self) -> Scrape:
        return parsed(self._page(f"{self.proxy}/tokgauge/metrics"), "tokgauge_")

    def engine_is_busy(self) -> bool:
        """Whether it runs or holds any request; cheaper than a whole scrape."""
        return BUSY.search(self._page(f"{self.engine}/metrics")) is not None

    def first_tokens(self) -> tuple[tuple[int, float], tuple[int, float]]:
        """Of engine and proxy: how many times to first token were taken, and their sum [s]."""
        name = "time_to_first_token_seconds"
        pages = self.engine_now(), self.proxy_now()
        engine, proxy = (
            (int(page.count(name)), page.total(f"{name}_sum") or 0.0) for page in pages
        )
        return engine, proxy

    def _page(self, url: str) -> str:
        return self._client.get(url).raise_for_status().text

    def _settled(self) -> tuple[Scrape, Scrape]:
        """Both scrapes, taken when neither runs anything and their counters stand still."""
        end = time.monotonic() + SETTLE_SECONDS
        before = None
        while True:
            engine, proxy = self.engine_now(), self.proxy_now()
            counts = (
                engine.total("generation_tokens_total"),
                engine.total("request_success_total"),
                proxy.total("requests_total"),
            )
            running = engine.total("num_requests_running") or proxy.total("requests_in_flight")
            if not running and counts == before:
                return engine, proxy
            if time.monotonic() > end:
                raise TimeoutError(f"still busy after {SETTLE_SECONDS:g} s: {counts}")
            before = counts
            time.sleep(0.3)
