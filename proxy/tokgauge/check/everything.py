"""The check from the settings to the ceiling."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from tokgauge.check.ceiling import ceiling_findings
from tokgauge.check.engine import look_at_engine
from tokgauge.check.finding import Finding
from tokgauge.check.gpus import gpu_findings, gpus_now, snapshot_now
from tokgauge.check.settings import settings_findings
from tokgauge.settings import SettingsError, load_settings


def check(
    config: Path | None, environment: Mapping[str, str], flags: Mapping[str, object]
) -> list[Finding]:
    """Look at everything, in order. Blocks for the engine's answers; never raises."""
    try:
        settings = load_settings(config, environment, flags)
    except SettingsError as error:
        return [Finding("settings", "settings", "missing", str(error))]
    engine = settings.engine
    findings = list(settings_findings(settings, config, environment, flags))
    seen = asyncio.run(look_at_engine(settings))
    findings += seen.findings
    gpus = gpus_now(snapshot_now() if settings.nvml else None, engine)
    findings += gpu_findings(gpus, engine)
    findings += ceiling_findings(engine, seen, gpus.of_engine)
    return findings
