"""A short recording to look at: simulated engine and GPU, proxy, traffic, and a real Prometheus.

Tests run every query of the dashboards against it, and render.py draws them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
from panels import Json
from tokgauge.serve.background import BackgroundProxy
from tokgauge.settings import Settings
from tokgauge.simulator.demo_scenes import demo_scenes
from tokgauge.simulator.gpu import Scene
from tokgauge.simulator.nvml import SimulatedNvml
from tokgauge.simulator.profile import EngineProfile, changed
from tokgauge.simulator.server import running_engine

PROGRAM = "prometheus"

_QUESTIONS = ("Why is the sky blue?", "What is memory bandwidth?", "Explain batching.")
_SW_POWER_CAP = 0x4

_PAUSE = 1.5
"""Seconds between acts without requests, in which the proxy notices what has changed."""

_CONFIG = """\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
scrape_configs:
  - job_name: tokgauge
    metrics_path: /tokgauge/metrics
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
  - job_name: engine
    metrics_path: /metrics
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


@dataclass(frozen=True, slots=True)
class Recording:
    """A Prometheus that has scraped from `start` to `end` (Unix times, seconds)."""

    client: httpx2.Client
    start: float
    end: float

    def answer(self, board: Json, target: Json) -> list[dict[str, Any]]:
        """Run one query of a panel: the series of Prometheus' answer.

        Each has `metric` (labels) and `values` (pairs of time and number). Raises RuntimeError
        with Prometheus' own words when the query is wrong.
        """
        query = self._filled_in(board, target["expr"])
        if target["instant"]:
            parameters = {"query": query, "time": f"{self.end}"}
        else:
            parameters = {
                "query": query, "start": f"{self.start}", "end": f"{self.end}", "step": "1",
            }  # fmt: skip
        path = "query" if target["instant"] else "query_range"
        got = self.client.get(f"/api/v1/{path}", params=parameters).json()
        if got["status"] != "success":
            raise RuntimeError(f"{query}: {got['error']}")
        found: list[dict[str, Any]] = got["data"]["result"]
        return [
            {"metric": item["metric"], "values": item.get("values") or [item["value"]]}
            for item in found
        ]

    def _filled_in(self, board: Json, expression: str) -> str:
        """The query as Grafana sends it, with all values chosen."""
        values = {"__range": f"{round(self.end - self.start)}s", "__rate_interval": "4s",
                  "__range_s": str(round(self.end - self.start))}  # fmt: skip
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                values[variable["name"]] = variable["allValue"]
            elif variable["type"] == "textbox":
                values[variable["name"]] = variable["query"]
        return re.sub(r"\$(\w+)", lambda found: values[found[1]], expression)


@dataclass(frozen=True, slots=True)
class _Act:
    """Some seconds of the recording: the GPUs, the engine's profile, and how many people ask."""

    gpu: Scene
    engine: dict[str, object]
    people: int
    seconds: float


@contextlib.contextmanager
def recording(pace: float = 1.0) -> Iterator[Recording]:
    """Record for about 35 s, then keep Prometheus answering until the block ends.

    pace: stretches the acts, and with them the proxy's window of rates.
    Raises FileNotFoundError when there is no Prometheus on this machine.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        raise FileNotFoundError(f"{PROGRAM} is not installed")
    with tempfile.TemporaryDirectory(prefix="tokgauge-recording-") as name:
        directory = Path(name)
        acts = _acts(directory, pace)
        nvml = SimulatedNvml(acts[0].gpu)
        nvml.install()
        try:
            profile = EngineProfile(
                mfu_metrics=True, prompt_tokens_details=True, reasoning_tokens=8, natural_tokens=30
            )
            with running_engine(changed(profile, acts[0].engine)) as engine:
                settings = Settings(
                    upstream=engine, port=0, log_level="error", rate_window=4 * pace,
                    engine_metrics_interval=0.5 * pace, poll_interval=1, drain_timeout=1,
                )  # fmt: skip
                with (
                    BackgroundProxy(settings) as proxy,
                    _prometheus(program, directory, proxy.port) as url,
                    httpx2.Client(base_url=url, timeout=30, trust_env=False) as client,
                ):
                    _wait_for_scrapes(client)
                    start = time.time()
                    asyncio.run(_play(proxy.url, engine, nvml, acts))
                    # At the end all series must be there: a scrape that takes too long ends them.
                    _wait_for_scrapes(client)
                    yield Recording(client, start, time.time())
        finally:
            nvml.uninstall()


def _acts(directory: Path, pace: float) -> Sequence[_Act]:
    healthy, contended, quantised, *_ = demo_scenes(directory)
    capped = replace(_measured(healthy.gpu, 73), gpus=tuple(
        replace(gpu, clock_reasons=_SW_POWER_CAP) for gpu in _measured(healthy.gpu, 73).gpus
    ))  # fmt: skip
    return [
        _Act(_measured(healthy.gpu, 74), healthy.engine, 1, 6 * pace),
        _Act(_measured(healthy.gpu, 73), healthy.engine, 3, 4 * pace),
        _Act(_measured(contended.gpu, 68), contended.engine, 1, 6 * pace),
        _Act(_measured(contended.gpu, 68), contended.engine, 3, 5 * pace),
        _Act(capped, quantised.engine, 2, 6 * pace),
    ]


def _measured(scene: Scene, dram_percent: float) -> Scene:
    """The scene on cards that measure their own DRAM bandwidth, as Hopper and later ones do."""
    gpus = tuple(replace(gpu, dram_percent=dram_percent) for gpu in scene.gpus)
    return replace(scene, gpus=gpus)


@contextlib.contextmanager
def _prometheus(program: str, directory: Path, port: int) -> Iterator[str]:
    """Prometheus on a free port of the loopback, scraping the proxy and the engine through it."""
    config, log = directory / "prometheus.yml", directory / "prometheus.log"
    config.write_text(_CONFIG.format(port=port))
    with (
        log.open("w") as said,
        subprocess.Popen(  # noqa: S603  the program that was found, no shell
            [
                program,
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'data'}",
                "--web.listen-address=127.0.0.1:0",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
        ) as process,
    ):
        try:
            yield _address(process, log)
        finally:
            process.terminate()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Where it answers, as soon as it does. Raises RuntimeError with its log when it does not."""
    end = time.monotonic() + 30
    while time.monotonic() < end and process.poll() is None:
        found = re.search(r"Listening on.* address=(127\.0\.0\.1:\d+)", log.read_text())
        if found:
            url = f"http://{found[1]}"
            with contextlib.suppress(httpx2.TransportError):
                if httpx2.get(f"{url}/-/ready", trust_env=False).status_code == 200:
                    return url
        time.sleep(0.1)
    raise RuntimeError(f"{PROGRAM} did not start:\n{log.read_text()}")


def _wait_for_scrapes(client: httpx2.Client) -> None:
    """Until the last scrapes succeeded and told the ceiling; the first come some seconds late."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        query = "tokgauge_ceiling_tokens_per_second and on (instance) up{job='engine'} == 1"
        got = client.get("/api/v1/query", params={"query": query}).json()
        if got["data"]["result"]:
            return
        time.sleep(0.2)
    raise RuntimeError(f"{PROGRAM} has scraped nothing")


async def _play(url: str, engine: str, nvml: SimulatedNvml, acts: Sequence[_Act]) -> None:
    async with httpx2.AsyncClient(timeout=30, trust_env=False) as client:
        for act in acts:
            nvml.scene = act.gpu
            (await client.post(f"{engine}/simulator/profile", json=act.engine)).raise_for_status()
            await asyncio.sleep(_PAUSE)
            people = [
                asyncio.create_task(_ask_again_and_again(client, url, number))
                for number in range(act.people)
            ]
            await asyncio.sleep(act.seconds)
            for person in people:
                person.cancel()
            await asyncio.gather(*people, return_exceptions=True)


async def _ask_again_and_again(client: httpx2.AsyncClient, url: str, number: int) -> None:
    """One person: short streams mostly, now and then one that is not streamed or goes wrong."""
    for turn in itertools.count(number):
        body: dict[str, object] = {
            "model": "Qwen/Qwen2.5-7B-Instruct",
            "stream": turn % 4 != 3,
            "messages": [{"role": "user", "content": _QUESTIONS[turn % len(_QUESTIONS)]}],
        }
        if turn % 3 == 1:
            body["max_tokens"] = 24
        headers = {"x-simulate": "cut-after=12"} if turn % 7 == 6 and body["stream"] else {}
        with contextlib.suppress(httpx2.TransportError):
            async with client.stream(
                "POST", f"{url}/v1/chat/completions", json=body, headers=headers
            ) as answer:
                async for _ in answer.aiter_raw():
                    pass
