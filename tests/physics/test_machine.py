"""A step takes what reading, computing and launching take, and real engines take as long."""

from statistics import median

import pytest

from tests.physics.conditions import Conditions
from tests.physics.hardware import Precision, named_card, named_model
from tests.physics.ideal import ideal
from tests.physics.machine import Machine
from tests.physics.truth import KINDS, Kind, Truth, drawn

pytestmark = pytest.mark.socketless

A6000, H100, L4 = "NVIDIA RTX A6000", "NVIDIA H100 80GB HBM3", "NVIDIA L4"


def healthy(truth: Truth) -> Machine:
    return Machine(truth, Conditions())


def test_without_losses_one_token_takes_the_reading_of_weights_and_cache() -> None:
    # 28 layers of 3584 x (4608 + 3584 + 3 x 18944), a head of 3584 x 152064, two bytes each.
    weights = 2 * (28 * 3584 * (4608 + 3584 + 3 * 18_944) + 3584 * 152_064)
    assert weights == 14_140_571_648
    assert ideal().published.dense_bytes == weights
    assert healthy(ideal()).seconds(1, 0, 0) == pytest.approx(weights / 768e9, rel=1e-3)
    full = healthy(ideal()).seconds(8, 8 * 2048, 2048)
    assert full == pytest.approx((weights + 57_344 * 8 * 2048) / 768e9, rel=5e-3)


def test_without_losses_a_prompt_takes_its_arithmetic() -> None:
    truth = ideal()
    layers = truth.published.parameters_per_token - 3584 * 152_064
    products = 2 * layers * 2048 + 4 * 28 * 28 * 128 * 2048**2 / 2
    head = 2 * 3584 * 152_064 / 768e9
    elementwise = 28 * 4 * 8 * 3584 * 2048 / 768e9
    expected = products / 154.8e12 + elementwise + head
    assert healthy(truth).seconds(0, 0, 0, [(0, 2048)]) == pytest.approx(expected, rel=5e-3)


def test_the_constants_for_scoring_are_those_that_were_put_in() -> None:
    truth = ideal(cpu_step=2e-3, cpu_sequence=1e-5, attainable=0.8, attention=0.9)
    constants = healthy(truth).constants()
    assert constants.fixed_seconds == pytest.approx(2.01e-3, rel=0.02)
    assert constants.sequence_seconds == pytest.approx(2.2e-5, rel=0.1)  # activations are the rest
    assert constants.weights_bandwidth == pytest.approx(0.8 * 768e9)
    assert constants.attention_bandwidth == pytest.approx(0.72 * 768e9)
    assert 0.85 * 154.8e12 < constants.prefill_flops < 154.8e12


def test_a_mixed_step_reads_the_weights_once_and_hides_that_behind_the_arithmetic() -> None:
    machine = healthy(ideal())
    prompt = machine.seconds(0, 0, 0, [(0, 1024)])
    mixed = machine.seconds(8, 8 * 500, 500, [(0, 1024)])
    apart = prompt + machine.seconds(8, 8 * 500, 500)
    assert prompt < mixed < 0.95 * apart


def test_experts_visited_without_skew_are_those_of_the_textbook() -> None:
    machine = healthy(ideal("NVIDIA H200", "Qwen3-30B-A3B"))
    assert [round(machine.experts(t), 1) for t in (1, 2, 8, 64)] == [8.0, 15.5, 51.6, 125.9]
    skewed = healthy(
        ideal("NVIDIA H200", "Qwen3-30B-A3B", routing_skew=0.7, routing_correlation=0.9)
    )
    assert skewed.experts(1) == pytest.approx(8.0)
    assert skewed.experts(8) < 45


@pytest.mark.parametrize(
    ("card", "model", "precision", "sequences", "observed"),
    [
        (A6000, "Qwen2.5-7B", "bf16", 1, 0.75),
        (A6000, "Qwen2.5-7B", "int4", 1, 0.58),
        (H100, "Llama-3.2-1B", "bf16", 1, 0.5),
        (L4, "Qwen2.5-7B", "bf16", 1, 0.81),
        ("NVIDIA GB10", "Llama-3.3-70B", "int4", 1, 0.61),
    ],
)
def test_shares_of_the_bandwidth_that_people_measured_are_ordinary_here(
    card: str, model: str, precision: Precision, sequences: int, observed: float
) -> None:
    shares = []
    for seed in range(60):
        truth = drawn(seed, "dense", named_card(card), named_model(model), precision, eager=False)
        known = truth.published
        size = known.dense_bytes + sequences * 512 * known.kv_bytes_per_token
        seconds = healthy(truth).seconds(sequences, sequences * 512, 512)
        shares.append(size / known.bandwidth / seconds)
    assert min(shares) < observed < max(shares)
    assert abs(median(shares) - observed) < 0.1


def test_eager_mode_costs_a_fast_card_more() -> None:
    slower = {}
    for card in (L4, H100):
        truth = drawn(5, "dense", named_card(card), named_model("Qwen2.5-7B"), "bf16", eager=False)
        eager = Machine(truth, Conditions(eager=True)).seconds(1, 500, 500)
        slower[card] = eager / healthy(truth).seconds(1, 500, 500)
    assert 1.0 < slower[L4] < 1.06
    assert 1.1 < slower[H100] < 1.5


def test_a_small_model_without_graphs_waits_for_its_launches() -> None:
    truth = ideal("NVIDIA H100 80GB HBM3", "Llama-3.2-1B", launch=20e-6)
    reading = healthy(truth).seconds(1, 0, 0)
    assert Machine(truth, Conditions(eager=True)).seconds(1, 0, 0) == pytest.approx(16 * 15 * 20e-6)
    assert reading < 16 * 15 * 20e-6 / 5


def test_each_fault_takes_what_it_is_named_after() -> None:
    truth = ideal(cpu_step=1e-3, cpu_sequence=1e-4)
    whole = healthy(truth).seconds(4, 2000, 500)
    gpu = whole - 1.4e-3

    def under(**conditions: float) -> float:
        return Machine(truth, Conditions(**conditions)).seconds(4, 2000, 500)  # type: ignore[arg-type]

    assert under(neighbour=0.5) == pytest.approx(whole + gpu)
    assert under(memory_clock=0.5) == pytest.approx(whole + gpu)
    assert under(stolen_cpu=3.0) == pytest.approx(whole + 2.8e-3)
    assert under(guided=1e-4) == pytest.approx(whole + 4e-4)


def test_asynchronous_scheduling_hides_the_cpu_until_it_is_the_slower() -> None:
    truth = ideal(asynchronous=True, exposed=1e-4, cpu_step=5e-3)
    gpu = healthy(ideal()).seconds(1, 0, 0)
    assert healthy(truth).seconds(1, 0, 0) == pytest.approx(gpu + 1e-4)
    stolen = Machine(truth, Conditions(stolen_cpu=8.0))
    assert stolen.seconds(1, 0, 0) == pytest.approx(40e-3 + 8e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_one_truth_and_more_work_never_takes_less_time(kind: Kind) -> None:
    for seed in range(20):
        truth = drawn(seed, kind)
        assert truth == drawn(seed, kind)
        assert truth.kv_cache_tokens > 10_000
        machine = healthy(truth)
        assert machine.seconds(4, 8000, 2000) < machine.seconds(4, 32_000, 8000)
        assert machine.seconds(4, 8000, 2000) < machine.seconds(4, 8000, 2000, [(0, 1024)])
        assert machine.seconds(0, 0, 0, [(0, 512)]) < machine.seconds(0, 0, 0, [(0, 2048)])
    assert drawn(1, kind) != drawn(2, kind)
