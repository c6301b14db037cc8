"""Times under different conditions are not judged as one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tokgauge.diagnosis.conditions import Conditions, conditions
from tokgauge.diagnosis.traffic_window import TrafficWindow
from tokgauge.engine.metrics_page import EngineReading
from tokgauge.gpu.contention import State
from tokgauge.gpu.readings import GpuReading
from tokgauge.measure.record import Progress

pytestmark = pytest.mark.socketless

KNOWN = Conditions(engine_started_at=5.0, neighbour_is_active=False, hardware_slows=False)
UNKNOWN = Conditions(None, None, None)


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({}, False),
        ({"engine_started_at": 9.0}, True),
        ({"neighbour_is_active": True}, True),
        ({"hardware_slows": True}, True),
        ({"engine_started_at": None, "neighbour_is_active": None, "hardware_slows": None}, False),
    ],
)
def test_what_is_known_to_be_otherwise_is_a_change(
    change: dict[str, float | bool | None], differs: bool
) -> None:
    assert replace(KNOWN, **change).differ(KNOWN) is differs  # type: ignore[arg-type]
    assert KNOWN.differ(UNKNOWN) is False
    assert UNKNOWN.since(KNOWN) == KNOWN


@pytest.mark.parametrize(
    ("state", "active"),
    [("none", False), ("idle_neighbours", False), ("active_neighbours", True), ("unknown", None)],
)
def test_only_neighbours_that_compute_are_another_condition(
    state: State, active: bool | None
) -> None:
    hot = GpuReading(index=0, throttle_reasons=frozenset({"sw_thermal_slowdown"}))
    capped = GpuReading(index=0, throttle_reasons=frozenset({"sw_power_cap"}))
    reading = EngineReading(at=1.0, started_at=7.0)
    assert conditions(reading, state, [capped]) == Conditions(7.0, active, False)
    assert conditions(None, state, [hot]) == Conditions(None, active, True)
    assert conditions(None, state, []).hardware_slows is None


def test_a_window_is_split_where_something_changed() -> None:
    """A slow time and a fast one: neither the average nor anything of the slow one is left."""
    window = TrafficWindow(100.0, now=0.0)

    def page(at: float, steps: int) -> EngineReading:
        return EngineReading(
            at=at, kind="vllm", engines=1, iterations_total=steps, generation_tokens_total=steps
        )

    stream = Progress(
        id="1", opened_at=0.0, requested=None, answered=None, generates=True, streamed=True,
        decodes_from=0.0, decoded_to=None, token_events=1, silent_since=None, sequences=1,
        context_at_most=100.0, context_at_least=10.0, calls_tools=False,
    )  # fmt: skip
    for at, steps in ((5.0, 0), (10.0, 50), (15.0, 100)):
        window.look(at, [stream], page(at, steps), 1)
    slow = window.seen()
    assert slow is not None
    assert slow.rates is not None
    assert slow.rates.steps_per_second_per_engine == 10.0
    window.split()
    assert window.seen() is None, "nothing is known of the new time yet"
    for at, steps in ((20.0, 300), (25.0, 500)):
        window.look(at, [stream], page(at, steps), 1)
    fast = window.seen()
    assert fast is not None
    assert fast.rates is not None
    assert fast.rates.steps_per_second_per_engine == 40.0
    assert fast.decoded.seconds == 10.0
