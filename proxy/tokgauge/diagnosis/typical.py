"""Constants that are usual for a card, a model and an engine: before anything was measured here.

Each is an interval with its source; docs/normal.md shows what was measured where, and that every
healthy case of it lies inside. `Calibrated` constants (`tokgauge calibrate`) are narrower.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokgauge.diagnosis.expected_time import Constants, Interval
from tokgauge.gpu.catalogue import MemoryKind
from tokgauge.model.ceiling import ComputeRoof

ATTAINABLE: Mapping[MemoryKind | None, Interval] = {
    # Reads alone: RTX 3090 91-96 %, RTX 5090 93 %; Qwen2.5-7B on an L4 81 %, on an A6000 75 %.
    "gddr": Interval(0.76, 0.93),
    # Reads alone: A800 89 %, H100 92 %, H100 NVL 96-97 %.
    "hbm": Interval(0.85, 0.95),
    # Reads alone: Jetson Orin 75 %; a 70B in NVFP4 on a DGX Spark 60-62 %, dequantised.
    "lpddr": Interval(0.75, 0.92),
    None: Interval(0.75, 0.95),
}
"""Share of the theoretical bandwidth that decoding can read with, by kind of memory."""

OF_MEASURED = Interval(0.82, 1.0)
"""The same of a bandwidth that was measured by reading (`gpu_measured_bandwidth`): 76-93 % of what
is 91-96 % of the theoretical one (RTX 3090)."""

DEQUANTISED = Interval(0.65, 1.0)
"""Of that, where weights are stored in fewer bits than they are multiplied in: a 4-bit 7B on an
A6000 reaches 58 %, and by kernel one model takes 17 to 62 ms a step on an L4 (arXiv 2605.30571)."""

PER_LAYER = Interval(25e-6, 60e-6)
"""t0 of each layer with CUDA graphs [s]: Llama-3.2-1B on an H100 reaches at most 50 %."""

PER_LAYER_EAGER = Interval(100e-6, 400e-6)
"""The same without CUDA graphs (`--enforce-eager`)."""

PER_STEP = Interval(0.1e-3, 0.5e-3)
"""t0 of a step beside its layers [s]: scheduling, sampling, output."""

PER_SEQUENCE = Interval(0.0, 20e-6)
"""t_seq of vLLM on GPUs [s]: a few to 20 µs."""

ALL_REDUCE = Interval(0.0, 100e-6)
"""Added to each layer by tensor parallelism, two all-reduces [s]: Llama-2-7B on eight A100s takes
2.1 ms beside reading, 67 µs a layer in all; Qwen2-7B on four A10Gs over PCIe 150 to 200 µs."""

EXPERTS = Interval(0.0, 75e-6)
"""Added to each layer by a mixture of experts [s]: routing, sorting and small products. Alone on an
A100, Qwen3-30B-A3B takes 9.6 ms a step in vLLM, of which reading explains 3.5."""

EXPERTS_READ = Interval(0.8, 1.0)
"""Share of that bandwidth with which experts are read: small products for few tokens each. In
llama.cpp on a GB10 gpt-oss-20b reaches 64.5 % with two streams and 79.1 % with one."""

LAYERS = Interval(16, 128)
"""Layers of a model of which nothing tells them: Llama-3.2-1B has 16, Llama-3.1-405B 126."""

OF_PEAK = Interval(0.25, 0.80)
"""Share of the peak at which prompts are computed: 35-70 % is usual for long ones, short ones take
longer, and attention over a long context is computed beside the weights' products. llama.cpp
reaches more than 80 % of the 16-bit figure: it multiplies 8-bit integers."""

OF_PEAK_EXPERTS = Interval(0.14, 0.55)
"""The same of a mixture of experts, each of which sees a part of the tokens: 15-22 % on a GB10 in
llama.cpp, 30 % on two RTX 5090 in vLLM."""

RIDGE = Interval(75.0, 460.0)
"""FLOP/s in 16 bits ÷ bytes/s of a card of which only the bandwidth is known: RTX 3090 76, A100
153, H100 295, GB10 about 460."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What the typical constants depend on; None is what is not known.

    bandwidth: theoretical, of all GPUs that serve a step [bytes/s]; measured: it is one that was
    measured by reading. layers: that a token passes. dequantised: weights are stored in fewer bits
    than 16. experts: whether it is a mixture. parameters: that a token is multiplied with, where no
    roof is known. speedup: how many times the roof counts the rate of 16 bits, of which not every
    engine makes use.
    """

    bandwidth: float
    measured: bool = False
    memory: MemoryKind | None = None
    layers: int | None = None
    dequantised: bool | None = None
    experts: bool = False
    parameters: Interval | None = None
    roof: ComputeRoof | None = None
    speedup: float = 1.0
    tensor_parallel: int = 1
    draft_passes: int = 0


def typical(setup: Setup) -> Constants:
    """The constants for this card, model and engine, with CUDA graphs."""
    return Constants(
        fixed=_fixed(setup, PER_LAYER),
        per_sequence=PER_SEQUENCE,
        bandwidth=_bandwidth(setup),
        prefill=_prefill(setup),
        source="typical",
    )


def eager_fixed(setup: Setup) -> Interval:
    """t0 that would be usual without CUDA graphs [s]."""
    return _fixed(setup, PER_LAYER_EAGER)


def _fixed(setup: Setup, per_layer: Interval) -> Interval:
    if setup.tensor_parallel > 1:
        per_layer = per_layer.plus(ALL_REDUCE)
    if setup.experts:
        per_layer = per_layer.plus(EXPERTS)
    layers = LAYERS if setup.layers is None else Interval(setup.layers, setup.layers)
    return per_layer.times(layers).plus(PER_STEP.times(1 + setup.draft_passes))


def _bandwidth(setup: Setup) -> Interval:
    share = OF_MEASURED if setup.measured else ATTAINABLE[setup.memory]
    if setup.dequantised is not False:
        share = share.times(DEQUANTISED)
    if setup.experts:
        share = share.times(EXPERTS_READ)
    return share.times(setup.bandwidth)


def _prefill(setup: Setup) -> Interval | None:
    of_peak = OF_PEAK_EXPERTS if setup.experts else OF_PEAK
    if setup.roof is not None:
        of_peak = Interval(of_peak.low / setup.speedup, of_peak.high)
        return of_peak.times(1 / setup.roof.seconds(1))
    if setup.parameters is None:
        return None
    rate = RIDGE.times(setup.bandwidth).times(of_peak).times(0.5)
    return Interval(rate.low / setup.parameters.high, rate.high / setup.parameters.low)
