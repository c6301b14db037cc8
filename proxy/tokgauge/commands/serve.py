"""`tokgauge serve`: the proxy."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from tokgauge.commands._settings import settings_options
from tokgauge.settings import SettingsError, load_settings


def _serve(config: Path | None, **flags: object) -> None:
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        settings = load_settings(config, os.environ, given)
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
    from tokgauge.serve.child import STARTUP_FAILURE  # late: other commands do without these
    from tokgauge.serve.start import serve

    try:
        serve(settings)
    except OSError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(STARTUP_FAILURE)


command = click.Command(
    "serve",
    callback=_serve,
    params=settings_options(),
    help="Run the proxy in front of an engine.\n\nPoint clients at it instead of the engine; read "
    "what it measures at /tokgauge/metrics.",
)
