"""An engine in virtual time is calibrated, then predicted under loads that it has not seen.

The engine's physics are its own (`tests.physics`); the product sees what a client and the engine's
page tell. What it says a window's work should take is held against the time that the engine worked.
"""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tokgauge.calibrate.bench import Load
from tokgauge.calibrate.experiment import Experiment, run_experiment
from tokgauge.calibrate.inputs import StepReader
from tokgauge.diagnosis.efficiency import step_bytes
from tokgauge.diagnosis.expected_time import StepWork
from tokgauge.diagnosis.fit import Fitted, NotTold, Observation, fit
from tokgauge.diagnosis.inputs import Inputs
from tokgauge.diagnosis.normal import normal_of
from tokgauge.diagnosis.work import NoEfficiency, work_of
from tokgauge.gpu.bandwidth import Bandwidth

from tests.physics.engine import Engine
from tests.physics.loads import LOADS, LoadKind, drawn_load
from tests.physics.product import VirtualBench, model_bytes, roof, watched
from tests.physics.truth import KINDS, Kind, drawn

WINDOW = 30.0
_WARMS_UP = 3.0
_LOADS_OF_A_SEED = 6
_AGAIN = 20


@dataclass(frozen=True, slots=True)
class Prediction:
    """low, high: seconds that the work of a window should take; None where that is not told.

    took: seconds in which the engine worked.
    """

    seed: int
    kind: Kind
    load: LoadKind
    took: float
    low: float | None = None
    high: float | None = None

    @property
    def told(self) -> bool:
        return self.low is not None

    @property
    def error(self) -> float:
        """Of the middle, as a share of what it took; above 0 is too long."""
        assert self.low is not None
        assert self.high is not None
        return float((self.low * self.high) ** 0.5 / self.took - 1)

    @property
    def covered(self) -> bool:
        return self.low is not None and self.high is not None and self.low <= self.took <= self.high

    @property
    def width(self) -> float:
        """Times that the upper end is the lower one."""
        assert self.low is not None
        assert self.high is not None
        return self.high / self.low


def kind_of(seed: int) -> Kind:
    """The kinds come in turn."""
    return KINDS[seed % len(KINDS)]


def loads_of(seed: int) -> list[LoadKind]:
    """Some of all loads, each as often as any other."""
    first = seed // len(KINDS) * _LOADS_OF_A_SEED
    return [LOADS[(first + i) % len(LOADS)] for i in range(_LOADS_OF_A_SEED)]


def calibrated(engine: Engine, at_most: float = 170.0) -> Experiment:
    """The experiment, as `tokgauge calibrate` makes it."""
    known = engine.truth.published
    return asyncio.run(
        run_experiment(
            VirtualBench(engine),
            StepReader(model_bytes(known), known.tensor_parallel),
            context_length=known.max_model_len,
            at_most=at_most,
        )
    )


def predictions(seed: int, loads: Iterable[LoadKind] | None = None) -> Iterator[Prediction]:
    """Of one engine, under loads that come one after another."""
    kind = kind_of(seed)
    engine = Engine(drawn(seed, kind))
    constants = calibrated(engine).constants(engine.truth.published.bandwidth)
    for load in loads or loads_of(seed):
        yield _predicted(engine, seed, kind, load, constants)


def of_one_load(seed: int) -> Fitted | NotTold:
    """The constants from one load, again and again: the bytes of its steps do not vary."""
    engine = Engine(drawn(seed, kind_of(seed)))
    known = engine.truth.published
    bench, reader = VirtualBench(engine), StepReader(model_bytes(known), known.tensor_parallel)
    observations: list[Observation] = []
    for _ in range(_AGAIN):
        decoded = asyncio.run(bench.measure(Load(4, 512, 1200))).decoded
        if decoded is None:
            continue
        work = StepWork(
            steps=decoded.steps,
            bytes=decoded.steps * reader(decoded),
            sequence_steps=decoded.steps * decoded.sequences,
        )
        observations.append(Observation(work, decoded.seconds))
    assert len(observations) > _AGAIN / 2
    return fit(observations, "calibrated", known.bandwidth)


def _predicted(
    engine: Engine, seed: int, kind: Kind, load: LoadKind, constants: Fitted | NotTold
) -> Prediction:
    known = engine.truth.published
    begin = engine.time + _WARMS_UP
    drawn_load(engine.truth, load, seed).start(engine, seed, until=begin + WINDOW)
    engine.run_until(begin)
    seen = watched(engine, WINDOW)
    while any(request.finished_at is None for request in engine.requests[-400:]):
        engine.run_until(engine.time + 5.0)
    took = _worked(engine, begin, begin + WINDOW)
    inputs = Inputs(
        bandwidth=Bandwidth(known.bandwidth, "settings", ""),
        model=model_bytes(known),
        roof=roof(known),
        calibrated=constants if isinstance(constants, Fitted) else None,
        seen=seen,
    )
    work = work_of(seen)
    step = None if isinstance(work, NoEfficiency) else step_bytes(work.shape, inputs.model, 1)
    if isinstance(work, NoEfficiency) or step is None or isinstance(step, NoEfficiency):
        return Prediction(seed, kind, load, took)
    normal = normal_of(inputs, work, step) if inputs.calibrated is not None else None
    if normal is None:
        return Prediction(seed, kind, load, took)
    expected = normal.expected
    return Prediction(seed, kind, load, took, expected.low, expected.high)


def _worked(engine: Engine, begin: float, end: float) -> float:
    """Seconds between these times in which a step ran."""
    steps = zip(engine.log.ends, engine.log.seconds, strict=True)
    return sum(max(0.0, min(to, end) - max(to - took, begin)) for to, took in steps)
