"""Numbers on the command line as people write them: 7.62B parameters, 14.14GB, 8k tokens."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import click

__all__ = ["AMOUNT", "BANDWIDTH", "BITS", "BYTES", "COUNT", "FACTOR", "POSITIVE", "quantity"]

_NUMBER = re.compile(r"([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([a-z/]*)", re.IGNORECASE)
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_BYTES = {
    "": 1.0, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
    "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40,
}  # fmt: skip


def quantity(
    name: str, units: dict[str, float], smallest: float = 1e-6, largest: float = 1e18
) -> Callable[[str], float]:
    """An option type: a number in bounds, so that no later product or quotient is infinite.

    name: what the help shows for the value. units: lower-case suffixes and their factors.
    """

    def convert(text: str) -> float:
        match = _NUMBER.fullmatch(str(text).strip())
        unit = units.get(match[2].lower()) if match else None
        if match is None or unit is None:
            known = ", ".join(key for key in units if key)
            raise click.BadParameter(
                f"{text!r} is not a number" + (f" (units: {known})" if known else "")
            )
        number = float(match[1]) * unit
        if not math.isfinite(number) or not smallest <= number <= largest:
            raise click.BadParameter(
                f"{text!r} is out of bounds (from {smallest:g} to {largest:g})"
            )
        return number

    convert.__name__ = name
    return convert


COUNT = quantity("COUNT", _COUNTS, smallest=1)
BYTES = quantity("BYTES", _BYTES, smallest=1)
BANDWIDTH = quantity(
    "BYTES/S", _BYTES | {f"{unit}/s": size for unit, size in _BYTES.items() if unit}, smallest=1
)
POSITIVE = quantity("NUMBER", {"": 1.0})
FACTOR = quantity("FACTOR", {"": 1.0}, smallest=1, largest=100)
BITS = quantity("BITS", {"": 1.0}, smallest=1, largest=64)
AMOUNT = quantity("AMOUNT", _COUNTS, smallest=0)
