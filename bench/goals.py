"""What the figures shall be: ratios within one run, so that they hold on any machine."""

from __future__ import annotations

from dataclasses import dataclass

from bench.candidates import litellm, nginx, plain, tokgauge, two_relays, vllm_router
from bench.figures import Results

_OWN = tokgauge.NAME
_YARDSTICK_US = 1.05
"""Time in which msgspec decodes the reference event on the machine that the limits were set on."""


_RELAYED = (("CPU per request", "request_cpu_us"), ("CPU per event, in step", "step_cpu_us"))


@dataclass(frozen=True)
class Verdict:
    """One goal: what came out, the limit, and what is really wanted. None: not measured."""

    title: str
    value: float | None
    limit: float
    aim: float
    unit: str

    @property
    def passed(self) -> bool | None:
        """Whether the limit is kept."""
        return None if self.value is None else self.value <= self.limit


def judge(results: Results, per_event: dict[str, float] | None) -> list[Verdict]:
    """All goals against one run."""

    def ratio(key: str, other: str) -> float | None:
        own, theirs = results.median(_OWN, key), results.median(other, key)
        # An addition that noise makes zero or negative gives no ratio.
        return own / theirs if own is not None and theirs is not None and theirs > 0 else None

    def against(title: str, key: str, other: str, limit: float, aim: float) -> Verdict:
        return Verdict(f"{title} ÷ {other}", ratio(key, other), limit, aim, "x")

    def against_in_step(other: str, limit: float, aim: float) -> Verdict:
        """Of two that keep up with different numbers of streams, each is judged at its own."""
        title = f"CPU per event, in step ÷ {other}"
        own, theirs = (results.median(name, "paced_streams") for name in (_OWN, other))
        if own is not None and theirs is not None and own != theirs:
            title += f" ({own:.0f} ÷ {theirs:.0f} streams)"
        return Verdict(title, ratio("step_cpu_us", other), limit, aim, "x")

    router = vllm_router.NAME
    staggered = ("CPU per event, staggered", "staggered_cpu_us")
    verdicts = [
        against_in_step(nginx.NAME, 1.6, 1.25),
        against(*staggered, nginx.NAME, 1.6, 1.25),
        against_in_step(router, 1.2, 1.0),
        against(*staggered, router, 1.2, 1.0),
        against("CPU per request", "request_cpu_us", router, 1.6, 1.25),
        against("added time to first event, p50", "low_ttft_p50_us", router, 1.2, 1.0),
        against("added time to first event, p99", "low_ttft_p99_us", router, 2.0, 1.0),
        against("added time per event, p99", "low_event_p99_us", nginx.NAME, 3.0, 1.5),
        against_in_step(plain.NAME, 0.25, 0.2),
        against_in_step(litellm.NAME, 1 / 20, 1 / 50),
        against("CPU per request", "request_cpu_us", plain.NAME, 1 / 8, 1 / 12),
        against("added time to first event, p50", "low_ttft_p50_us", nginx.NAME, 3.0, 2.0),
    ]
    for title, key in (*_RELAYED, staggered):
        two, one = results.median(two_relays.NAME, key), results.median(_OWN, key)
        share = two / one if two is not None and one else None
        verdicts.append(Verdict(f"{title}, a relay among two ÷ one alone", share, 1.05, 1.0, "x"))
    scale = per_event["msgspec_reference_us"] / _YARDSTICK_US if per_event else 1.0
    verdicts.append(
        Verdict(
            "measuring per event",
            per_event["measuring_us"] if per_event else None,
            1.5 * scale,
            0.6 * scale,
            "µs",
        )
    )
    memory = [results.median(_OWN, f"memory_{count}_kib") for count in (5_000, 1_000)]
    per_stream = next((value for value in memory if value is not None), None)
    verdicts.append(Verdict("memory per idle stream", per_stream, 20.0, 15.0, "KiB"))
    idle = results.median(_OWN, "memory_mib")
    verdicts.append(Verdict("resident memory when idle, all processes", idle, 130.0, 110.0, "MiB"))
    growth = results.median(_OWN, "growth_kib")
    asked = results.median(_OWN, "growth_requests") or 200_000
    title = f"growth of memory over {asked:,.0f} requests"
    verdicts.append(Verdict(title, growth, 4096.0, 1024.0, "KiB"))
    longest = [results.median(_OWN, f"{kind}_p999_ms") for kind in ("scrape", "no_scrape")]
    scraped, quiet = longest
    verdicts.append(
        Verdict(
            "p99.9 of an event's delay, scraped and with ten pages open ÷ without",
            scraped / quiet if scraped is not None and quiet else None,
            2.0, 1.2, "x",
        )
    )  # fmt: skip
    return verdicts
