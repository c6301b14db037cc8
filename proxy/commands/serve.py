"""`tokgauge serve`: the proxy."""

from __future__ import annotations

import os
import types
import typing
from pathlib import Path
from typing import Any

import click

from proxy.settings import CONFIG_VARIABLE, SettingsError, flag_name, load_settings, option_fields


def _options() -> list[click.Option]:
    """One flag for each setting, so that the command line never falls behind."""
    options = []
    for name, info in option_fields().items():
        flag = flag_name(name)
        is_switch = info.annotation is bool
        options.append(
            click.Option(
                [f"{flag}/--no-{flag[2:]}" if is_switch else flag, name],
                default=None,
                type=None if is_switch else str,  # the settings check, and name the place
                metavar=None if is_switch else _kind(info.annotation),
                help=_help(info),
            )
        )
    return options


def _kind(annotation: Any) -> str:
    kinds = [kind for kind in _flat(annotation) if kind is not types.NoneType]
    names = {int: "NUMBER", float: "SECONDS", Path: "FILE", tuple: "A,B,…"}
    return names.get(kinds[0] if kinds else str, "TEXT")


def _flat(annotation: Any) -> list[Any]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [kind for part in typing.get_args(annotation) for kind in _flat(part)]
    if typing.get_origin(annotation) is typing.Annotated:
        return _flat(typing.get_args(annotation)[0])
    return [typing.get_origin(annotation) or annotation]


def _help(info: Any) -> str:
    default = info.default
    shown = default is not None and not info.is_required() and default != ()
    if isinstance(default, tuple):
        default = ",".join(f"{part:g}" for part in default)
    return f"{info.description}" + (f"  [default: {default}]" if shown else "")


def _serve(config: Path | None, **flags: object) -> None:
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        settings = load_settings(config, os.environ, given)
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
    if settings.workers == 1:
        # Left over from somebody else, it would turn every counter into a file of theirs.
        os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
    from proxy.server import serve  # after the variable: prometheus_client reads it on import

    try:
        serve(settings)
    except OSError as error:
        raise click.ClickException(str(error)) from error


command = click.Command(
    "serve",
    callback=_serve,
    params=[
        click.Option(
            ["--config"],
            type=click.Path(exists=False, dir_okay=False, path_type=Path),
            envvar=CONFIG_VARIABLE,
            help="TOML file with settings. Environment variables TOKGAUGE_… win over it, "
            "flags win over both.",
        ),
        *_options(),
    ],
    help="Run the proxy in front of an engine.\n\nPoint clients at it instead of the engine; read "
    "what it measures at /tokgauge/metrics.",
)
