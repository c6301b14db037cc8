"""`tokgauge calibrate`: what a step costs on this engine, by a designed experiment."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tokgauge.calibrate.calibration import Calibration, calibrated
from tokgauge.calibrate.errors import CalibrationError
from tokgauge.calibrate.experiment import LONGEST
from tokgauge.commands._output import new_table, print_json, terminal
from tokgauge.commands._settings import engine_options
from tokgauge.diagnosis.calibration_file import (
    CalibrationFileError,
    Entry,
    read_calibrations,
    store_calibration,
)
from tokgauge.diagnosis.fit import Fitted, Missing
from tokgauge.engine.error_text import printable
from tokgauge.settings import SettingsError, load_settings

NOT_MEASURED = 3
"""Exit code when the experiment could not be made, or told nothing."""


def _calibrate(
    url: str | None, config: Path | None, model: str | None, output: Path | None,
    seconds: float, beside_traffic: bool, as_json: bool, **flags: object,
) -> None:  # fmt: skip
    given = {name: value for name, value in flags.items() if value is not None}
    if url is not None:
        given["upstream"] = url.rstrip("/").removesuffix("/v1")
    try:
        settings = load_settings(config, os.environ, given)
        if output is not None and output.exists():
            read_calibrations(output)  # a wrong file is known before minutes are spent
    except (SettingsError, CalibrationFileError) as error:
        raise click.UsageError(str(error)) from error
    logging.getLogger("tokgauge.gpu").addHandler(logging.NullHandler())
    console = Console(stderr=True, highlight=False, markup=False)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    ) as shown:  # fmt: skip
        task = shown.add_task("asking the engine", total=1.0)

        def progress(what: str, done: float) -> None:
            shown.update(task, description=what, completed=done)

        try:
            found = asyncio.run(
                calibrated(
                    settings, model=model, at_most=seconds, beside_traffic=beside_traffic,
                    progress=progress,
                )
            )  # fmt: skip
        except (CalibrationError, OSError) as error:  # OSError: the file of certificates
            _fail(error, as_json)
    stored = None
    if output is not None and isinstance(found.fitted, Fitted):
        date = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            store_calibration(output, Entry(holds_for=found.holds_for, date=date,
                                            fitted=found.fitted))  # fmt: skip
        except CalibrationFileError as error:
            _fail(error, as_json)
        stored = str(output)
    if as_json:
        print_json(_document(found, stored))
    else:
        _print(terminal(), found, stored)
    if not isinstance(found.fitted, Fitted):
        sys.exit(NOT_MEASURED)


def _fail(error: Exception, as_json: bool) -> NoReturn:
    if as_json:
        kind = error.kind if isinstance(error, CalibrationError) else "file"
        print_json({"error": {"kind": kind, "message": str(error)}})
    click.echo(f"Error: {error}", err=True)
    sys.exit(NOT_MEASURED)


def _document(found: Calibration, stored: str | None) -> dict[str, Any]:
    fitted = found.fitted
    intervals = _intervals(fitted) if isinstance(fitted, Fitted) else {}
    return {
        "holds_for": asdict(found.holds_for),
        "seconds": found.experiment.seconds,
        "observations": len(found.experiment.observations),
        "fixed_step_seconds": intervals.get("fixed"),
        "per_sequence_seconds": intervals.get("per_sequence"),
        "effective_bandwidth_bytes_per_second": intervals.get("bandwidth"),
        "prefill_tokens_per_second": intervals.get("prefill"),
        "scatter_ratio": fitted.scatter if isinstance(fitted, Fitted) else None,
        "not_told": [asdict(missing) for missing in fitted.missing],
        "notes": list(found.notes),
        "stored": stored,
    }


def _intervals(fitted: Fitted) -> dict[str, dict[str, float]]:
    constants = fitted.constants
    known = {
        "fixed": constants.fixed,
        "per_sequence": constants.per_sequence,
        "bandwidth": constants.bandwidth,
        "prefill": constants.prefill,
    }
    return {name: asdict(interval) for name, interval in known.items() if interval is not None}


def _print(console: Console, found: Calibration, stored: str | None) -> None:
    console.print(
        f"{printable(found.holds_for.model)}: {len(found.experiment.observations)} measurements in "
        f"{found.experiment.seconds:.0f} s",
        soft_wrap=True,
    )
    if isinstance(found.fitted, Fitted):
        table = new_table(console, "")
        table.add_column("what a step costs")
        table.add_column("from", justify="right")
        table.add_column("to", justify="right")
        for row in _rows(found.fitted):
            table.add_row(*row)
        console.print(table)
        console.print(
            f"new loads are within {found.fitted.quantile * found.fitted.scatter:.0%} of what "
            "these predict, 19 times of 20"
        )
    else:
        console.print("nothing follows from them:")
    for missing in found.fitted.missing:
        console.print(f"not told: {_sentence(missing)}", soft_wrap=True)
    for note in found.notes:
        console.print(f"note: {note}", soft_wrap=True)
    if stored is not None:
        console.print(f"stored in {stored}: name it with the setting calibration", soft_wrap=True)


_NAMES = {
    "fixed": "fixed cost of a step (t0)",
    "per_sequence": "cost of a sequence (t_seq)",
    "bandwidth": "effective bandwidth (B_eff)",
    "prefill": "prefill rate (P_eff)",
}


def _rows(fitted: Fitted) -> Iterator[tuple[str, str, str]]:
    constants = fitted.constants
    units = (
        ("fixed", constants.fixed, 1e3, "{:.3f} ms"),
        ("per_sequence", constants.per_sequence, 1e6, "{:.1f} µs"),
        ("bandwidth", constants.bandwidth, 1e-9, "{:.4g} GB/s"),
        ("prefill", constants.prefill, 1.0, "{:.0f} tokens/s"),
    )
    for name, interval, factor, shown in units:
        if interval is not None:
            ends = (interval.low * factor, interval.high * factor)
            yield _NAMES[name], shown.format(ends[0]), shown.format(ends[1])


def _sentence(missing: Missing) -> str:
    return f"{_NAMES[missing.constant]}: {missing.because}. What would tell: {missing.would_tell}"


command = click.Command(
    "calibrate",
    callback=_calibrate,
    params=[
        click.Argument(["url"], required=False),
        *engine_options(),
        click.Option(["--model"], help="Model to ask.  [default: the first that is listed]"),
        click.Option(
            ["--output"], type=click.Path(dir_okay=False, path_type=Path),
            help="File to add the result to, for the setting calibration.",
        ),
        click.Option(
            ["--seconds"], type=click.FloatRange(5, 900), default=LONGEST, show_default=True,
            help="Longest time for it.",
        ),
        click.Option(
            ["--beside-traffic"], is_flag=True,
            help="Measure although others use the engine: constants of a disturbed engine.",
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="One JSON document, no table."),
    ],
    help="Measure what a step costs on the engine at URL: its fixed cost, that of a sequence, the "
    "bandwidth that it reads with, and the rate of prompts.\n\n"
    "Loads an idle engine for up to three minutes with prompts of its own. Takes the settings of "
    "serve that speak of the engine, so that bytes are counted alike.",
    epilog="Exit codes: 0 told; 2 wrong usage; 3 could not measure, or nothing follows from it. "
    "Example: tokgauge calibrate http://127.0.0.1:8000 --gpu 'RTX A6000' --output "
    "calibration.json",
)  # fmt: skip
