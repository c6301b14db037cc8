"""Every query of every panel, answered by a real Prometheus that has scraped a real proxy."""

import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
from generate import dashboards
from recording import Recording, recording

from tests.support.programs import program

pytestmark = pytest.mark.timed

BOARDS = dashboards()

EMPTY = {
    ("tokgauge: requests", "Failures of measuring", "{{where}}"): "measuring does not fail here",
    ("tokgauge: requests", "Responses not read completely", "{{reason}}"): "all can be read here",
    (
        "tokgauge: requests",
        "Share of the single-stream ceiling, contended or unknown (median)",
        "{{model}} alone, unknown",
    ): "the simulated NVML shows all processes",
    (
        "tokgauge: requests",
        "Share of the single-stream ceiling, contended or unknown (median)",
        "{{model}} in a batch, unknown",
    ): "the simulated NVML shows all processes",
    (
        "tokgauge: GPU",
        "NVML calls that failed",
        "{{instance}} {{kind}}",
    ): "the simulated NVML answers every call",
    **{
        ("tokgauge: GPU", panel, "{{instance}} {{model}} {{source}}"): "nothing is calibrated, and "
        "the simulated traffic is too even to tell"
        for panel in (
            "What the memory is read with while it is read",
            "What a step costs beside reading",
        )
    },
}
"""Queries that rightly have no answer in the recording: dashboard, panel, legend → why."""


@pytest.fixture(scope="module")
def recorded() -> Iterator[Recording]:
    program("prometheus")
    with recording() as made:
        yield made


def queries(name: str) -> Iterator[tuple[Any, Any, Any]]:
    board = BOARDS[name]
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield board, panel, target


@pytest.mark.parametrize("name", BOARDS)
def test_every_query_has_an_answer(recorded: Recording, name: str) -> None:
    unanswered = set()
    for board, panel, target in queries(name):
        series = recorded.answer(board, target)
        numbers = [float(value) for item in series for _, value in item["values"]]
        if not any(math.isfinite(number) for number in numbers):
            unanswered.add((board["title"], panel["title"], target["legendFormat"]))
    listed = {key for key in EMPTY if key[0] == BOARDS[name]["title"]}
    assert unanswered == listed


@pytest.mark.parametrize("name", BOARDS)
def test_legends_name_labels_that_answers_have_and_tell_series_apart(
    recorded: Recording, name: str
) -> None:
    for board, panel, target in queries(name):
        named = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
        series = recorded.answer(board, target)
        # Prometheus drops empty labels, such as the code of a client that left before an answer.
        if series:
            assert set(named) <= set().union(*(item["metric"] for item in series)), panel["title"]
        if target["legendFormat"] != "__auto":
            legends = [tuple(item["metric"].get(label) for label in named) for item in series]
            assert len(set(legends)) == len(legends), panel["title"]


def test_the_panels_tell_the_story(recorded: Recording) -> None:
    """Healthy in bfloat16, about half of that beside an active neighbour, healthy in 4 bits."""
    board = BOARDS["overview.json"]
    told = {
        panel["title"]: recorded.answer(board, panel["targets"][0])
        for panel in board["panels"]
        if panel.get("targets")
    }
    efficiency = [float(value) for _, value in told["Efficiency"][0]["values"]]
    assert any(0.6 < value < 0.9 for value in efficiency)
    assert any(0.3 < value < 0.55 for value in efficiency)
    contention = {value for _, value in told["Contention over time"][0]["values"]}
    assert {"1", "2"} <= contention, "idle and active neighbours"
    causes = {item["metric"]["cause"] for item in told["Causes that the verdict names"]}
    assert "active_neighbour" in causes


def test_variables_find_their_values(recorded: Recording) -> None:
    for board in BOARDS.values():
        for variable in board["templating"]["list"]:
            if variable["type"] != "query":
                continue
            inside = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            assert inside is not None
            series = recorded.answer(board, {"expr": inside[1], "instant": True})
            assert all(item["metric"].get(inside[2]) for item in series), variable["name"]
            assert series, variable["name"]
