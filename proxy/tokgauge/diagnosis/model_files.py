"""The bytes of the served model, read from its files whenever another one is served."""

from __future__ import annotations

import asyncio
from time import monotonic

from tokgauge.diagnosis import ceiling_inputs
from tokgauge.diagnosis.inputs import ModelBytes
from tokgauge.engine.facts import ServedNow
from tokgauge.engine.metrics_page import EngineReading
from tokgauge.model.weights import WeightsFound
from tokgauge.settings import Engine

_INTERVAL = 60.0
"""Seconds between looks at the files of a model whose bytes are not known yet."""


class ModelFiles:
    """What was found last; None before the first look."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._read_of: tuple[str | None, str | None] | None = None
        self._read_at = float("-inf")
        self._kv_cache_dtype: str | None = None
        self.found: ModelBytes | None = None

    async def look(self, served: ServedNow, reading: EngineReading | None) -> bool:
        """Read the files where need be; True when they are another model's than before."""
        if reading is not None:
            self._kv_cache_dtype = reading.kv_cache_dtype
        if served.among_several:
            return False
        base = served.base()
        wanted = (base.root if base is not None else None, self._kv_cache_dtype)
        known = self.found is not None and isinstance(self.found.weights, WeightsFound)
        due = monotonic() - self._read_at > _INTERVAL
        if wanted == self._read_of and (known or not due):
            return False
        is_other = self._read_of is not None and wanted != self._read_of
        self.found = await asyncio.to_thread(ceiling_inputs.model_bytes, self._engine, *wanted)
        self._read_of = wanted
        self._read_at = monotonic()
        return is_other
