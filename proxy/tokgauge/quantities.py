"""Numbers as people write them, alike in commands and settings: 7.62B, 14.14GB, 16k tokens."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

__all__ = ["BANDWIDTHS", "BYTES", "COUNTS", "PLAIN", "TOKENS", "read_quantity"]

_NUMBER = re.compile(r"([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([a-z/]*)", re.IGNORECASE)

PLAIN: Mapping[str, float] = {"": 1.0}
COUNTS: Mapping[str, float] = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
TOKENS: Mapping[str, float] = {"": 1.0, "k": 1024.0, "m": 1024.0**2}
"""Lengths of a context are powers of two, and so is what people mean by 16k or 128k."""
BYTES: Mapping[str, float] = {
    "": 1.0, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
    "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40,
}  # fmt: skip
BANDWIDTHS: Mapping[str, float] = {
    **BYTES,
    **{f"{unit}/s": size for unit, size in BYTES.items() if unit},
}


def read_quantity(
    text: str, units: Mapping[str, float], smallest: float = 1e-6, largest: float = 1e18
) -> float:
    """The number that `text` means, in bounds, so that no later product or quotient is infinite.

    units: lower-case suffixes and their factors. Raises ValueError, which says what is wrong.
    """
    match = _NUMBER.fullmatch(text.strip())
    unit = units.get(match[2].lower()) if match else None
    if match is None or unit is None:
        known = ", ".join(key for key in units if key)
        raise ValueError(f"{text!r} is not a number" + (f" (units: {known})" if known else ""))
    number = float(match[1]) * unit
    if not math.isfinite(number) or not smallest <= number <= largest:
        raise ValueError(f"{text!r} is out of bounds (from {smallest:g} to {largest:g})")
    return number
