"""What a window must have in common: times under different conditions are not judged as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from tokgauge.diagnosis.causes import POWER_BRAKE, THERMAL
from tokgauge.engine.metrics_page import EngineReading
from tokgauge.gpu.contention import State
from tokgauge.gpu.readings import GpuReading

_Value = TypeVar("_Value")

_SLOWED = THERMAL | {POWER_BRAKE, "hw_slowdown"}


@dataclass(frozen=True, slots=True)
class Conditions:
    """None is what is not known, and no change.

    engine_started_at: Unix time of the engine's process. neighbour_is_active: others compute on the
    engine's GPUs. hardware_slows: by heat, power or another protection.
    """

    engine_started_at: float | None
    neighbour_is_active: bool | None
    hardware_slows: bool | None

    def differ(self, before: Conditions) -> bool:
        """Whether something that is known now was known to be otherwise before."""
        pairs = (
            (self.engine_started_at, before.engine_started_at),
            (self.neighbour_is_active, before.neighbour_is_active),
            (self.hardware_slows, before.hardware_slows),
        )
        return any(None not in pair and pair[0] != pair[1] for pair in pairs)

    def since(self, before: Conditions) -> Conditions:
        """The same, with what was known before in the place of what is not known now."""
        return Conditions(
            _first(self.engine_started_at, before.engine_started_at),
            _first(self.neighbour_is_active, before.neighbour_is_active),
            _first(self.hardware_slows, before.hardware_slows),
        )


def conditions(
    reading: EngineReading | None, contention: State, gpus: Sequence[GpuReading]
) -> Conditions:
    """Of one look. contention: the worst of the engine's GPUs; gpus: their readings."""
    reasons = [gpu.throttle_reasons for gpu in gpus if gpu.throttle_reasons is not None]
    return Conditions(
        reading.started_at if reading is not None else None,
        None if contention == "unknown" else contention == "active_neighbours",
        any(found & _SLOWED for found in reasons) if reasons else None,
    )


def _first(now: _Value | None, before: _Value | None) -> _Value | None:
    return before if now is None else now
