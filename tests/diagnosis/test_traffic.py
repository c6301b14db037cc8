"""Which exchanges ran alone, whatever the number of relays, and what becomes of a lost relay's."""

import tracemalloc
from typing import Any

import msgspec
import pytest
from tokgauge.diagnosis.traffic import Traffic
from tokgauge.measure.record import Progress, Record


def progress(name: str, opened_at: float, *, generates: bool = True) -> Progress:
    return Progress(
        id=name, opened_at=opened_at, requested="m", answered="m", generates=generates,
        streamed=True, decodes_from=opened_at, decoded_to=None, token_events=1,
        silent_since=None, sequences=1, calls_tools=False,
        context_at_most=None, context_at_least=0.0,
    )  # fmt: skip


def record(name: str, opened_at: float, ended_at: float, *, alone: bool = True) -> Record:
    values: dict[str, Any] = {f.name: None for f in msgspec.structs.fields(Record) if f.required}
    values |= {
        "progress": progress(name, opened_at),
        "ended_at": ended_at,
        "id": name,
        "alone": alone,
    }
    return Record(**values)


@pytest.fixture
def traffic() -> Traffic:
    """Of two relays, a and b."""
    traffic = Traffic()
    traffic.came("a")
    traffic.came("b")
    return traffic


def alone(records: list[Record]) -> list[tuple[str, bool | None]]:
    return [(record.id, record.alone) for record in records]


def test_it_was_alone_when_all_others_say_so(traffic: Traffic) -> None:
    assert traffic.ended("a", record("1", 1, 2)) == []
    assert traffic.told("a", 3, []) == []
    assert traffic.told("b", 1.5, []) == []
    assert alone(traffic.told("b", 2.5, [])) == [("1", True)]


def test_it_was_not_alone_beside_one_that_runs_elsewhere(traffic: Traffic) -> None:
    assert traffic.ended("a", record("1", 1, 2)) == []
    assert alone(traffic.told("b", 2.5, [progress("2", 1.9)])) == [("1", False)]


def test_what_began_later_or_generates_nothing_is_no_company(traffic: Traffic) -> None:
    assert traffic.ended("a", record("1", 1, 2)) == []
    others = [progress("2", 2.1), progress("3", 1, generates=False)]
    assert alone(traffic.told("b", 2.5, others)) == [("1", True)]


def test_it_was_not_alone_beside_one_that_has_ended_elsewhere(traffic: Traffic) -> None:
    assert traffic.ended("b", record("2", 1.2, 1.4)) == []
    assert alone(traffic.ended("a", record("1", 1, 2))) == [("2", False), ("1", False)]


def test_the_last_one_that_ended_elsewhere_may_be_the_wrong_one_to_ask(traffic: Traffic) -> None:
    for number, span in enumerate([(0.1, 0.2), (1.0, 4.0), (4.5, 5.0)]):
        traffic.ended("b", record(f"b{number}", *span, alone=False))
    assert alone(traffic.ended("a", record("1", 3, 4.2))) == [("1", False)]
    assert traffic.ended("a", record("2", 4.1, 4.4)) == []
    assert alone(traffic.told("b", 6, [])) == [("2", True)]


def test_who_was_not_alone_in_its_own_relay_need_not_wait(traffic: Traffic) -> None:
    assert alone(traffic.ended("a", record("1", 1, 2, alone=False))) == [("1", False)]


@pytest.mark.parametrize(
    ("running", "expected"), [([progress("2", 1.5)], False), ([progress("2", 2.5)], True)]
)
def test_a_relay_that_dies_decides_by_what_it_ran(
    traffic: Traffic, running: list[Progress], expected: bool
) -> None:
    traffic.told("b", 1.6, running)
    found = traffic.ended("a", record("1", 1, 2))
    assert alone([*found, *traffic.gone("b", 2.2)]) == [("1", expected)]


def test_the_record_of_a_relay_that_dies_is_not_its_own_company(traffic: Traffic) -> None:
    assert traffic.ended("a", record("1", 1, 2)) == []
    assert traffic.gone("a", 2.1) == []
    assert alone(traffic.told("b", 2.5, [])) == [("1", True)]


def test_what_a_dead_relay_ran_counts_for_what_ends_later(traffic: Traffic) -> None:
    traffic.told("b", 1.6, [progress("2", 1.5)])
    traffic.gone("b", 1.7)
    assert alone(traffic.ended("a", record("1", 1, 2))) == [("1", False)]


def test_a_relay_that_hangs_costs_what_nobody_knows_and_no_more(traffic: Traffic) -> None:
    assert traffic.ended("a", record("1", 1, 2)) == []
    assert traffic.told("a", 6, []) == []
    assert alone(traffic.told("a", 8, [])) == [("1", None)]


def test_another_thread_may_look_while_something_ends(traffic: Traffic) -> None:
    traffic.told("a", 1, [progress("1", 1), progress("2", 1)])
    running = traffic.running
    next(running)
    traffic.ended("a", record("1", 1, 2))
    traffic.came("c")
    assert [each.id for each in running] == ["2"]


def test_one_relay_decides_by_itself() -> None:
    traffic = Traffic()
    traffic.came("a")
    assert alone(traffic.ended("a", record("1", 1, 2))) == [("1", True)]
    assert traffic.generating == 0


def test_one_relay_leaves_nothing_to_remember() -> None:
    traffic = Traffic(several=False)
    traffic.came("a")
    ended = record("1", 1, 2)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(2_000):
            assert traffic.ended("a", ended) == [ended]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 20_000
