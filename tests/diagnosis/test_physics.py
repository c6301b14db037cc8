"""The efficiency that the proxy reports is the one that the simulated engine was given.

The engine obeys the physics that the proxy assumes (step time = bytes / bandwidth / efficiency), in
a process of its own; the proxy sees only its traffic and its /metrics.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
from tokgauge.serve.background import BackgroundProxy
from tokgauge.settings import Settings

from tests.support.metrics import scrape

pytestmark = pytest.mark.timed

MODEL = "Qwen/Qwen2.5-7B-Instruct"
WEIGHTS, KV, BANDWIDTH = 14.141e9, 57_344.0, 768e9


@contextmanager
def engine_process(**profile: Any) -> Iterator[str]:
    """A simulated engine in a process of its own, on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # Prompts cost next to nothing, so that a test need not wait for them.
    profile = {"flops": 1e18, "max_num_batched_tokens": 1_000_000, **profile}
    code = (
        "import json, sys\n"
        "from tokgauge.simulator.profile import EngineProfile\n"
        "from tokgauge.simulator.server import run\n"
        "run(EngineProfile(**json.loads(sys.argv[1])), port=int(sys.argv[2]))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(profile), str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with socket.socket() as attempt:
                if attempt.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def prompt(tokens: int, number: int) -> str:
    """About `tokens` tokens that no other prompt begins with: the prefix cache shares nothing."""
    return f"{number} " + "word " * (tokens - 2)


async def stream(client: httpx2.AsyncClient, content: str, until: float) -> None:
    body = {
        "model": MODEL,
        "stream": True,
        "max_tokens": 20_000,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": content}],
    }
    async with client.stream(
        "POST", "/v1/chat/completions", json=body, headers={"x-simulate": "tokens=20000"}
    ) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for _ in answer.aiter_raw():
            if time.monotonic() > until:
                return


def measure(proxy: BackgroundProxy, streams: int, tokens: int, seconds: float) -> dict[str, Any]:
    """Run `streams` streams for a while; the figures just before they end."""
    found: dict[str, Any] = {}

    async def run() -> None:
        until = time.monotonic() + seconds
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(base_url=proxy.url, timeout=60, limits=limits) as client:
            running = [
                asyncio.create_task(stream(client, prompt(tokens, number), until))
                for number in range(streams)
            ]
            await asyncio.sleep(seconds - 0.3)
            page = await asyncio.to_thread(scrape, proxy.port)
            found["efficiency"] = page.total(
                "memory_bandwidth_utilization_ratio", model=MODEL, basis="streamed"
            )
            found["verdict"] = (await client.get("/tokgauge/live")).json()
            await asyncio.gather(*running)

    asyncio.run(run())
    return found


@pytest.fixture
def inputs() -> dict[str, Any]:
    return {
        "weights_bytes": WEIGHTS,
        "kv_bytes_per_token": KV,
        "gpu_bandwidth": BANDWIDTH,
        "nvml": False,
        "rate_window": 4,
        "engine_metrics_interval": 0.5,
        "port": 0,
    }


@pytest.mark.parametrize(
    ("streams", "context", "tokens_per_step"),
    [
        (1, 100, 1), (4, 100, 1), (16, 100, 1), (64, 100, 1),
        (1, 8000, 1), (4, 8000, 1), (16, 8000, 1), (64, 8000, 1),
        (1, 100, 3), (16, 8000, 3),
    ],
)  # fmt: skip
def test_reported_efficiency_is_the_engines(
    inputs: dict[str, Any], streams: int, context: int, tokens_per_step: int
) -> None:
    given = 0.62
    if tokens_per_step > 1:
        inputs["speculative_config"] = '{"method": "ngram", "num_speculative_tokens": 4}'
    with (
        engine_process(
            efficiency=given, tokens_per_step=tokens_per_step, num_gpu_blocks=100_000
        ) as url,
        BackgroundProxy(Settings(upstream=url, **inputs)) as proxy,
    ):
        found = measure(proxy, streams, context, 7.0)
    assert found["efficiency"] is not None, found["verdict"]
    assert found["efficiency"] == pytest.approx(given, rel=0.03)


def test_a_draft_of_unknown_size_is_no_reason_to_accuse(inputs: dict[str, Any]) -> None:
    with (
        engine_process(efficiency=0.62, tokens_per_step=3) as url,
        BackgroundProxy(Settings(upstream=url, **inputs)) as proxy,
    ):
        found = measure(proxy, 1, 100, 5.0)
    assert found["efficiency"] is None
    assert "what drafting reads is not known: set speculative_config" in str(found["verdict"])
