"""What was measured elsewhere, beside what the typical constants call normal.

Read from evidence.tsv and evidence_prompts.tsv, for docs/normal.md and for the test that holds the
constants to them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tokgauge.diagnosis.expected_time import Interval, StepWork
from tokgauge.diagnosis.typical import Setup, typical
from tokgauge.gpu.catalogue import Card, load_catalogue
from tokgauge.model.ceiling import ComputeRoof


@dataclass(frozen=True, slots=True)
class Measured:
    """One line. share: of the theoretical bandwidth, or of the peak for prompts; normal: its range
    by the typical constants.
    """

    line: Mapping[str, str]
    card: Card
    share: Interval
    normal: Interval

    @property
    def name(self) -> str:
        """Engine, model, cards and load."""
        engine, model, load = (self.line[key] for key in ("engine", "model", "load"))
        return f"{engine}, {model}, {self.cards}, {load}"

    @property
    def cards(self) -> str:
        """The card's name without its maker, with their number where it is not one."""
        count = int(self.line["cards"])
        short = self.card.name.removeprefix("NVIDIA ").removeprefix("GeForce ")
        return short if count == 1 else f"{count} x {short}"

    @property
    def state(self) -> str:
        """healthy, slow or unknown: what the source says, or what its engine is known for."""
        return self.line["state"]


def decode_setup(
    card: Card, layers: int, *, cards: int = 1, dequantised: bool = False, experts: bool = False
) -> Setup:
    """What the typical constants of a model on these cards depend on."""
    return Setup(
        bandwidth=cards * card.bandwidth_bytes_per_second,
        memory=card.memory_kind,
        layers=layers,
        dequantised=dequantised,
        experts=experts,
        tensor_parallel=cards,
    )


def normal_share(setup: Setup, step_bytes: float, sequences: int = 1) -> Interval:
    """Normal range of the share of the theoretical bandwidth, of a step that reads these bytes."""
    work = StepWork(steps=1, bytes=step_bytes, sequence_steps=sequences)
    expected = typical(setup).expected(work)
    if expected is None:
        raise ValueError("without prompts it is always known")
    ideal = work.ideal_seconds(setup.bandwidth)
    return Interval(ideal / expected.high, ideal / expected.low)


def decoding() -> Iterator[Measured]:
    """The lines of evidence.tsv."""
    for line in _lines("evidence.tsv"):
        card = card_named(line["card"])
        setup = decode_setup(
            card,
            int(line["layers"]),
            cards=int(line["cards"]),
            dequantised=line["dequantised"] == "yes",
            experts=line["experts"] == "yes",
        )
        normal = normal_share(
            setup, float(line["gigabytes_per_step"]) * 1e9, int(line["sequences"])
        )
        share = Interval(float(line["share_low"]) / 100, float(line["share_high"]) / 100)
        yield Measured(line, card, share, normal)


def prompts() -> Iterator[Measured]:
    """The lines of evidence_prompts.tsv, as shares of the peak in 16 bits."""
    for line in _lines("evidence_prompts.tsv"):
        card = card_named(line["card"])
        if card.dense_flops is None:
            raise ValueError(f"{card.name} has no figure of FLOP/s")
        peak = int(line["cards"]) * card.dense_flops
        parameters, speedup = float(line["billion_parameters"]) * 1e9, float(line["speedup"])
        setup = Setup(
            bandwidth=card.bandwidth_bytes_per_second,
            experts=line["experts"] == "yes",
            roof=ComputeRoof(peak * speedup, parameters),
            speedup=speedup,
        )
        prefill = typical(setup).prefill
        if prefill is None:
            raise ValueError("with a roof it is always known")
        of_peak = 2 * parameters / peak
        share = float(line["tokens_per_second"]) * of_peak
        yield Measured(line, card, Interval(share, share), prefill.times(of_peak))


def card_named(name: str) -> Card:
    """The card of the table with exactly this name."""
    return next(card for card in load_catalogue() if card.name == name)


def _lines(name: str) -> list[dict[str, str]]:
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines(), delimiter="\t"))


@dataclass(frozen=True, slots=True)
class Example:
    """A case of docs/normal.md. observed: its share as measured, where it was."""

    model: str
    card: str
    step_bytes: float
    layers: int
    dequantised: bool = False
    observed: str = ""

    @property
    def setup(self) -> Setup:
        """One card, with CUDA graphs."""
        return decode_setup(card_named(self.card), self.layers, dequantised=self.dequantised)

    @property
    def ideal(self) -> float:
        """Reading alone at the theoretical bandwidth [s]."""
        return self.step_bytes / self.setup.bandwidth

    @property
    def normal(self) -> Interval:
        """Normal range of the share, of one stream with a short context."""
        return normal_share(self.setup, self.step_bytes)


_SEVEN_B = 14.141e9
"""Streamed bytes of Qwen2.5-7B in 16 bits: 7.616e9 parameters less the embedding of 0.545e9."""

EXAMPLES = (
    Example("Qwen2.5-7B bf16", "NVIDIA RTX A6000", _SEVEN_B, 28, observed="74.7 %"),
    Example("Qwen2.5-7B AWQ", "NVIDIA RTX A6000", 4.481e9, 28, True, "58.3 %"),
    Example("Llama-3.2-1B bf16", "NVIDIA H100 80GB HBM3", 2.472e9, 16, observed="at most 50 %"),
    Example("Qwen3-0.6B bf16", "NVIDIA H100 80GB HBM3", 1.19e9, 28, observed="15 %"),
    Example("Llama-3.3-70B NVFP4", "NVIDIA GB10", 40.61e9, 80, True, "60-62 %"),
    Example("Qwen2.5-7B bf16", "NVIDIA L4", _SEVEN_B, 28, observed="81 %"),
    Example("Qwen2.5-7B bf16", "NVIDIA H100 80GB HBM3", _SEVEN_B, 28),
    Example("Qwen2.5-7B bf16", "NVIDIA A100-SXM4-80GB", _SEVEN_B, 28),
)
