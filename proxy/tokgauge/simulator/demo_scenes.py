"""The scenes of `tokgauge demo`: what the simulated engine and GPU do, one after the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tokgauge.simulator.checkpoint import write_awq, write_bf16, write_small
from tokgauge.simulator.gpu import Scene
from tokgauge.simulator.gpu_scenes import (
    active_neighbour_scene,
    fast_card_scene,
    founding_scene,
)
from tokgauge.simulator.profile import EngineProfile

_USUAL = EngineProfile()
_SHARE_OF_AWQ = 0.58
"""Of the bandwidth: some 100 tokens/s of a 4-bit 7B on an RTX A6000 are usual."""
_SHARE_OF_SMALL = 0.45
"""Of a 1B on an H100, which reaches 50 % at most (docs/normal.md)."""


@dataclass(frozen=True, slots=True)
class DemoScene:
    """One scene: what the simulated engine and its GPUs are from here on, and who asks.

    people: how many ask one question after the other.
    """

    title: str
    engine: dict[str, object]
    gpu: Scene
    people: int = 3


def demo_scenes(directory: Path) -> tuple[DemoScene, ...]:
    """The scenes in order; the checkpoints that the engine serves are written to `directory`."""
    bf16, awq = directory / "Qwen2.5-7B-Instruct", directory / "Qwen2.5-7B-Instruct-AWQ"
    small = directory / "Llama-3.2-1B-Instruct"
    write_bf16(bf16)
    write_awq(awq)
    write_small(small)
    return (
        DemoScene(
            "Qwen2.5-7B in bfloat16 on an RTX A6000 that five idle neighbours share",
            _engine(bf16),
            _at_work(founding_scene()),
        ),
        DemoScene(
            "one of the neighbours wakes up",
            _engine(bf16, neighbour=0.45),
            _at_work(active_neighbour_scene()),
        ),
        DemoScene(
            "the neighbour sleeps again, and the model is served in 4 bits (AWQ)",
            _engine(awq, weights_bytes=4.481e9, efficiency=_SHARE_OF_AWQ),
            _at_work(founding_scene()),
        ),
        DemoScene(
            "a small model on a fast card: Llama-3.2-1B on an H100",
            _engine(
                small,
                weights_bytes=2.472e9,
                efficiency=_SHARE_OF_SMALL,
                bandwidth=3.35e12,
                kv_bytes_per_token=32_768.0,
                matmul_params=1.24e9,
                flops=989e12,
            ),
            _at_work(fast_card_scene()),
            people=1,
        ),
        DemoScene(
            "Qwen2.5-7B again, four at a time at most, and many people",
            _engine(bf16, max_num_seqs=4),
            _at_work(founding_scene()),
            people=16,
        ),
        DemoScene(
            "the same without that limit, and with a KV cache that is too small for them",
            _engine(bf16, num_gpu_blocks=64),
            _at_work(founding_scene()),
            people=16,
        ),
    )


def _engine(root: Path, **changes: object) -> dict[str, object]:
    """The usual engine but for these."""
    names = (
        "neighbour", "weights_bytes", "efficiency", "bandwidth", "kv_bytes_per_token",
        "matmul_params", "flops", "max_num_seqs", "num_gpu_blocks",
    )  # fmt: skip
    return {"root": str(root), **{name: getattr(_USUAL, name) for name in names}, **changes}


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
