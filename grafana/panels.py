"""Grafana's JSON, as few functions as the dashboards need.

The format is that of Grafana 11 (schema 39), which Grafana 12 reads as well. A panel carries only
its width and height until `dashboard` lays it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
Steps = Sequence[tuple[float | None, str]]
"""Thresholds: from this value on, this colour; the first has no value."""

DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
SCHEMA_VERSION = 39
WIDTH = 24
"""Columns of Grafana's grid."""

PLAIN: Steps = ((None, "blue"),)


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel; `legend` may name labels as `{{label}}`. `now`: only the last value."""

    expression: str
    legend: str = ""
    now: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """How a number is shown as a word."""

    value: int
    word: str
    colour: str


def _panel(
    kind: str, title: str, text: str, unit: str, queries: Sequence[Query], *, width: int,
    height: int, steps: Steps = PLAIN, defaults: Json | None = None, options: Json | None = None,
    links: Mapping[str, str] | None = None, form: str = "time_series",
) -> Json:  # fmt: skip
    targets = [
        {
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": query.expression,
            "format": form,
            "instant": query.now,
            "legendFormat": query.legend or "__auto",
            "range": not query.now,
            "refId": chr(ord("A") + number),
        }
        for number, query in enumerate(queries)
    ]
    return {
        "type": kind,
        "title": title,
        "description": text,
        "datasource": DATASOURCE,
        "fieldConfig": {
            "defaults": {
                "unit": unit,
                "color": {"mode": "palette-classic"},
                "thresholds": {"mode": "absolute", "steps": _steps(steps)},
                "mappings": [],
                **(defaults or {}),
            },
            "overrides": [],
        },
        "gridPos": {"w": width, "h": height},
        "links": [
            {"title": name, "url": url, "targetBlank": True} for name, url in (links or {}).items()
        ],
        "options": options or {},
        "targets": targets,
    }


def _steps(steps: Steps) -> list[Json]:
    return [{"value": value, "color": colour} for value, colour in steps]


def timeseries(
    title: str, text: str, unit: str, *queries: Query, width: int = 8, height: int = 8,
    steps: Steps | None = None, stacked: bool = False, bars: bool = False,
    minimum: float | None = 0, maximum: float | None = None, interval: str | None = None,
    links: Mapping[str, str] | None = None,
) -> Json:  # fmt: skip
    """Lines (or bars) over time; `steps` colours the background as bands."""
    custom: Json = {
        "drawStyle": "bars" if bars else "line",
        "lineWidth": 1,
        "fillOpacity": 60 if bars else 25 if stacked else 5,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "area" if steps else "off"},
    }
    defaults: Json = {"custom": custom}
    if minimum is not None:
        defaults["min"] = minimum
    if maximum is not None:
        defaults["max"] = maximum
    options = {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    made = _panel(
        "timeseries", title, text, unit, queries, width=width, height=height,
        steps=steps or PLAIN, defaults=defaults, options=options, links=links,
    )  # fmt: skip
    if interval is not None:
        made["interval"] = interval
    return made


def stat(
    title: str, text: str, unit: str, *queries: Query, width: int = 4, height: int = 4,
    steps: Steps = PLAIN, states: Sequence[State] = (), decimals: int | None = None,
    links: Mapping[str, str] | None = None,
) -> Json:  # fmt: skip
    """The last value in large figures."""
    defaults: Json = {"color": {"mode": "thresholds"}, "mappings": _mappings(states)}
    if decimals is not None:
        defaults["decimals"] = decimals
    options = {
        "colorMode": "value",
        "graphMode": "none" if states or all(query.now for query in queries) else "area",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "value_and_name" if len(queries) > 1 else "auto",
    }
    return _panel(
        "stat", title, text, unit, queries, width=width, height=height, steps=steps,
        defaults=defaults, options=options, links=links,
    )  # fmt: skip


def gauge(
    title: str, text: str, unit: str, *queries: Query, steps: Steps, maximum: float = 1,
    width: int = 4, height: int = 8, links: Mapping[str, str] | None = None,
) -> Json:  # fmt: skip
    """The last value on a dial from 0 to `maximum`."""
    return _panel(
        "gauge", title, text, unit, queries, width=width, height=height, steps=steps,
        defaults={"color": {"mode": "thresholds"}, "min": 0, "max": maximum},
        options={
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "showThresholdLabels": True,
            "showThresholdMarkers": True,
        },
        links=links,
    )  # fmt: skip


def heatmap(
    title: str, text: str, unit: str, query: Query, *, width: int = 8, height: int = 8,
    links: Mapping[str, str] | None = None,
) -> Json:  # fmt: skip
    """A histogram over time; the query gives its cumulative buckets by `le`."""
    return _panel(
        "heatmap", title, text, unit, [Query(query.expression, "{{le}}")], width=width,
        height=height, form="heatmap", links=links,
        options={
            "calculate": False,
            "cellGap": 1,
            "color": {"mode": "scheme", "scheme": "Turbo", "steps": 64, "exponent": 0.5},
            "filterValues": {"le": 1e-9},
            "tooltip": {"mode": "single", "yHistogram": True},
            "yAxis": {"unit": unit, "axisPlacement": "left"},
        },
    )  # fmt: skip


def table(
    title: str, text: str, query: Query, columns: Mapping[str, str], *, width: int = 24,
    height: int = 5,
) -> Json:  # fmt: skip
    """The labels of an info metric; `columns`: label → heading, in order."""
    made = _panel(
        "table", title, text, "none", [Query(query.expression, now=True)], width=width,
        height=height, form="table", options={"showHeader": True},
    )  # fmt: skip
    made["transformations"] = [
        {"id": "filterFieldsByName", "options": {"include": {"names": list(columns)}}},
        {
            "id": "organize",
            "options": {
                "indexByName": {name: number for number, name in enumerate(columns)},
                "renameByName": dict(columns),
            },
        },
    ]
    return made


def state_timeline(
    title: str, text: str, *queries: Query, states: Sequence[State], no_value: str | None = None,
    width: int = 12, height: int = 6, links: Mapping[str, str] | None = None,
) -> Json:  # fmt: skip
    """Which state held when; the queries give the states' numbers."""
    defaults: Json = {
        "custom": {"fillOpacity": 80, "lineWidth": 0},
        "mappings": _mappings(states),
        "color": {"mode": "thresholds"},
    }
    if no_value is not None:
        defaults["noValue"] = no_value
    return _panel(
        "state-timeline", title, text, "none", queries, width=width, height=height,
        defaults=defaults, links=links,
        options={
            "mergeValues": True,
            "rowHeight": 0.8,
            "showValue": "auto",
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "single"},
        },
    )  # fmt: skip


def _mappings(states: Sequence[State]) -> list[Json]:
    if not states:
        return []
    options = {
        str(state.value): {"text": state.word, "color": state.colour, "index": number}
        for number, state in enumerate(states)
    }
    return [{"type": "value", "options": options}]


def chosen(name: str, label: str, query: str) -> Json:
    """A variable whose values Prometheus knows; several may be chosen, all of them at first."""
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": f"variable-{name}"},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def typed(name: str, label: str, text: str, value: str) -> Json:
    """A variable that is typed in."""
    return {
        "type": "textbox",
        "name": name,
        "label": label,
        "description": text,
        "query": value,
        "current": {"text": value, "value": value},
        "options": [{"selected": True, "text": value, "value": value}],
    }


def datasource() -> Json:
    """The variable that chooses the Prometheus server."""
    return {
        "type": "datasource",
        "name": "datasource",
        "label": "Data source",
        "query": "prometheus",
        "refresh": 1,
        "multi": False,
        "includeAll": False,
        "current": {},
    }


def dashboard(
    uid: str, title: str, text: str, variables: Iterable[Json],
    rows: Mapping[str, Sequence[Json]], links: Mapping[str, str],
) -> Json:  # fmt: skip
    """A dashboard: rows by title, each with panels that flow from left to right."""
    return {
        "uid": uid,
        "title": title,
        "description": text,
        "tags": ["tokgauge", "llm"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "annotations": {"list": []},
        "templating": {"list": [datasource(), *variables]},
        "links": [
            {
                "type": "dashboards",
                "title": "tokgauge",
                "tags": ["tokgauge"],
                "asDropdown": False,
                "includeVars": True,
                "keepTime": True,
            },
            *(
                {"type": "link", "title": name, "url": url, "icon": "doc", "targetBlank": True}
                for name, url in links.items()
            ),
        ],
        "panels": list(_laid_out(rows)),
    }


def _laid_out(rows: Mapping[str, Sequence[Json]]) -> Iterable[Json]:
    number, top = 1, 0
    for title, panels in rows.items():
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1},
            "panels": [],
        }
        number, top = number + 1, top + 1
        left = line = 0
        for panel in panels:
            width, height = panel["gridPos"]["w"], panel["gridPos"]["h"]
            if left + width > WIDTH:
                left, top, line = 0, top + line, 0
            yield {**panel, "id": number, "gridPos": {"x": left, "y": top, "w": width, "h": height}}
            number, left, line = number + 1, left + width, max(line, height)
        top += line
