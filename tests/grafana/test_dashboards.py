"""The dashboards ask only for what is exported, show all of it, and are well formed."""

import itertools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from defined import ENGINE, TARGET_LABELS, proxy_series
from generate import NOT_SHOWN, dashboards
from queries import grouped, select

from tests.grafana.promql import Expression, read
from tests.support.process import environment

ROOT = Path(__file__).parents[2]
BOARDS = dashboards()
BUILT_IN = {"__rate_interval", "__range", "__range_s"}
KNOWN = {**proxy_series(), **ENGINE}


def panels(board: Any) -> list[Any]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def targets(board: Any) -> Iterator[tuple[str, Any]]:
    for panel in panels(board):
        for target in panel["targets"]:
            yield panel["title"], target


def variable_queries(board: Any) -> Iterator[str]:
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def run_generator(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "grafana/generate.py", *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
    )


# in step


def test_check_agrees_with_the_committed_files_and_notices_a_change(tmp_path: Path) -> None:
    ended = run_generator(ROOT, "--check")
    assert ended.returncode == 0, ended.stdout
    shutil.copytree(ROOT / "grafana", tmp_path / "grafana")
    (tmp_path / "proxy").symlink_to(ROOT / "proxy")
    changed = tmp_path / "grafana" / "dashboards" / "gpu.json"
    changed.write_text(changed.read_text().replace("Utilisation", "Utilization"))
    ended = run_generator(tmp_path, "--check")
    assert ended.returncode == 1
    assert "gpu.json" in ended.stdout
    assert "Utilization" in changed.read_text(), "--check must not write"
    assert run_generator(tmp_path).returncode == 0
    assert "Utilization" not in changed.read_text()


def test_no_dashboard_is_left_over() -> None:
    assert {path.name for path in (ROOT / "grafana/dashboards").iterdir()} == set(BOARDS)


# metrics and labels


@pytest.mark.parametrize(
    "text",
    [
        "tokgauge_no_such_total{}",
        'tokgauge_requests_total{reason="stop"}',
        "sum by (gpu) (rate(tokgauge_requests_total{}[5m]))",
        "tokgauge_requests_total{} / on (gpu) tokgauge_requests_in_flight{}",
        "tokgauge_time_to_first_token_seconds{}",
        "sum by (le) (tokgauge_time_to_first_token_seconds_count{})",
    ],
)
def test_the_reader_notices_what_is_not_exported(text: str) -> None:
    assert problems(read(text))


def test_generation_refuses_what_is_not_exported() -> None:
    with pytest.raises(KeyError):
        select("tokgauge_no_such_total")
    with pytest.raises(ValueError, match="reason"):
        select("tokgauge_requests_total", reason="stop")
    with pytest.raises(ValueError, match="gpu"):
        grouped("sum", "gpu", "tokgauge_requests_total", "x")


def problems(expression: Expression) -> list[str]:
    found = []
    for use in expression.uses:
        known = KNOWN.get(use.name)
        if known is None:
            found.append(f"nobody exports {use.name}")
        else:
            wrong = use.labels - known.labels - TARGET_LABELS
            found += [f"{use.name} has no label {label}" for label in sorted(wrong)]
    return found


@pytest.mark.parametrize("name", BOARDS)
def test_queries_use_only_what_is_exported(name: str) -> None:
    for title, target in targets(BOARDS[name]):
        assert problems(read(target["expr"])) == [], title
    for query in variable_queries(BOARDS[name]):
        inside = re.fullmatch(r"label_values\((.*), (\w+)\)", query)
        assert inside is not None, query
        expression = read(inside[1])
        expression.uses[0].labels.add(inside[2])
        assert problems(expression) == [], query


@pytest.mark.parametrize("name", BOARDS)
def test_queries_use_the_variables_and_only_those_that_exist(name: str) -> None:
    exist = {variable["name"] for variable in BOARDS[name]["templating"]["list"]}
    used = set()
    for title, target in targets(BOARDS[name]):
        expression = read(target["expr"])
        used |= expression.variables
        for use in expression.uses:
            labels = KNOWN[use.name].labels
            expected = {"model_name"} if use.name in ENGINE else {"job", "instance"}
            expected |= {"model", "gpu"} & labels
            assert expected <= use.matched, f"{title}: {use.name}"
        if "rate(" in target["expr"]:
            assert "[$__rate_interval]" in target["expr"], title
    assert used <= exist | BUILT_IN
    assert exist - {"datasource"} <= used, "a variable that nothing uses"


def test_histograms_are_asked_by_le() -> None:
    for board in BOARDS.values():
        for title, target in targets(board):
            if "_bucket" in target["expr"]:
                assert re.search(r"by \(le\b", target["expr"]), title


def test_every_metric_is_shown_or_listed_with_a_reason() -> None:
    shown = {
        KNOWN[use.name].metric
        for board in BOARDS.values()
        for _, target in targets(board)
        for use in read(target["expr"]).uses
    }
    exported = {item.metric for item in proxy_series().values()}
    assert exported - shown == set(NOT_SHOWN)
    assert all(len(reason) > 10 for reason in NOT_SHOWN.values())


def test_the_engines_series_are_on_a_page_of_a_real_vllm() -> None:
    page = (ROOT / "tests/engine/pages/vllm_after.txt").read_text()
    for name in ENGINE:
        line = re.search(rf"^{name}\{{(.*)\}} ", page, re.M)
        assert line is not None, name
        assert ENGINE[name].labels == set(re.findall(r'(\w+)="', line[1])), name


# form


def test_uids_titles_and_tags() -> None:
    assert sorted(board["uid"] for board in BOARDS.values()) == [
        "tokgauge-capacity", "tokgauge-gpu", "tokgauge-overview", "tokgauge-requests",
    ]  # fmt: skip
    for board in BOARDS.values():
        assert len(board["uid"]) <= 40
        assert board["title"].startswith("tokgauge: ")
        assert board["description"]
        assert "tokgauge" in board["tags"]
        assert board["schemaVersion"] >= 39


@pytest.mark.parametrize("name", BOARDS)
def test_the_common_variables_are_there(name: str) -> None:
    names = [variable["name"] for variable in BOARDS[name]["templating"]["list"]]
    assert names[:4] == ["datasource", "job", "instance", "model"]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", BOARDS)
def test_every_query_goes_to_the_chosen_data_source(name: str) -> None:
    for panel in panels(BOARDS[name]):
        for item in (panel, *panel["targets"]):
            assert item["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for variable in BOARDS[name]["templating"]["list"]:
        if variable["type"] == "query":
            assert variable["datasource"]["uid"] == "${datasource}"


@pytest.mark.parametrize("name", BOARDS)
def test_panels_are_complete(name: str) -> None:
    board = BOARDS[name]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    titles = [panel["title"] for panel in panels(board)]
    assert len(set(titles)) == len(titles)
    for panel in panels(board):
        assert panel["targets"], panel["title"]
        assert panel["description"].strip().endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        values = [step["value"] for step in steps]
        assert values[0] is None
        assert values[1:] == sorted(values[1:])


@pytest.mark.parametrize("name", BOARDS)
def test_panels_do_not_overlap_and_leave_no_hole(name: str) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in BOARDS[name]["panels"]:
        at = panel["gridPos"]
        assert at["x"] >= 0
        assert at["x"] + at["w"] <= 24, panel["title"]
        for cell in itertools.product(
            range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])
        ):
            assert cell not in taken, f"{panel['title']} lies over {taken.get(cell)}"
            taken[cell] = panel["title"]
    lines = {line for _, line in taken}
    assert lines == set(range(max(lines) + 1))
    assert {(column, line) for line in lines for column in range(24)} == set(taken)


def test_links_lead_to_alerts_and_documents_that_exist() -> None:
    alerts = set(re.findall(r"alert: (\w+)", (ROOT / "config/alerts.yml").read_text()))
    linked = set()
    base = "https://github.com/tokgauge/tokgauge/blob/main/"
    for board in BOARDS.values():
        urls = [link["url"] for link in board["links"] if link["type"] == "link"]
        urls += [link["url"] for panel in panels(board) for link in panel["links"]]
        for url in urls:
            assert url.startswith(base), url
            path, _, anchor = url.removeprefix(base).partition("#")
            if path.startswith("docs/runbooks/"):
                linked.add(Path(path).stem)
                continue
            titles = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), re.M)
            assert not anchor or anchor in {title.lower().replace(" ", "-") for title in titles}
    assert linked <= alerts
    # Down means that no panel has anything to show.
    assert alerts - linked <= {"TokgaugeDown"}


def test_the_files_are_json_and_say_nothing_twice() -> None:
    for name in BOARDS:
        text = (ROOT / "grafana/dashboards" / name).read_text(encoding="utf-8")
        assert json.loads(text) == BOARDS[name]


def test_the_document_shows_every_dashboard() -> None:
    text = (ROOT / "docs/dashboards.md").read_text()
    for name, board in BOARDS.items():
        assert board["uid"] in text
        assert f"](images/{Path(name).stem}.png)" in text
