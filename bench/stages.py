"""The measurements. Each stage goes through all candidates in turn, round after round."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import httpx2

from bench import load
from bench.figures import Results
from bench.processes import Child

logger = logging.getLogger("bench")

INTERVAL = 0.02
"""Seconds between the events of a stream, as of a model that writes 50 tokens a second."""

STREAMS = (64, 16, 4, 1)
"""Streams for the CPU time of an event: the first number that a candidate can keep up with."""

CONNECTIONS = 32
MEMORY_STREAMS = (1_000, 5_000)
MOST_AT_HALF = 256
"""Streams beyond which engine and client on their one core would be what is measured."""

_PAGES = 10
"""Status pages that are open while the metrics are scraped."""

_SETTLE = 0.5
_LEAST = 0.95
"""Share of the expected events and reads below which a measurement is void."""

_BUSY = 0.85
"""Share of its core beyond which a candidate no longer answers at its ease."""

_HOPELESS = 4.0
"""Cores that a load may need, reckoned from one stream, to be tried: each of many costs less."""

_AT_REST = 0.1
"""Share of its core below which a candidate has done what it had left to do."""

_REST_LIMIT = 15.0
_OPEN_LIMIT = 60.0


@dataclass(frozen=True)
class Plan:
    """How long and how often."""

    rounds: int
    short_rounds: int
    """Of the stages with whose figures the goals are reckoned: more and shorter ones, so that what
    else runs on the machine hits all candidates alike."""
    short_seconds: float
    seconds: float
    ttft_requests: int
    memory_streams: tuple[int, ...]
    growth_requests: int
    half_capacity: bool
    scrape_seconds: float
    limit_seconds: float
    """When the run stops wherever it is."""


FULL = Plan(
    rounds=3, short_rounds=7, short_seconds=1.5, seconds=2.5, ttft_requests=200,
    memory_streams=MEMORY_STREAMS, growth_requests=200_000, half_capacity=True, scrape_seconds=6.0,
    limit_seconds=1_440.0,
)  # fmt: skip

QUICK = Plan(
    rounds=2, short_rounds=4, short_seconds=1.5, seconds=1.0, ttft_requests=100,
    memory_streams=(1_000,), growth_requests=20_000, half_capacity=False, scrape_seconds=0.0,
    limit_seconds=300.0,
)  # fmt: skip


@dataclass(frozen=True)
class Candidate:
    """One that is running; `child` is None where there is no proxy."""

    name: str
    port: int
    child: Child | None

    def cpu_seconds(self) -> float:
        return self.child.cpu_seconds() if self.child is not None else 0.0


class Bench:
    """One engine, the candidates that stand before it, and what was measured."""

    def __init__(self, engine_port: int, plan: Plan, results: Results) -> None:
        self._engine = f"http://127.0.0.1:{engine_port}"
        self._plan = plan
        self._results = results
        self._idle: dict[str, float] = {}
        self._streams: dict[str, int] = {}
        self._silent: set[str] = set()

    # stages, with all candidates running

    async def idle(self, candidates: Sequence[Candidate]) -> None:
        """CPU time that candidates use without traffic; later figures are without it."""
        for candidate in candidates:
            # One that has answered may still be starting: another of its processes did.
            await _comes_to_rest(candidate, 1.0)
        for _ in range(self._plan.rounds):
            before = {candidate.name: candidate.cpu_seconds() for candidate in candidates}
            start = time.monotonic()
            await asyncio.sleep(2.0)
            for candidate in _proxies(candidates):
                used = candidate.cpu_seconds() - before[candidate.name]
                rate = used / (time.monotonic() - start)
                self._results.add(candidate.name, "idle_cpu_ms", rate * 1e3)
        for candidate in candidates:
            self._idle[candidate.name] = (
                self._results.median(candidate.name, "idle_cpu_ms") or 0.0
            ) / 1e3

    async def paced(self, candidates: Sequence[Candidate]) -> None:
        """CPU time of an event at a pace that each candidate can keep."""
        for candidate in candidates:
            self._streams[candidate.name] = await self._sustained(candidate)
        for turn, candidate in self._turns(candidates, self._plan.short_rounds):
            # Without a proxy there is no CPU time to measure, only the load to check.
            if candidate.child is not None or turn == 0:
                for mode in ("step", "staggered"):
                    if candidate.name not in self._silent:
                        await self._paced(candidate, mode)

    async def flat_out(self, candidates: Sequence[Candidate]) -> None:
        """Events in a second when the engine sends as fast as it can."""
        key = "flat_events_per_second"
        for _, candidate in self._turns(candidates):
            with self._annulling(candidate, key):
                tally = load.Tally()
                # Opened while the engine is silent: a flood holds up streams that begin.
                await self._mode(interval=3600.0, slots=1, events=0)
                streams = self._streams.get(candidate.name, STREAMS[0])
                opened = await self._open(candidate, streams, tally)
                try:
                    await self._mode(interval=0.0, slots=1, events=0)
                    seen = await _window(candidate, tally, self._plan.seconds)
                finally:
                    await self._leave(candidate, opened)
                self._results.add(candidate.name, key, seen.events / seen.seconds)
                self._judge_limit(candidate, key, seen)

    async def requests(self, candidates: Sequence[Candidate]) -> None:
        """Requests whose answers are not streamed, on connections that are kept."""
        for _, candidate in self._turns(candidates):
            with self._annulling(candidate, "requests_per_second", "request_cpu_us"):
                seen = await self._ask(candidate, [load.PLAIN] * CONNECTIONS, self._plan.seconds)
                rate = seen.answers / seen.seconds
                self._results.add(candidate.name, "requests_per_second", rate)
                self._judge_limit(candidate, "requests_per_second", seen)
                if candidate.child is not None:
                    cpu = self._without_idle(candidate, seen) / seen.answers
                    self._results.add(candidate.name, "request_cpu_us", cpu * 1e6)

    async def latency(self, candidates: Sequence[Candidate]) -> None:
        """Time to first event and delay of events with a single stream at a time."""
        base: dict[str, float] = {}
        for _, candidate in self._turns(candidates, self._plan.short_rounds):
            with self._annulling(candidate, *(f"low_{kind}" for kind in _DELAYS)):
                times = await self._first_events(candidate, self._plan.ttft_requests)
                await self._mode(interval=INTERVAL / 4, slots=1, events=0)
                seen = await self._watch(candidate, 1, self._plan.short_seconds, timed=True)
                self._add_delays(candidate, "low", times, seen, base)

    async def half_capacity(self, candidates: Sequence[Candidate]) -> None:
        """The same while the candidate's core is half busy; compared with no proxy likewise."""
        direct = next((candidate for candidate in candidates if candidate.child is None), None)
        for candidate in _proxies(candidates):
            cost = self._results.median(candidate.name, "staggered_cpu_us")
            if cost is None or direct is None:
                continue
            streams = max(1, min(MOST_AT_HALF, round(0.5e6 * INTERVAL / cost)))
            self._results.add(candidate.name, "half_streams", streams)
            base: dict[str, float] = {}
            for _, one in self._turns((direct, candidate)):
                with self._annulling(candidate, *(f"half_{kind}" for kind in _DELAYS)):
                    times, seen = await self._loaded(one, streams)
                    if one is direct:
                        _delays(times, seen, base)
                    else:
                        self._add_delays(one, "half", times, seen, base)

    async def scrapes(self, candidate: Candidate) -> None:
        """Delay of events with and without scrapes of the metrics and open pages."""
        plan = self._plan
        await self._mode(interval=INTERVAL, slots=STREAMS[0], events=0)
        for kind in ("no_scrape", "scrape"):
            for _ in self._turns((candidate,)):
                with self._annulling(
                    candidate, f"{kind}_longest_ms", f"{kind}_p99_ms", f"{kind}_p999_ms"
                ):
                    scraping = asyncio.create_task(
                        _look(candidate.port) if kind == "scrape" else asyncio.sleep(0)
                    )
                    try:
                        seen = await self._watch(
                            candidate, STREAMS[0], plan.scrape_seconds / plan.rounds, timed=True
                        )
                    finally:
                        scraping.cancel()
                        with contextlib.suppress(asyncio.CancelledError):
                            await scraping
                    delays = sorted(seen.delays)
                    add = self._results.add
                    add(candidate.name, f"{kind}_longest_ms", delays[-1] / 1e3)
                    add(candidate.name, f"{kind}_p99_ms", _percentile(delays, 0.99) / 1e3)
                    add(candidate.name, f"{kind}_p999_ms", _percentile(delays, 0.999) / 1e3)

    # stages, each with a fresh process

    async def memory(self, candidate: Candidate) -> None:
        """Resident memory for each stream that is open while the engine is silent."""
        child = candidate.child
        if child is None:
            return
        await self._warm_up(candidate)
        base = child.resident_bytes()
        self._results.add(candidate.name, "memory_mib", base / 2**20)
        await self._mode(interval=3600.0, slots=1, events=0)
        tally = load.Tally()
        streams: list[load.Connection] = []
        try:
            self._silent.clear()
            for count in self._plan.memory_streams:
                if candidate.name in self._silent:
                    break
                with self._annulling(candidate, f"memory_{count}_kib"):
                    more = count - len(streams)
                    streams += await self._open(candidate, more, tally, timeout=_OPEN_LIMIT)
                    await asyncio.sleep(1.0)
                    if tally.failures:
                        raise load.LoadError(f"{tally.failures} of {count} streams failed")
                    used = child.resident_bytes() - base
                    self._results.add(candidate.name, f"memory_{count}_kib", used / count / 1024)
        finally:
            load.close(streams)

    async def growth(self, candidate: Candidate, end: float) -> None:
        """Growth of resident memory over many requests, one in four of them streamed.

        Over those that are answered before `end`, with some seconds to spare, when not all can be.
        """
        child = candidate.child
        if child is None:
            return
        key, wanted = "growth_kib", self._plan.growth_requests
        deadline = end - 5.0
        await self._mode(interval=0.0, slots=1, events=4)
        requests = ([load.PLAIN] * 3 + [load.STREAM]) * (CONNECTIONS // 4)
        with self._annulling(candidate, key):
            tally = load.Tally()
            connections = await load.keep_asking(candidate.port, requests, tally)
            try:
                await _answers(tally, wanted // 10, deadline)
                before = child.resident_bytes()
                start = tally.answers
                await _answers(tally, start + wanted, deadline)
                after = child.resident_bytes()
            finally:
                load.close(connections)
            if tally.failures:
                raise load.LoadError(f"{tally.failures} requests failed")
            self._results.add(candidate.name, key, (after - before) / 1024)
            self._results.add(candidate.name, "growth_requests", tally.answers - start)

    # parts of stages

    def _turns(
        self, candidates: Sequence[Candidate], rounds: int | None = None
    ) -> Iterator[tuple[int, Candidate]]:
        """Each candidate in each round, with the round's number from 0.

        One that stopped answering is left out of further rounds: each would cost a whole time-out.
        """
        self._silent.clear()
        for turn in range(self._plan.rounds if rounds is None else rounds):
            for candidate in candidates:
                if candidate.name not in self._silent:
                    yield turn, candidate

    async def _mode(self, *, interval: float, slots: int, events: int) -> None:
        async with httpx2.AsyncClient() as client:
            answer = await client.post(
                f"{self._engine}/bench/mode",
                json={"interval": interval, "slots": slots, "events": events},
            )
            answer.raise_for_status()

    async def _sustained(self, candidate: Candidate) -> int:
        """The largest number of streams that a candidate keeps up with at its ease.

        One stream comes first: a candidate under many times what it can do takes long to recover.
        """
        alone = await self._share(candidate, 1)
        for streams in STREAMS[:-1]:
            if alone is not None and streams * alone < _HOPELESS:
                share = await self._share(candidate, streams)
                if share is not None and share < _BUSY:
                    return streams
        return STREAMS[-1]

    async def _share(self, candidate: Candidate, streams: int) -> float | None:
        """The share of its core that so many streams take; None when it does not keep up."""
        await self._mode(interval=INTERVAL, slots=streams, events=0)
        try:
            seen = await self._watch(candidate, streams, 1.0)
        except load.LoadError:
            return None
        enough = seen.events >= _LEAST * streams * seen.seconds / INTERVAL
        return seen.cpu / seen.seconds if enough else None

    async def _paced(self, candidate: Candidate, mode: str) -> None:
        name, streams = candidate.name, self._streams[candidate.name]
        cpu_key, reads_key = f"{mode}_cpu_us", f"{mode}_reads_per_event"
        await self._mode(interval=INTERVAL, slots=1 if mode == "step" else streams, events=0)
        with self._annulling(candidate, cpu_key):
            seen = await self._watch(candidate, streams, self._plan.short_seconds)
            expected = streams * seen.seconds / INTERVAL
            if seen.events < _LEAST * expected:
                raise load.LoadError(f"{seen.events} of {expected:.0f} events came")
            self._results.add(name, reads_key, seen.reads / seen.events)
            if seen.reads < _LEAST * seen.events:
                raise load.LoadError(
                    f"{seen.reads / seen.events:.2f} reads per event: events were put together"
                )
            if candidate.child is not None:
                cpu = self._without_idle(candidate, seen) / seen.events
                self._results.add(name, cpu_key, cpu * 1e6)
                if mode == "step" and "paced_streams" not in self._results.values[name]:
                    self._results.add(name, "paced_streams", streams)

    async def _first_events(self, candidate: Candidate, count: int) -> list[float]:
        await self._mode(interval=0.0, slots=1, events=1)
        return await load.first_event_times(candidate.port, count)

    async def _loaded(self, candidate: Candidate, streams: int) -> tuple[list[float], _Seen]:
        """Delays at a load of `streams`; further streams of two events tell the time to first.

        All streams of the engine have one mode, so those further ones are left after their first.
        """
        await self._mode(interval=INTERVAL, slots=streams, events=0)
        times: list[float] = []

        async def first_events() -> None:
            while True:
                tally = load.Tally()
                (connection,) = await load.connect(candidate.port, 1, tally)
                came = asyncio.get_running_loop().create_future()
                connection.on_first = lambda ns, came=came: came.done() or came.set_result(ns)
                connection.ask(load.STREAM)
                try:
                    times.append(await came / 1e9)
                finally:
                    connection.close()
                await asyncio.sleep(INTERVAL)

        tally = load.Tally()
        opened = await self._open(candidate, streams, tally)
        asking = asyncio.create_task(first_events())
        try:
            seen = await _window(candidate, tally, self._plan.seconds, timed=True)
        finally:
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await asking
            await self._leave(candidate, opened)
        if not times:
            raise load.LoadError("no first event came")
        return times, seen

    async def _watch(
        self, candidate: Candidate, streams: int, seconds: float, *, timed: bool = False
    ) -> _Seen:
        """Open streams, let them settle, and watch them for a while."""
        tally = load.Tally()
        opened = await self._open(candidate, streams, tally)
        try:
            return await _window(candidate, tally, seconds, timed=timed)
        finally:
            await self._leave(candidate, opened)

    async def _ask(self, candidate: Candidate, requests: Sequence[bytes], seconds: float) -> _Seen:
        tally = load.Tally()
        connections = await load.keep_asking(candidate.port, requests, tally)
        try:
            # A slow candidate answers all of them at once, now and then: several such waves count.
            return await _window(candidate, tally, seconds, answers_wanted=8 * len(requests))
        finally:
            await self._leave(candidate, connections)

    async def _open(
        self, candidate: Candidate, count: int, tally: load.Tally, *, timeout: float = 10.0
    ) -> list[load.Connection]:
        try:
            return await load.open_streams(candidate.port, count, tally, timeout=timeout)
        except load.LoadError:
            await self._leave(candidate, ())
            raise

    async def _leave(self, candidate: Candidate, connections: Sequence[load.Connection]) -> None:
        """Close connections, then wait until engine and candidate have nothing left to do."""
        load.close(connections)
        await asyncio.sleep(0.2)  # the other side notices, too
        async with httpx2.AsyncClient() as client:
            answer = await client.post(f"{self._engine}/bench/cut")
        if (left := answer.json()) and candidate.child is not None:
            logger.info("%s: %d streams ran on without their clients: cut", candidate.name, left)
        if await _comes_to_rest(candidate, 0.1):
            return
        if candidate.child is not None:  # it would take CPU time from those that come next
            candidate.child.stop()
            reason = f"still busy {_REST_LIMIT:.0f} s after its clients had left"
            self._results.cuts.append(f"{candidate.name} was stopped: {reason}")
            self._silent.add(candidate.name)

    async def _warm_up(self, candidate: Candidate) -> None:
        await self._ask(candidate, [load.PLAIN] * 4, 0.2)
        await self._first_events(candidate, 20)

    def _without_idle(self, candidate: Candidate, seen: _Seen) -> float:
        return max(0.0, seen.cpu - self._idle.get(candidate.name, 0.0) * seen.seconds)

    def _judge_limit(self, candidate: Candidate, key: str, seen: _Seen) -> None:
        """A candidate that was not busy could have done more: engine and client were the limit."""
        if candidate.child is not None and seen.cpu < _BUSY * seen.seconds:
            self._results.at_least.add((candidate.name, key))

    def _add_delays(
        self, candidate: Candidate, load_name: str, times: list[float], seen: _Seen,
        base: dict[str, float],
    ) -> None:  # fmt: skip
        """Add delays less those without a proxy, which `base` holds or is filled with."""
        found = _delays(times, seen, base if candidate.child is None else {})
        if not base:
            raise load.LoadError("nothing without a proxy to compare with")
        for key, value in found.items():
            added = value - base[key] if candidate.child is not None else value
            self._results.add(candidate.name, f"{load_name}_{key}", added)

    @contextlib.contextmanager
    def _annulling(self, candidate: Candidate, *keys: str) -> Iterator[None]:
        try:
            yield
        except (load.LoadError, OSError, httpx2.HTTPError) as error:
            reason = str(error)
            if isinstance(error, load.Silence):
                self._silent.add(candidate.name)
                reason += "; left out of further rounds"
            logger.warning("%s: %s void: %s", candidate.name, ", ".join(keys), reason)
            for key in keys:
                self._results.annul(candidate.name, key, reason)


@dataclass(frozen=True)
class _Seen:
    """What went by in one window of time."""

    seconds: float
    cpu: float
    reads: int
    events: int
    answers: int
    delays: array[int]


_DELAYS = ("ttft_p50_us", "ttft_p99_us", "event_p50_us", "event_p99_us")


def _delays(times: list[float], seen: _Seen, into: dict[str, float]) -> dict[str, float]:
    if not seen.delays:
        raise load.LoadError("no event carried its time")
    firsts, delays = sorted(times), sorted(seen.delays)
    into["ttft_p50_us"] = _percentile(firsts, 0.5) * 1e6
    into["ttft_p99_us"] = _percentile(firsts, 0.99) * 1e6
    into["event_p50_us"] = _percentile(delays, 0.5)
    into["event_p99_us"] = _percentile(delays, 0.99)
    return into


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _proxies(candidates: Sequence[Candidate]) -> list[Candidate]:
    return [candidate for candidate in candidates if candidate.child is not None]


async def _window(
    candidate: Candidate, tally: load.Tally, seconds: float, *, timed: bool = False,
    answers_wanted: int = 0,
) -> _Seen:  # fmt: skip
    """Watch for some seconds, and for up to four times as long until enough answers have come."""
    await asyncio.sleep(_SETTLE)
    delays: array[int] = array("q")
    if timed:
        tally.delays = delays
    start, cpu = time.monotonic(), candidate.cpu_seconds()
    reads, events, answers = tally.reads, tally.events, tally.answers
    for _ in range(4):
        await asyncio.sleep(seconds)
        if tally.answers - answers >= answers_wanted:
            break
    seen = _Seen(
        time.monotonic() - start,
        candidate.cpu_seconds() - cpu,
        tally.reads - reads,
        tally.events - events,
        tally.answers - answers,
        delays,
    )
    tally.delays = None
    if tally.failures:
        raise load.LoadError(f"{tally.failures} answers failed")
    if not seen.events and not seen.answers:
        raise load.Silence("nothing came")
    return seen


async def _answers(tally: load.Tally, wanted: int, deadline: float) -> None:
    """Wait for a number of answers, or until the deadline.

    Raises Silence when none comes for ten seconds.
    """
    last, since = -1, time.monotonic()
    while tally.answers < wanted and not tally.failures and time.monotonic() < deadline:
        if tally.answers != last:
            last, since = tally.answers, time.monotonic()
        elif time.monotonic() - since > 10:
            raise load.Silence(f"{tally.answers} of {wanted} answers, then nothing for 10 s")
        await asyncio.sleep(0.05)


async def _comes_to_rest(candidate: Candidate, seconds: float) -> bool:
    """Whether it does hardly anything over so many seconds before long."""
    deadline = time.monotonic() + _REST_LIMIT
    while time.monotonic() < deadline:
        start, cpu = time.monotonic(), candidate.cpu_seconds()
        await asyncio.sleep(seconds)
        if candidate.cpu_seconds() - cpu < _AT_REST * (time.monotonic() - start):
            return True
    return False


async def _look(port: int) -> None:
    """What a Prometheus and ten open status pages ask for."""
    async with httpx2.AsyncClient() as client:
        pages = (_ask_again(client, port, "live", 2.0) for _ in range(_PAGES))
        await asyncio.gather(_ask_again(client, port, "metrics", 0.5), *pages)


async def _ask_again(client: httpx2.AsyncClient, port: int, page: str, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        answer = await client.get(f"http://127.0.0.1:{port}/tokgauge/{page}")
        answer.raise_for_status()
