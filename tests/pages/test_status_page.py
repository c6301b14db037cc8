"""The page for people, in a real browser: it says what is known, and nothing that is not."""

import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tokgauge import __version__
from tokgauge.diagnosis.figures import Figures
from tokgauge.export.families import PUBLISHED
from tokgauge.export.published import Published
from tokgauge.pages.status import PAGE, POLICY
from tokgauge.serve.background import BackgroundProxy
from tokgauge.settings import Settings
from tokgauge.simulator.checkpoint import write_bf16
from tokgauge.simulator.nvml import SimulatedNvml
from tokgauge.simulator.profile import EngineProfile
from tokgauge.simulator.server import running_engine

from tests.pages.browser import Pages, look_at, served_by
from tests.support.metrics import wait_until

pytestmark = pytest.mark.timed

NASTY = "<img src=x onerror=alert(1)>"

FAST = {"rate_window": 15, "engine_metrics_interval": 0.3, "poll_interval": 0.5, "port": 0}


def live(proxy: BackgroundProxy) -> dict[str, Any]:
    answer = httpx2.get(f"{proxy.url}/tokgauge/live").raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def ask(proxy: BackgroundProxy, model: str, tokens: int, stream: bool = True) -> None:
    body = {"model": model, "prompt": "a", "max_tokens": tokens, "ignore_eos": True}
    httpx2.post(f"{proxy.url}/v1/completions", json=body | {"stream": stream}, timeout=60)


def test_the_founding_scene_is_normal(tmp_path: Path, nvml: SimulatedNvml) -> None:
    write_bf16(tmp_path / "model")
    profile = EngineProfile(root=str(tmp_path / "model"))
    with running_engine(profile) as url, BackgroundProxy(Settings(upstream=url, **FAST)) as proxy:
        ask(proxy, profile.model, 130)
        ask(proxy, profile.model, 20, stream=False)
        wait_until(lambda: (live(proxy)["verdict"] or {}).get("level") == "healthy", 10, "healthy")
        page = look_at(f"{proxy.url}/tokgauge/status", tmp_path)
        told = live(proxy)
    assert page.text("answer") == "✓ Yes, this is normal"
    assert page.text("headline").startswith("Healthy: decoding reaches 7")
    assert "streamed bytes" in page.text("headline")
    assert "5 other processes on the GPU only hold memory (3,626 MiB)" in page.text("reasons")
    assert page.text("efficiency-text").startswith("7")
    assert "marker" not in page.hidden
    for figure in ("54.3 tok/s", "by the whole checkpoint: 50.4 tok/s", "✓ up", url):
        assert figure in page.text("tiles"), figure
    assert "streamed answers;mean of 1 answer since the start" in page.text("tiles")
    assert "until a person sees anything;mean of 2 answers since the start" in page.text("tiles")
    for figure in (
        "GPU 0: NVIDIA RTX A6000", "38,970 MiB of 49,140 MiB", "others only hold memory", "5 idle",
        "GPU 1: NVIDIA RTX A6000", "47 %", "not the engine's GPU", "768 GB/s (catalogue)",
    ):  # fmt: skip
        assert figure in page.text("gpus"), figure
    assert f"safetensors:{tmp_path / 'model'}" in page.text("inputs")
    assert "NVML answers" in page.text("inputs")
    assert page.text("version") == f"tokgauge {__version__}"
    assert {"lost"} <= page.hidden
    assert told["live"]["upstream_up"] == [{"labels": {"upstream": url}, "value": 1.0}]
    asked = [request.removeprefix(proxy.url) for request in page.requests]
    assert asked[0] == "/tokgauge/status"
    assert len(asked) > 2, "it does not refresh"
    assert set(asked[1:]) == {"/tokgauge/live"}


def test_nothing_known_is_said_so(tmp_path: Path) -> None:
    with BackgroundProxy(Settings(upstream="http://127.0.0.1:9", nvml=False, **FAST)) as proxy:
        time.sleep(0.5)
        page = look_at(f"{proxy.url}/tokgauge/status", tmp_path)
    assert page.text("answer") == "✕ The engine cannot be reached"
    assert page.text("headline").startswith("The engine cannot be reached since ")
    assert "– Cannot be judged now" in page.text("speed")
    assert "Not judged: " in page.text("speed")
    assert "engine down" in page.text("reasons")
    assert "Look at the engine's process and its log" in page.text("reasons")
    assert page.text("efficiency-text") == "unknown"
    assert "marker" in page.hidden
    tiles = page.text("tiles")
    for part in (
        "Output nownone yet", "Ceiling of one streamunknown", "by the whole checkpoint: unknown",
        "Bandwidth in useunknown", "✕ cannot be reached", "Requests in flightnone yet",
        "Time to first tokenunknown", "Silent waitunknown",
    ):  # fmt: skip
        assert part in tiles, part
    assert page.text("gpus") == "unknown"
    assert "Filesunknown" in page.text("inputs")
    assert "GPU libraryunknown" in page.text("inputs")
    assert "problems" in page.hidden


def test_problems_stand_above_everything(tmp_path: Path) -> None:
    with running_engine(EngineProfile(api_key="sesame")) as url:
        settings = Settings(upstream=url, gpu=NASTY, nvml=False, **FAST)
        with BackgroundProxy(settings) as proxy:
            page = look_at(f"{proxy.url}/tokgauge/status", tmp_path)
    assert "problems" not in page.hidden
    assert "GET /v1/models wants a key (401): set api_key" in page.text("problems")
    assert NASTY in page.text("problems")
    assert "img" not in page.tags


def test_a_name_is_text_whatever_it_holds(tmp_path: Path) -> None:
    profile = EngineProfile(model=NASTY)
    with (
        running_engine(profile) as url,
        BackgroundProxy(Settings(upstream=url, nvml=False, **FAST)) as proxy,
    ):
        ask(proxy, NASTY, 5)
        wait_until(lambda: bool((live(proxy)["figures"] or {}).get("model_info")), 10, "model_info")
        page = look_at(f"{proxy.url}/tokgauge/status", tmp_path)
    assert f"Model{NASTY}" in page.text("inputs")
    assert f"all answers together{NASTY}" in page.text("tiles")
    assert "img" not in page.tags
    assert {request.removeprefix(proxy.url) for request in page.requests} == {
        "/tokgauge/status", "/tokgauge/live"
    }  # fmt: skip


class _NoFigures(Pages):
    """The page, from a tokgauge that cannot say anything."""

    def do_GET(self) -> None:
        found = self.path == "/tokgauge/status"
        self.send_response(200 if found else 503)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(PAGE.encode() if found else b"")


def test_that_it_cannot_refresh_is_said_plainly(tmp_path: Path) -> None:
    with served_by(_NoFigures) as url:
        page = look_at(f"{url}/tokgauge/status", tmp_path)
    assert "lost" not in page.hidden
    assert page.text("lost") == (
        "Cannot refresh: no figures from tokgauge (status 503). Nothing is known yet."
    )
    assert page.text("answer") == "unknown"
    assert len(page.requests) > 2, "it does not try again"


@pytest.mark.parametrize("page", ["status", "live"])
def test_browsers_are_told_to_be_careful(page: str) -> None:
    with BackgroundProxy(Settings(upstream="http://127.0.0.1:9", nvml=False, **FAST)) as proxy:
        answer = httpx2.get(f"{proxy.url}/tokgauge/{page}")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    policy = answer.headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "frame-ancestors 'none'"} <= set(policy)
    assert not any("unsafe" in part or "*" in part for part in policy)


def test_json_has_every_published_metric_and_no_number_that_is_none() -> None:
    published = Published(PUBLISHED)
    assert published.samples() is None
    name = "tokgauge_memory_bandwidth_utilization_ratio"
    samples: list[tuple[tuple[str, ...], float]] = [
        (("qwen", "streamed"), 0.75),
        (("qwen", "checkpoint"), float("nan")),
    ]
    published.publish(Figures(at=time.monotonic(), samples={name: samples}))
    found = published.samples()
    assert found is not None
    assert found["memory_bandwidth_utilization_ratio"] == [
        {"labels": {"model": "qwen", "basis": "streamed"}, "value": 0.75}
    ]
    assert set(found) == {family.name.removeprefix("tokgauge_") for family in PUBLISHED}
    assert found["nvml_up"] == []
    published.publish(Figures(at=time.monotonic() - 60, samples={name: samples}))
    assert published.samples() is None
