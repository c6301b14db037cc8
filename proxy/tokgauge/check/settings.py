"""Each setting with its value, and who has set it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokgauge.check.finding import Finding
from tokgauge.settings import (
    Settings,
    flag_name,
    option_fields,
    read_environment,
    read_toml,
    variable_name,
)


def settings_findings(
    settings: Settings,
    config: Path | None,
    environment: Mapping[str, str],
    flags: Mapping[str, object],
) -> Iterator[Finding]:
    """One finding for each setting, in the order of the flags."""
    written = _names_in(config)
    in_environment = read_environment(environment)
    values = {**settings.engine.model_dump(mode="json"), **settings.model_dump(mode="json")}
    for name in option_fields():
        if name in flags:
            source = f"flag {flag_name(name)}"
        elif name in in_environment:
            source = f"environment variable {variable_name(name)}"
        else:
            source = str(config) if name in written else "default"
        value = values[name]
        yield Finding("settings", name, "ok", _shown(value), source, value)


def _names_in(config: Path | None) -> frozenset[str]:
    """Names of the settings that the file sets (it has been read before without an error)."""
    if config is None:
        return frozenset()
    content = read_toml(config)
    engines = content.get("engines") or [{}]
    return frozenset(content) | frozenset(engines[0])


def _shown(value: Any) -> str:
    if value is None or value == []:
        return "not set"
    if isinstance(value, list):
        return ", ".join(f"{part:g}" if isinstance(part, float) else str(part) for part in value)
    return str(value)
