"""`tokgauge calibrate` before a real vLLM on this CPU, then loads that it has not seen.

    tests/real_vllm.sh --calibration

Prints the constants, how far each load's mean step time is from what they predict, and what is said
when other processes take the CPU. About six minutes on a quiet machine.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tokgauge.calibrate.bench import Load
from tokgauge.calibrate.calibration import calibrated
from tokgauge.calibrate.engine import EngineBench
from tokgauge.calibrate.inputs import StepReader
from tokgauge.diagnosis import ceiling_inputs
from tokgauge.diagnosis.expected_time import Interval, StepWork
from tokgauge.diagnosis.fit import Fitted, NotTold, Observation, fit
from tokgauge.settings import Settings

from tests.real_vllm.processes import running_engine

_CONTEXT = 2000
_LOADS = 20


class Seen(NamedTuple):
    """One load: what it was, what its steps were, how long they took."""

    load: Load
    observed: Observation


async def measured(settings: Settings, loads: Sequence[Load]) -> list[Seen]:
    """Put the loads on the engine, one after the other."""
    found = []
    async with EngineBench(settings.engine) as bench:
        card = (await bench.models())[0]
        model = ceiling_inputs.model_bytes(settings.engine, card.root, None)
        bytes_of = StepReader(model, 1)
        bench.choose(card.id)
        await bench.measure(Load(1, 64, 40))  # tells how many tokens a word has
        for load in loads:
            decoded = (await bench.measure(load)).decoded
            if decoded is None:
                continue
            work = StepWork(
                steps=decoded.steps,
                bytes=decoded.steps * bytes_of(decoded),
                sequence_steps=decoded.steps * decoded.sequences,
            )
            found.append(Seen(load, Observation(work, decoded.seconds)))
    return found


def unseen(seed: int) -> list[Load]:
    """Loads of all kinds that the experiment's plan does not hold."""
    chance = random.Random(seed)
    return [
        Load(chance.randint(1, 16), round(40 * 37 ** chance.random()), 80) for _ in range(_LOADS)
    ]


@contextmanager
def stolen_cpu(processes: int) -> Iterator[None]:
    """Others compute on this machine."""
    running = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)
    ]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def told(title: str, seen: Sequence[Seen], fitted: Fitted) -> None:
    """Each load beside its prediction, and their median."""
    errors, inside = [], 0
    print(f"{title}\nsequences  context  ms a step  predicted")
    for load, observed in seen:
        expected = fitted.expected(observed.work)
        assert expected is not None, "there are no prompts in it"
        steps = observed.work.steps
        middle = (expected.low + expected.high) / 2
        errors.append(middle / observed.seconds - 1)
        inside += expected.low <= observed.seconds <= expected.high
        print(
            f"{load.sequences:9} {load.context:8} {1e3 * observed.seconds / steps:10.2f} "
            f"{1e3 * expected.low / steps:6.2f} to {1e3 * expected.high / steps:.2f}"
        )
    off = statistics.median(abs(error) for error in errors)
    bias = statistics.median(errors)
    print(f"median error {off:.1%} (median {bias:+.1%}), {inside} of {len(seen)} in the range\n")


def main() -> int:
    """Run it. 0: it was told and right within 10 %."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "vllm.log"
        options = ("--max-model-len", str(_CONTEXT), "--no-enable-prefix-caching")
        with running_engine(given.vllm, given.model, log, options) as url:
            settings = Settings(
                upstream=url, nvml=False, kv_cache_dtype="float32",
                weights_bytes=(given.model / "model.safetensors").stat().st_size,
            )  # fmt: skip
            return _compared(settings)


def _compared(settings: Settings) -> int:
    asyncio.run(measured(settings, unseen(0)[:3]))  # the first requests of an engine are slower
    found = asyncio.run(
        calibrated(
            settings, model=None, at_most=180, beside_traffic=False, progress=lambda *_: None
        )
    )
    if isinstance(found.fitted, NotTold):
        print("nothing is told:", *(missing.because for missing in found.fitted.missing))
        return 1
    constants = found.fitted.constants
    print(
        f"{found.fitted.observations} observations: t0 {_ms(constants.fixed)}, each sequence "
        f"{_ms(constants.per_sequence)}, B_eff {constants.bandwidth.low / 1e9:.1f} to "
        f"{constants.bandwidth.high / 1e9:.1f} GB/s, scatter {found.fitted.scatter:.1%}"
    )
    quiet = asyncio.run(measured(settings, unseen(1)))
    told("loads that it has not seen", quiet, found.fitted)
    with stolen_cpu(3):
        slow = asyncio.run(measured(settings, unseen(1)))
    told("the same while three processes take the CPU", slow, found.fitted)
    again = fit([one.observed for one in slow], "fitted")
    if isinstance(again, Fitted):
        print(
            f"then: t0 {_ms(again.constants.fixed)}, each sequence "
            f"{_ms(again.constants.per_sequence)}"
        )
    else:
        print("then, not told apart:", *(missing.constant for missing in again.missing))
    errors = [
        abs((expected.low + expected.high) / 2 / one.observed.seconds - 1)
        for one in quiet
        if (expected := found.fitted.expected(one.observed.work)) is not None
    ]
    return 0 if statistics.median(errors) <= 0.10 else 1


def _ms(interval: Interval) -> str:
    low, high = 1e3 * interval.low, 1e3 * interval.high
    return f"{low:.3f} to {high:.3f} ms"


if __name__ == "__main__":
    sys.exit(main())
