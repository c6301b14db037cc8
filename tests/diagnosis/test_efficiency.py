"""The bytes of a window whose contexts are only known within bounds."""

import pytest
from tokgauge.diagnosis.efficiency import StepBytes, request_ratio, step_bytes
from tokgauge.diagnosis.inputs import ModelBytes
from tokgauge.diagnosis.work import NoEfficiency, StepShape
from tokgauge.model.kv import KvCache, KvGroup, KvUnknown
from tokgauge.model.weights import Draft, Streamed, WeightsFound

# Gemma 3 270M in 8 bits: 18 layers of one KV head of 256, all but three with a window of 512.
GEMMA = KvCache((KvGroup(3, 1024), KvGroup(15, 1024, "sliding", 512)), 1, "gguf:test")
WEIGHTS = WeightsFound(Streamed(285e6), "gguf:test", 285e6, "gguf:test")


def window(least: float, most: float | None, sequences: float = 1.0) -> StepShape:
    return StepShape(
        sequences=sequences, context_tokens_at_most=most, context_tokens_at_least=least,
        tokens_per_step=1.0,
    )  # fmt: skip


def judged(
    shape: StepShape, kv: KvCache | KvUnknown = GEMMA, weights: WeightsFound = WEIGHTS
) -> float:
    found = step_bytes(shape, ModelBytes(weights, kv), 1)
    assert isinstance(found, StepBytes), found
    return found.total()


def test_bounds_that_are_near_each_other_tell_the_bytes() -> None:
    # 400 tokens at most: 7.4 MB of 285 at most, so 3.7 MB are within 2 % whatever it was.
    assert judged(window(0, 400)) == pytest.approx(285e6 + 18 * 1024 * 200)
    # A long prompt that the engine has counted: 3,000 to 3,100 tokens.
    assert judged(window(3000, 3100)) == pytest.approx(285e6 + 1024 * (3 * 3050 + 15 * 512))


@pytest.mark.parametrize("seen", [window(0, 5000), window(0, None)])
def test_bounds_that_are_far_apart_do_not(seen: StepShape) -> None:
    found = step_bytes(seen, ModelBytes(WEIGHTS, GEMMA), 1)
    assert isinstance(found, NoEfficiency)
    assert found.why == "context_unknown"


def test_a_state_counts_although_the_context_is_short() -> None:
    stateful = KvCache(GEMMA.groups, 1, "test", state_bytes=5e6)
    assert judged(window(0, 10, 4.0), stateful) == pytest.approx(285e6 + 4 * 2 * 5e6, rel=1e-3)


def test_an_unknown_state_is_never_left_out() -> None:
    short = KvUnknown("its heads are not told")
    assert judged(window(0, 5), short) == 285e6
    stateful = KvUnknown("its state is not told", negligible_when_short=False)
    found = step_bytes(window(0, 5), ModelBytes(WEIGHTS, stateful), 1)
    assert isinstance(found, NoEfficiency)
    assert found.kv_cache == "its state is not told"


def test_what_drafting_reads_is_part_of_the_step() -> None:
    drafting = Streamed(285e6, draft=Draft(Streamed(20e6), passes=3, verified=4))
    found = WeightsFound(drafting, "test", None, None)
    assert judged(window(0, 0), weights=found) == 285e6 + 3 * 20e6


def test_a_request_is_compared_with_the_ceiling_of_its_own_step() -> None:
    """With more cards than KV heads several cards keep, and read, the same head."""
    kv = KvCache((KvGroup(32, 4096),), 4, "test")
    model = ModelBytes(WeightsFound(Streamed(10e9), "test", None, None), kv)
    cache = 32 * 4096 * 10_000.0
    assert request_ratio(40.0, 1.0, model, 1e12, 10_000.0, 1) == pytest.approx(
        40 * (10e9 + cache) / 1e12
    )
    assert request_ratio(40.0, 1.0, model, 1e12, 10_000.0, 8) == pytest.approx(
        40 * (10e9 + 2 * cache) / 1e12
    )
    unknown = ModelBytes(model.weights, KvUnknown("its heads are not told"))
    assert request_ratio(40.0, 1.0, unknown, 1e12, 10_000.0, 1) is None
    assert request_ratio(40.0, 2.0, unknown, 1e12, 100.0, 1) == pytest.approx(20 * 10e9 / 1e12)
