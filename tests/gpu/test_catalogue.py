"""The card table: the right card or none, never the most similar one (CASES 40)."""

import pytest
from tokgauge.gpu.catalogue import find_cards, load_catalogue, match_card

pytestmark = pytest.mark.socketless

MIB = 1024**2
GIB = 1024**3


def names(text: str) -> list[str]:
    return [card.name for card in find_cards(text)]


def test_the_table_is_complete_and_consistent_in_itself() -> None:
    cards = load_catalogue()
    assert len(cards) == 56
    assert len({(card.name, card.memory_gb) for card in cards}) == len(cards)
    for card in cards:
        assert card.evidence
        # A bus of 1,024 bits a stack is HBM's; GB10's memory has no bus that NVML tells.
        wide = card.bus_bits is not None and card.bus_bits >= 1024
        told = "lpddr" if card.bus_bits is None else "hbm" if wide else "gddr"
        assert card.memory_kind == told, card.name
        assert 1e11 < card.bandwidth_bytes_per_second < 1e13
        if card.bus_bits is None or card.max_memory_clock_mhz is None:
            assert card.name == "NVIDIA GB10"
            continue
        formula = card.bus_bits / 8 * card.max_memory_clock_mhz * 1e6 * 2
        # Makers round; more than this is a typing mistake in a row.
        assert formula == pytest.approx(card.bandwidth_bytes_per_second, rel=0.035), card.name


# Totals as NVML reports them on these cards, in MiB.
@pytest.mark.parametrize(
    ("nvml_name", "total_mib", "bandwidth"),
    [
        ("NVIDIA RTX A6000", 49140, 768e9),
        ("RTX A6000", 49140, 768e9),
        ("NVIDIA RTX 6000 Ada Generation", 49140, 960e9),
        ("NVIDIA A100-PCIE-40GB", 40960, 1555e9),
        ("A100-SXM4-80GB", 81920, 2039e9),
        ("NVIDIA A100 80GB PCIe", 81920, 1935e9),
        ("NVIDIA H100 80GB HBM3", 81559, 3350e9),
        ("NVIDIA H100 NVL", 95830, 3900e9),
        ("NVIDIA H200", 143771, 4800e9),
        ("NVIDIA B200", 183359, 7700e9),
        ("NVIDIA L4", 23034, 300e9),
        ("NVIDIA L40S", 46068, 864e9),
        ("Tesla T4", 15360, 320e9),
        ("NVIDIA A10G", 23028, 600e9),
        ("NVIDIA GeForce RTX 4090", 24564, 1008e9),
        ("NVIDIA GeForce RTX 3080", 10240, 760e9),
    ],
)
def test_a_known_name_with_its_memory_matches(
    nvml_name: str, total_mib: int, bandwidth: float
) -> None:
    card = match_card(nvml_name, total_mib * MIB)
    assert card is not None
    assert card.bandwidth_bytes_per_second == bandwidth


@pytest.mark.parametrize(
    ("nvml_name", "total_bytes"),
    [
        ("NVIDIA L4", 48 * GIB),
        ("NVIDIA A100-SXM4-80GB", 40 * GIB),
        ("NVIDIA GeForce RTX 3080", 12 * GIB),
        ("NVIDIA GeForce RTX 3060", 8 * GIB),
        ("NVIDIA GeForce RTX 4060 Ti", 8 * GIB),
        ("NVIDIA RTX A6000", None),
        ("NVIDIA RTX A6000", 0),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 40 * GIB),
        ("NVIDIA L40G", 24 * GIB),
        ("NVIDIA RTX 6000", 48 * GIB),
        ("NVIDIA A100", 40 * GIB),
        ("NVIDIA A40-48Q", 48 * GIB),
        ("A6000", 48 * GIB),
        ("", 48 * GIB),
    ],
)
def test_wrong_memory_or_a_part_of_a_name_is_unknown(
    nvml_name: str, total_bytes: int | None
) -> None:
    assert match_card(nvml_name, total_bytes) is None


def test_a_card_without_a_memory_figure_in_nvml_matches_by_name() -> None:
    card = match_card("NVIDIA GB10", None)
    assert card is not None
    assert card.bandwidth_bytes_per_second == 273e9


def test_every_card_is_found_under_its_own_name_and_memory_only() -> None:
    for card in load_catalogue():
        assert match_card(card.name, int(card.memory_gb * GIB)) is card
        assert match_card(card.name, int(card.memory_gb * GIB / 2)) is None
        assert card.name in names(card.name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A6000", ["NVIDIA RTX A6000"]),
        ("a6000", ["NVIDIA RTX A6000"]),
        ("L4", ["NVIDIA L4"]),
        ("l40", ["NVIDIA L40"]),
        ("L40S", ["NVIDIA L40S"]),
        ("rtx 6000 ada", ["NVIDIA RTX 6000 Ada Generation"]),
        ("RTX 4080", ["NVIDIA GeForce RTX 4080"]),
        ("4080 super", ["NVIDIA GeForce RTX 4080 SUPER"]),
        ("h100 sxm", ["NVIDIA H100 80GB HBM3"]),
        ("H200", ["NVIDIA H200"]),
        ("3060 12 GB", ["NVIDIA GeForce RTX 3060"]),
        ("3080 12GB", []),
        ("dgx spark", ["NVIDIA GB10"]),
        ("A100 80GB", ["NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"]),
        ("H100", ["NVIDIA H100 PCIe", "NVIDIA H100 80GB HBM3", "NVIDIA H100 NVL"]),
        ("L", []),
        ("A600", []),
        ("", []),
        (" - ", []),
    ],
)
def test_people_find_cards_by_whole_words(text: str, expected: list[str]) -> None:
    assert names(text) == expected
