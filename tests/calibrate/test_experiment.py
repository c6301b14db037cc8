"""The experiment in virtual time, on an engine whose physics are known."""

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from tokgauge.calibrate.bench import Decoded, Load, Measured
from tokgauge.calibrate.errors import CalibrationError
from tokgauge.calibrate.experiment import Experiment, run_experiment
from tokgauge.calibrate.prompts import Prompts
from tokgauge.diagnosis.expected_time import StepWork
from tokgauge.diagnosis.fit import Fitted, NotTold

pytestmark = pytest.mark.socketless


@dataclass
class VirtualEngine:
    """A `Bench`. Small batches are read a little better, long prompts computed a little slower."""

    weights: float = 14.14e9
    kv: float = 57_344.0
    fixed: float = 1.2e-3
    sequence: float = 15e-6
    bandwidth: float = 690e9
    prefill: float = 8000.0
    most: int = 256
    steps_known: bool = True
    traffic: str | None = None
    time: float = 0.0

    def __post_init__(self) -> None:
        self.rng = random.Random(1)
        self.loads: list[Load] = []

    def now(self) -> float:
        return self.time

    async def others(self) -> str | None:
        return self.traffic

    def step(self, sequences: float, context: float) -> float:
        kernel = 1.01 if sequences > 4 else 1.0
        read = self.weights + self.kv * context
        return self.fixed + self.sequence * sequences + kernel * read / self.bandwidth

    async def measure(self, load: Load) -> Measured:
        self.loads.append(load)
        first = 0.03 + load.context / self.prefill * (1 + load.context / 100_000)
        together = min(load.sequences, self.most)
        context = load.sequences * (load.context + load.tokens / 2)
        noise = math.exp(self.rng.gauss(0, 0.005))
        step = self.step(together, context) * noise
        self.time += first * load.sequences + step * load.tokens * load.sequences / together
        decoded = Decoded(
            steps=load.tokens, seconds=step * load.tokens, sequences=together, context=context
        )
        known = self.steps_known and together == load.sequences
        return Measured(
            decoded=decoded if known else None,
            because=None if known else "steps merged",
            together=together,
            prompt_tokens=load.context if load.sequences == 1 else None,
            first_token=first * noise if load.sequences == 1 else None,
        )

    def bytes_of(self, decoded: Decoded) -> float:
        return self.weights + self.kv * decoded.context


def run(
    engine: VirtualEngine, **more: int | float | bool | Callable[[str, float], None]
) -> Experiment:
    options = {"context_length": 32_768, **more}
    return asyncio.run(run_experiment(engine, engine.bytes_of, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "engine",
    [
        VirtualEngine(),
        VirtualEngine(weights=2.5e9, kv=32_768, bandwidth=3e12, fixed=0.6e-3, prefill=60_000),
        VirtualEngine(weights=40e9, kv=327_680, bandwidth=210e9, fixed=4e-3, prefill=900),
        VirtualEngine(weights=5e9, kv=131_072, most=8),
    ],
    ids=["7B", "1B on a fast card", "70B on a slow one", "eight sequences"],
)
def test_new_loads_are_predicted_within_five_per_cent_and_covered(engine: VirtualEngine) -> None:
    found = run(engine).constants(engine.bandwidth / 0.9)
    assert engine.time <= 180
    assert isinstance(found, Fitted)
    assert found.constants.fixed.low <= engine.fixed * 1.3
    assert found.constants.fixed.high >= engine.fixed * 0.7
    covered = 0
    for _ in range(40):
        sequences = engine.rng.randint(1, min(64, engine.most))
        context = sequences * engine.rng.randint(100, 16_000 // max(1, sequences // 4))
        seconds = engine.step(sequences, context)
        read = engine.weights + engine.kv * context
        expected = found.expected(StepWork(steps=1, bytes=read, sequence_steps=sequences))
        assert expected is not None
        assert (expected.low + expected.high) / 2 == pytest.approx(seconds, rel=0.05)
        covered += expected.low <= seconds <= expected.high
    assert covered >= 36


def test_the_rate_of_prompts_is_told() -> None:
    prefill = run(VirtualEngine()).constants(768e9)
    assert isinstance(prefill, Fitted)
    assert prefill.constants.prefill is not None
    assert prefill.constants.prefill.low < 8000 < prefill.constants.prefill.high * 1.1
    assert prefill.constants.prefill.width < 1.5


def test_a_short_limit_of_context_is_kept() -> None:
    engine = VirtualEngine(weights=1e9, fixed=1e-4)  # time for more steps than there is room
    run(engine, context_length=512)
    assert engine.loads
    assert max(load.context + load.tokens for load in engine.loads) <= 512


def test_the_time_is_kept_on_a_slow_engine_and_too_little_of_it_tells_nothing() -> None:
    engine = VirtualEngine(weights=140e9, bandwidth=200e9, prefill=200)
    run(engine, at_most=60.0)
    warm_up = 2 * (64 * engine.step(1, 512) + 512 / 200)
    assert engine.time <= 60 + warm_up
    hurried = run(VirtualEngine(), at_most=5.0).constants(768e9)
    assert isinstance(hurried, NotTold)


def test_it_refuses_beside_traffic_unless_told() -> None:
    engine = VirtualEngine(traffic="3 requests of others run or wait")
    with pytest.raises(CalibrationError, match="3 requests of others") as refused:
        run(engine)
    assert refused.value.kind == "busy"
    assert not engine.loads
    assert run(engine, beside_traffic=True).observations


def test_unknown_steps_are_absent() -> None:
    with pytest.raises(CalibrationError, match="steps merged") as refused:
        run(VirtualEngine(steps_known=False))
    assert refused.value.kind == "not_told"


def test_progress_is_told() -> None:
    told: list[tuple[str, float]] = []
    run(VirtualEngine(), progress=lambda what, done: told.append((what, done)))
    assert told[0] == ("warm-up", 0.0)
    assert all(0 <= done <= 1 for _, done in told)


def test_prompts_are_unique_at_their_start_and_meet_their_length() -> None:
    prompts = Prompts()
    starts = set()
    for wanted in (100, 2000, 400, 4000, 50):
        text, words = prompts.made(wanted)
        starts.add(text.split()[0])
        tokens = 21 + round(1.7 * words)  # a template, and words of 1.7 tokens
        prompts.counted(words, tokens)
    assert len(starts) == 5
    text, words = prompts.made(1000)
    assert 21 + 1.7 * words == pytest.approx(1000, rel=0.02)
