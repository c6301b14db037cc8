"""Figures of several workers are read while their files come and go."""

import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from threading import Timer

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from tokgauge.export.workers_figures import WorkersFigures

KEY = mmap_key("tokgauge_a_total", "tokgauge_a_total", ["model"], ["m"], "What it is.")


def write(path: Path, value: float) -> None:
    values = MmapedDict(str(path))  # type: ignore[no-untyped-call]
    values.write_value(KEY, value, 0.0)  # type: ignore[no-untyped-call]
    values.close()  # type: ignore[no-untyped-call]


def page(directory: Path) -> str:
    registry = CollectorRegistry()
    WorkersFigures(registry, directory)
    return generate_latest(registry).decode()


def after(seconds: float, what: Callable[[], object]) -> None:
    timer = Timer(seconds, what)
    timer.daemon = True
    timer.start()


def test_a_file_that_a_worker_is_just_creating_is_waited_for(tmp_path: Path) -> None:
    write(tmp_path / "counter_1.db", 3.0)
    write(tmp_path / "ready", 4.0)
    (tmp_path / "counter_2.db").touch()
    after(0.03, lambda: shutil.copyfile(tmp_path / "ready", tmp_path / "counter_2.db"))
    assert 'tokgauge_a_total{model="m"} 7.0' in page(tmp_path)


def test_a_file_that_goes_while_it_is_read_is_left_out(tmp_path: Path) -> None:
    write(tmp_path / "counter_1.db", 3.0)
    gone = tmp_path / "counter_2.db"
    gone.symlink_to(tmp_path / "nowhere")
    after(0.03, gone.unlink)
    assert 'tokgauge_a_total{model="m"} 3.0' in page(tmp_path)


def test_a_file_that_stays_unreadable_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "counter_1.db", 3.0)
    (tmp_path / "counter_2.db").touch()
    with pytest.raises(struct.error):
        page(tmp_path)
