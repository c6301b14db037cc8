"""The settings: their fields, what they may be (types), and where they come from (sources)."""

from tokgauge.settings.fields import DURATION_BUCKETS, Engine, Settings, option_fields
from tokgauge.settings.sources import (
    CONFIG_VARIABLE,
    SettingsError,
    flag_name,
    load_settings,
    read_environment,
    read_toml,
    variable_name,
)
from tokgauge.settings.types import engine_url

__all__ = [
    "CONFIG_VARIABLE",
    "DURATION_BUCKETS",
    "Engine",
    "Settings",
    "SettingsError",
    "engine_url",
    "flag_name",
    "load_settings",
    "option_fields",
    "read_environment",
    "read_toml",
    "variable_name",
]
