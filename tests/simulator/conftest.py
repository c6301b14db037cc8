from collections.abc import Iterator

import pytest
from tokgauge.simulator.profile import EngineProfile
from tokgauge.simulator.server import running_engine


@pytest.fixture(scope="module")
def fast() -> Iterator[str]:
    """Base URL of a default engine that runs 50 times faster than the card."""
    with running_engine(EngineProfile(speed=50)) as url:
        yield url


@pytest.fixture(scope="module")
def recorded_twin() -> Iterator[str]:
    """An engine with the model id and the context length of the recorded one."""
    profile = EngineProfile(model="qwen", root="/models/tiny-q", max_model_len=512, speed=50)
    with running_engine(profile) as url:
        yield url
