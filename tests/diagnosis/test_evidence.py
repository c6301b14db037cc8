"""The typical constants against what was measured elsewhere (docs/normal.md)."""

import pytest
from tokgauge.diagnosis.expected_time import FAR, TELLS_NOTHING, Interval, band_of

from docs.evidence import EXAMPLES, Example, Measured, decoding, prompts

pytestmark = pytest.mark.socketless

DECODING = list(decoding())
HEALTHY = [m for m in [*DECODING, *prompts()] if m.state == "healthy"]


def band(measured: Measured) -> str:
    """Of the share's upper end; more than the peak in 16 bits is no mistake of prompts."""
    return band_of(min(measured.share.high, 1.0), measured.normal)


@pytest.mark.parametrize("measured", HEALTHY, ids=lambda measured: measured.name)
def test_what_was_healthy_is_called_healthy(measured: Measured) -> None:
    if measured.line["note"].startswith("watch: "):
        assert band(measured) == "watch", "the remark is out of date"
    else:
        assert band(measured) == "healthy"


def test_what_was_slow_is_not_called_healthy() -> None:
    slow = [measured for measured in DECODING if measured.state == "slow"]
    assert len(slow) >= 4
    assert [m.name for m in slow if band(m) not in ("watch", "suspect")] == []
    assert [m.name for m in slow if "eager" in m.line["engine"] and band(m) != "suspect"] == []


def test_no_range_is_so_wide_that_nothing_would_be_judged() -> None:
    assert all(measured.normal.width < TELLS_NOTHING for measured in DECODING)


def test_every_kind_of_system_is_among_the_evidence() -> None:
    healthy = [m for m in DECODING if m.state == "healthy"]
    assert {m.card.memory_kind for m in healthy} == {"gddr", "hbm", "lpddr"}
    for column, values in (
        ("cards", {"1", "2", "4", "8"}),
        ("experts", {"", "yes"}),
        ("dequantised", {"", "yes"}),
    ):
        assert {m.line[column] for m in healthy} == values
    assert any(int(m.line["sequences"]) >= 32 for m in healthy)


@pytest.mark.parametrize("measured", DECODING, ids=lambda measured: measured.name)
def test_the_shares_follow_from_what_the_source_says(measured: Measured) -> None:
    line = measured.line
    assert line["source"]
    assert line["state"] in ("healthy", "slow", "unknown")
    assert line["state"] == "healthy" or line["note"]
    assert measured.share.low <= measured.share.high < 1
    if not line["steps_per_second"]:
        assert "%" in line["measured"]
        return
    ends = [float(end) for end in line["steps_per_second"].split("-")]
    bandwidth = int(line["cards"]) * measured.card.bandwidth_bytes_per_second
    read = float(line["gigabytes_per_step"]) * 1e9
    assert ends[0] * read / bandwidth == pytest.approx(measured.share.low, abs=0.002)
    assert ends[-1] * read / bandwidth == pytest.approx(measured.share.high, abs=0.002)


# The ranges that the constants were first chosen for, in per cent.
EXPECTED = {
    ("Qwen2.5-7B bf16", "NVIDIA RTX A6000"): (69.7, 89.4),
    ("Qwen2.5-7B AWQ", "NVIDIA RTX A6000"): (41.7, 82.5),
    ("Llama-3.2-1B bf16", "NVIDIA H100 80GB HBM3"): (31.7, 57.8),
    ("Qwen3-0.6B bf16", "NVIDIA H100 80GB HBM3"): (13.7, 30.3),
    ("Llama-3.3-70B NVFP4", "NVIDIA GB10"): (47.9, 90.8),
    ("Qwen2.5-7B bf16", "NVIDIA L4"): (73.4, 91.6),
    ("Qwen2.5-7B bf16", "NVIDIA H100 80GB HBM3"): (59.1, 80.5),
    ("Qwen2.5-7B bf16", "NVIDIA A100-SXM4-80GB"): (67.1, 85.6),
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.model} {e.card}")
def test_the_worked_examples(example: Example) -> None:
    low, high = EXPECTED[example.model, example.card]
    assert example.normal.low * 100 == pytest.approx(low, rel=0.01)
    assert example.normal.high * 100 == pytest.approx(high, rel=0.01)


def test_the_founding_case_has_the_founding_bands() -> None:
    founding: Interval = EXAMPLES[0].normal
    assert founding.low == pytest.approx(0.70, abs=0.01)
    assert founding.high == pytest.approx(0.85, abs=0.05)
    assert FAR * founding.low == pytest.approx(0.50, abs=0.03)
    assert band_of(0.747, founding) == "healthy"
    assert band_of(0.40, founding) == "suspect"


@pytest.mark.parametrize(
    ("share", "band"),
    [(0.0, "suspect"), (0.524, "suspect"), (0.526, "watch"), (0.6999, "watch"), (0.7, "healthy"),
     (0.92, "healthy"), (1.0, "healthy"), (1.0001, "above"), (2.5, "above")],
)  # fmt: skip
def test_bands_around_a_range(share: float, band: str) -> None:
    assert band_of(share, Interval(0.7, 0.89)) == band
