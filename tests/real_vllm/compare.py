"""The proxy's figures against a real vLLM's own and against what the clients saw.

`python -m tests.real_vllm.compare --vllm VENV/bin/vllm --model DIRECTORY`, from the repository's
root; `tests/real_vllm.sh` makes both first. Prints a line a figure; exit status 0 only when all
hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from rich.console import Console
from rich.table import Table

from tests.real_vllm.processes import running_engine, running_proxy
from tests.real_vllm.sameness import compare_calls
from tests.real_vllm.scraping import Sides, by_label
from tests.real_vllm.traffic import (
    Clients,
    Request,
    Seen,
    chat,
    leave_stream,
    leave_wait,
    mixed,
    send_all,
    teaching,
)
from tests.real_vllm.variants import VARIANTS, compare_variant
from tests.support.metrics import Scrape

PLAIN = "plain"
"""Name of the run with vLLM's own defaults."""
MIXED_REQUESTS = 200
AT_ONCE = 8
TIMED_STREAMS = 40
TIMED_TOKENS = 64
LEAVERS = 24
QUICKLY = 1.0
"""Seconds within which an engine must have dropped what nobody waits for any more."""
STANDSTILL = 1.5
"""Seconds over which it must then not make a single token."""
TTFT_MARGIN = 0.020
"""Seconds by which the proxy's mean time to first token may exceed the engine's: the way through
the engine's own HTTP server."""
TPOT_MARGIN = 0.10
"""Share by which the mean times per output token may differ."""
READ_BYTES_MARGIN = 0.15
"""Share by which the two counts of bytes read may differ. The KV cache is a quarter of what a step
of the tiny model reads, and its size is sampled once a second in blocks of 128 tokens; of a real
model it is a few percent."""


@dataclass
class Report:
    """The lines of the final table."""

    lines: list[tuple[str, str, str, str, bool | None]] = field(default_factory=list)

    def line(
        self, phase: str, figure: str, reference: object, proxy: object, holds: bool | None
    ) -> None:
        """`holds` is None for what is told and not judged."""
        self.lines.append((phase, figure, str(reference), str(proxy), holds))

    def equal(self, phase: str, figure: str, reference: Any, proxy: Any) -> None:
        self.line(phase, figure, _shown(reference), _shown(proxy), reference == proxy)

    @property
    def holds(self) -> bool:
        return all(line[4] is not False for line in self.lines)

    def table(self) -> Table:
        table = Table(title="The proxy against a real vLLM")
        for heading in ("phase", "figure", "engine or client", "proxy", "verdict"):
            table.add_column(heading, overflow="fold")
        for *cells, holds in self.lines:
            verdict = {True: "[green]holds[/]", False: "[bold red]DIFFERS[/]", None: "told"}[holds]
            table.add_row(*cells, verdict)
        return table


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{' '.join(key)}: {count}" for key, count in sorted(value.items()))
    return f"{value:g}" if isinstance(value, float) and value != int(value) else f"{value}"


def _whole(gained: Scrape, name: str, **labels: str) -> int:
    return int(gained.total(name, **labels) or 0)


# phases


def same_objects(sides: Sides, report: Report) -> None:
    compared = asyncio.run(compare_calls(sides.engine, sides.proxy))
    for one in compared:
        report.line("objects", one.name, "", one.difference or "equal", one.difference is None)
    kept = [one.fingerprint_kept for one in compared if one.fingerprint_kept is not None]
    report.line(
        "objects", "streams with hidden usage that kept system_fingerprint",
        len(kept), sum(kept), None,
    )  # fmt: skip


def mixed_traffic(sides: Sides, report: Report) -> None:
    """Nobody leaves: every count must be exactly equal."""
    phase = "mixed"
    requests = mixed(MIXED_REQUESTS)
    asyncio.run(send_all(teaching(), sides.proxy, 1))
    sides.begin()
    seen = asyncio.run(send_all(requests, sides.proxy, AT_ONCE))
    engine, proxy = sides.gained()

    report.equal(
        phase, "completion tokens", _whole(engine, "generation_tokens_total"),
        _whole(proxy, "completion_tokens_total", source="usage"),
    )  # fmt: skip
    report.equal(
        phase, "completion tokens not from usage", 0,
        _whole(proxy, "completion_tokens_total", source="events"),
    )  # fmt: skip
    # vLLM counts a prompt once for each of its n sequences, and usage counts it once.
    again = _prompt_tokens_counted_again(requests, seen)
    report.line(
        phase, "prompt tokens",
        f"{_whole(engine, 'prompt_tokens_total')} - {again} of n=2",
        _whole(proxy, "prompt_tokens_total"),
        _whole(engine, "prompt_tokens_total") - again == _whole(proxy, "prompt_tokens_total"),
    )  # fmt: skip
    report.equal(
        phase, "finish reasons (engine)",
        +by_label(engine, "request_success_total", "finished_reason"),
        by_label(proxy, "finish_reasons_total", "reason"),
    )  # fmt: skip
    report.equal(
        phase, "finish reasons (clients)",
        Counter((reason,) for one in seen for reason in one.finish_reasons),
        by_label(proxy, "finish_reasons_total", "reason"),
    )  # fmt: skip
    _truncations(phase, requests, seen, proxy, report)
    report.equal(
        phase, "requests: model, route, stream, outcome, code",
        Counter(_expected_labels(request) for request in requests),
        by_label(proxy, "requests_total", "model", "route", "stream", "outcome", "code"),
    )  # fmt: skip
    report.line(phase, "status codes that clients got", *_codes(requests, seen))
    _hidden_usage(phase, requests, seen, report)
    # A refusal of a request to which the wish was added may be about that: it is asked again.
    asked_again = sum(r.wants_usage is False and r.code != 200 for r in requests)
    _undisturbed(phase, sides, proxy, report, retries=asked_again)


def _codes(requests: list[Request], seen: list[Seen]) -> tuple[str, str, bool]:
    expected = Counter((str(request.code),) for request in requests)
    got = Counter((str(one.code),) for one in seen)
    same = all(r.code == one.code for r, one in zip(requests, seen, strict=True))
    return _shown(expected), _shown(got), same


def _expected_labels(request: Request) -> tuple[str, ...]:
    outcome = "ok" if request.code == 200 else "upstream_error"
    stream = "true" if request.stream else "false"
    return request.model_label, request.route, stream, outcome, str(request.code)


def _prompt_tokens_counted_again(requests: list[Request], seen: list[Seen]) -> int:
    """All requests with n > 1 have one prompt; its length is known from those with usage."""
    repeated = [
        (request.sequences_per_prompt - 1, one.prompt_tokens)
        for request, one in zip(requests, seen, strict=True)
        if request.sequences_per_prompt > 1
    ]
    (length,) = {tokens for _, tokens in repeated if tokens is not None}
    return sum(more * length for more, _ in repeated)


def _truncations(
    phase: str, requests: list[Request], seen: list[Seen], proxy: Scrape, report: Report
) -> None:
    certain: Counter[tuple[str, ...]] = Counter()
    open_choices = 0
    for request, one in zip(requests, seen, strict=True):
        cut = one.finish_reasons.count("length")
        if len(request.cut_by) == 1:
            certain[request.cut_by] += cut
        else:
            open_choices += cut
    counted = by_label(proxy, "truncations_total", "limit")
    report.equal(phase, "truncations by the context", certain["context",], counted["context",])
    # Which of several choices used up the limit is not always visible: unknown is right then.
    spread = (counted - certain).total()
    report.line(
        phase, "truncations by the request's limit, or unknown",
        f"{certain['request',]}, {certain['unknown',]}, either: {open_choices}",
        f"{counted['request',]}, {counted['unknown',]}",
        certain <= counted and spread == open_choices,
    )  # fmt: skip


def _hidden_usage(phase: str, requests: list[Request], seen: list[Seen], report: Report) -> None:
    wrong = [
        request.name
        for request, one in zip(requests, seen, strict=True)
        if request.wants_usage is not None
        and one.code == 200
        and (one.usage_events > 0, one.events_without_choices)
        != (request.wants_usage, int(request.wants_usage))
    ]
    asked = sum(request.wants_usage is True for request in requests)
    report.line(
        phase, "streams that show usage exactly when asked for it",
        f"{asked} asked", "all" if not wrong else f"not {Counter(wrong)}", not wrong,
    )  # fmt: skip


def _undisturbed(
    phase: str, sides: Sides, proxy: Scrape, report: Report, *, retries: int = 0
) -> None:
    errors = by_label(proxy, "measurement_errors_total", "where")
    unread = by_label(proxy, "unparsed_responses_total", "reason")
    report.line(phase, "measurement errors", 0, _shown(errors) or 0, not errors)
    report.line(phase, "unparsed responses", 0, _shown(unread) or 0, not unread)
    report.equal(phase, "retries", retries, _whole(proxy, "upstream_retries_total"))
    report.equal(phase, "in flight", 0, _whole(sides.proxy_now(), "requests_in_flight"))


def timed_streams(sides: Sides, report: Report) -> None:
    """One stream at a time with one sequence each: what vLLM's histograms hold is comparable.

    They also count answers that are not streamed, and each of n sequences; the proxy's does not.
    Read after each stream, their sums give the times of every single one.
    """
    phase = "timed"
    sides.begin()
    times = asyncio.run(_first_token_times(sides))
    engine, proxy = sides.gained()
    first = "time_to_first_token_seconds"
    report.equal(phase, "streams", int(engine.count(first)), int(proxy.count(first)))
    later = [(ours - theirs) * 1000 for theirs, ours in times]
    report.line(
        phase, "time to first token of every stream: not before the engine's",
        "", f"{min(later):.2f} to {max(later):.2f} ms later", min(later) >= 0,
    )  # fmt: skip
    theirs, ours = (statistics.mean(column) * 1000 for column in zip(*times, strict=True))
    report.line(
        phase, f"mean time to first token, ms (within {TTFT_MARGIN * 1000:g} later)",
        f"{theirs:.2f}", f"{ours:.2f}", 0 <= ours - theirs <= TTFT_MARGIN * 1000,
    )  # fmt: skip
    theirs, ours = (statistics.median(column) * 1000 for column in zip(*times, strict=True))
    report.line(phase, "median time to first token, ms", f"{theirs:.2f}", f"{ours:.2f}", None)
    ours = proxy.mean("time_per_output_token_seconds")
    theirs = engine.mean("request_time_per_output_token_seconds")
    report.line(
        phase, f"mean time per output token, ms (within {TPOT_MARGIN:.0%})",
        f"{theirs * 1000:.3f}", f"{ours * 1000:.3f}", abs(ours / theirs - 1) <= TPOT_MARGIN,
    )  # fmt: skip
    report.equal(
        phase, "completion tokens", _whole(engine, "generation_tokens_total"),
        _whole(proxy, "completion_tokens_total", source="usage"),
    )  # fmt: skip
    # vLLM may put several tokens into one event when its server lags behind, never the reverse.
    made, events = TIMED_STREAMS * TIMED_TOKENS, _whole(proxy, "token_events_total")
    report.line(
        phase, "token events, empty ones included (at most one a token)",
        made, events, made / 2 < events <= made,
    )  # fmt: skip
    overhead = proxy.mean("proxy_overhead_seconds") * 1000
    report.line(phase, "mean overhead of an exchange, ms", "", f"{overhead:.2f}", None)
    _undisturbed(phase, sides, proxy, report)


async def _first_token_times(sides: Sides) -> list[tuple[float, float]]:
    """The engine's and the proxy's time to first token [s] of each of the streams."""
    times = []
    async with Clients(sides.proxy) as clients:
        before = sides.first_tokens()
        for number in range(TIMED_STREAMS):
            request = chat(
                f"{number} times 한국어?", stream=True, max_tokens=TIMED_TOKENS,
                extra_body={"ignore_eos": True},
            )  # fmt: skip
            await request.send(clients)
            # The engine counts at the first token, the proxy after the last.
            for _ in range(500):
                after = sides.first_tokens()
                if after[1][0] > before[1][0]:
                    break
                await asyncio.sleep(0.01)
            engine, proxy = (b[1] - a[1] for a, b in zip(before, after, strict=True))
            times.append((engine, proxy))
            before = after
    return times


def leaving_clients(sides: Sides, report: Report) -> None:
    """Clients leave in mid-stream and in a wait: the engine must stop making tokens."""
    phase = "leaving"
    sides.begin()
    slowest = {"in mid-stream": 0.0, "in a wait": 0.0}
    seen_tokens = 0
    for _ in range(3):
        seen_tokens += asyncio.run(_one_leaver(sides, stream=True))
        slowest["in mid-stream"] = max(slowest["in mid-stream"], _seconds_until_idle(sides))
        asyncio.run(_one_leaver(sides, stream=False))
        slowest["in a wait"] = max(slowest["in a wait"], _seconds_until_idle(sides))
    for how, seconds in slowest.items():
        report.line(
            phase, f"seconds until the engine dropped who left {how}",
            f"{seconds:.3f}", "", seconds <= QUICKLY,
        )  # fmt: skip
    seen_tokens += asyncio.run(_leavers(sides))
    idle = _seconds_until_idle(sides)
    report.line(
        phase, f"seconds until the engine dropped the last of {LEAVERS}",
        f"{idle:.3f}", "", idle <= QUICKLY,
    )  # fmt: skip
    stopped_at = _whole(sides.engine_now(), "generation_tokens_total")
    time.sleep(STANDSTILL)
    later = _whole(sides.engine_now(), "generation_tokens_total")
    report.line(
        phase, f"tokens made in the next {STANDSTILL:g} s",
        later - stopped_at, "", later == stopped_at,
    )  # fmt: skip
    engine, proxy = sides.gained()
    made = _whole(engine, "generation_tokens_total")
    counted = _whole(proxy, "completion_tokens_total", source="events")
    report.line(
        phase, "tokens: seen by clients ≤ counted as events ≤ made",
        f"{seen_tokens} seen, {made} made", counted, seen_tokens <= counted <= made,
    )  # fmt: skip
    report.equal(
        phase, "tokens from usage", 0, _whole(proxy, "completion_tokens_total", source="usage")
    )
    finished = _whole(engine, "request_success_total") - _whole(
        engine, "request_success_total", finished_reason="abort"
    )
    report.line(phase, "answers made to their end", finished, "", finished == 0)
    aborted = _whole(engine, "request_success_total", finished_reason="abort")
    report.line(phase, "aborts in the engine's own ledger", aborted, "", None)
    leavers = Counter({("client_closed",): 6 + LEAVERS})
    report.equal(phase, "outcomes", leavers, by_label(proxy, "requests_total", "outcome"))
    report.equal(
        phase, "finish reasons", 0, by_label(proxy, "finish_reasons_total", "reason").total()
    )
    _undisturbed(phase, sides, proxy, report)


def second_opinion(sides: Sides, report: Report) -> None:
    """The bytes per second of decoding that the proxy and vLLM (--enable-mfu-metrics) count."""
    phase = "second opinion"
    ratio = asyncio.run(_ratio_under_load(sides))
    report.line(
        phase, f"vLLM's estimated read bytes ÷ ours (within {READ_BYTES_MARGIN:.0%})",
        1, _shown(ratio), ratio is not None and abs(ratio - 1) <= READ_BYTES_MARGIN,
    )  # fmt: skip


async def _ratio_under_load(sides: Sides) -> float | None:
    """The proxy's figure while one stream after the other is decoded."""
    ratio = None
    async with Clients(sides.proxy) as clients:
        end = time.monotonic() + 14
        number = 0
        while time.monotonic() < end:
            number += 1
            request = chat(
                f"{number}", stream=True, max_tokens=450, extra_body={"ignore_eos": True}
            )
            await request.send(clients)
            found = sides.proxy_now().total("engine_to_computed_bandwidth_ratio")
            ratio = found if found is not None else ratio
    return ratio


async def _one_leaver(sides: Sides, *, stream: bool) -> int:
    if stream:
        async with Clients(sides.proxy) as clients:
            return await leave_stream(clients, events=10)
    await leave_wait(sides.proxy, after=0.3)
    return 0


async def _leavers(sides: Sides) -> int:
    """Many who leave at different moments, `AT_ONCE` at a time; gives the tokens that they saw."""
    free = asyncio.Semaphore(AT_ONCE)
    async with Clients(sides.proxy) as clients:

        async def one(number: int) -> int:
            async with free:
                if number % 2:
                    await leave_wait(sides.proxy, after=0.02 * number)
                    return 0
                return await leave_stream(clients, events=1 + number)

        return sum(await asyncio.gather(*map(one, range(LEAVERS))))


def _seconds_until_idle(sides: Sides) -> float:
    start = time.monotonic()
    while time.monotonic() - start < 10 * QUICKLY:
        if not sides.engine_is_busy():
            break
        time.sleep(0.01)
    return time.monotonic() - start


PHASES: tuple[Callable[[Sides, Report], None], ...] = (
    same_objects,
    mixed_traffic,
    timed_streams,
    second_opinion,
    leaving_clients,
)


def streamed_bytes(model: Path) -> int:
    """Bytes of all tensors but the input embedding, which a step does not read as a whole."""
    with (model / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(
        entry["data_offsets"][1] - entry["data_offsets"][0]
        for name, entry in header.items()
        if name not in ("__metadata__", "model.embed_tokens.weight")
    )


@contextmanager
def both(
    vllm: Path, model: Path, logs: Path, name: str, extra: tuple[str, ...] = ()
) -> Iterator[Sides]:
    """vLLM with these options and a proxy before it."""
    label = name.replace(" ", "-")
    with (
        running_engine(vllm, model, logs / f"vllm-{label}.log", extra) as engine,
        running_proxy(engine, streamed_bytes(model), logs / f"proxy-{label}.log") as proxy,
        httpx2.Client(timeout=30) as client,
    ):
        yield Sides(engine, proxy, client)


def _end(signum: int, _: object) -> None:
    sys.exit(128 + signum)  # so that the `with` blocks end the processes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", type=Path, required=True, help="vLLM's command")
    parser.add_argument("--model", type=Path, required=True, help="directory of the tiny model")
    parser.add_argument("--logs", type=Path, help="directory for the logs; default: a new one")
    parser.add_argument(
        "--only", action="append", choices=[PLAIN, *(v.name for v in VARIANTS)],
        help="vLLM with these options only; may be given several times",
    )  # fmt: skip
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    logs = options.logs or Path(tempfile.mkdtemp(prefix="tokgauge-real-vllm-"))
    logs.mkdir(parents=True, exist_ok=True)
    console = Console(width=None if sys.stdout.isatty() else 140)
    report = Report()
    console.print(f"logs in {logs}; vLLM takes about a minute to start, each time")

    def say(what: str) -> None:
        console.print(f"{time.strftime('%H:%M:%S')} {what}")

    if not options.only or PLAIN in options.only:
        with both(options.vllm, options.model, logs, PLAIN) as sides:
            for phase in PHASES:
                say(phase.__name__.replace("_", " "))
                phase(sides, report)
    for variant in VARIANTS:
        if options.only and variant.name not in options.only:
            continue
        say(variant.name)
        with both(options.vllm, options.model, logs, variant.name, variant.options) as sides:
            compare_variant(variant, sides, report)
    console.print(report.table())
    console.print("all hold" if report.holds else "[bold red]not all hold")
    return 0 if report.holds else 1


if __name__ == "__main__":
    sys.exit(main())
