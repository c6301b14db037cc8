"""Options of the commands that need the proxy's settings: one flag for each."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from tokgauge.settings import CONFIG_VARIABLE, Engine, flag_name, option_fields

__all__ = ["engine_options", "settings_options"]


def settings_options() -> list[click.Parameter]:
    """`--config`, and a flag for each setting, so that the command line never falls behind.

    The flags come as text or None: the settings check them, and name the place of a wrong one.
    """
    return [_config(), *_options(option_fields())]


def engine_options() -> list[click.Parameter]:
    """The same with the settings that tell of the engine, for a command that is given its URL."""
    own = ("upstream", "calibration")
    fields = {name: info for name, info in Engine.model_fields.items() if name not in own}
    return [_config(), *_options(fields)]


def _config() -> click.Option:
    return click.Option(
        ["--config"],
        type=click.Path(exists=False, dir_okay=False, path_type=Path),
        envvar=CONFIG_VARIABLE,
        help="TOML file with settings. Environment variables TOKGAUGE_… win over it, "
        "flags win over both.",
    )


def _options(fields: Mapping[str, Any]) -> list[click.Option]:
    options = []
    for name, info in fields.items():
        flag = flag_name(name)
        is_switch = info.annotation is bool
        options.append(
            click.Option(
                [f"{flag}/--no-{flag[2:]}" if is_switch else flag, name],
                default=None,
                type=None if is_switch else str,  # the settings check, and name the place
                metavar=None if is_switch else _kind(info),
                help=_help(info),
            )
        )
    return options


def _kind(info: Any) -> str:
    kinds = [kind for kind in _flat(info.annotation) if kind is not types.NoneType]
    number = "SECONDS" if "second" in info.description.lower() else "NUMBER"
    names = {int: "NUMBER", float: number, Path: "FILE", tuple: "A,B,…"}
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
