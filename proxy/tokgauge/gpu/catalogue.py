"""The table of known cards: exact NVML name and memory size to memory bandwidth.

`cards.tsv` keeps for every row where its figures come from. Names are never compared by substring:
`L4` is part of `L40S`, `A100-PCIE-40GB` looks like `A100-SXM4-80GB`, and their bandwidths differ by
up to three times. A card that is not in the table is unknown, never the most similar one.
"""

import csv
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal, cast

__all__ = ["Card", "MemoryKind", "find_cards", "load_catalogue", "match_card"]

MemoryKind = Literal["gddr", "hbm", "lpddr"]
"""What a card's memory is made of: how much of its bandwidth reading can reach depends on it."""

_GIB = 1024**3

# What NVML reports as total memory, as a share of the marketing size read as GiB. Below 1: the
# driver keeps some for itself (H100 79.6 of 80), in-line ECC on GDDR6 takes 1/16 (A40 and L40S
# 45.0 of 48, T4 15.0 of 16), and unified memory is shared with the system (GB10 about 119.6 of
# 128). Variants that share one name are at least a sixth apart (RTX 3080 10 and 12 GB), so
# the bounds cannot reach from one to the other.
_SMALLEST_SHARE = 0.91
_LARGEST_SHARE = 1.03

_WORD = re.compile(r"[a-z0-9]+")
_SPACED_SIZE = re.compile(r"(\d+)\s+(gb)\b")
_JOINED_SERIES = re.compile(r"\b(rtx|gtx|tesla|quadro|geforce|nvidia)(?=[a-z]?\d)")
# Words of a name that say who sells the card and in which series, not which card it is.
_SERIES_WORDS = frozenset({"nvidia", "geforce", "tesla", "quadro", "rtx", "generation"})


@dataclass(frozen=True, slots=True)
class Card:
    """One card as its maker sells it.

    `name` is NVML's spelling. `memory_gb` is the marketing size. `memory_kind` holds for every
    generation of it: gddr for GDDR5 to GDDR7, hbm for HBM2 to HBM3e.
    `bandwidth_bytes_per_second` is the maker's figure (1 GB = 1e9 bytes). `bus_bits` and
    `max_memory_clock_mhz` are what NVML reports, None where NVML reports none. `also_called` holds
    words that people use for the card. `dense_flops` is the maker's figure for products of 16-bit
    matrices summed in 32 bits, without sparsity [FLOP/s]; None where it was not found.
    """

    name: str
    memory_gb: float
    memory_kind: MemoryKind
    bandwidth_bytes_per_second: float
    bus_bits: int | None
    max_memory_clock_mhz: int | None
    evidence: str
    dense_flops: float | None = None
    also_called: frozenset[str] = frozenset()


@cache
def load_catalogue() -> tuple[Card, ...]:
    """All known cards, in the order of the table."""
    text = files(__package__).joinpath("cards.tsv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines(), delimiter="\t")
    return tuple(
        Card(
            name=row["nvml_name"],
            memory_gb=float(row["memory_gb"]),
            memory_kind=cast(MemoryKind, row["memory"]),  # test_catalogue.py holds the words
            bandwidth_bytes_per_second=float(row["bandwidth_gb_s"]) * 1e9,
            bus_bits=int(row["bus_bits"]) if row["bus_bits"] else None,
            max_memory_clock_mhz=(
                int(row["max_memory_clock_mhz"]) if row["max_memory_clock_mhz"] else None
            ),
            evidence=row["evidence"],
            dense_flops=float(row["dense_tflops"]) * 1e12 if row["dense_tflops"] else None,
            also_called=frozenset(_WORD.findall(row["also_called"].lower())),
        )
        for row in rows
    )


def match_card(nvml_name: str, memory_bytes: int | None) -> Card | None:
    """The card with exactly this NVML name (the prefix `NVIDIA ` may be missing) and this memory.

    `memory_bytes` is NVML's total. It has to lie between 0.91 and 1.03 of the marketing size in
    GiB. Without a total only cards for which NVML never gives one (GB10: no bus width either) can
    match, since one name may be sold with two memories and two bandwidths. Otherwise None.
    """
    wanted = _without_prefix(nvml_name)
    named = [card for card in load_catalogue() if _without_prefix(card.name) == wanted]
    if memory_bytes is None:
        return next((card for card in named if card.bus_bits is None), None)
    fitting = [
        card
        for card in named
        if _SMALLEST_SHARE <= memory_bytes / (card.memory_gb * _GIB) <= _LARGEST_SHARE
    ]
    return fitting[0] if len(fitting) == 1 else None


def find_cards(text: str) -> list[Card]:
    """The cards that a person may mean: every word of `text` is a whole word of the card.

    Case does not matter; the memory size counts as a word (`3060 12gb`). When a card's name
    consists of these words alone, apart from maker and series, only such cards are returned
    (`4080` is not the 4080 SUPER). No words or no match: an empty list.
    """
    wanted = _words(text)
    if not wanted:
        return []
    found = []
    precise = []
    for card in load_catalogue():
        name_words = _words(card.name)
        size = f"{card.memory_gb:g}gb"
        if wanted <= name_words | card.also_called | {"nvidia", size}:
            found.append(card)
            if name_words - _SERIES_WORDS - {size} == wanted - _SERIES_WORDS - {size}:
                precise.append(card)
    return precise or found


def _without_prefix(name: str) -> str:
    return name.strip().removeprefix("NVIDIA ")


def _words(text: str) -> frozenset[str]:
    spaced = _JOINED_SERIES.sub(r"\1 ", text.lower())
    return frozenset(_WORD.findall(_SPACED_SIZE.sub(r"\1\2", spaced)))
