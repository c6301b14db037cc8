"""Draws docs/images/*.png: not Grafana screenshots, but the panels' queries drawn by this script.

It records a simulated scene with a real Prometheus (see recording.py), asks it what the panels ask,
and draws the answers with matplotlib in the panels' places. Colours and shapes are not Grafana's.

uv run --with matplotlib python grafana/render.py
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib  # type: ignore[import-not-found,unused-ignore]

matplotlib.use("Agg")

from generate import dashboards
from matplotlib import pyplot  # type: ignore[import-not-found,unused-ignore]
from panels import WIDTH, Json
from recording import Recording, recording

IMAGES = Path(__file__).parent.parent / "docs" / "images"

_COLUMN, _LINE = 0.72, 0.36
"""Size of one cell of the grid, in inches."""
_LINES = ("#3274d9", "#e0752d", "#56a64b", "#8f3bb8", "#c4162a", "#0a9396", "#8a8a8a", "#b5a100")
_COLOURS = {
    "red": "#d44a3a", "orange": "#e88b23", "green": "#4caf50", "dark-green": "#19730e",
    "blue": "#3274d9", "purple": "#8f3bb8", "text": "#8a8a8a",
}  # fmt: skip
_NOTE = (
    "Not a Grafana screenshot: the panels' queries, answered by a real Prometheus and drawn by "
    "grafana/render.py. Engine and GPU are simulated."
)

Series = dict[str, Any]


def main() -> None:
    """Record once, then draw every dashboard."""
    IMAGES.mkdir(exist_ok=True)
    with recording(pace=2.0) as recorded:
        for name, board in dashboards().items():
            path = IMAGES / f"{Path(name).stem}.png"
            _draw(board, recorded, path)
            print(path)


def _draw(board: Json, recorded: Recording, path: Path) -> None:
    lines = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"]) + 3
    width, height = WIDTH * _COLUMN, lines * _LINE
    figure = pyplot.figure(figsize=(width, height), dpi=80)
    figure.text(0.3 / width, 1 - 0.4 / height, board["title"], fontsize=15, weight="bold")
    figure.text(0.3 / width, 1 - 0.66 / height, _NOTE, fontsize=8, color="#666666")
    for panel in board["panels"]:
        at = panel["gridPos"]
        left, top = at["x"] * _COLUMN, height - (at["y"] + 2.3) * _LINE
        if panel["type"] == "row":
            figure.text((left + 0.3) / width, (top - 0.25) / height, panel["title"], fontsize=11,
                        weight="bold", color="#3274d9")  # fmt: skip
            continue
        box = (left + 0.62, top - at["h"] * _LINE + 0.3, at["w"] * _COLUMN - 0.85, at["h"] * _LINE)
        axes = figure.add_axes(
            (box[0] / width, box[1] / height, box[2] / width, (box[3] - 0.75) / height)
        )
        axes.set_title(panel["title"], loc="left", fontsize=8.5, weight="bold")
        axes.tick_params(labelsize=7)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        answers = [
            (_legend(target["legendFormat"], series["metric"]), series)
            for target in panel["targets"]
            for series in recorded.answer(board, target)
        ]
        _KINDS[panel["type"]](axes, panel, answers, recorded)
    figure.savefig(path, metadata={"Software": None})
    pyplot.close(figure)


def _legend(pattern: str, labels: Mapping[str, str]) -> str:
    text = pattern
    for name in ("instance", "model", "model_name", "basis", "gpu", "source", "cause", "outcome",
                 "route", "code", "stream", "reason", "limit", "activity", "kind", "upstream",
                 "where", "le"):  # fmt: skip
        # One proxy, one model: their names would only fill the legend.
        shown = "" if name in ("instance", "upstream") else labels.get(name, "")
        text = text.replace(f"{{{{{name}}}}}", shown.rpartition("/")[2])
    return " ".join(text.split()) or "tokgauge"


def _points(series: Series, recorded: Recording) -> tuple[list[float], list[float]]:
    pairs = [(float(at) - recorded.start, float(value)) for at, value in series["values"]]
    finite = [pair for pair in pairs if math.isfinite(pair[1])]
    return [at for at, _ in finite], [value for _, value in finite]


def _with_gaps(times: list[float], values: list[float]) -> tuple[list[float], list[float]]:
    """A hole wherever a second has no value: no line leads over what was not measured."""
    pairs: list[tuple[float, float]] = []
    for at, value in zip(times, values, strict=True):
        if pairs and at - pairs[-1][0] > 1.5:
            pairs.append((at, math.nan))
        pairs.append((at, value))
    return [at for at, _ in pairs], [value for _, value in pairs]


def _timeseries(axes: Any, panel: Json, answers: Sequence[Any], recorded: Recording) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    custom, drawn = defaults["custom"], False
    bottoms: dict[float, float] = {}
    for number, (legend, series) in enumerate(answers):
        times, values = _points(series, recorded)
        if not times:
            continue
        drawn, colour = True, _LINES[number % len(_LINES)]
        if custom["stacking"]["mode"] == "normal":
            below = [bottoms.get(round(at), 0.0) for at in times]
            values = [value + under for value, under in zip(values, below, strict=True)]
            axes.fill_between(times, below, values, color=colour, alpha=0.35, lw=0, label=legend)
            bottoms.update({round(at): value for at, value in zip(times, values, strict=True)})
        else:
            times, values = _with_gaps(times, values)
            axes.plot(times, values, color=colour, lw=1.3, label=legend, marker=".", ms=2.5)
    axes.set_xlim(0, recorded.end - recorded.start)
    if not drawn:
        _nothing(axes, panel)
        return
    if "min" in defaults:
        axes.set_ylim(bottom=defaults["min"])
    low, high = axes.get_ylim()
    if high - low < 1e-9:
        high = low + 1
    if custom["thresholdsStyle"]["mode"] == "area":
        steps = defaults["thresholds"]["steps"]
        bounds = [low, *(step["value"] for step in steps[1:]), max(high, 1.0)]
        high = max(high, 1.0)
        for step, lower, upper in zip(steps, bounds, bounds[1:], strict=False):
            axes.axhspan(lower, upper, color=_COLOURS[step["color"]], alpha=0.12, lw=0)
    axes.set_ylim(low, high * 1.05)
    axes.yaxis.set_major_locator(pyplot.MaxNLocator(5))
    axes.yaxis.set_major_formatter(lambda value, _: _format(value, defaults["unit"]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f} s")
    axes.grid(axis="y", lw=0.4, alpha=0.5)
    axes.legend(fontsize=6.5, loc="best", framealpha=0.7)


def _single(axes: Any, panel: Json, answers: Sequence[Any], recorded: Recording) -> None:
    """Stat and gauge: the last value of each series."""
    axes.axis("off")
    defaults = panel["fieldConfig"]["defaults"]
    words = {
        float(key): word for item in defaults["mappings"] for key, word in item["options"].items()
    }
    shown = [(legend, _points(series, recorded)[1][-1]) for legend, series in answers]
    if not shown:
        _nothing(axes, panel)
    for number, (legend, value) in enumerate(shown):
        middle = 1 - (number + 0.5) / len(shown)
        colour = _COLOURS[
            [step["color"] for step in defaults["thresholds"]["steps"]
             if step["value"] is None or value >= step["value"]][-1]
        ]  # fmt: skip
        text = _format(value, defaults["unit"], defaults.get("decimals"))
        if value in words:
            text, colour = words[value]["text"], _COLOURS[words[value]["color"]]
        axes.text(0.5, middle + 0.04, text, ha="center", va="center", color=colour, weight="bold",
                  fontsize=15 if len(text) < 16 else 11)  # fmt: skip
        axes.text(
            0.5, middle - 0.14, legend, ha="center", va="center", fontsize=6.5, color="#555555"
        )


def _heatmap(axes: Any, panel: Json, answers: Sequence[Any], recorded: Recording) -> None:
    ordered = sorted(answers, key=lambda answer: float(answer[1]["metric"]["le"]))
    columns = sorted({float(at) for _, series in ordered for at, _ in series["values"]})
    if not columns:
        _nothing(axes, panel)
        return
    cumulative = []
    for _, series in ordered:
        values = {float(at): float(value) for at, value in series["values"]}
        cumulative.append([values.get(at, math.nan) for at in columns])
    cells = [
        [max(0.0, upper - lower) for lower, upper in zip(below, row, strict=True)]
        for below, row in zip([[0.0] * len(columns), *cumulative], cumulative, strict=False)
    ]
    used = [number for number, row in enumerate(cells) if any(value > 0 for value in row)] or [0]
    cells = cells[used[0] : used[-1] + 1]
    bounds = [series["metric"]["le"] for _, series in ordered][used[0] : used[-1] + 1]
    axes.pcolormesh(
        [at - recorded.start for at in columns], range(len(cells)), cells, cmap="YlOrRd",
        shading="nearest",
    )  # fmt: skip
    unit = panel["fieldConfig"]["defaults"]["unit"]
    axes.set_yticks(range(len(cells)), [f"≤ {_format(float(le), unit)}" for le in bounds])
    axes.tick_params(axis="y", labelsize=6)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f} s")


def _timeline(axes: Any, panel: Json, answers: Sequence[Any], recorded: Recording) -> None:
    axes.set_xlim(0, recorded.end - recorded.start)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f} s")
    axes.set_yticks([])
    words = panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
    seen: dict[str, str] = {}
    for number, (legend, series) in enumerate(answers):
        times, values = _points(series, recorded)
        for at, value in zip(times, values, strict=True):
            word = words[f"{value:g}"]
            seen[word["text"]] = _COLOURS[word["color"]]
            axes.broken_barh([(at, 1.02)], (number + 0.05, 0.75), color=seen[word["text"]], lw=0)
        axes.text(0.2, number + 0.42, legend, fontsize=7, va="center", color="#222222")
    axes.set_ylim(0, max(1, len(answers)))
    if not answers:
        _nothing(axes, panel)
    for text, colour in seen.items():
        axes.barh(0, 0, color=colour, label=text)
    if seen:
        axes.legend(fontsize=6.5, loc="upper right", framealpha=0.8, ncols=len(seen))


def _table(axes: Any, panel: Json, answers: Sequence[Any], recorded: Recording) -> None:
    axes.axis("off")
    headings = panel["transformations"][1]["options"]["renameByName"]
    rows = [[_short(series["metric"].get(key, "")) for key in headings] for _, series in answers]
    drawn = axes.table(cellText=rows, colLabels=list(headings.values()), loc="upper left",
                       cellLoc="left", edges="horizontal")  # fmt: skip
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(7)


def _short(text: str) -> str:
    return text if len(text) <= 40 else "…" + text[-24:]


def _nothing(axes: Any, panel: Json) -> None:
    text = panel["fieldConfig"]["defaults"].get("noValue", "no data")
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", fontsize=8, color="#888888")
    axes.set_yticks([])


def _format(value: float, unit: str, decimals: int | None = None) -> str:
    if unit == "percentunit":
        return f"{value * 100:.3g} %" if decimals is None else f"{value * 100:.{decimals}f} %"
    if unit == "s":
        return f"{value * 1000:.3g} ms" if abs(value) < 1 else f"{value:.3g} s"
    if unit.startswith("suffix:"):
        number = f"{value:.3g}" if decimals is None else f"{value:,.{decimals}f}"
        return f"{number} {unit[7:].strip()}"
    ending = {"bytes": "B", "Bps": "B/s", "watt": " W", "reqps": " req/s"}.get(unit, "")
    base = 1024 if unit == "bytes" else 1000
    for prefix in ("", "k", "M", "G", "T"):
        if abs(value) < base or prefix == "T":
            return f"{value:.3g} {prefix}{'i' if prefix and base == 1024 else ''}{ending}".strip()
        value /= base
    return str(value)


_KINDS: Mapping[str, Callable[[Any, Json, Sequence[Any], Recording], None]] = {
    "timeseries": _timeseries,
    "stat": _single,
    "gauge": _single,
    "heatmap": _heatmap,
    "state-timeline": _timeline,
    "table": _table,
}


if __name__ == "__main__":
    main()
