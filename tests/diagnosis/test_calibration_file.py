"""The file of calibrations: what comes back, what holds, what is refused."""

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokgauge.diagnosis.calibration_file import (
    CalibrationFileError,
    Entry,
    HoldsFor,
    matching,
    read_calibrations,
    store_calibration,
)
from tokgauge.diagnosis.expected_time import StepWork
from tokgauge.diagnosis.fit import Fitted, fit

from tests.diagnosis.test_fit import experiment

pytestmark = pytest.mark.socketless

HERE = HoldsFor(
    model="Qwen/Qwen2.5-7B-Instruct", engine="vllm 0.32.0", card="NVIDIA RTX A6000",
    weights_bytes=14.14e9, kv_cache=57_344.0,
)  # fmt: skip


def entry(holds_for: HoldsFor = HERE, date: str = "2026-01-02T03:04:05+00:00") -> Entry:
    fitted = fit(experiment(3), "calibrated", 768e9)
    assert isinstance(fitted, Fitted)
    return Entry(holds_for=holds_for, date=date, fitted=fitted)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "calibration.json"


def test_what_was_stored_predicts_the_same(file: Path) -> None:
    stored = entry()
    store_calibration(file, stored)
    assert read_calibrations(file) == (stored,)
    found = matching(read_calibrations(file), HERE)
    assert isinstance(found, Entry)
    work = StepWork(steps=100, bytes=100 * 15e9, sequence_steps=400, prompt_tokens=100)
    assert found.fitted.expected(work) == stored.fitted.expected(work)
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_second_calibration_takes_the_place_of_the_first_and_others_stay(file: Path) -> None:
    other = entry(replace(HERE, model="another"))
    for one in (entry(), other, entry(date="2026-02-02T00:00:00+00:00")):
        store_calibration(file, one)
    assert [found.date[:7] for found in read_calibrations(file)] == ["2026-01", "2026-02"]


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"model": "another"}, "model another, calibrated was Qwen/Qwen2.5-7B-Instruct"),
        ({"engine": "vllm 0.33.0"}, "engine vllm 0.33.0, calibrated was vllm 0.32.0"),
        ({"card": "NVIDIA L4"}, "card NVIDIA L4"),
        ({"tensor_parallel": 2}, "tensor_parallel_size 2, calibrated was 1"),
        ({"weights_bytes": 5e9}, "weights 5000000000 bytes"),
        ({"kv_cache": 28_672.0}, "KV cache of a token 28672 bytes"),
    ],
)
def test_another_one_has_no_calibration_and_it_is_said_why(now: dict[str, Any], said: str) -> None:
    found = matching([entry()], replace(HERE, **now))
    assert isinstance(found, str)
    assert said in found


def test_what_is_not_known_differs_from_nothing() -> None:
    unknown = HoldsFor(model=HERE.model)
    assert isinstance(matching([entry()], unknown), Entry)
    assert isinstance(matching([entry(unknown)], HERE), Entry)


def test_the_newest_that_holds_is_taken() -> None:
    newer = entry(replace(HERE, engine=None), "2026-05-05T00:00:00+00:00")
    assert matching([newer, entry()], HERE) is newer


def damaged(change: str) -> bytes:
    document: dict[str, Any] = {"format": 1, "entries": []}
    if change == "cut":
        return b'{"format": 1, "entr'
    if change == "other":
        return b'{"some": "thing"}'
    if change == "format":
        return b'{"format": 2, "entries": []}'
    if change == "deep":
        return b"[" * 100_000
    if change == "not text":
        return b"\xff\xfe\x00"
    document["entries"] = [msg(entry())]
    fitted = document["entries"][0]["fitted"]
    if change == "negative":
        fitted["constants"]["bandwidth"]["low"] = -1.0
    elif change == "short":
        fitted["covariance"] = fitted["covariance"][:2]
    elif change == "nothing":
        fitted["coefficients"] = None
    return json.dumps(document).encode()


def msg(one: Entry) -> Any:
    import msgspec

    return json.loads(msgspec.json.encode(one))


@pytest.mark.parametrize(
    "change", ["cut", "other", "format", "deep", "not text", "negative", "short", "nothing"]
)
def test_a_damaged_file_is_refused_by_name_and_left_as_it_was(file: Path, change: str) -> None:
    file.write_bytes(damaged(change))
    before = file.read_bytes()
    for act in (read_calibrations, lambda path: store_calibration(path, entry())):
        with pytest.raises(CalibrationFileError, match=file.name):
            act(file)
    assert file.read_bytes() == before


def test_an_unreadable_place_is_said(tmp_path: Path) -> None:
    with pytest.raises(CalibrationFileError, match="cannot be read: No such file"):
        read_calibrations(tmp_path / "none.json")
    with pytest.raises(CalibrationFileError, match="cannot be written: No such file"):
        store_calibration(tmp_path / "none" / "file.json", entry())
