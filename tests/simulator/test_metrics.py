"""The engine's metrics have vLLM's names, labels and buckets, and count what happened."""

from pathlib import Path

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tokgauge.simulator.profile import EngineProfile
from tokgauge.simulator.server import running_engine

from tests.simulator.raw import exchange

CHAT = "/v1/chat/completions"


def samples(url: str) -> dict[str, float]:
    """Sample name (with its reason, if it has one) -> value."""
    text = httpx2.get(f"{url}/metrics").text
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            reason = sample.labels.get("finished_reason") or sample.labels.get("le")
            found[sample.name + (f"/{reason}" if reason else "")] = sample.value
    return found


def test_requests_are_counted() -> None:
    with running_engine(EngineProfile(speed=50, mfu_metrics=True)) as url:
        before = samples(url)
        assert before["vllm:request_success_total/abort"] == 0
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, "n": 2}
        answer = exchange(url, "POST", CHAT, {**body, "ignore_eos": True})
        assert answer.status == "HTTP/1.1 200 OK"
        exchange(url, "POST", CHAT, {**body, "n": 1}, headers={"x-simulate": "tokens=4"})
        found = samples(url)
    assert found["vllm:request_success_total/length"] == 2
    assert found["vllm:request_success_total/stop"] == 1
    assert found["vllm:request_success_total/abort"] == 0
    assert found["vllm:generation_tokens_total"] == 45
    assert found["vllm:prompt_tokens_total"] == 27
    assert found["vllm:prefix_cache_queries_total"] == 27
    assert found["vllm:time_to_first_token_seconds_count"] == 3
    assert found["vllm:inter_token_latency_seconds_count"] == 42
    assert found["vllm:iteration_tokens_total_count"] == 25
    assert found["vllm:num_requests_running"] == 0
    assert found["vllm:kv_cache_usage_perc"] == 0
    # 25 steps read the weights, and a little cache.
    assert found["vllm:estimated_read_bytes_per_gpu_total"] == pytest.approx(
        25 * 14.141e9, rel=0.01
    )


def test_running_and_waiting_are_seen_in_flight() -> None:
    with (
        running_engine(EngineProfile(max_num_seqs=3)) as url,
        httpx2.Client(base_url=url) as client,
    ):
        body = {"messages": [{"role": "user", "content": "hi"}], "n": 5, "max_tokens": 400}
        with client.stream("POST", CHAT, json={**body, "stream": True, "ignore_eos": True}) as r:
            lines = r.iter_lines()
            next(lines)
            found = samples(url)
            next(lines)
    assert found["vllm:num_requests_running"] == 3
    assert found["vllm:num_requests_waiting"] == 2
    assert 0 < found["vllm:kv_cache_usage_perc"] < 0.01


def test_speculation_is_counted_only_when_there_is_any(fast: str) -> None:
    assert "vllm:spec_decode_num_drafts_total" not in samples(fast)
    with running_engine(EngineProfile(speed=50, tokens_per_step=3.0)) as url:
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 61}
        exchange(url, "POST", CHAT, {**body, "ignore_eos": True})
        found = samples(url)
    drafts = found["vllm:spec_decode_num_drafts_total"]
    assert drafts == 20
    assert 1 + found["vllm:spec_decode_num_accepted_tokens_total"] / drafts == 3
    assert found["vllm:spec_decode_num_draft_tokens_total"] == 40


def test_names_labels_and_buckets_are_vllms(recorded_twin: str) -> None:
    recorded = Path(__file__).with_name("vllm_metrics.txt").read_text().splitlines()
    theirs = dict(line.split(" ", 1) for line in recorded)
    text = httpx2.get(f"{recorded_twin}/metrics")
    assert text.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    ours = {}
    for family in text_string_to_metric_families(text.text):
        if not family.name.startswith("vllm:") or family.name.endswith("_created"):
            continue
        names = sorted({name for s in family.samples for name in s.labels} - {"le"})
        bounds = [s.labels["le"] for s in family.samples if "le" in s.labels]
        ours[family.name] = f"{family.type} {','.join(names)} {' '.join(bounds)}".strip()
    own_choice = {"vllm:cache_config_info"}  # has fewer labels than the real one
    for name, description in ours.items():
        if name not in own_choice:
            assert theirs[name] == description
    assert len(ours) > 25
