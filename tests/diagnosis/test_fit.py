"""Constants fitted to work whose truth is known: recovered, covered, or absent."""

import math
import random
from dataclasses import replace
from statistics import mean, median

import pytest
from tokgauge.diagnosis.expected_time import StepWork
from tokgauge.diagnosis.fit import Fitted, NotTold, Observation, fit
from tokgauge.diagnosis.live_fit import LiveFit

pytestmark = pytest.mark.socketless

WEIGHTS, KV = 14.14e9, 57_344.0
FIXED, SEQUENCE, BANDWIDTH, PREFILL = 1.2e-3, 12e-6, 700e9, 8000.0
GRID = [(b, c) for b in (1, 4, 16, 48) for c in (100, 1000, 4000)]


def steps(batch: float, context: float, count: int = 64) -> StepWork:
    read = WEIGHTS + KV * batch * context
    return StepWork(steps=count, bytes=count * read, sequence_steps=count * batch)


def truth(work: StepWork) -> float:
    return work.steps * FIXED + work.sequence_steps * SEQUENCE + work.bytes / BANDWIDTH


def seen(rng: random.Random, work: StepWork, noise: float = 0.01) -> Observation:
    hiccup = 1.5 if rng.random() < 0.05 else 1.0
    return Observation(work, truth(work) * math.exp(rng.gauss(0, noise)) * hiccup)


def prompt(rng: random.Random, tokens: int) -> Observation:
    work = StepWork(steps=0, bytes=0, sequence_steps=0, prompt_tokens=tokens, prompts=1)
    return Observation(work, (0.02 + tokens / PREFILL) * math.exp(rng.gauss(0, 0.01)), starts=1)


def experiment(seed: int) -> list[Observation]:
    rng = random.Random(seed)
    lengths = (128, 256, 512, 1024, 2048, 4096, 1024, 4096)
    return [seen(rng, steps(b, c)) for b, c in GRID] + [prompt(rng, n) for n in lengths]


def missing(found: Fitted | NotTold) -> set[str]:
    return {part.constant for part in found.missing}


def test_constants_and_new_loads_are_covered_and_predicted_within_two_per_cent() -> None:
    covered, errors, told = [], [], 0
    for seed in range(60):
        found = fit(experiment(seed), "calibrated", 768e9)
        if isinstance(found, NotTold):
            continue
        told += 1
        known = found.constants
        assert known.prefill is not None
        pairs = (
            (known.fixed, FIXED), (known.per_sequence, SEQUENCE),
            (known.bandwidth, BANDWIDTH), (known.prefill, PREFILL),
        )  # fmt: skip
        covered += [interval.low <= true <= interval.high for interval, true in pairs]
        rng = random.Random(seed + 1000)
        for _ in range(20):
            work = steps(rng.randint(1, 48), rng.randint(50, 4000), 100)
            expected = found.expected(work)
            assert expected is not None
            covered.append(expected.low <= truth(work) <= expected.high)
            errors.append(abs(expected.middle / truth(work) - 1))
    assert told >= 50
    assert mean(covered) >= 0.9
    assert median(errors) < 0.02


def test_it_is_exact_without_noise() -> None:
    observed = [Observation(steps(b, c), truth(steps(b, c))) for b, c in GRID]
    found = fit(observed, "calibrated", 768e9)
    assert isinstance(found, Fitted)
    assert found.coefficients[:3] == pytest.approx((FIXED, SEQUENCE, 1 / BANDWIDTH), rel=1e-3)
    assert found.constants.prefill is None
    assert missing(found) == {"prefill"}


def test_one_batch_at_one_context_does_not_tell_fixed_cost_from_reading() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        found = fit([seen(rng, steps(1, 500)) for _ in range(40)], "fitted", 768e9)
        assert isinstance(found, NotTold)
        assert "fixed" in missing(found)
        assert "contexts" in " ".join(part.would_tell for part in found.missing)


def test_one_batch_at_many_contexts_does_not_tell_what_a_sequence_costs() -> None:
    rng = random.Random(1)
    slow = 3e-3  # a sequence costs more than all the rest of a step's fixed cost
    found = fit(
        [
            Observation(
                work, truth(work) + slow * work.sequence_steps * math.exp(rng.gauss(0, 0.01))
            )
            for work in (steps(16, c) for c in (100, 500, 1000, 2000, 4000, 8000) * 3)
        ],
        "fitted",
        768e9,
    )
    assert isinstance(found, NotTold)
    assert {"fixed", "per_sequence"} <= missing(found)


def test_few_observations_tell_nothing() -> None:
    for count in range(5):
        assert isinstance(fit(experiment(0)[:count], "fitted", 768e9), NotTold)


def test_no_constant_is_negative_and_no_bandwidth_above_the_cards_own() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        observed = [
            Observation(work, work.bytes / 768e9 * math.exp(rng.gauss(0, 0.03)))
            for work in (steps(b, c) for b, c in GRID)
        ]
        found = fit(observed, "calibrated", 768e9)
        if isinstance(found, Fitted):
            assert min(found.coefficients) >= 0
            assert found.constants.bandwidth.high <= 768e9


def test_the_time_of_a_mixed_window_lies_between_overlap_and_none() -> None:
    found = fit(experiment(3), "calibrated", 768e9)
    assert isinstance(found, Fitted)
    plain = steps(8, 500)
    mixed = StepWork(
        steps=plain.steps, bytes=plain.bytes, sequence_steps=plain.sequence_steps,
        prompt_tokens=4000,
    )  # fmt: skip
    expected = found.expected(mixed)
    assert expected is not None
    fixed = plain.steps * FIXED + plain.sequence_steps * SEQUENCE
    overlapped = fixed + max(plain.bytes / BANDWIDTH, 4000 / PREFILL)
    assert expected.low <= overlapped <= truth(plain) + 4000 / PREFILL <= expected.high


def test_live_windows_are_fitted_and_forgotten_when_conditions_change() -> None:
    rng, live = random.Random(5), LiveFit()
    for look in range(40):
        batch, context = rng.choice(GRID)
        live.add(look * 10.0, seen(rng, steps(batch, context, 500)), "as it was", 768e9)
    found = live.fitted()
    assert isinstance(found, Fitted)
    assert found.constants.source == "fitted"
    assert live.fitted() is found
    live.add(400.0, seen(rng, steps(1, 100)), "another model", 768e9)
    assert isinstance(live.fitted(), NotTold)


def test_live_windows_that_overlap_count_once() -> None:
    rng, live = random.Random(5), LiveFit()
    for look in range(40):
        live.add(look * 0.2, seen(rng, steps(*rng.choice(GRID), 500)), None, 768e9)
    assert isinstance(live.fitted(), NotTold)


def test_long_prompts_take_longer_than_their_tokens_tell() -> None:
    rng, pair = random.Random(3), 1.2e-8
    seconds = [
        (n, max(0.06, n / PREFILL + pair * n * n / 2)) for n in (128, 256, 1024, 2048, 4096, 8192)
    ]
    observations = [seen(rng, steps(b, c)) for b, c in GRID]
    for tokens, took in (*seconds, *seconds):
        alone = prompt(rng, tokens)
        observations.append(Observation(alone.work, 0.02 + took, starts=1))
    found = fit(observations, "calibrated", 768e9)
    assert isinstance(found, Fitted)
    work = StepWork(steps=3, bytes=3 * WEIGHTS, sequence_steps=3, prompt_tokens=32_000, prompts=2)
    long = truth(work) + 32_000 / PREFILL + 2 * pair * 16_000**2 / 2
    expected = found.expected(work)
    assert expected is not None
    assert expected.low <= long <= expected.high
    assert expected.width < 1.8
    unknown = found.expected(replace(work, prompts=0))
    assert unknown is not None
    assert unknown.low < expected.low


def test_a_bent_truth_widens_the_intervals_and_is_no_hiccup() -> None:
    """With four sequences the kernels are slower than with fewer and with more."""
    observations = [
        Observation(steps(b, c), truth(steps(b, c)) * (1.15 if b == 4 else 1.0))
        for b in (1, 2, 4, 16, 48)
        for c in (100, 1000, 4000)
    ]
    found = fit(observations, "calibrated", 768e9)
    assert isinstance(found, Fitted)
    expected = found.expected(steps(4, 2000))
    assert expected is not None
    assert expected.low <= 1.15 * truth(steps(4, 2000)) <= expected.high
    assert found.scatter > 0.05
