"""Reads members of what others have written without believing that they are what they should be.

A config.json, the metadata of a GGUF file, the list of an engine's models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["count", "mapping", "text"]


def count(section: Mapping[str, Any], *keys: str) -> int | None:
    """The first of these members that holds a positive whole number."""
    for key in keys:
        value = section.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**53:
            return value
    return None


def mapping(value: Any) -> Mapping[str, Any]:
    """The value when it is an object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def text(section: Mapping[str, Any], key: str) -> str | None:
    """The member when it is a text with something in it."""
    value = section.get(key)
    return value if isinstance(value, str) and value else None
