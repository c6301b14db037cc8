"""The chain from inputs to a judgement, without sentences: bandwidth, bytes, rate, efficiency."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tokgauge.diagnosis.answers import Answers
from tokgauge.diagnosis.assess import assess
from tokgauge.diagnosis.decoding import Decoded
from tokgauge.diagnosis.inputs import Inputs, ModelBytes, Page, StreamSeen, WindowSeen
from tokgauge.diagnosis.verdict import CauseKind
from tokgauge.diagnosis.work import WhyNoEfficiency
from tokgauge.engine.metrics_page import EngineRates, EngineReading
from tokgauge.gpu.bandwidth import Bandwidth
from tokgauge.gpu.catalogue import match_card
from tokgauge.gpu.readings import GpuReading
from tokgauge.model.ceiling import ComputeRoof
from tokgauge.model.kv import kv_from_bytes_per_token
from tokgauge.model.weights import Streamed, WeightsFound, WeightsUnknown

pytestmark = pytest.mark.socketless

WEIGHTS = WeightsFound(Streamed(14.141e9, layers=28, dequantised=False), "test", 15.231e9, "test")
MODEL = ModelBytes(WEIGHTS, kv_from_bytes_per_token(57_344))
A6000 = Bandwidth(
    768e9, "catalogue", "table of cards", card=match_card("NVIDIA RTX A6000", 48 * 1024**3)
)
# The founding run: one stream at 40.6 tokens per second.
STREAM = StreamSeen(
    decode_rate=40.6, tokens=512, tokens_per_step=1.0, context_tokens=300.0, tokens_of_others=0
)
DECODED = Decoded(
    seconds=30.0, busy_seconds=30.0, sequence_seconds=30.0, sequence_events=1218.0,
    event_seconds=30.0, context_tokens_at_most=300.0, waiting_for_first_token=0,
    context_tokens_at_least=280.0,
)  # fmt: skip
WINDOW = WindowSeen(decoded=DECODED, answers=Answers(), tokens_per_event=1.0)
FOREIGN = (
    Page(EngineReading(at=0.0, running=4), own_sequences=1),
    Page(EngineReading(at=30.0, running=0), own_sequences=0),
)
RATES = EngineRates(seconds=30.0, steps_per_second_per_engine=40.6)


@pytest.mark.parametrize("seen", [STREAM, WINDOW], ids=["a measured stream", "a window"])
def test_serve_and_probe_judge_alike(seen: StreamSeen | WindowSeen) -> None:
    found = assess(Inputs(bandwidth=A6000, model=MODEL, seen=seen))
    assert found.efficiency is not None
    assert found.efficiency.by_basis["streamed"] == pytest.approx(0.748, abs=0.002)
    assert found.efficiency.by_basis["checkpoint"] == pytest.approx(0.805, abs=0.002)
    assert found.speed.level == "healthy"


def test_without_traffic_there_is_a_ceiling() -> None:
    found = assess(Inputs(bandwidth=A6000, model=MODEL))
    assert found.ceilings["streamed"].tokens_per_second == pytest.approx(54.3, abs=0.05)
    assert found.ceilings["checkpoint"].tokens_per_second == pytest.approx(50.4, abs=0.05)
    assert found.efficiency is None
    assert found.speed.reason == "too_little_traffic"


ALL = Inputs(bandwidth=A6000, model=MODEL, seen=WINDOW)
NO_GPU = Bandwidth(None, None, "no GPU is seen")


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        (replace(ALL, bandwidth=NO_GPU), "inputs_unknown"),
        (replace(ALL, model=None), "inputs_unknown"),
        (replace(ALL, model=ModelBytes(WeightsUnknown("test"), MODEL.kv)), "inputs_unknown"),
        (replace(ALL, several_models=True), "several_models"),
        (replace(ALL, seen=replace(WINDOW, tokens_per_event=2.5)), "steps_merged"),
        (replace(ALL, seen=replace(WINDOW, pages=FOREIGN, rates=RATES)), "traffic_of_others"),
        (
            replace(
                ALL, seen=replace(WINDOW, decoded=replace(DECODED, context_tokens_at_most=None))
            ),
            "context_unknown",
        ),
        (replace(ALL, seen=replace(STREAM, decode_rate=None)), "not_streamed"),
        (replace(ALL, seen=replace(STREAM, tokens_of_others=200, decode_rate=20)), "others_served"),
        (replace(ALL, seen=replace(STREAM, tokens_per_step=None)), "steps_unknown"),
        (replace(ALL, seen=replace(STREAM, tokens_per_step=2.0)), "draft_unknown"),
    ],
)
def test_what_is_not_known_is_named_as_a_kind(inputs: Inputs, why: WhyNoEfficiency) -> None:
    speed = assess(inputs).speed
    assert speed.why == "no_efficiency"
    assert speed.evidence.no_efficiency is not None
    assert speed.evidence.no_efficiency.why == why


@pytest.mark.parametrize("uncounted", [30.0, 3.0], ids=["whole answers", "some of them"])
def test_tokens_that_nobody_has_counted_are_not_none(uncounted: float) -> None:
    """Answers that are not streamed were decoded, however few events there are."""
    events = 0.0 if uncounted == 30.0 else 12.0
    decoded = replace(
        DECODED, sequence_events=events, event_seconds=events / 40.6, uncounted_seconds=uncounted
    )
    speed = assess(replace(ALL, seen=replace(WINDOW, decoded=decoded))).speed
    assert speed.evidence.decoded_tokens is None
    assert speed.why not in ("nothing_decoded", "few_tokens")


ROOF = ComputeRoof(154.8e12, 7.07e9)


def test_a_window_of_prefills_has_no_share_of_the_bandwidth_and_is_judged_all_the_same() -> None:
    """By the whole expected time: half of the steps' rate is normal where prompts take the rest."""
    rates = replace(
        RATES, steps_per_second_per_engine=20.3, prompt_tokens_per_second=1_900.0,
        computed_prompt_tokens_per_second=1_900.0,
    )  # fmt: skip
    found = assess(replace(ALL, roof=ROOF, seen=replace(WINDOW, rates=rates)))
    assert found.efficiency is None
    assert found.normal is not None
    assert found.normal.prefill_share == pytest.approx(0.5, abs=0.1)
    assert found.prefill_rate == 1_900.0
    assert found.speed.level == "healthy"
    without = replace(rates, prompt_tokens_per_second=0.0, computed_prompt_tokens_per_second=0.0)
    assert assess(replace(ALL, roof=ROOF, seen=replace(WINDOW, rates=without))).speed.level == (
        "suspect"
    )


def test_prompts_that_the_cache_may_have_given_excuse_and_accuse_nothing() -> None:
    """Of how many were computed only bounds are known: a range that holds both ends."""
    rates = replace(RATES, steps_per_second_per_engine=20.3, prompt_tokens_per_second=1_900.0)
    found = assess(replace(ALL, roof=ROOF, seen=replace(WINDOW, rates=rates)))
    assert found.normal is not None
    assert found.normal.range.high > 0.85
    assert found.prefill_rate is None
    assert found.speed.level == "healthy"


@pytest.mark.parametrize(
    ("context", "ridge", "causes"),
    [(100, 12.0, ("compute_bound",)), (8_000, 20.0, ())],
    ids=["short", "long"],
)
def test_long_contexts_move_the_batch_at_which_computing_is_the_limit(
    context: int, ridge: float, causes: tuple[str, ...]
) -> None:
    """On this card one takes over at 12 sequences as long as the KV cache is short, at 20 when it
    holds 8,000 tokens of each. Both are slower than is normal with that.
    """
    pages = tuple(
        Page(EngineReading(at=at, running=16, context_tokens_per_engine=16.0 * context), 16)
        for at in (0.0, 30.0)
    )
    seen = replace(
        WINDOW, pages=pages, rates=replace(RATES, steps_per_second_per_engine=5.0),
        decoded=replace(DECODED, sequence_seconds=480.0),
    )  # fmt: skip
    found = assess(replace(ALL, roof=ComputeRoof(2 * 7.07e9 / 1.53e-3, 7.07e9), seen=seen))
    assert found.speed.level == "suspect"
    assert found.speed.evidence.ridge_batch == pytest.approx(ridge, abs=0.6)
    assert found.speed.causes == causes
    assert ("compute_bound" in found.speed.ruled_out) is (not causes)


READING = GpuReading(
    0, name="NVIDIA RTX A6000", memory_total_bytes=48 * 1024**3, utilization_ratio=1.0,
    memory_clock_mhz=8001, max_memory_clock_mhz=8001, memory_bus_bits=384,
)  # fmt: skip


def slow(factor: float, utilization: float = 1.0, **more: Any) -> Inputs:
    """Steps take so many times as long as in the founding run, on a GPU that serves nobody else."""
    rates = replace(
        RATES, steps_per_second_per_engine=40.6 / factor, prompt_tokens_per_second=0.0,
        computed_prompt_tokens_per_second=0.0,
    )  # fmt: skip
    inputs = replace(
        ALL, roof=ROOF, seen=replace(WINDOW, rates=rates), contention="none",
        gpus=(replace(READING, utilization_ratio=utilization),),
    )  # fmt: skip
    return replace(inputs, **more)


@pytest.mark.parametrize(
    ("inputs", "causes"),
    [
        (slow(3.0, utilization=1.0), ("slow_card",)),
        (slow(3.0, utilization=0.35), ("cpu_bound", "slow_engine")),
        (slow(3.0, utilization=0.82), ("slow_card",)),
        (slow(1.12), ()),
        (slow(3.0, contention="active_neighbours"), ("active_neighbour",)),
        (slow(3.0, gpus=()), ()),
    ],
    ids=[
        "kernels run all the time", "the GPU rests", "the GPU rests as usual",
        "as slow as kernels that are not fused", "others may be what runs", "nobody tells",
    ],
)  # fmt: skip
def test_one_window_tells_by_the_resting_gpu_what_is_slow(
    inputs: Inputs, causes: tuple[CauseKind, ...]
) -> None:
    assert assess(inputs).speed.causes == causes


def test_a_low_clock_comes_behind_an_engine_that_lets_its_gpu_rest() -> None:
    low = replace(READING, utilization_ratio=0.2, memory_clock_mhz=5001)
    assert assess(slow(4.0, gpus=(low,))).speed.causes[-1] == "memory_clock_low"
    working = replace(low, utilization_ratio=1.0)
    assert assess(slow(4.0, gpus=(working,))).speed.causes[0] == "memory_clock_low"


@pytest.mark.parametrize(("times", "first"), [(3.0, "wrong_ceiling_inputs"), (1.0, None)])
def test_a_bandwidth_that_was_set_wrongly_is_held_against_the_card(
    times: float, first: CauseKind | None
) -> None:
    """A setting that makes a healthy engine slow is what is wrong with it."""
    as_set = replace(A6000, source="settings", bytes_per_second=768e9 * times)
    speed = assess(slow(1.0, bandwidth=as_set)).speed
    assert (speed.causes[0] if speed.causes else None) == first


def test_a_prompt_that_is_counted_when_it_is_done_accuses_nobody_before() -> None:
    """An engine counts a prompt with its first token: seconds of computing lie before it."""
    window = slow(1.6).seen
    assert isinstance(window, WindowSeen)
    last = EngineReading(at=30.0, running=2, waiting=0)
    waited = replace(DECODED, open_wait_seconds=14.0)
    begun = assess(slow(1.6, seen=replace(window, decoded=waited, last=last)))
    assert begun.speed.level == "healthy"
    queued = replace(last, waiting=1)
    behind = assess(slow(1.6, seen=replace(window, decoded=waited, last=queued)))
    assert behind.speed.level != "healthy", "who waits in a queue has nothing computed"
