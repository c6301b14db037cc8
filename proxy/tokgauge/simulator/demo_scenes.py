"""The scenes of `tokgauge demo`: what the simulated engine and GPU do, one after the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tokgauge.simulator.checkpoint import write_awq, write_bf16
from tokgauge.simulator.gpu import Scene
from tokgauge.simulator.gpu_scenes import active_neighbour_scene, founding_scene


@dataclass(frozen=True, slots=True)
class DemoScene:
    """One scene: its title, the engine's profile from here on, and the GPUs."""

    title: str
    engine: dict[str, object]
    gpu: Scene


def demo_scenes(directory: Path) -> tuple[DemoScene, ...]:
    """The scenes in order; the checkpoints that the engine serves are written to `directory`."""
    bf16, awq = directory / "Qwen2.5-7B-Instruct", directory / "Qwen2.5-7B-Instruct-AWQ"
    write_bf16(bf16)
    write_awq(awq)
    return (
        DemoScene(
            "Qwen2.5-7B in bfloat16 on an RTX A6000 that five idle neighbours share",
            {"neighbour": 0.0, "weights_bytes": 14.141e9, "root": str(bf16)},
            _at_work(founding_scene()),
        ),
        DemoScene(
            "one of the neighbours wakes up",
            {"neighbour": 0.45, "weights_bytes": 14.141e9, "root": str(bf16)},
            _at_work(active_neighbour_scene()),
        ),
        DemoScene(
            "the neighbour sleeps again, and the model is served in 4 bits (AWQ)",
            {"neighbour": 0.0, "weights_bytes": 4.481e9, "root": str(awq)},
            _at_work(founding_scene()),
        ),
    )


def _at_work(scene: Scene) -> Scene:
    """The scene while the engine decodes: its first GPU is busy with that."""
    first = scene.gpus[0]
    engine, *others = first.processes
    taken = sum(process.sm_percent or 0 for process in others)
    return replace(
        scene,
        gpus=(
            replace(
                first,
                utilization_percent=98,
                power_milliwatts=262_000,
                clock_reasons=0,
                processes=(replace(engine, sm_percent=95 - taken), *others),
            ),
            *scene.gpus[1:],
        ),
    )
