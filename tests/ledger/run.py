"""One campaign before a proxy in processes of its own, and the looks at what is left behind."""

import asyncio
import time
from dataclasses import dataclass

import psutil

from tests.ledger.campaign import Campaign, Ledger, twice_wrongly
from tests.ledger.engine import UNASKED, LedgerEngine
from tests.support.metrics import Scrape, scrape
from tests.support.process import Process, serving

_SETTLES = 20.0
_GOOD_ROUTES = ("chat_completions", "completions", "health")


@dataclass
class Result:
    """ledger, and what is wrong with it and with what is left behind."""

    ledger: Ledger
    raced: int
    wrong: list[str]
    seconds: float

    def __str__(self) -> str:
        ledger = self.ledger
        return (
            f"{len(ledger.sent)} exchanges ({ledger.good} of good clients, all others of bad ones "
            f"or of a bad engine; {self.raced} went up just as the engine said something unasked) "
            f"in {self.seconds:.0f} s, {len(self.wrong)} wrong"
        )


def run_ledger(exchanges: int, workers: int, seed: int) -> Result:
    """Run it; raises nothing for what is wrong, but says it."""
    return asyncio.run(_run(exchanges, workers, seed))


async def _run(exchanges: int, workers: int, seed: int) -> Result:
    engine = LedgerEngine()
    await engine.listen()
    options = ("--workers", str(workers), "--poll-interval", "3600")
    running = serving(engine.url, *options, TOKGAUGE_ENGINE_METRICS_INTERVAL="3600")
    process = await asyncio.to_thread(running.__enter__)
    try:
        async with asyncio.timeout(60):
            descriptors = await _when_up(process, workers)
        campaign = Campaign(engine, process.port, seed)
        began = time.monotonic()
        ledger = await campaign.run(exchanges)
        seconds = time.monotonic() - began
        # Some of them were given up before the engine had read which they were.
        engine.raced.update(
            one.number for one, body in ledger.others if body == UNASKED
            and not engine.received[one.number]
        )  # fmt: skip
        wrong = [what for number, what in ledger.wrong if number not in engine.raced]
        wrong += twice_wrongly(ledger, engine.received, engine.raced)
        wrong += [f"mixed: {one}" for one in engine.mixed]
        wrong += [f"not strict: {one}" for one in engine.faults]
        wrong += await _left_behind(process, engine, ledger, descriptors)
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)
        engine.stop_listening()
    return Result(ledger, len(engine.raced), wrong, seconds)


async def _left_behind(
    process: Process, engine: LedgerEngine, ledger: Ledger, descriptors: int
) -> list[str]:
    """What is still open or not counted when everybody has left, after some patience."""
    end = time.monotonic() + _SETTLES
    while True:
        figures = await asyncio.to_thread(scrape, process.port)
        left = []
        if figures.total("requests_in_flight"):
            left.append(f"{figures.total('requests_in_flight'):g} requests in flight")
        if counted := _counted_wrong(figures, ledger, len(engine.raced)):
            left.append(counted)
        if busy := engine.still_open():
            left.append(f"{len(busy)} connections to the engine: {busy}")
        if (now := _descriptors(process)) > descriptors + 2:
            left.append(f"{now} descriptors, {descriptors} before")
        if not left or time.monotonic() > end:
            return [f"left behind: {one}" for one in left]
        await asyncio.sleep(0.2)


def _counted_wrong(figures: Scrape, ledger: Ledger, raced: int) -> str | None:
    good = sum(
        figures.total("requests_total", route=route, outcome="ok") or 0 for route in _GOOD_ROUTES
    )
    all_of_them = sum(figures.total("requests_total", route=one) or 0 for one in _GOOD_ROUTES)
    if all_of_them == ledger.good and all_of_them - raced <= good <= all_of_them:
        return None
    return f"good clients sent {ledger.good}, counted are {good:g} ok of {all_of_them:g}"


async def _when_up(process: Process, workers: int) -> int:
    """How many descriptors are open when all relays are up, which the first to be up does not say.

    Each has said so to the analyst then.
    """
    while True:
        figures = await asyncio.to_thread(scrape, process.port)
        if figures.text.count("\nprocess_open_fds{") == workers + 1:
            break
        await asyncio.sleep(0.1)
    return _descriptors(process)


def _descriptors(process: Process) -> int:
    family = [psutil.Process(process.popen.pid), *process.children()]
    return sum(member.num_fds() for member in family)
