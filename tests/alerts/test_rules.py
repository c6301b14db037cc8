"""Configuration, rules and their unit tests, read and run by promtool and amtool."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tokgauge.export.prometheus import Metrics
from tokgauge.settings import DURATION_BUCKETS

from tests.support.programs import program

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config"
UNIT_TESTS = sorted(Path(__file__).parent.glob("*.yml"))
RUNBOOKS = ROOT / "docs" / "runbooks"
RUNBOOK_URL = "https://github.com/tokgauge/tokgauge/blob/main/docs/runbooks/"
HEADINGS = ["What it means", "How to check", "What to do", "When it is wrong"]


def rules(file: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load((CONFIG / file).read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


ALERT_FILES = ("alerts.yml", "alerts_fixed_limit.yml")
ALERT_RULES = [rule for file in ALERT_FILES for rule in rules(file)]
ALERTS = {rule["alert"]: rule for rule in ALERT_RULES}


def run(name: str, *arguments: str, stdin: str | None = None) -> None:
    done = subprocess.run(
        [program(name), *arguments], input=stdin, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_accepts_its_configuration_and_the_rules() -> None:
    run("promtool", "check", "config", str(CONFIG / "prometheus.yml"))
    run(
        "promtool",
        "check",
        "rules",
        "--lint=all",
        "--lint-fatal",
        str(CONFIG / "recording_rules.yml"),
        *(str(CONFIG / file) for file in ALERT_FILES),
    )


def test_alertmanager_accepts_its_configuration() -> None:
    run("amtool", "check-config", str(CONFIG / "alertmanager.yml"))


@pytest.mark.parametrize("file", UNIT_TESTS, ids=lambda file: file.stem)
def test_rules_fire_when_they_should_and_only_then(file: Path) -> None:
    run("promtool", "test", "rules", str(file))


def test_each_alert_has_a_test_that_fires_and_one_that_stays_silent() -> None:
    fires, silent = set(), set()
    for file in UNIT_TESTS:
        for test in yaml.safe_load(file.read_text())["tests"]:
            expected = [
                {sample["labels"] for sample in check["exp_samples"]}
                for check in test["promql_expr_test"]
            ]
            named = re.match(r"(\w+) (fires|stays silent): ", test["name"])
            assert named is not None, test["name"]
            alert, kind = named.groups()
            label = f'{{alertname="{alert}"}}'
            if kind == "fires":
                assert any(label in names for names in expected), test["name"]
                fires.add(alert)
            else:
                assert not any(label in names for names in expected), test["name"]
                silent.add(alert)
    assert fires == silent == set(ALERTS)


def test_alerts_are_written_like_those_of_monitoring_mixins() -> None:
    assert len(ALERTS) == len(ALERT_RULES), "a name is used twice"
    for name, rule in ALERTS.items():
        assert re.fullmatch(r"Tokgauge([A-Z][a-z0-9]+)+", name)
        assert set(rule["labels"]) == {"severity"}, name
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), name
        notes = rule["annotations"]
        assert set(notes) == {"summary", "description", "runbook_url"}, name
        assert re.fullmatch(r"[^.{]+\.", notes["summary"]), f"{name}: one sentence"
        assert "{{" in notes["description"], f"{name}: the description tells numbers or places"
        assert notes["runbook_url"] == f"{RUNBOOK_URL}{name}.md"


def test_recording_rules_are_named_level_metric_operation() -> None:
    for rule in rules("recording_rules.yml"):
        assert re.fullmatch(r"instance(_model)?:tokgauge_\w+:\w+", rule["record"])


def test_every_recorded_figure_is_used_or_shown() -> None:
    text = "".join(rule["expr"] for file in (*ALERT_FILES, "recording_rules.yml")
                   for rule in rules(file))  # fmt: skip
    dashboards = "".join(path.read_text() for path in (ROOT / "grafana").rglob("*.json"))
    for rule in rules("recording_rules.yml"):
        assert rule["record"] in text + dashboards, rule["record"]


def test_rules_ask_only_for_metrics_that_exist() -> None:
    """A renamed metric would silence an alert for ever."""
    known = set()
    for family in Metrics(DURATION_BUCKETS).registry.collect():
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
        known |= {family.name + end for end in suffixes.get(family.type, ("",))}
    known |= {rule["record"] for rule in rules("recording_rules.yml")}
    for rule in (*ALERT_RULES, *rules("recording_rules.yml")):
        asked = set(re.findall(r"(?:instance(?:_model)?:)?\btokgauge_\w+(?::\w+)?", rule["expr"]))
        assert asked <= known, rule


def test_each_alert_has_its_runbook_and_each_runbook_its_alert() -> None:
    pages = {page.stem for page in RUNBOOKS.glob("*.md")} - {"README"}
    assert pages == set(ALERTS)


@pytest.mark.parametrize("alert", ALERTS)
def test_runbooks_have_the_same_parts(alert: str) -> None:
    text = (RUNBOOKS / f"{alert}.md").read_text()
    assert text.startswith(f"# {alert}\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS
    rule = ALERTS[alert]
    assert f"Severity: {rule['labels']['severity']}." in text
    check = text.split("## How to check")[1].split("## What to do")[0]
    assert "```" in check, "a command or a query to copy"


def documented_queries() -> list[tuple[str, str]]:
    """The queries of the runbooks and of docs/several-engines.md, with the page's name."""
    return [
        (page.stem.replace("-", "_"), query.strip())
        for page in (*sorted(RUNBOOKS.glob("*.md")), ROOT / "docs" / "several-engines.md")
        for block in re.findall(r"```promql\n(.*?)```", page.read_text(), re.DOTALL)
        for query in block.split("\n\n")
    ]


def test_documented_queries_can_be_parsed(tmp_path: Path) -> None:
    """As expressions of recording rules, which promtool parses."""
    written = {
        "groups": [
            {
                "name": "documented",
                "rules": [
                    {"record": f"q:{page}:{number}", "expr": query}
                    for number, (page, query) in enumerate(documented_queries())
                ],
            }
        ]
    }
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump(written))
    run("promtool", "check", "rules", str(file))


def test_names_of_our_metrics_pass_the_linter() -> None:
    from prometheus_client import generate_latest

    metrics = Metrics(DURATION_BUCKETS)
    run("promtool", "check", "metrics", stdin=generate_latest(metrics.registry).decode())
