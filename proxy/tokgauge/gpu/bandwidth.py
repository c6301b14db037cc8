"""The memory bandwidth of the engine's GPUs, with the source it comes from.

Order: the settings' value, a measured value from the settings, the card table, NVML's formula,
else absent. NVML's formula is bus width / 8 x maximum memory clock x 2 (the reported clock is half
the transfer rate, for GDDR5 to GDDR7 and HBM alike).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tokgauge.gpu.catalogue import Card, match_card
from tokgauge.gpu.readings import GpuReading

__all__ = [
    "Bandwidth",
    "BandwidthSource",
    "engine_bandwidth",
    "gpu_bandwidth",
    "nvml_bandwidth",
]

BandwidthSource = Literal["settings", "measured", "catalogue", "nvml"]

# Makers round their figures by up to 2.4 % (H200); more than this is a different card or clock.
_TOLERATED_DIFFERENCE = 0.05


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes per second and where they come from; both None when unknown.

    `explanation` says in one sentence how the figure was found or why there is none; `warning` is
    set when something about it should be looked at. `card`: the GPU's row of the table, where it
    has one.
    """

    bytes_per_second: float | None
    source: BandwidthSource | None
    explanation: str
    warning: str | None = None
    card: Card | None = None


def nvml_bandwidth(reading: GpuReading) -> float | None:
    """NVML's formula [bytes/s]; None when bus width or maximum memory clock are not told."""
    if not reading.memory_bus_bits or not reading.max_memory_clock_mhz:
        return None
    return reading.memory_bus_bits / 8 * reading.max_memory_clock_mhz * 1e6 * 2


def gpu_bandwidth(
    reading: GpuReading | None,
    *,
    settings_value: float | None = None,
    measured_value: float | None = None,
) -> Bandwidth:
    """The bandwidth of one GPU. The two settings are bytes per second for one GPU.

    Under MIG an engine has a slice of the card: without a setting its bandwidth is unknown.
    """
    if settings_value is not None:
        return Bandwidth(settings_value, "settings", "given in the settings")
    if measured_value is not None:
        return Bandwidth(measured_value, "measured", "measured, given in the settings")
    if reading is None:
        return Bandwidth(None, None, "NVML shows no GPU, and the settings give no bandwidth")
    if reading.mig:
        return Bandwidth(None, None, "MIG is on: a slice has only a share of the card's bandwidth")
    by_formula = nvml_bandwidth(reading)
    card = (
        match_card(reading.name, reading.memory_total_bytes) if reading.name is not None else None
    )
    if card is not None:
        in_table = card.bandwidth_bytes_per_second
        warning = None
        if by_formula is not None and abs(by_formula / in_table - 1) > _TOLERATED_DIFFERENCE:
            warning = (
                f"GPU {reading.index} ({card.name}): the table says {in_table / 1e9:.0f} GB/s, "
                f"NVML {by_formula / 1e9:.0f} GB/s; set the bandwidth in the settings if the card "
                "is tuned"
            )
        return Bandwidth(in_table, "catalogue", f"table of cards: {card.name}", warning, card)
    if by_formula is not None:
        return Bandwidth(
            by_formula,
            "nvml",
            f"{reading.memory_bus_bits} bit / 8 x {reading.max_memory_clock_mhz} MHz x 2",
        )
    return Bandwidth(
        None,
        None,
        f"{reading.name or 'this GPU'} is not in the table, and NVML tells no bus width or clock",
    )


def engine_bandwidth(
    readings: Sequence[GpuReading],
    *,
    tensor_parallel_size: int = 1,
    settings_value: float | None = None,
    measured_value: float | None = None,
) -> Bandwidth:
    """The bandwidth that one decode step can draw on: `tensor_parallel_size` GPUs read at once.

    `readings` are the engine's GPUs. Tensor parallelism gives every GPU an equal share of the
    weights, so among unlike cards each counts as much as the slowest. Pipeline stages wait for one
    another and add nothing: GPUs beyond the tensor-parallel size do not count. The settings are
    bytes per second for one GPU. With one unknown among the GPUs the whole is unknown.
    """
    if settings_value is not None or measured_value is not None:
        single = gpu_bandwidth(None, settings_value=settings_value, measured_value=measured_value)
        single = replace(single, card=_card(readings))
        return _times(single, tensor_parallel_size, None)
    if not readings:
        return gpu_bandwidth(None)
    if len(readings) < tensor_parallel_size:
        return Bandwidth(
            None,
            None,
            f"the tensor-parallel size is {tensor_parallel_size}, but only {len(readings)} of "
            "the engine's GPUs are visible",
        )
    singles = [gpu_bandwidth(reading) for reading in readings]
    for single in singles:
        if single.bytes_per_second is None:
            return single
    slowest = min(singles, key=lambda single: single.bytes_per_second or 0.0)
    warnings = [single.warning for single in singles if single.warning is not None]
    if len(readings) > tensor_parallel_size:
        warnings.append(
            f"the engine uses {len(readings)} GPUs, and {tensor_parallel_size} count: set the "
            "tensor-parallel size if they share every layer"
        )
    return _times(slowest, tensor_parallel_size, "; ".join(warnings) or None)


def _card(readings: Sequence[GpuReading]) -> Card | None:
    """The one that all of them are."""
    cards = {
        match_card(reading.name, reading.memory_total_bytes) if reading.name is not None else None
        for reading in readings
        if not reading.mig
    }
    return cards.pop() if len(cards) == 1 else None


def _times(single: Bandwidth, gpus: int, warning: str | None) -> Bandwidth:
    if single.bytes_per_second is None or gpus == 1:
        return replace(single, warning=warning)
    return replace(
        single,
        bytes_per_second=single.bytes_per_second * gpus,
        explanation=(
            f"{gpus} GPUs x {single.bytes_per_second / 1e9:.0f} GB/s ({single.explanation})"
        ),
        warning=warning,
    )
