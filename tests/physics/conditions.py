"""What can go wrong while the engine runs. Nothing is wrong by default."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Conditions:
    neighbour: float = 0.0
    """Share of the card's time that another process takes (0 to 0.9)."""
    memory_clock: float = 1.0
    """Share of the full memory clock."""
    eager: bool = False
    """Kernels are launched one by one, and none is fused."""
    stolen_cpu: float = 1.0
    """Factor on all CPU time of the engine."""
    guided: float = 0.0
    """CPU time per sequence and step for a grammar, never hidden [s]."""
    cache: float = 1.0
    """Share of the KV cache that there is."""
    acceptance: float | None = None
    """Of draft tokens, in place of the model's own."""
