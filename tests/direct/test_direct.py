"""The same exchange direct and through the proxy: what a client and an engine see is the same.

The corpus is in `corpus_*.py`, a line or a small dict for each exchange. Whatever may differ is
named in `compare.py`, each with the row of README's table that tells of it; what differs through
the second front door only, in `asgi_differences.py`, each with its reason.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.direct import asgi_differences
from tests.direct.compare import EXCEPTIONS, Difference, Excepted, faults
from tests.direct.conftest import Ways
from tests.direct.corpus_captures import CAPTURED
from tests.direct.corpus_cases import CASES
from tests.direct.corpus_combinations import COMBINED
from tests.direct.engines import wish
from tests.direct.harness import Exchange, run

CORPUS = [*CAPTURED, *CASES, *COMBINED]
README = Path(__file__).parents[2] / "README.md"


def through(exchange: Exchange, ways: Ways, port: int) -> list[str]:
    """Run it direct and at `port`, round by round; the first faults, in words."""
    direct = run(exchange, ways.engine, ways.engine.port)
    for number in range(1, exchange.rounds + 1):
        found = faults(exchange, direct, run(exchange, ways.engine, port))
        if ways.door_name == "asgi":
            found = beyond_asgi(exchange, found)
        if found:
            return [
                f"{exchange.name}, round {number}, {one.what}:\n"
                f"  direct {one.direct!r}\n  proxy  {one.proxy!r}"
                for one in found
            ]
    return []


def beyond_asgi(exchange: Exchange, found: list[Difference]) -> list[Difference]:
    """The faults that the second door does not have by its nature."""
    expected, _ = asgi_differences.DIFFERENT.get(exchange.name, (set(), ""))
    found = [one for one in found if not asgi_differences.differs_by_case(one)]
    missing = expected - {one.what for one in found}
    assert not missing, f"{exchange.name} does not differ in {missing}: the list is out of date"
    return [one for one in found if one.what not in expected]


@pytest.mark.parametrize("exchange", CORPUS, ids=lambda exchange: exchange.name)
def test_what_direct_gives_the_proxy_gives(ways: Ways, exchange: Exchange) -> None:
    if ways.door_name == "asgi" and exchange.name in asgi_differences.NOT_RUN:
        pytest.skip(asgi_differences.NOT_RUN[exchange.name])
    if not exchange.own_proxy:
        found = through(exchange, ways, ways.shared)
    else:
        with ways.fresh() as port:
            found = [fault for lesson in exchange.lessons for fault in through(lesson, ways, port)]
            if exchange.restarts:
                ways.restart_engine(port)
            found += through(exchange, ways, port)
    if found:
        pytest.fail("\n".join(found), pytrace=False)


def test_an_engine_that_honours_the_wish_gets_it(ways: Ways) -> None:
    """Else all of the above would hold without any injection."""
    exchange = next(one for one in CORPUS if one.name == "honours, wish none")
    with ways.fresh() as port:
        wishes = [
            wish(bytes(run(exchange, ways.engine, port).requests[-1].body))[0]
            for _ in range(exchange.rounds)
        ]
    assert wishes[-1]


def test_names_are_unique() -> None:
    names = [exchange.name for exchange in CORPUS]
    assert len(names) == len(set(names))
    assert {*asgi_differences.NOT_RUN, *asgi_differences.DIFFERENT} <= set(names)


@pytest.mark.parametrize("excepted", EXCEPTIONS, ids=lambda excepted: excepted.row)
def test_readme_tells_of_each_exception(excepted: Excepted) -> None:
    table = README.read_text().split("## What the proxy changes", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"(?m)^\| (.*?) \|", table)
    assert any(row.lower().startswith(excepted.row.lower()) for row in rows)
