"""A second source of the bandwidth, beside the one in use."""

from __future__ import annotations

from tokgauge.diagnosis.inputs import Inputs
from tokgauge.gpu.bandwidth import gpu_bandwidth, nvml_bandwidth
from tokgauge.gpu.readings import GpuReading


def other_bandwidth_ratio(inputs: Inputs) -> float | None:
    """The other source's bandwidth ÷ the one in use, of the first GPU that has another one.

    That is NVML beside the table of cards, and whichever of them there is beside the settings. A
    measured bandwidth lies below the others as it should, so nothing is held against it.
    """
    ratios = [_ratio(inputs, gpu) for gpu in inputs.gpus]
    return next((ratio for ratio in ratios if ratio is not None), None)


def _ratio(inputs: Inputs, gpu: GpuReading) -> float | None:
    in_use, found = inputs.bandwidth, gpu_bandwidth(gpu)
    by_formula = nvml_bandwidth(gpu)
    if found.bytes_per_second is None or in_use.bytes_per_second is None:
        return None
    if in_use.source == "settings":
        return found.bytes_per_second * inputs.tensor_parallel / in_use.bytes_per_second
    if by_formula is None or in_use.source != "catalogue" or found.source != "catalogue":
        return None
    return by_formula / found.bytes_per_second
