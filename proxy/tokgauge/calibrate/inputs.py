"""What the steps of the experiment read, by the code that `serve` counts them with."""

from __future__ import annotations

from tokgauge.calibrate.bench import Decoded
from tokgauge.calibrate.errors import CalibrationError
from tokgauge.diagnosis.efficiency import step_bytes
from tokgauge.diagnosis.inputs import ModelBytes
from tokgauge.diagnosis.work import NoEfficiency, StepShape
from tokgauge.model.kv import KvUnknown


class StepReader:
    """Bytes of a step, of all GPUs that serve it."""

    def __init__(self, model: ModelBytes, tensor_parallel: int) -> None:
        self._model = model
        self._tensor_parallel = tensor_parallel

    def __call__(self, decoded: Decoded) -> float:
        """Raises `CalibrationError` where they are not known, with what to set."""
        drafts = decoded.tokens_per_step > 1.0
        if drafts and self._model.draft_unknown_because is not None:
            raise CalibrationError("inputs", self._model.draft_unknown_because)
        shape = StepShape(
            sequences=decoded.sequences,
            context_tokens=decoded.context,
            tokens_per_step=decoded.tokens_per_step,
            verifies_drafts=drafts,
        )
        found = step_bytes(shape, self._model, self._tensor_parallel)
        if isinstance(found, NoEfficiency):
            raise CalibrationError("inputs", _missing(found))
        return found.total()

    def check(self) -> None:
        """Raise before anything is measured, where bytes are not known."""
        self(Decoded(steps=1, seconds=1, sequences=1, context=0))
        if isinstance(self._model.kv, KvUnknown):
            # Contexts are what tells t0 from reading.
            raise CalibrationError("inputs", _missing_cache(self._model.kv.reason))


def _missing(found: NoEfficiency) -> str:
    if found.weights is not None:
        return (
            f"the bytes of the weights are not known ({found.weights}): set --model-path to files "
            "that can be read here, or --weights-bytes"
        )
    return _missing_cache(found.kv_cache or "context not known")


def _missing_cache(reason: str) -> str:
    return f"the bytes of the KV cache are not known ({reason}): set --kv-bytes-per-token"
