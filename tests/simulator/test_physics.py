"""Steps take the time that memory and arithmetic take, and the batch obeys its limits."""

import asyncio
import itertools
import json
import math
import time
from collections.abc import AsyncIterator

import httpx2
import pytest
from tokgauge.simulator.profile import EngineProfile, changed
from tokgauge.simulator.scheduler import Generation, Output, Piece, Scheduler, Sequence
from tokgauge.simulator.server import running_engine

from tests.simulator.raw import exchange

pytestmark = pytest.mark.timed

CHAT = "/v1/chat/completions"


def test_one_short_stream_of_the_default_card_gets_40_6_tokens_per_second() -> None:
    assert 1 / EngineProfile().step_seconds(0, 1) == pytest.approx(40.6)


def test_the_step_is_the_slower_of_memory_and_arithmetic() -> None:
    profile = EngineProfile()
    memory = (14.141e9 + 57_344 * 10_000) / (768e9 * profile.efficiency)
    assert profile.step_seconds(10_000, 8) == pytest.approx(memory)
    assert profile.step_seconds(10_000, 2048) == pytest.approx(2 * 7.07e9 * 2048 / 154.8e12)
    half = changed(profile, {"neighbour": 0.5})
    assert half.step_seconds(10_000, 8) == pytest.approx(2 * memory)


def test_a_profile_says_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="efficiency must be above 0"):
        changed(EngineProfile(), {"efficiency": 0.0})
    with pytest.raises(ValueError, match="cannot change while running: max_model_len"):
        changed(EngineProfile(), {"max_model_len": 5})
    with pytest.raises(ValueError, match="unknown word in x-simulate: explode"):
        changed(EngineProfile(), {"random_faults": {"explode": 0.5}})


class Tally:
    """A recorder that counts."""

    def __init__(self) -> None:
        self.steps = self.made = self.preemptions = self.cached = 0

    def step(self, tokens: int, read_bytes: float, flops: float) -> None:
        self.steps += 1

    def admitted(self, prompt_tokens: int, cached_tokens: int) -> None:
        self.cached += cached_tokens

    def first_token(self, sequence: Sequence, now: float) -> None: ...
    def tokens(self, count: int, gap: float | None) -> None:
        self.made += count

    def speculated(self, drafted: int, accepted: int) -> None: ...
    def preempted(self) -> None:
        self.preemptions += 1

    def finished(self, sequence: Sequence, reason: str, now: float) -> None: ...


def sequence(limit: int, prompt: int = 10, first_id: int = 0) -> Sequence:
    return Sequence(
        index=0,
        prompt=list(range(first_id, first_id + prompt)),
        source=itertools.repeat(Piece(" word")),
        limit=limit,
        requested_limit=limit,
        choices=1,
    )


async def arrivals(generation: Generation) -> list[tuple[float, Output]]:
    return [(time.monotonic(), output) async for output in generation.outputs()]


async def generate(
    profile: EngineProfile, sequences: list[Sequence], pause: float = 0.0
) -> tuple[list[list[tuple[float, Output]]], Tally]:
    """Let each sequence run as a request of its own, `pause` seconds apart."""
    tally = Tally()
    scheduler = Scheduler(profile, tally)
    generations = [Generation([each]) for each in sequences]
    steps = None
    reading = []
    try:
        for generation in generations:
            scheduler.submit(generation)
            reading.append(asyncio.create_task(arrivals(generation)))
            if pause:
                steps = steps or asyncio.create_task(scheduler.run())
                await asyncio.sleep(pause)
        steps = steps or asyncio.create_task(scheduler.run())
        return await asyncio.gather(*reading), tally
    finally:
        if steps is not None:
            steps.cancel()


@pytest.mark.parametrize("streams", [1, 4, 16, 64])
def test_the_mean_rate_is_the_physics(streams: int) -> None:
    profile = EngineProfile(speed=2)
    tokens = 140

    async def measure() -> list[list[tuple[float, Output]]]:
        return (await generate(profile, [sequence(tokens) for _ in range(streams)]))[0]

    expected = sum(
        profile.step_seconds(streams * (10 + made), streams) for made in range(1, tokens)
    )
    # Other people's load on the machine can only make a run longer, so the best of five counts.
    for _ in range(5):
        found = asyncio.run(measure())
        assert all(len(stream) == tokens for stream in found)
        took = [(stream[-1][0] - stream[0][0]) * profile.speed for stream in found]
        mean = sum(took) / streams
        if math.isclose(mean, expected, rel_tol=0.01):
            break
    assert mean == pytest.approx(expected, rel=0.01)


def test_late_timers_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = EngineProfile(speed=5)
    real = asyncio.sleep

    async def late(delay: float) -> None:
        await real(delay + 0.002)

    monkeypatch.setattr("tokgauge.simulator.scheduler.asyncio.sleep", late)
    (stream,), _ = asyncio.run(generate(profile, [sequence(200)]))
    expected = sum(profile.step_seconds(10 + made, 1) for made in range(1, 200)) / 5
    # 2 ms at each of 199 steps would be 40 % more.
    assert stream[-1][0] - stream[0][0] == pytest.approx(expected, rel=0.1)


def test_speculative_decoding_gives_the_mean_tokens_per_step_in_one_event_each() -> None:
    profile = EngineProfile(speed=50, tokens_per_step=2.5)
    (stream,), tally = asyncio.run(generate(profile, [sequence(101)]))
    counts = [output.completion_tokens for _, output in stream]
    assert counts[0] == 1
    assert counts[-1] == 101
    assert {after - before for before, after in itertools.pairwise(counts)} == {2, 3}
    assert tally.steps == 41


def test_more_sequences_than_places_wait() -> None:
    profile = EngineProfile(speed=20, max_num_seqs=2)
    streams, _ = asyncio.run(generate(profile, [sequence(20) for _ in range(3)]))
    first_two_end = min(streams[0][-1][0], streams[1][-1][0])
    assert streams[2][0][0] >= first_two_end
    assert streams[0][0][0] == pytest.approx(streams[1][0][0], abs=0.2)


def test_a_full_cache_preempts_and_still_finishes_all() -> None:
    # Two sequences of 10 + 60 tokens need 5 blocks each, one begins with 1.
    profile = EngineProfile(speed=50, num_gpu_blocks=6)
    streams, tally = asyncio.run(generate(profile, [sequence(60), sequence(60, first_id=1000)]))
    assert tally.preemptions >= 1
    assert [stream[-1][1].completion_tokens for stream in streams] == [60, 60]
    assert tally.made == 120


def test_a_prompt_seen_before_is_taken_from_the_prefix_cache() -> None:
    profile = EngineProfile(speed=50)
    _, tally = asyncio.run(generate(profile, [sequence(2, 160), sequence(2, 160)]))
    # All blocks but the last: something must be computed to sample from.
    assert tally.cached == 144


@pytest.mark.parametrize("chunked", [True, False])
def test_a_long_prompt_slows_or_stops_the_others(chunked: bool) -> None:
    profile = EngineProfile(speed=5, chunked_prefill=chunked, max_num_batched_tokens=512)
    prompt = 20_000
    prefill = 2 * profile.matmul_params * prompt / profile.flops / profile.speed
    streams, _ = asyncio.run(generate(profile, [sequence(90), sequence(2, prompt, 5000)], 0.1))
    running = [at for at, _ in streams[0]]
    gap = max(after - before for before, after in itertools.pairwise(running))
    if chunked:
        assert gap < prefill / 2
    else:
        assert gap >= prefill * 0.9


def test_a_set_time_to_first_token_holds() -> None:
    profile = EngineProfile(speed=2, ttft_seconds=0.6)
    start = time.monotonic()
    (stream,), _ = asyncio.run(generate(profile, [sequence(3, 5000)]))
    assert 0.55 < (stream[0][0] - start) * 2 < 1.5
    # The prompt, which alone takes 0.46 s, is not processed after all.
    assert (stream[1][0] - stream[0][0]) * 2 < 0.4


async def token_times(
    client: httpx2.AsyncClient, tokens: int, headers: dict[str, str] | None = None
) -> AsyncIterator[float]:
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }
    async with client.stream("POST", CHAT, json=body, headers=headers) as response:
        async for line in response.aiter_lines():
            if '"delta":{"content"' in line:
                yield time.monotonic()


def test_the_efficiency_can_change_in_mid_stream() -> None:
    async def measure(url: str) -> list[float]:
        async with httpx2.AsyncClient(base_url=url) as client:
            found = []
            async for at in token_times(client, 60):
                found.append(at)
                if len(found) == 30:
                    patch = {"efficiency": EngineProfile().efficiency / 4}
                    answer = await client.post("/simulator/profile", json=patch)
                    assert answer.json()["efficiency"] == patch["efficiency"]
            return found

    with running_engine(EngineProfile(speed=4)) as url:
        found = asyncio.run(measure(url))
        before, after = found[29] - found[0], found[59] - found[31]
        assert after / 28 > 2.5 * before / 29
        refused = exchange(url, "POST", "/simulator/profile", {"model": "x"})
        assert refused.status == "HTTP/1.1 400 Bad Request"
        assert "cannot change" in json.loads(refused.body)["error"]["message"]


def test_a_client_that_leaves_ends_its_sequence_within_a_step() -> None:
    async def leave(url: str) -> float:
        async with httpx2.AsyncClient(base_url=url) as client:
            async for _ in token_times(client, 10_000):
                break
        async with httpx2.AsyncClient(base_url=url) as client:
            start = time.monotonic()
            while time.monotonic() - start < 5:
                text = (await client.get("/metrics")).text
                labels = 'model_name="Qwen/Qwen2.5-7B-Instruct"} 0.0'
                if f'vllm:num_requests_running{{engine="0",{labels}' in text:
                    assert f'finished_reason="abort",{labels}' in text
                    return time.monotonic() - start
                await asyncio.sleep(0.01)
        raise AssertionError("the sequence still runs")

    with running_engine() as url:
        assert asyncio.run(leave(url)) < 2
