"""The list that an engine's GET /v1/models answers with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokgauge.model.members import count, text

__all__ = ["ServedModel", "served_models"]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One card of the list."""

    id: str
    root: str | None
    """Path or repository of its files, as the engine sees them."""
    parent: str | None
    """The base model of a LoRA adapter; its root is then the adapter's directory."""
    max_model_len: int | None
    owned_by: str | None = None
    """The engine's own name, as vLLM and SGLang give it."""


def served_models(payload: Any) -> tuple[ServedModel, ...]:
    """All cards of a decoded answer, LoRA adapters included. Never raises."""
    data = payload.get("data") if isinstance(payload, dict) else None
    if not isinstance(data, list):
        return ()
    return tuple(
        ServedModel(
            id=card["id"],
            root=text(card, "root"),
            parent=text(card, "parent"),
            max_model_len=count(card, "max_model_len"),
            owned_by=text(card, "owned_by"),
        )
        for card in data
        if isinstance(card, dict) and isinstance(card.get("id"), str)
    )
