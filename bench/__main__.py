"""`python -m bench`: measures all candidates in one run and prints the figures and the goals."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

import click
import httpx2
import uvloop
from rich.console import Console
from rich.logging import RichHandler

from bench import candidates, per_event, report
from bench.candidates import (
    direct,
    haproxy,
    litellm,
    nginx,
    plain,
    tokgauge,
    two_relays,
    unmeasured,
    vllm_router,
)
from bench.candidates.launch import Absent, Place
from bench.figures import Results
from bench.goals import judge
from bench.load import PLAIN
from bench.processes import Child, Cores, free_port, raise_file_limit
from bench.schedule import Schedule
from bench.stages import FULL, QUICK, Bench, Candidate, Plan

logger = logging.getLogger("bench")

_START_LIMIT = 120.0
_MEMORY = {
    nginx: 15, haproxy: 15, tokgauge: 25, unmeasured: 25, plain: 60, vllm_router: 25, litellm: 130,
}  # fmt: skip
_GROWTH = {tokgauge: 200}
"""Candidates with the seconds that they need for these stages."""

_MISSING = "what is missing was not measured"


@dataclass(frozen=True)
class Part:
    """A part of a run; `work` gets the moment at which its time is over (monotonic seconds)."""

    name: str
    expected: float
    """Seconds that it needs in a full run."""
    work: Callable[[float], Awaitable[None]]


class Run:
    """One run from its engine to its results."""

    def __init__(self, plan: Plan, modules: Sequence[ModuleType], directory: Path) -> None:
        self.results = Results()
        self._plan = plan
        self._modules = modules
        self._directory = directory
        self._cores = Cores()

    async def within(self, seconds: float) -> None:
        """All stages, or those that fit; SIGTERM and SIGINT end it early, too."""
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        try:
            async with asyncio.timeout(seconds):
                await self._everything(time.monotonic() + seconds)
        except TimeoutError:
            self.results.cuts.append(f"stopped after {seconds:.0f} s: {_MISSING}")
        except asyncio.CancelledError:
            self.results.cuts.append(f"stopped by a signal: {_MISSING}")

    async def _everything(self, end: float) -> None:
        port = free_port()
        engine = Child(
            (sys.executable, "-m", "bench.engine", "--port", str(port)),
            self._cores.engine, log=self._directory / "engine.log",
        )  # fmt: skip
        with engine:
            await _ready(port, engine)
            bench = Bench(port, self._plan, self.results)
            with contextlib.ExitStack() as running:
                started = await self._start_all(port, running)
                together, alone = self._together(bench, started), self._alone(bench, port)
                parts = [(part.name, part.expected) for part in (*together, *alone)]
                schedule = Schedule(end - time.monotonic(), parts)
                for part in together:
                    await self._run(part, schedule)
            for part in alone:
                await self._run(part, schedule)

    def _together(self, bench: Bench, started: Sequence[Candidate]) -> list[Part]:
        """What is measured with all candidates running."""
        parts = [
            Part("idle", 20, lambda _: bench.idle(started)),
            Part("paced", 360, lambda _: bench.paced(started)),
            Part("requests", 120, lambda _: bench.requests(started)),
        ]
        # Two relays are compared with one by their CPU time only.
        others = [candidate for candidate in started if candidate.name != two_relays.NAME]
        parts.append(Part("latency", 190, lambda _: bench.latency(others)))
        if self._plan.half_capacity:
            parts.append(Part("half capacity", 160, lambda _: bench.half_capacity(others)))
        own = [candidate for candidate in started if candidate.name == tokgauge.NAME]
        if self._plan.scrape_seconds and own:
            parts.append(Part("scrapes", 20, lambda _: bench.scrapes(own[0])))
        # Last: a slow candidate cannot come to rest after it, and is stopped.
        return [*parts, Part("flat out", 150, lambda _: bench.flat_out(others))]

    def _alone(self, bench: Bench, port: int) -> list[Part]:
        """What is measured with one candidate, which is started for it."""

        async def memory(module: ModuleType, _: float) -> None:
            async with self._fresh(module, port) as candidate:
                await bench.memory(candidate)

        async def growth(module: ModuleType, end: float) -> None:
            async with self._fresh(module, port) as candidate:
                await bench.growth(candidate, end)

        parts = []
        for module, expected in _MEMORY.items():
            if module.NAME in self.results.versions:
                parts.append(Part(f"memory, {module.NAME}", expected, partial(memory, module)))
        for module, expected in _GROWTH.items():
            if module.NAME in self.results.versions:
                parts.append(Part(f"growth, {module.NAME}", expected, partial(growth, module)))
        return parts

    async def _run(self, part: Part, schedule: Schedule) -> None:
        """One part, for no longer than its share of the time."""
        left, seconds = schedule.left(), schedule.take(part.name)
        logger.info("%s: at most %.0f s; all: at most %.0f s", part.name, seconds, left)
        start = time.monotonic()
        try:
            async with asyncio.timeout(seconds) as limit:
                await part.work(start + seconds)
        except Absent as error:
            self.results.cuts.append(f"{part.name}: {error}")
        except TimeoutError:
            if not limit.expired():
                raise
            self.results.cuts.append(f"{part.name}: stopped after {seconds:.0f} s: {_MISSING}")
        logger.info("%s: took %.0f s", part.name, time.monotonic() - start)

    @contextlib.asynccontextmanager
    async def _fresh(self, module: ModuleType, port: int) -> AsyncIterator[Candidate]:
        with self._started(module, port) as (place, child):
            await _ready(place.port, child)
            yield Candidate(module.NAME, place.port, child)

    async def _start_all(self, port: int, running: contextlib.ExitStack) -> list[Candidate]:
        started = []
        for module in self._modules:
            name = module.NAME
            try:
                place, child = running.enter_context(self._started(module, port))
                await _ready(place.port, child)
                self.results.versions[name] = module.version()
            except (Absent, OSError, subprocess.SubprocessError) as error:
                logger.warning("%s is absent: %s", name, error)
                self.results.absent[name] = str(error)
                continue
            logger.info("%s %s", name, self.results.versions[name])
            started.append(Candidate(name, place.port, child))
        return started

    @contextlib.contextmanager
    def _started(self, module: ModuleType, port: int) -> Iterator[tuple[Place, Child | None]]:
        name = module.__name__.rpartition(".")[2]
        place = Place(free_port(), port, Path(tempfile.mkdtemp(prefix=name, dir=self._directory)))
        launch = module.start(place)
        if launch.command is None:
            yield Place(port, port, place.directory), None
            return
        child = Child(
            launch.command, self._cores.candidates,
            log=place.directory / "log", environment=launch.environment,
        )  # fmt: skip
        with child:
            yield place, child


async def _ready(port: int, child: Child | None) -> None:
    """Wait until a request is answered. Raises Absent when that does not come about."""
    body = PLAIN.partition(b"\r\n\r\n")[2]
    headers = {"content-type": "application/json", "authorization": "Bearer sk-bench"}
    deadline = time.monotonic() + _START_LIMIT
    async with httpx2.AsyncClient(timeout=10.0) as client:
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx2.HTTPError):
                url = f"http://127.0.0.1:{port}/v1/chat/completions"
                answer = await client.post(url, content=body, headers=headers)
                if answer.status_code == 200:
                    return
            if child is not None and child.exited is not None:
                raise Absent(f"ended with status {child.exited}: {child.last_words()}")
            await asyncio.sleep(0.2)
    raise Absent(f"did not answer within {_START_LIMIT:.0f} s")


@click.command()
@click.option("--quick", is_flag=True, help="Two minutes, four candidates, fewer figures.")
@click.option("--only", multiple=True, help="A candidate's name; may be given several times.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all figures.")
@click.option("--text", "text_file", type=click.Path(path_type=Path), help="Write the tables.")
def main(
    quick: bool, only: tuple[str, ...], json_file: Path | None, text_file: Path | None
) -> None:
    """Measure what the proxy costs, next to others. Exit status 1: a goal was missed."""
    console = Console(width=None if sys.stdout.isatty() else report.WIDTH)
    handler = RichHandler(console=Console(stderr=True), show_path=False)
    logging.basicConfig(level="INFO", format="%(message)s", handlers=[handler])
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    raise_file_limit()
    about = report.machine()
    cost = per_event.measure()
    plan, modules = (QUICK, candidates.QUICK) if quick else (FULL, candidates.ALL)
    if only:
        # Latencies are those beyond the latency without a proxy.
        modules = tuple(one for one in candidates.ALL if one is direct or one.NAME in only)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tokgauge-bench-") as directory:
        run = Run(plan, modules, Path(directory))
        os.sched_setaffinity(0, Cores().client)
        gc.freeze()
        gc.disable()  # a collection would delay events that are being timed
        uvloop.run(run.within(plan.limit_seconds))
    about["seconds"] = round(time.monotonic() - start)
    verdicts = judge(run.results, cost)
    report.show(console, about, run.results, cost, verdicts)
    if json_file is not None:
        mode = "quick" if quick else "full"
        document = report.document(about, mode, run.results, cost, verdicts)
        json_file.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    if text_file is not None:
        with text_file.open("w") as file:
            report.show(Console(file=file, width=report.WIDTH), about, run.results, cost, verdicts)
    sys.exit(any(verdict.passed is False for verdict in verdicts))


if __name__ == "__main__":
    main()
