"""The file that `tokgauge calibrate` writes and `serve` reads: constants, and what they hold for.

One JSON document with an entry for each model, engine, card and precision. An entry holds for
what serves now only where nothing of that differs; what is not known on either side differs from
nothing. Reads and writes files, so it belongs into a thread or before the start.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tokgauge.diagnosis.fit import Fitted
from tokgauge.diagnosis.inputs import ModelBytes
from tokgauge.model.kv import KvCache
from tokgauge.model.served import ServedModel
from tokgauge.model.weights import WeightsFound
from tokgauge.settings import Engine

FORMAT = 1


class CalibrationFileError(Exception):
    """A file that cannot be used; the text says which, why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldsFor:
    """What was calibrated; None is what was not known.

    model: its files, or its name where the engine tells no files. engine: kind and version.
    card: as NVML or the settings name it. weights_bytes: that a step of one sequence reads; another
    precision of the weights has others. kv_cache: bytes per token.
    """

    model: str
    engine: str | None = None
    card: str | None = None
    tensor_parallel: int = 1
    weights_bytes: float | None = None
    kv_cache: float | None = None

    def differs(self, now: HoldsFor) -> str | None:
        """In words, what is another one now; None where it holds."""
        pairs = (
            ("model", self.model, now.model),
            ("engine", self.engine, now.engine),
            ("card", self.card, now.card),
            ("tensor_parallel_size", self.tensor_parallel, now.tensor_parallel),
        )
        for name, then, is_now in pairs:
            if then is not None and is_now is not None and then != is_now:
                return f"{name} {is_now}, calibrated was {then}"
        sizes = (
            ("weights", self.weights_bytes, now.weights_bytes),
            ("KV cache of a token", self.kv_cache, now.kv_cache),
        )
        for name, size, is_size in sizes:
            if size is not None and is_size is not None and abs(size - is_size) > 0.01 * size:
                return f"{name} {is_size:.0f} bytes, calibrated was {size:.0f}"
        return None


def holds_for(
    engine: Engine, card: ServedModel, found: ModelBytes, kind: str | None, version: str | None,
    gpu: str | None,
) -> HoldsFor:  # fmt: skip
    """What a calibration of this engine holds for."""
    weights = found.weights
    return HoldsFor(
        model=engine.model_path or card.root or card.id,
        engine=f"{kind} {version}" if kind is not None and version is not None else None,
        card=gpu,
        tensor_parallel=engine.tensor_parallel_size,
        weights_bytes=weights.bytes_per_step(1.0) if isinstance(weights, WeightsFound) else None,
        kv_cache=found.kv.bytes_per_token if isinstance(found.kv, KvCache) else None,
    )


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """date: of the calibration, ISO 8601 in UTC."""

    holds_for: HoldsFor
    date: str
    fitted: Fitted


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    entries: tuple[Entry, ...]


def read_calibrations(path: Path) -> tuple[Entry, ...]:
    """All entries of a file. Raises `CalibrationFileError`."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Document)
    except OSError as error:
        raise CalibrationFileError(
            f"the calibration file {path} cannot be read: {error.strerror}"
        ) from error
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise CalibrationFileError(
            f"{path} is not a file of tokgauge calibrate ({error}): make it again"
        ) from error
    if found.format != FORMAT:
        raise CalibrationFileError(
            f"{path} has format {found.format}, this version of tokgauge reads {FORMAT}: make it "
            "again with tokgauge calibrate"
        )
    for entry in found.entries:
        _check(path, entry.fitted)
    return found.entries


def _check(path: Path, fitted: Fitted) -> None:
    """Refuse what no calibration writes: later it would be a wrong number, or an error."""
    constants = fitted.constants
    known = [constants.fixed, constants.per_sequence, constants.bandwidth]
    known += [constants.prefill] if constants.prefill is not None else []
    sound = (
        all(0 <= interval.low <= interval.high for interval in known)
        and constants.bandwidth.low > 0
        and len(fitted.coefficients) == len(fitted.covariance) == 5
        and all(len(row) == 5 for row in fitted.covariance)
        and all(value >= 0 for value in (*fitted.coefficients, fitted.scatter, fitted.quantile))
    )
    if not sound:
        raise CalibrationFileError(
            f"{path} has numbers that no calibration gives: make it again with tokgauge calibrate"
        )


def store_calibration(path: Path, entry: Entry) -> None:
    """Add the entry, in the place of one for the same. Raises `CalibrationFileError`.

    The file is whole at every moment: whoever reads it gets the old one or the new one.
    """
    kept = read_calibrations(path) if path.exists() else ()
    others = [one for one in kept if one.holds_for != entry.holds_for]
    text = msgspec.json.format(msgspec.json.encode(_Document(FORMAT, (*others, entry))), indent=1)
    try:
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as new:
            new.write(text + b"\n")
            new.flush()
            os.fsync(new.fileno())
            os.fchmod(new.fileno(), 0o644)
        os.replace(new.name, path)
    except OSError as error:
        raise CalibrationFileError(f"{path} cannot be written: {error.strerror}") from error


def matching(entries: Sequence[Entry], now: HoldsFor) -> Entry | str:
    """The newest entry that holds for what serves now, else why none does."""
    if not entries:
        return "the calibration file has no entries"
    reasons = [(entry.holds_for.differs(now), entry) for entry in entries]
    fitting = [entry for reason, entry in reasons if reason is None]
    if fitting:
        return max(fitting, key=lambda entry: entry.date)
    # Of entries for the same model, what differs is worth more than that of another model.
    of_model = [reason for reason, entry in reasons if entry.holds_for.model == now.model]
    return f"no calibration holds for what serves now: {(of_model or [reasons[-1][0]])[-1]}"
