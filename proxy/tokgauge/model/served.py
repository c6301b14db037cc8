"""The list that an engine's GET /v1/models answers with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["ServedModel", "base_models", "served_models"]


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
            root=_text(card.get("root")),
            parent=_text(card.get("parent")),
            max_model_len=_count(card.get("max_model_len")),
            owned_by=_text(card.get("owned_by")),
        )
        for card in data
        if isinstance(card, dict) and isinstance(card.get("id"), str)
    )


def base_models(payload: Any) -> tuple[ServedModel, ...]:
    """The cards whose root holds the weights: those without a parent."""
    return tuple(model for model in served_models(payload) if model.parent is None)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
