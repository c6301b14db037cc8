"""Fuzzing in short; `python -m tests.fuzz` runs a long campaign (see README.md)."""

import pytest

from tests.fuzz.campaign import run_campaign


@pytest.mark.parametrize("side", ["requests", "responses"])
def test_mutated_connections_harm_nobody(side: str) -> None:
    figures = run_campaign(side, range(400))
    assert figures.wrong == []
    assert figures.accepted > 50, "most are refused, but not all"
