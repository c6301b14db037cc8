"""The batch is kept as vLLM keeps it, no token and no time is lost, and the page tells it."""

import time
from dataclasses import replace
from itertools import pairwise
from statistics import mean

import pytest
from tokgauge.engine.metrics_page import between, read

from tests.physics.engine import Engine
from tests.physics.ideal import ideal
from tests.physics.loads import LOADS, Load, LoadKind, drawn_load
from tests.physics.page import STARTED_AT
from tests.physics.truth import KINDS, Kind, drawn

pytestmark = pytest.mark.socketless


def sample(engine: Engine, name: str) -> float:
    lines = engine.page().decode().splitlines()
    (value,) = (float(line.split()[-1]) for line in lines if line.startswith(f"vllm:{name}{{"))
    return value


def test_a_small_case_computed_by_hand() -> None:
    truth = ideal(cpu_step=1e-3)
    engine = Engine(truth)
    request = engine.submit(at=1.0, prompt_tokens=100, max_tokens=3)
    engine.run_until(10.0)
    # 104 rows: what the next CUDA graph has. The weights take longer to read than to multiply.
    rows = 104
    prompt = engine.machine.seconds(0, 0, 0, [(0, 100)])
    reading = truth.published.dense_bytes + 57_344 * 100
    activations = 2 * rows * 28 * (2 * 3584 + 3584 + 4608 + 3 * 18_944 + 2 * 3584 + 4 * 4 * 3584)
    assert prompt == pytest.approx(1e-3 + (reading + activations) / 768e9, rel=2e-3)
    second, third = (1e-3 + (reading + 57_344 * more) / 768e9 for more in (1, 2))
    first = 1.0 + prompt
    assert request.event_times == pytest.approx(
        [first, first + second, first + second + third], rel=1e-4
    )
    assert request.event_tokens == [1, 1, 1]
    assert request.finished_at == request.event_times[-1]
    assert list(engine.log.prompt_tokens) == [100, 0, 0]
    assert list(engine.log.contexts) == [0, 101, 102]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("load", LOADS)
def test_no_token_and_no_time_is_lost(kind: Kind, load: LoadKind) -> None:
    truth = drawn(11, kind)
    engine = Engine(truth)
    drawn_load(truth, load, 3).start(engine, 3, until=8.0)
    engine.run_until(6.0)
    engine.page()
    engine.run_until(4000.0)
    assert all(request.finished_at is not None for request in engine.requests)
    for request in engine.requests:
        assert request.completion_tokens == request.max_tokens == sum(request.event_tokens)
        times = request.event_times
        assert len(times) == len(request.event_tokens)
        assert request.sent_at < times[0]
        assert all(a < b for a, b in pairwise(times))
    reading = read(engine.page(), 4000.0)
    assert reading.problem is None
    assert (reading.running, reading.waiting, reading.kv_cache_usage) == (0, 0, 0.0)
    answered = sum(request.completion_tokens for request in engine.requests)
    prompted = sum(request.prompt_tokens for request in engine.requests)
    cached = sum(request.cached_tokens for request in engine.requests)
    assert reading.generation_tokens_total == answered
    assert reading.prompt_tokens_total == prompted
    assert reading.computed_prompt_tokens_total == prompted - cached
    assert reading.preemptions_total == 0
    assert sum(engine.log.prompt_tokens) == prompted - cached
    starts = [end - took for end, took in zip(engine.log.ends, engine.log.seconds, strict=True)]
    for end, start in zip(engine.log.ends, starts[1:], strict=False):
        assert start > end - 1e-9


def test_how_often_one_looks_changes_nothing() -> None:
    for kind in KINDS:
        pages = []
        for looks in (1, 400):
            engine = Engine(drawn(4, kind))
            engine.change(5.0, neighbour=0.4)
            Load((100, 3000), (20, 300), users=12, think=0.1).start(engine, 1, until=9.0)
            for look in range(looks):
                engine.run_until(10.0 * (look + 1) / looks)
                engine.page()
            pages.append((engine.page(), [r.event_times for r in engine.requests]))
        assert pages[0] == pages[1]


def test_a_long_prompt_is_cut_and_its_parts_without_output_are_not_counted() -> None:
    engine = Engine(ideal(token_budget=2048))
    engine.submit(0.0, 5000, 1)
    engine.run_until(0.3)
    assert sample(engine, "iteration_tokens_total_count") == 0
    assert sample(engine, "prompt_tokens_total") == 0
    engine.run_until(60.0)
    assert list(engine.log.prompt_tokens) == [2048, 2048, 904]
    assert sample(engine, "iteration_tokens_total_count") == 1
    assert sample(engine, "iteration_tokens_total_sum") == 5001


def test_others_go_on_beside_a_prompt_within_the_token_budget() -> None:
    engine = Engine(ideal(token_budget=2048))
    others = [engine.submit(0.0, 50, 400) for _ in range(4)]
    engine.submit(2.0, 6000, 1)
    engine.run_until(60.0)
    mixed = [i for i, tokens in enumerate(engine.log.prompt_tokens) if tokens and i > 0]
    assert [engine.log.prompt_tokens[i] for i in mixed] == [2044, 2044, 1912]
    assert [engine.log.decodes[i] for i in mixed] == [4, 4, 4]
    assert max(b - a for a, b in pairwise(others[0].event_times)) > 0.15


def test_more_than_the_batch_limit_wait_in_turn() -> None:
    engine = Engine(ideal(max_num_seqs=2))
    requests = [engine.submit(0.0, 100, 50) for _ in range(6)]
    engine.run_until(0.5)
    assert (sample(engine, "num_requests_running"), sample(engine, "num_requests_waiting")) == (
        2,
        4,
    )
    engine.run_until(60.0)
    firsts = [request.event_times[0] for request in requests]
    assert firsts == sorted(firsts)
    waited = sample(engine, "request_queue_time_seconds_sum")
    expected = sum(max(0.0, firsts[i] - firsts[0]) for i in range(6))
    assert waited == pytest.approx(expected, rel=0.05)
    assert sample(engine, "request_queue_time_seconds_count") == 6


def test_a_full_cache_preempts_the_youngest_which_computes_anew() -> None:
    engine = Engine(ideal(kv_cache_tokens=1024))
    requests = [engine.submit(0.001 * i, 300, 120) for i in range(3)]
    engine.run_until(60.0)
    assert sample(engine, "num_preemptions_total") == 1
    assert [request.completion_tokens for request in requests] == [120] * 3
    computed_anew = sum(engine.log.prompt_tokens) - 900
    assert 300 < computed_anew < 420
    assert max(b - a for a, b in pairwise(requests[2].event_times)) > 0.5
    assert sample(engine, "prompt_tokens_total") == 900


def test_a_preempted_request_comes_before_all_that_wait() -> None:
    engine = Engine(ideal(kv_cache_tokens=1024))
    requests = [engine.submit(0.001 * i, 300, 120) for i in range(5)]
    engine.run_until(60.0)
    assert sample(engine, "num_preemptions_total") > 0
    ends = [request.event_times[-1] for request in requests]
    assert ends == sorted(ends)


def test_a_smaller_cache_from_a_time_on_preempts_until_it_suffices() -> None:
    engine = Engine(ideal(kv_cache_tokens=16_000))
    for _ in range(8):
        engine.submit(0.0, 1000, 500)
    engine.change(4.0, cache=0.3)
    engine.run_until(3.9)
    assert sample(engine, "kv_cache_usage_perc") == pytest.approx(0.57, abs=0.03)
    engine.run_until(6.0)
    assert sample(engine, "num_preemptions_total") >= 4
    assert sample(engine, "kv_cache_usage_perc") > 0.6
    assert 'num_gpu_blocks="300"' in engine.page().decode()
    engine.run_until(100.0)
    assert sample(engine, "generation_tokens_total") == 4000


def test_a_shared_prefix_is_computed_by_nobody_and_held_once() -> None:
    engine = Engine(ideal(kv_cache_tokens=16_000))
    for _ in range(4):
        engine.submit(0.0, 1000, 100, cached=800)
    engine.run_until(0.2)
    assert engine.log.prompt_tokens[0] == 800
    assert sample(engine, "kv_cache_usage_perc") == pytest.approx((50 + 4 * 13) / 1000, abs=0.005)
    assert sample(engine, "prompt_tokens_cached_total") == 3200
    assert sample(engine, "prompt_tokens_total") == 4000
    engine.run_until(10.0)
    assert engine.log.contexts[1] == 4 * 1001


def test_speculation_gains_what_its_acceptance_promises() -> None:
    engine = Engine(ideal(draft_tokens=3, acceptance=0.7))
    request = engine.submit(0.0, 100, 20_000)
    engine.change(60.0, acceptance=0.1)
    engine.run_until(59.0)
    drafts = sample(engine, "spec_decode_num_drafts_total")
    accepted = sample(engine, "spec_decode_num_accepted_tokens_total")
    assert accepted / drafts == pytest.approx(0.7 + 0.49 + 0.343, rel=0.03)
    assert mean(request.event_tokens) == pytest.approx(1 + accepted / drafts, rel=0.001)
    seen = len(request.event_tokens)
    engine.run_until(250.0)
    assert mean(request.event_tokens[seen + 60 :]) == pytest.approx(1.111, rel=0.02)


def test_a_change_holds_from_its_time_on() -> None:
    engine = Engine(ideal())
    engine.submit(0.0, 100, 2000)
    engine.change(10.0, memory_clock=0.5)
    engine.change(20.0, memory_clock=1.0, neighbour=0.5)
    engine.run_until(30.0)
    took = dict(zip(engine.log.ends, engine.log.seconds, strict=True))
    before = mean(s for t, s in took.items() if 1 < t < 10)
    slow = mean(s for t, s in took.items() if 11 < t < 20)
    shared = [s for t, s in took.items() if t > 21]
    assert slow == pytest.approx(2 * before, rel=0.01)
    assert mean(shared) == pytest.approx(2 * before, rel=0.1)
    assert max(shared) > 2.5 * before
    assert engine.gpu().neighbours == (0.5,)
    with pytest.raises(TypeError, match="nieghbour"):
        engine.change(40.0, nieghbour=0.5)


def test_jitter_and_hiccups_are_as_drawn() -> None:
    engine = Engine(ideal(jitter=0.02, hiccups=0.2, hiccup=0.05))
    engine.submit(0.0, 100, 20_000)
    engine.run_until(300.0)
    usual = engine.machine.seconds(1, 8000, 8000)
    took = list(engine.log.seconds)
    late = [s for s in took if s > 1.2 * usual]
    assert 30 < len(late) < 90
    low, high = sorted(took[200:600])[63], sorted(took[200:600])[336]
    assert high / low == pytest.approx(1.04, abs=0.01)


def test_the_product_reads_the_page_as_that_of_vllm() -> None:
    truth = drawn(2, "speculation")
    engine = Engine(truth)
    Load((200, 400), (200, 400), users=8).start(engine, 1, until=60.0)
    engine.run_until(10.0)
    earlier = read(engine.page(), engine.time)
    engine.run_until(40.0)
    later = read(engine.page(), engine.time)
    assert (later.kind, later.models, later.started_at) == ("vllm", ("sim",), STARTED_AT)
    assert (later.running or 0) + (later.waiting or 0) == 8  # one may have come during a step
    held = sum(
        r.prompt_tokens + r.completion_tokens for r in engine.requests if r.finished_at is None
    )
    assert later.context_tokens_per_engine == pytest.approx(held, rel=0.1)
    rates = between(earlier, later)
    steps = sum(10.0 < end <= 40.0 for end in engine.log.ends)
    assert rates.steps_per_second_per_engine == pytest.approx(steps / 30)
    assert rates.tokens_per_step == pytest.approx(
        1 + sum(truth.acceptance**i for i in range(1, truth.draft_tokens + 1)), rel=0.05
    )


def test_what_cannot_be_is_refused() -> None:
    engine = Engine(ideal(kv_cache_tokens=1600))
    engine.run_until(5.0)
    with pytest.raises(ValueError, match="past"):
        engine.submit(4.0, 10, 10)
    with pytest.raises(ValueError, match="not fit"):
        engine.submit(6.0, 1600, 10)
    with pytest.raises(ValueError, match="past"):
        engine.change(1.0, eager=True)


def test_pauses_are_idle_and_the_next_work_begins_in_time() -> None:
    engine = Engine(ideal())
    Load((100, 100), (50, 50), users=4, pauses=(5.0, 10.0)).start(engine, 1, until=40.0)
    engine.run_until(60.0)
    sent = [request.sent_at % 15.0 for request in engine.requests]
    assert max(sent) < 5.0
    assert {int(request.sent_at // 15.0) for request in engine.requests} == {0, 1, 2}
    assert not any(8.0 < end % 15.0 < 15.0 for end in engine.log.ends)


def test_an_open_loop_sends_at_its_rate_and_long_prompts_come_between() -> None:
    engine = Engine(ideal())
    load = Load((50, 50), (5, 5), rate=4.0, long_prompts=(5.0, 4000))
    load.start(engine, 1, until=200.0)
    long = sum(request.prompt_tokens == 4000 for request in engine.requests)
    assert 35 < long < 45
    assert 700 < len(engine.requests) - long < 900


@pytest.mark.timed
def test_thirty_seconds_of_32_users_cost_little() -> None:
    truth = replace(drawn(1, "dense"), max_num_seqs=256)
    engine = Engine(truth)
    Load((200, 1000), (200, 400), users=32).start(engine, 1, until=40.0)
    began = time.process_time()
    engine.run_until(30.0)
    assert time.process_time() - began < 1.5  # 0.05 on a quiet machine
