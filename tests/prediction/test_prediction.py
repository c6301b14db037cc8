"""The campaign in short; `python -m tests.prediction` runs a long one."""

import pytest
from tokgauge.diagnosis.fit import NotTold

from tests.prediction.campaign import of_one_load, predictions
from tests.prediction.figures import figures

pytestmark = pytest.mark.socketless


def test_unseen_loads_are_predicted_and_the_intervals_hold() -> None:
    found = figures([one for seed in range(5) for one in predictions(seed)])
    assert found.told > 0.75
    assert found.error < 0.05
    assert found.covered >= 0.9
    assert found.width < 1.5, "an interval that holds everything tells nothing"


@pytest.mark.parametrize("seed", range(5))
def test_constants_are_absent_where_bytes_do_not_vary(seed: int) -> None:
    assert isinstance(of_one_load(seed), NotTold)
