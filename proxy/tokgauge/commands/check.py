"""`tokgauge check`: would the proxy work, and what does it know?"""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from tokgauge.check.everything import check
from tokgauge.check.finding import Finding, State, works
from tokgauge.commands._output import new_table, print_json, terminal
from tokgauge.commands._settings import settings_options
from tokgauge.engine.error_text import printable

_STYLES: dict[State, str] = {"ok": "green", "warning": "yellow", "missing": "bold red"}


def _check(config: Path | None, as_json: bool, **flags: object) -> None:
    # What NVML lacks is a finding here, not a line of the log.
    logging.getLogger("tokgauge.gpu").addHandler(logging.NullHandler())
    given = {name: value for name, value in flags.items() if value is not None}
    findings = check(config, os.environ, given)
    if as_json:
        print_json({"works": works(findings), "findings": [asdict(one) for one in findings]})
    else:
        _print(terminal(), findings)
    sys.exit(0 if works(findings) else 1)


def _print(console: Console, findings: list[Finding]) -> None:
    table = new_table(console, "")
    table.add_column("")
    table.add_column("area")
    table.add_column("what", overflow="fold")
    table.add_column("found", overflow="fold")
    table.add_column("from", overflow="fold")
    defaults = 0
    for found in findings:
        if found.area == "settings" and found.source == "default":
            defaults += 1
            continue
        table.add_row(
            Text(found.state, style=_STYLES[found.state]),
            found.area,
            *(_lines(text) for text in (found.name, found.text, found.source or "")),
        )
    console.print(table)
    if defaults:
        console.print(f"{defaults} settings have their default (--json lists them).")
    missing = sum(found.state == "missing" for found in findings)
    warnings = sum(found.state == "warning" for found in findings)
    if missing:
        console.print("Something that the proxy needs is missing: see what is marked so.")
    elif warnings:
        more = "warning" if warnings == 1 else "warnings"
        console.print(f"The proxy would work, with {warnings} {more}.")
    else:
        console.print("Everything is in place.")


def _lines(text: str) -> str:
    """Names come from the engine, so control characters go; the lines of an error stay."""
    return "\n".join(printable(line) for line in text.split("\n"))


command = click.Command(
    "check",
    callback=_check,
    params=[
        *settings_options(),
        click.Option(["--json", "as_json"], is_flag=True, help="One JSON document, no table."),
    ],
    help="Look at settings, engine, GPUs and ceiling inputs: what was found, and from where.\n\n"
    "Takes the settings of serve. Generates one token, to see whether the engine reports usage; "
    "llama-cpp-python cuts a running stream for any other request, so check such an engine while "
    "it is idle.",
    epilog="Exit codes: 0 the proxy would work, warnings included; 1 something necessary is "
    "missing; 2 wrong usage.",
)
