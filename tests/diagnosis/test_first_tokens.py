"""How long people waited for first tokens, and what their prompts explain of it."""

from typing import Any

import msgspec
import pytest
from tokgauge.diagnosis.expected_time import Interval
from tokgauge.diagnosis.first_tokens import FirstTokens
from tokgauge.measure.record import Record

pytestmark = pytest.mark.socketless


def stream(seconds: float | None, prompt: int | None = None, cached: int | None = None) -> Record:
    given: dict[str, Any] = {
        "time_to_first_token": seconds, "prompt_tokens": prompt, "cached_prompt_tokens": cached
    }  # fmt: skip
    unknown: dict[str, Any] = {f.name: None for f in msgspec.structs.fields(Record) if f.required}
    return Record(**unknown | given)


def of(*records: Record) -> FirstTokens:
    found = FirstTokens()
    for record in records:
        found.add(record)
    return found


def prefill(tokens: float) -> Interval:
    """1,000 to 2,000 tokens a second."""
    return Interval(tokens / 2000, tokens / 1000)


def test_the_median_counts_those_who_still_wait() -> None:
    found = of(stream(0.2), stream(0.2), stream(0.3), stream(None))
    assert len(found) == 3
    assert found.median() == pytest.approx(0.2)
    assert found.median([9.0, 9.0, 9.0, 9.0]) == 9.0
    assert of().median() is None


def test_the_own_prompt_is_subtracted() -> None:
    beyond = of(*[stream(5.0, 4000, 0)] * 3).beyond_prompts(prefill)
    assert beyond is not None
    assert beyond.low == pytest.approx(5.0 - 4.0, abs=0.1)
    assert beyond.high == pytest.approx(5.0 - 2.0, abs=0.15)


def test_what_the_prefix_cache_gave_takes_no_time() -> None:
    beyond = of(*[stream(5.0, 4000, 3900)] * 3).beyond_prompts(prefill)
    assert beyond is not None
    assert beyond.low == pytest.approx(4.8, abs=0.1)


def test_an_engine_that_does_not_tell_may_have_had_all_of_it_in_its_cache() -> None:
    beyond = of(*[stream(5.0, 4000)] * 3).beyond_prompts(prefill)
    assert beyond is not None
    assert beyond.low == pytest.approx(1.0, abs=0.1)
    assert beyond.high == pytest.approx(5.1, abs=0.1)


def test_long_and_short_prompts_are_subtracted_each_from_its_own_stream() -> None:
    """Median by median, the long prompts would explain the waiting of the short ones."""
    found = of(*[stream(4.0, 64, 0)] * 3, *[stream(4.0, 4000, 0)] * 4)
    beyond = found.beyond_prompts(prefill)
    assert beyond is not None
    assert beyond.high == pytest.approx(2.1, abs=0.1)
    assert of(*[stream(4.0, 64, 0)] * 4, *[stream(4.0, 4000, 0)] * 3).beyond_prompts(
        prefill
    ).low == pytest.approx(3.9, abs=0.1)  # type: ignore[union-attr]


def test_without_the_length_of_prompts_nothing_is_subtracted() -> None:
    assert of(stream(5.0)).beyond_prompts(prefill) is None
    assert of(stream(5.0)).prompt_tokens() is None


def test_memory_does_not_grow_with_the_number_of_answers() -> None:
    found = of(*[stream(0.21, 1000, 0)] * 5000)
    assert len(found) == 5000
    assert len(found.counts) == 1
