"""Where settings come from: a TOML file, the environment and flags, merged in that order.

Flags win over the environment, the environment wins over the file. A wrong name or value is refused
with its name, the place where it was written and what would be accepted.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from tokgauge.settings.fields import Engine, Settings, option_fields

_PREFIX = "TOKGAUGE_"

CONFIG_VARIABLE = "TOKGAUGE_CONFIG"
"""Names the settings file; it is read by the commands and is no setting itself."""

_LONGEST_SHOWN = 200

# A Kubernetes Service named "tokgauge" makes the kubelet inject TOKGAUGE_PORT=tcp://10.0.0.7:8080
# and its relatives into every pod of the namespace. They are not settings.
_SERVICE_LINK = re.compile(r"TOKGAUGE_(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP)(_\w+)?)")


class SettingsError(Exception):
    """Settings that cannot be used; the text says what, where, and what would be accepted."""


def load_settings(
    config: Path | None, environment: Mapping[str, str], flags: Mapping[str, object]
) -> Settings:
    """Merge file, environment and flags (rising priority) into `Settings`.

    Raises `SettingsError` naming each wrong key or value, its place, and what is accepted.
    """
    file_values = read_toml(config) if config is not None else {}
    env_values = read_environment(environment)
    merged = {**file_values, **env_values, **flags}
    places = {
        **dict.fromkeys(file_values, str(config)),
        **{key: f"environment variable {variable_name(key)}" for key in env_values},
        **{key: f"flag {flag_name(key)}" for key in flags},
    }
    if "upstream" not in merged and "engines" not in merged:
        raise SettingsError(
            "upstream is not set: the address of the engine is needed, e.g. "
            "--upstream http://127.0.0.1:8000"
        )
    try:
        return Settings(**merged)
    except ValidationError as error:
        raise SettingsError(
            "\n".join(_explain(detail, places, merged) for detail in error.errors())
        ) from error


def flag_name(field: str) -> str:
    """`stream_idle_timeout` → `--stream-idle-timeout`."""
    return "--" + field.replace("_", "-")


def variable_name(field: str) -> str:
    """`stream_idle_timeout` → `TOKGAUGE_STREAM_IDLE_TIMEOUT`."""
    return _PREFIX + field.upper()


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a settings file. Raises `SettingsError`."""
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))  # some editors begin with a mark
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from error


def read_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What the environment sets, by field. Raises `SettingsError` for what is no setting."""
    values = {}
    for variable, value in environment.items():
        if not variable.startswith(_PREFIX) or variable == CONFIG_VARIABLE:
            continue
        if _SERVICE_LINK.fullmatch(variable):
            continue
        if variable == "TOKGAUGE_PORT" and value.startswith(("tcp://", "udp://")):
            continue
        field = variable.removeprefix(_PREFIX).lower()
        if field not in option_fields():
            raise SettingsError(
                f"environment variable {variable} is not a setting."
                + _nearest(variable, map(variable_name, option_fields()))
            )
        values[field] = value
    return values


def _explain(detail: Any, places: Mapping[str, str], merged: Mapping[str, Any]) -> str:
    path = [part for part in detail["loc"] if part not in ("tuple", "function-before")]
    name = ".".join(map(str, path)) or "settings"
    key = str(path[0]) if path else ""
    if len(path) >= 3 and key == "engines" and str(path[2]) in merged:
        key = name = str(path[2])  # written at the top level, as flags and variables do
    place = f" (in {places[key]})" if key in places else ""
    if detail["type"] == "extra_forbidden":
        known = [*Settings.model_fields, *Engine.model_fields]
        return f"{name}{place} is not a setting." + _nearest(str(path[-1]), known)
    message = str(detail["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if detail["type"] == "missing":
        return f"{name}{place} is not set"
    shown = _shown(path, detail.get("input"))
    info = option_fields().get(str(path[-1]) if path else "")
    meaning = f"\n    {name}: {info.description}" if info is not None else ""
    return f"{name}{shown}{place}: {message}{meaning}"


def _shown(path: Sequence[object], value: object) -> str:
    """The wrong value, unless it is or may hold a key or a password."""
    named = [part for part in path if part in option_fields()]
    if not named or named[-1] == "api_key" or "@" in str(value):
        return ""
    if isinstance(value, (Mapping, BaseModel)):
        return ""
    text = repr(value)
    return f" = {text}" if len(text) <= _LONGEST_SHOWN else f" = {text[:_LONGEST_SHOWN]}…"


def _nearest(wrong: str, known: Iterable[str]) -> str:
    names = sorted(set(known))
    close = difflib.get_close_matches(wrong, names, n=1, cutoff=0.6)
    hint = f" Did you mean {close[0]}?" if close else ""
    return f"{hint} Accepted: {', '.join(names)}"
