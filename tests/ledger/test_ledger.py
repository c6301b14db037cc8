"""The ledger in short; `python -m tests.ledger` runs a long one."""

import pytest

from tests.ledger.run import run_ledger


@pytest.mark.parametrize("workers", [1, 2])
def test_nobody_gets_anothers_bytes_and_nothing_stays_open(workers: int) -> None:
    result = run_ledger(1000, workers, seed=workers)
    assert result.wrong == [], str(result)
