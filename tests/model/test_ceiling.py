"""The founding division and the tables that follow from it, on both bases."""

import math
from pathlib import Path

import pytest
from tokgauge.model import ceiling
from tokgauge.model.config import parse_config
from tokgauge.model.kv import KvCache, kv_from_bytes_per_token, kv_from_config
from tokgauge.model.resolve import resolve_weights
from tokgauge.model.weights import WeightsFound

from tests.model import checkpoints

pytestmark = pytest.mark.socketless

A6000 = 768e9
KV = kv_from_bytes_per_token(57_344)


@pytest.fixture(scope="module")
def bf16(tmp_path_factory: pytest.TempPathFactory) -> WeightsFound:
    return resolved(tmp_path_factory.mktemp("bf16"), "bf16")


@pytest.fixture(scope="module")
def awq(tmp_path_factory: pytest.TempPathFactory) -> WeightsFound:
    return resolved(tmp_path_factory.mktemp("awq"), "awq")


def resolved(directory: Path, form: str) -> WeightsFound:
    checkpoints.write(directory, checkpoints.qwen2_5_7b(form))
    weights = resolve_weights(str(directory), environment={})
    assert isinstance(weights, WeightsFound)
    return weights


def known(value: float | None) -> float:
    assert value is not None
    return value


@pytest.mark.parametrize(
    ("bandwidth", "checkpoint", "streamed"),
    [(768e9, 50.4, 54.3), (2039e9, 134, 144), (3350e9, 220, 237)],
)
def test_the_founding_division(
    bf16: WeightsFound, bandwidth: float, checkpoint: float, streamed: float
) -> None:
    tolerance = 0.05 if checkpoint < 100 else 0.5
    for basis, expected in (("checkpoint", checkpoint), ("streamed", streamed)):
        weights = known(bf16.bytes_per_step(basis=basis))  # type: ignore[arg-type]
        found = ceiling.single_stream_ceiling(bandwidth, weights)
        assert found == pytest.approx(expected, abs=tolerance)


def test_the_founding_share(bf16: WeightsFound) -> None:
    measured = 512 / 12.616
    assert measured == pytest.approx(40.6, abs=0.05)
    whole = ceiling.efficiency(measured, known(bf16.bytes_per_step(basis="checkpoint")), A6000)
    read = ceiling.efficiency(measured, known(bf16.bytes_per_step(basis="streamed")), A6000)
    assert whole == pytest.approx(0.805, abs=0.0005)
    assert read == pytest.approx(0.747, abs=0.0005)


def test_four_bits(awq: WeightsFound) -> None:
    streamed = known(awq.bytes_per_step(basis="streamed"))
    checkpoint = known(awq.bytes_per_step(basis="checkpoint"))
    assert ceiling.single_stream_ceiling(A6000, streamed) == pytest.approx(171.4, abs=0.05)
    assert ceiling.single_stream_ceiling(A6000, checkpoint) == pytest.approx(137.9, abs=0.05)


@pytest.mark.parametrize(
    ("context", "speed"), [(512, 54.2), (2048, 53.9), (8192, 52.6), (32_768, 47.9)]
)
def test_context_lowers_the_ceiling(bf16: WeightsFound, context: int, speed: float) -> None:
    weights = known(bf16.bytes_per_step())
    found = ceiling.single_stream_ceiling(A6000, weights, KV, context)
    assert found == pytest.approx(speed, abs=0.05)


@pytest.mark.parametrize(
    ("batch", "together", "each"),
    [
        (1, 54, 53.9),
        (8, 407, 50.9),
        (32, 1373, 42.9),
        (64, 2270, 35.5),
        (128, 3370, 26.3),
        (256, 4448, 17.4),
    ],
)
def test_a_batch_shares_the_reading(
    bf16: WeightsFound, batch: int, together: float, each: float
) -> None:
    read = ceiling.step_bytes(known(bf16.bytes_per_step()), KV, [2048] * batch)
    found = ceiling.step_ceiling(A6000, read, batch)
    assert found.tokens_per_second == pytest.approx(together, abs=0.7)
    assert found.tokens_per_second_per_stream == pytest.approx(each, abs=0.06)
    assert found.steps_per_second == found.tokens_per_second_per_stream
    # A saturated card shows its efficiency at any batch, although each stream is slow.
    assert ceiling.efficiency(0.8 * found.steps_per_second, read, A6000) == pytest.approx(0.8)


def test_steps_of_a_mixture_read_more_with_more_tokens(tmp_path: Path) -> None:
    weights = resolve_weights(
        str(checkpoints.write(tmp_path, checkpoints.qwen3_30b_a3b())), environment={}
    )
    assert isinstance(weights, WeightsFound)
    alone = ceiling.step_ceiling(A6000, known(weights.bytes_per_step(1)))
    assert alone.tokens_per_second == pytest.approx(768 / 6.0837, rel=1e-3)
    many = ceiling.step_ceiling(A6000, known(weights.bytes_per_step(64)), 64)
    assert many.tokens_per_second_per_stream == pytest.approx(768 / (2.460 + 57.03), rel=1e-2)


def test_tensor_parallel_adds_bandwidth_and_may_repeat_heads(bf16: WeightsFound) -> None:
    weights = known(bf16.bytes_per_step())
    config = kv_from_config(parse_config(checkpoints.qwen2_5_7b().config), "test")
    assert isinstance(config, KvCache)
    assert ceiling.serving_bandwidth(A6000, 2) == 2 * A6000
    once = ceiling.step_bytes(weights, config, [8192], tensor_parallel=4)
    twice = ceiling.step_bytes(weights, config, [8192], tensor_parallel=8)
    assert once == weights + 57_344 * 8192
    assert twice == weights + 2 * 57_344 * 8192


@pytest.mark.parametrize(
    ("bandwidth", "flops", "batch"),
    [(768e9, 154.8e12, 202), (2039e9, 312e12, 153), (3350e9, 989e12, 295)],
)
def test_the_ridge_where_computing_takes_over(bandwidth: float, flops: float, batch: int) -> None:
    roof = ceiling.ComputeRoof(flops, 7e9)
    ridge = ceiling.ridge_batch(bandwidth, 14e9, roof)
    assert ridge == pytest.approx(batch, abs=0.6)
    assert roof.seconds(ridge) == pytest.approx(14e9 / bandwidth)


def test_with_long_contexts_computing_never_takes_over() -> None:
    roof = ceiling.ComputeRoof(154.8e12, 7.07e9)
    assert ceiling.ridge_batch(A6000, 14.14e9, roof, 57_344 * 1100) < math.inf
    assert ceiling.ridge_batch(A6000, 14.14e9, roof, 57_344 * 1300) == math.inf


def test_contexts_move_the_ridge_to_where_both_take_as_long() -> None:
    roof = ceiling.ComputeRoof(154.8e12, 7.07e9)
    ridge = ceiling.ridge_batch(A6000, 14.14e9, roof, 57_344 * 512)
    read = ceiling.step_bytes(14.14e9, KV, [512] * round(ridge))
    assert roof.seconds(ridge) == pytest.approx(read / A6000, rel=0.01)
    assert ridge > 1.5 * ceiling.ridge_batch(A6000, 14.14e9, roof)


def test_an_efficiency_above_one_is_not_cut_off() -> None:
    assert ceiling.efficiency(108.6, 14.14e9, A6000) == pytest.approx(2.0, abs=0.001)
    assert ceiling.achieved_bandwidth(40.6, 14.14e9) == pytest.approx(574e9, rel=1e-3)
