"""`tokgauge demo`: the whole scene without a GPU - proxy, simulated engine and GPU, and traffic."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

if TYPE_CHECKING:
    from tokgauge.simulator.demo_scenes import DemoScene

_MODEL = "assistant"
"""The name under which each of the models is served, as operators do that change them."""
_QUESTIONS = ("speed", "waiting", "answers")
_COLOURS = {"healthy": "green", "suspect": "red", "watch": "yellow"}
_ASKED = (
    "Why is the sky blue?",
    "Write a haiku about memory bandwidth.",
    "메모리 대역폭이란 무엇인가요?",
    "Explain continuous batching to a colleague.",
)


@click.command(name="demo")
@click.option("--port", default=8080, show_default=True, help="Port of the proxy; 0: a free one.")
@click.option(
    "--scene-seconds", default=40.0, show_default=True, type=click.FloatRange(5),
    help="How long each scene lasts.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="End after the last scene instead of beginning again.")
def command(port: int, scene_seconds: float, once: bool) -> None:
    """Show the proxy at work: a simulated vLLM on a simulated RTX A6000, with light traffic.

    Six scenes: a healthy engine among idle neighbours; a neighbour that wakes up; quantised
    weights; a small model on a fast card; a queue; a full KV cache. Ends with Ctrl-C.
    """
    os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
    console = Console(highlight=False, soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix="tokgauge-demo-") as directory:
        try:
            _play(Path(directory), port, scene_seconds, once, console)
        except KeyboardInterrupt:
            console.print("\nGood-bye.")
        except OSError as error:
            raise click.ClickException(str(error)) from error


def _play(directory: Path, port: int, scene_seconds: float, once: bool, console: Console) -> None:
    from tokgauge.serve.background import BackgroundProxy
    from tokgauge.settings import Settings
    from tokgauge.simulator.demo_scenes import demo_scenes
    from tokgauge.simulator.nvml import SimulatedNvml
    from tokgauge.simulator.profile import EngineProfile, changed
    from tokgauge.simulator.server import running_engine

    scenes = demo_scenes(directory)
    gpu = SimulatedNvml(scenes[0].gpu)
    gpu.install()
    try:
        with running_engine(changed(EngineProfile(model=_MODEL), scenes[0].engine)) as engine:
            settings = Settings(
                upstream=engine, port=port, log_level="warning", rate_window=8,
                engine_metrics_interval=1, poll_interval=2, drain_timeout=2,
            )  # fmt: skip
            with BackgroundProxy(settings) as proxy:
                console.print(
                    f"[bold]tokgauge[/] listens on {proxy.url}, "
                    f"before a simulated vLLM ({engine}).\n"
                    f"  metrics   {proxy.url}/tokgauge/metrics\n"
                    f"  status    {proxy.url}/tokgauge/status\n"
                    f"  try it    curl {proxy.url}/v1/chat/completions -H 'content-type: "
                    "application/json' -d '"
                    f'{{"model":"{_MODEL}","stream":true,"messages":'
                    '[{"role":"user","content":"Hello"}]}'
                    "'\nEverything is simulated; nothing here measures your machine. "
                    "Ctrl-C ends it.\n"
                )
                asyncio.run(_tell(proxy.url, engine, gpu, scenes, scene_seconds, once, console))
    finally:
        gpu.uninstall()


async def _tell(
    url: str, engine: str, gpu: Any, scenes: Sequence[DemoScene], scene_seconds: float,
    once: bool, console: Console,
) -> None:  # fmt: skip
    import httpx2

    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(timeout=60, trust_env=False, limits=limits) as client:
        people: list[asyncio.Task[None]] = []
        try:
            for scene in scenes if once else itertools.cycle(scenes):
                console.print(f"[bold]{scene.title}[/]")
                gpu.scene = scene.gpu
                await client.post(f"{engine}/simulator/profile", json=scene.engine)
                await _gone(people[scene.people :])
                people = people[: scene.people] + [
                    asyncio.create_task(_ask_again_and_again(client, url, number))
                    for number in range(len(people), scene.people)
                ]
                await _show(client, url, scene_seconds, console)
        finally:
            await _gone(people)


async def _gone(people: Sequence[asyncio.Task[None]]) -> None:
    for task in people:
        task.cancel()
    await asyncio.gather(*people, return_exceptions=True)


async def _show(client: Any, url: str, seconds: float, console: Console) -> None:
    """Print the answers whenever one of them changes its level, and at the end of the scene."""
    shown: tuple[str, ...] | None = None
    end = asyncio.get_running_loop().time() + seconds
    verdict = None
    while asyncio.get_running_loop().time() < end:
        await asyncio.sleep(1)
        verdict = (await client.get(f"{url}/tokgauge/live")).json()["verdict"]
        levels = tuple(verdict[question]["level"] for question in _QUESTIONS) if verdict else None
        if verdict is not None and levels != shown:
            shown = levels
            _print(verdict, console)
    if verdict is not None:
        _print(verdict, console)


def _print(verdict: dict[str, Any], console: Console) -> None:
    for question in _QUESTIONS:
        answer = verdict[question]
        colour = _COLOURS.get(answer["level"], "dim")
        console.print(f"  {question:>8} [{colour}]{answer['level']:>10}[/]  {answer['headline']}")
        for cause in answer["causes"]:
            console.print(f"                       because {cause['evidence']}")


async def _ask_again_and_again(client: Any, url: str, number: int) -> None:
    """Traffic of one person: streams mostly, and now and then an answer in one piece."""
    import httpx2

    for turn in itertools.count(number):
        body = {
            "model": _MODEL,
            "stream": turn % 8 != 7,
            "max_tokens": 1000,
            "messages": [{"role": "user", "content": _ASKED[turn % len(_ASKED)]}],
        }
        # As long as they are, and so without being cut off.
        headers = {"x-simulate": f"tokens={160 if turn % 3 else 40}"}
        try:
            async with client.stream(
                "POST", f"{url}/v1/chat/completions", json=body, headers=headers
            ) as answer:
                async for _ in answer.aiter_raw():
                    pass
        except httpx2.HTTPError:
            await asyncio.sleep(1)
        await asyncio.sleep(0.2 + 0.3 * (number % 4))
