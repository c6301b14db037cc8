"""Option types for numbers as people write them (see `tokgauge.quantities`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import click

from tokgauge.quantities import BANDWIDTHS, COUNTS, PLAIN, read_quantity
from tokgauge.quantities import BYTES as BYTE_UNITS
from tokgauge.quantities import TOKENS as TOKEN_UNITS

__all__ = ["AMOUNT", "BANDWIDTH", "BITS", "BYTES", "COUNT", "FACTOR", "POSITIVE", "SHARE", "TOKENS"]


def _quantity(
    name: str, units: Mapping[str, float], smallest: float = 1e-6, largest: float = 1e18
) -> Callable[[str], float]:
    """An option type; `name` is what the help shows for the value."""

    def convert(text: str) -> float:
        try:
            return read_quantity(str(text), units, smallest, largest)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    convert.__name__ = name
    return convert


COUNT = _quantity("COUNT", COUNTS, smallest=1)
TOKENS = _quantity("TOKENS", TOKEN_UNITS, smallest=1)
BYTES = _quantity("BYTES", BYTE_UNITS, smallest=1)
BANDWIDTH = _quantity("BYTES/S", BANDWIDTHS, smallest=1)
POSITIVE = _quantity("NUMBER", PLAIN)
FACTOR = _quantity("FACTOR", PLAIN, smallest=1, largest=100)
SHARE = _quantity("SHARE", PLAIN, smallest=0.01, largest=1)
BITS = _quantity("BITS", PLAIN, smallest=1, largest=64)
AMOUNT = _quantity("AMOUNT", COUNTS, smallest=0)
