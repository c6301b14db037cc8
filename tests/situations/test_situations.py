"""A few of the situations; `python -m tests.situations` plays all of them."""

import pytest

from tests.situations.campaign import play
from tests.situations.situation import Fault, Situation

pytestmark = pytest.mark.socketless


@pytest.mark.parametrize(
    "situation",
    [
        Situation(0, "dense", "batch"),
        Situation(0, "moe", "open"),
        Situation(0, "speculation", "mixed"),
        Situation(1, "4bit", "long"),
        Situation(0, "small", "one"),
        Situation(0, "dense", "batch", crowded=True),
        # On a GB10, whose experts are read worse than its other weights.
        Situation(1, "moe", "short"),
    ],
    ids=lambda s: f"{s.kind} {s.load_kind}",
)
def test_a_healthy_engine_is_never_accused(situation: Situation) -> None:
    played = play(situation)
    assert played.accused == []
    assert played.answer in ("healthy", "not_judged")


@pytest.mark.parametrize(
    "situation",
    [
        Situation(100, "dense", "batch", (Fault("neighbour", 0.6),)),
        Situation(101, "moe", "batch", (Fault("memory_clock", 0.2),)),
        Situation(102, "small", "short", (Fault("stolen_cpu", 60.0),)),
        Situation(101, "4bit", "one", (Fault("guided", 0.01),)),
        Situation(101, "dense", "short", (Fault("slow_reading", 0.2),)),
        Situation(101, "dense", "batch", (Fault("wrong_bandwidth", 3.0),)),
        Situation(103, "small", "prompts", (Fault("slow_prefill", 0.06),)),
        # A low clock beside a CPU that takes nearly all of the time.
        Situation(200, "small", "short", (Fault("memory_clock", 0.6), Fault("stolen_cpu", 60.0))),
    ],
    ids=lambda s: " and ".join(fault.kind for fault in s.faults),
)
def test_what_is_wrong_comes_first(situation: Situation) -> None:
    played = play(situation)
    assert played.must_be_found, played.slowness
    assert not played.accused
    assert played.answer in played.expected
