"""One run as tables for people and as a document for programs."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.candidates import direct
from bench.figures import FIGURES, Figure, Results
from bench.goals import Verdict

WIDTH = 190
_LIBRARIES = ("uvloop", "httptools", "uvicorn", "msgspec", "prometheus-client", "httpx2")
_PER_EVENT = {
    "msgspec_event_us": "msgspec alone decodes the event",
    "msgspec_reference_us": "msgspec alone decodes one of 250 bytes (the yardstick)",
    "measuring_us": "measuring: splitting, JSON, timeline, metrics",
    "measuring_and_hiding_us": "the same and hiding usage that the client did not ask for",
    "measuring_logprobs_us": "measuring events with log probabilities",
}


def machine() -> dict[str, Any]:
    """What the run was made on."""
    cpu = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in _LIBRARIES},
        "load_average_before": [round(load, 2) for load in os.getloadavg()],
    }


def document(
    about: dict[str, Any], mode: str, results: Results, per_event: dict[str, float] | None,
    verdicts: Sequence[Verdict],
) -> dict[str, Any]:  # fmt: skip
    """Everything, ready for JSON: each figure with its median and the value of each round."""
    return {
        "mode": mode,
        "machine": about,
        "candidates": {
            name: {
                "version": results.versions.get(name, ""),
                "figures": {
                    key: {
                        "median": results.median(name, key),
                        "rounds": values,
                        "at_least": (name, key) in results.at_least,
                    }
                    for key, values in results.values.get(name, {}).items()
                },
                "void": results.void.get(name, {}),
            }
            for name in results.versions
        },
        "absent": results.absent,
        "cuts": results.cuts,
        "per_event": per_event,
        "goals": [
            {
                "goal": verdict.title,
                "value": verdict.value,
                "limit": verdict.limit,
                "aim": verdict.aim,
                "unit": verdict.unit,
                "passed": verdict.passed,
            }
            for verdict in verdicts
        ],
    }


def show(
    console: Console, about: dict[str, Any], results: Results,
    per_event: dict[str, float] | None, verdicts: Sequence[Verdict],
) -> None:  # fmt: skip
    """Print the run."""
    libraries = ", ".join(f"{name} {number}" for name, number in about["libraries"].items())
    console.print(
        f"{about['time']}, {about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB, "
        f"Linux {about['kernel']}, Python {about['python']}, {libraries}; "
        f"load average before: {about['load_average_before']}",
        soft_wrap=True,
    )
    console.print(_figures(results))
    for cut in results.cuts:
        console.print(cut)
    for name, reason in results.absent.items():
        console.print(f"absent: {name}: {reason}", soft_wrap=True)
    for name, void in results.void.items():
        for key, reasons in void.items():
            for reason in reasons:
                console.print(f"void round: {name}: {key}: {reason}", soft_wrap=True)
    if per_event is not None:
        console.print(_per_event(per_event))
    console.print(_goals(verdicts))


def _figures(results: Results) -> Table:
    table = Table(title="Median of the rounds ± half their range", title_justify="left")
    table.add_column("")
    for name, number in results.versions.items():
        table.add_column(f"{name}\n{number}" if number else name, justify="right")
    for figure in FIGURES:
        cells = [_cell(results, name, figure) for name in results.versions]
        if any(cells):
            title = figure.title
            if figure.title.startswith("added") and direct.NAME in results.versions:
                title += " (direct: whole)"
            table.add_row(escape(title), *cells)
    return table


def _cell(results: Results, name: str, figure: Figure) -> str:
    if results.is_void(name, figure.key):
        return "void"
    middle = results.median(name, figure.key)
    if middle is None:
        return ""
    at_least = "≥ " if (name, figure.key) in results.at_least else ""
    spread = results.spread(name, figure.key)
    around = f" ±{spread:.0%}" if spread is not None else ""
    return f"{at_least}{middle:,.{figure.digits}f}{around}"


def _per_event(per_event: dict[str, float]) -> Table:
    table = Table(title="One event without sockets", title_justify="left")
    table.add_column("")
    table.add_column("µs", justify="right")
    for key, title in _PER_EVENT.items():
        table.add_row(title, f"{per_event[key]:.2f}")
    return table


def _goals(verdicts: Sequence[Verdict]) -> Table:
    table = Table(title="Goals", title_justify="left")
    for heading in ("", "this run", "limit", "aim", ""):
        table.add_column(heading, justify="left" if not heading else "right")
    words = {True: "[green]pass[/]", False: "[red]FAIL[/]", None: "not measured"}
    for verdict in verdicts:
        value, limit, aim = (
            "" if number is None else f"{number:.3g} {verdict.unit}"
            for number in (verdict.value, verdict.limit, verdict.aim)
        )
        reached = verdict.value is not None and verdict.value <= verdict.aim
        table.add_row(
            verdict.title, value, f"≤ {limit}", f"≤ {aim}",
            words[verdict.passed] + (", aim reached" if reached else ""),
        )  # fmt: skip
    return table
