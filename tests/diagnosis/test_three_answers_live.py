"""The three answers over real sockets: what is wrong is named, and nothing else is accused."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tokgauge.serve.background import BackgroundProxy
from tokgauge.settings import Settings
from tokgauge.simulator.checkpoint import write_bf16
from tokgauge.simulator.nvml import SimulatedNvml
from tokgauge.simulator.profile import EngineProfile
from tokgauge.simulator.server import running_engine

from tests.support.client import RawClient
from tests.support.metrics import scrape, wait_until

pytestmark = pytest.mark.timed

FAST = {"rate_window": 4, "engine_metrics_interval": 0.3, "poll_interval": 0.5, "port": 0}


def verdict(proxy: BackgroundProxy) -> dict[str, Any]:
    found = httpx2.get(f"{proxy.url}/tokgauge/live").json()["verdict"]
    return found or {"level": None, "speed": {}, "waiting": {}, "answers": {}}


def kinds(answer: dict[str, Any]) -> list[str]:
    return [cause["kind"] for cause in answer.get("causes", ())]


def until(proxy: BackgroundProxy, holds: Callable[[dict[str, Any]], bool], what: str) -> Any:
    seen: list[dict[str, Any]] = []

    def found() -> bool:
        seen.append(verdict(proxy))
        return holds(seen[-1])

    wait_until(found, 30, what)
    return seen[-1]


@contextmanager
def people(proxy: BackgroundProxy, number: int, max_tokens: int, **simulate: str) -> Iterator[None]:
    """So many of them, each asking again as soon as an answer has ended; no prompt like another."""
    leave = threading.Event()
    body = {"model": EngineProfile().model, "max_tokens": max_tokens}
    headers = {"x-simulate": ",".join(f"{key}={value}" for key, value in simulate.items())}

    def person(name: int) -> None:
        turn = 0
        with httpx2.Client(base_url=proxy.url, timeout=60) as client:
            while not leave.is_set():
                turn += 1
                asked = body | {"stream": True, "prompt": f"{name} {turn} " + "word " * 20}
                try:
                    with client.stream(
                        "POST", "/v1/completions", json=asked, headers=headers
                    ) as got:
                        for _ in got.iter_raw():
                            if leave.is_set():
                                return
                except httpx2.HTTPError:
                    leave.wait(0.1)

    threads = [threading.Thread(target=person, args=(name,)) for name in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        leave.set()
        for thread in threads:
            thread.join()


def test_a_queue_is_no_fault_of_the_speed(tmp_path: Path, nvml: SimulatedNvml) -> None:
    write_bf16(tmp_path / "model")
    profile = EngineProfile(root=str(tmp_path / "model"), max_num_seqs=1)
    with (
        running_engine(profile) as url,
        BackgroundProxy(Settings(upstream=url, **FAST)) as proxy,
        people(proxy, 5, 100, tokens="80"),
    ):
        found = until(
            proxy,
            lambda v: (v["waiting"].get("level"), v["speed"].get("level")) == (
                "suspect", "healthy"
            ),
            "people wait while the speed is healthy",
        )  # fmt: skip
        page = scrape(proxy.port)
    assert kinds(found["waiting"]) == ["queue"]
    assert "in the engine's queue (mean of" in found["waiting"]["headline"]
    assert "max_num_seqs" in found["waiting"]["advice"][0]
    assert kinds(found["speed"]) == []
    assert (found["level"], found["question"]) == ("suspect", "waiting")
    assert found["headline"] == found["waiting"]["headline"]
    assert page.total("verdict", question="waiting", level="suspect") == 1
    assert page.total("verdict", question="speed", level="suspect") == 0
    assert page.total("verdict_cause", question="waiting", cause="queue") == 1
    assert page.total("verdict_cause", question="waiting", cause="kv_cache_full") == 0


def test_a_kv_cache_that_is_too_small_is_named() -> None:
    with (
        running_engine(EngineProfile(num_gpu_blocks=24, max_model_len=512)) as url,
        BackgroundProxy(Settings(upstream=url, nvml=False, **FAST)) as proxy,
        people(proxy, 6, 150, tokens="120"),
    ):
        found = until(
            proxy,
            lambda v: bool({"preemption", "kv_cache_full"} & set(kinds(v["waiting"]))),
            "the cache is named",
        )
    assert found["waiting"]["level"] in ("watch", "suspect")
    assert "more room" in found["waiting"]["advice"][0]
    assert "queue" not in kinds(found["waiting"])


def test_nobody_waits_and_answers_are_whole() -> None:
    with (
        running_engine(EngineProfile()) as url,
        BackgroundProxy(Settings(upstream=url, nvml=False, **FAST)) as proxy,
        people(proxy, 4, 20, tokens="10"),
    ):
        found = until(
            proxy,
            lambda v: (v["waiting"].get("level"), v["answers"].get("level")) == (
                "healthy", "healthy"
            ),
            "healthy",
        )  # fmt: skip
    assert found["question"] == "speed", "not judged, and it stands there all the same"
    assert found["level"] == "not_judged"


def test_answers_that_break_off_are_missing() -> None:
    with (
        running_engine(EngineProfile()) as url,
        BackgroundProxy(Settings(upstream=url, nvml=False, **FAST)) as proxy,
        people(proxy, 4, 20, **{"cut-after": "5"}),
    ):
        found = until(proxy, lambda v: v["answers"].get("level") == "suspect", "answers missing")
    assert kinds(found["answers"]) == ["broken_off"]
    assert "100 % of the answers were broken off by the engine" in found["answers"]["headline"]


def test_an_engine_that_goes_away_is_red_with_its_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "tokgauge"):
        engine = running_engine(EngineProfile())
        url = engine.__enter__()
        with BackgroundProxy(Settings(upstream=url, nvml=False, **FAST)) as proxy:
            until(proxy, lambda v: v["waiting"].get("level") is not None, "the first look")
            assert kinds(verdict(proxy)["waiting"]) == []
            engine.__exit__(None, None, None)
            found = until(proxy, lambda v: v["level"] == "suspect", "down")
            assert httpx2.post(f"{proxy.url}/v1/completions", json={}).status_code == 502
            later = until(
                proxy, lambda v: "efused" in v["headline"] or "onnect" in v["headline"], "why"
            )
    assert (found["question"], kinds(found["waiting"])) == ("waiting", ["engine_down"])
    since = "The engine cannot be reached since "
    assert found["headline"].startswith(since)
    assert later["headline"].startswith(found["headline"][: len(since) + 8]), "the same time"
    logged = [record.getMessage() for record in caplog.records if since in record.getMessage()]
    assert len(logged) == 1, "logged once"


def test_who_still_waits_counts_while_they_wait() -> None:
    with (
        running_engine(EngineProfile(ttft_seconds=12.0)) as url,
        BackgroundProxy(Settings(upstream=url, nvml=False, **FAST)) as proxy,
        people(proxy, 4, 20),
    ):
        found = until(proxy, lambda v: v["waiting"].get("level") == "suspect", "people wait long")
    assert "4 of them still waiting" in found["waiting"]["headline"]


def test_who_is_still_sending_a_request_waits_for_nobody() -> None:
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: 1000\r\n\r\n{"
    )
    with (
        running_engine(EngineProfile()) as url,
        BackgroundProxy(Settings(upstream=url, nvml=False, **FAST)) as proxy,
        ExitStack() as senders,
    ):
        for _ in range(4):
            senders.enter_context(RawClient(proxy.port)).send(head)
        time.sleep(2.5)
        found = until(proxy, lambda v: v["waiting"].get("level") is not None, "a look")
    assert found["waiting"]["headline"] == "Not judged: nobody has asked for anything lately."
