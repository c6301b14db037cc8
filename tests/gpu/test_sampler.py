"""The sampler's thread: never in anybody's way."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pynvml
import pytest
from tokgauge.gpu.contention import ContentionHistory, EngineOnGpu
from tokgauge.gpu.nvml import NvmlReader
from tokgauge.gpu.readings import Snapshot
from tokgauge.gpu.sampler import GpuSampler
from tokgauge.simulator import nvml as simulated_nvml
from tokgauge.simulator.gpu_scenes import active_neighbour_scene, lost_gpu_scene
from tokgauge.simulator.nvml import SimulatedNvml

pytestmark = pytest.mark.socketless


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.005)


def sampler_threads() -> int:
    return sum(thread.name == "gpu-sampler" for thread in threading.enumerate())


def failures(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "tokgauge.gpu.sampler"]


def test_it_samples_until_stopped(nvml: SimulatedNvml, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Snapshot] = []
    sampler = GpuSampler(
        NvmlReader(process_names=True), interval_seconds=0.01, on_snapshot=seen.append
    )
    assert sampler.latest() is None
    sampler.start()
    sampler.start()
    (thread,) = (item for item in threading.enumerate() if item.name == "gpu-sampler")
    assert thread.daemon, "a hanging driver must not keep the process alive"
    wait_for(lambda: len(seen) >= 3)
    first = sampler.latest()
    assert first is not None
    assert first.up
    assert [gpu.utilization_ratio for gpu in first.gpus] == [0.0, 0.47, 0.0]
    nvml.scene = active_neighbour_scene()
    wait_for(lambda: (sampler.latest() or first).gpus[0].utilization_ratio == 0.41)
    assert first.gpus[0].utilization_ratio == 0.0, "a snapshot stays what it was"
    assert sampler.stop()
    assert sampler_threads() == 0
    assert sampler.latest() is seen[-1]
    assert not failures(caplog)


def test_stopping_before_the_start_and_twice(nvml: SimulatedNvml) -> None:
    assert GpuSampler(NvmlReader()).stop()
    sampler = GpuSampler(NvmlReader())
    sampler.start()
    assert sampler.stop()
    assert sampler.stop()


def test_a_gpu_is_lost_and_comes_back_while_sampling(
    nvml: SimulatedNvml, caplog: pytest.LogCaptureFixture
) -> None:
    working = nvml.scene
    # Ten times faster than real time, so that pauses are short.
    reader = NvmlReader(process_names=True, clock=lambda: time.monotonic() * 10)
    sampler = GpuSampler(reader, interval_seconds=0.01)
    sampler.start()

    def shows(up: bool, first_lost: bool | None) -> bool:
        snapshot = sampler.latest()
        if snapshot is None or snapshot.up != up:
            return False
        return first_lost is None or snapshot.gpus[0].lost == first_lost

    wait_for(lambda: shows(True, False))
    nvml.scene = lost_gpu_scene()
    wait_for(lambda: shows(True, True))
    nvml.scene = working
    wait_for(lambda: shows(True, False))
    driver_gone = dict.fromkeys(simulated_nvml._ANSWERS, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    nvml.scene = replace(working, errors=driver_gone)
    wait_for(lambda: shows(False, None))
    nvml.scene = working
    wait_for(lambda: shows(True, False))
    assert sampler.stop()
    latest = sampler.latest()
    assert latest is not None
    assert latest.errors["gpu_is_lost"] >= 1
    assert latest.errors["driver_not_loaded"] >= 1
    assert not failures(caplog)


class HangingReader:
    """Answers once, then hangs as a driver does, until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.hangs = threading.Event()
        self.reads = 0

    def read(self) -> Snapshot:
        self.reads += 1
        if self.reads > 1:
            self.hangs.set()
            self.let_go.wait(30)
        return Snapshot(at=time.monotonic(), up=True)

    def close(self) -> None:
        pass


def test_a_hanging_driver_blocks_nobody() -> None:
    reader = HangingReader()
    sampler = GpuSampler(reader, interval_seconds=0.001)
    sampler.start()
    assert reader.hangs.wait(10)
    start = time.monotonic()
    snapshot = sampler.latest()
    assert snapshot is not None
    assert snapshot.age(snapshot.at + 60) == pytest.approx(60)
    assert not sampler.stop(timeout_seconds=0.05)
    assert time.monotonic() - start < 5
    assert sampler.latest() is snapshot
    reader.let_go.set()
    assert sampler.stop(timeout_seconds=10)


class FailingReader:
    def __init__(self) -> None:
        self.reads = 0

    def read(self) -> Snapshot:
        self.reads += 1
        raise RuntimeError("a fault in the reader")

    def close(self) -> None:
        raise ValueError("a fault in closing")


def test_errors_of_the_reader_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    reader = FailingReader()
    sampler = GpuSampler(reader, interval_seconds=0.001)
    sampler.start()
    wait_for(lambda: reader.reads >= 5)
    assert sampler.stop()
    assert sampler.latest() is None
    assert len(failures(caplog)) == 2, "once for reading, once for closing"


def test_errors_go_to_who_wants_them(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Exception] = []
    sampler = GpuSampler(FailingReader(), interval_seconds=0.001, on_error=told.append)
    sampler.start()
    wait_for(lambda: len(told) >= 3)
    assert sampler.stop()
    assert {type(error) for error in told} == {RuntimeError, ValueError}
    assert not failures(caplog)


def test_a_failing_listener_costs_no_snapshot(
    nvml: SimulatedNvml, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Snapshot] = []

    def fail(snapshot: Snapshot) -> None:
        seen.append(snapshot)
        raise RuntimeError

    sampler = GpuSampler(NvmlReader(), interval_seconds=0.001, on_snapshot=fail)
    sampler.start()
    wait_for(lambda: len(seen) >= 3)
    assert sampler.stop()
    assert sampler.latest() is seen[-1]
    assert len(failures(caplog)) == 1


def test_an_exchange_learns_what_it_met(nvml: SimulatedNvml) -> None:
    """The wiring as the proxy does it."""
    history = ContentionHistory(EngineOnGpu(), engine_busy=lambda at: False)
    sampler = GpuSampler(
        NvmlReader(process_names=True), interval_seconds=0.01, on_snapshot=history.add
    )
    start = time.monotonic()
    sampler.start()
    wait_for(lambda: history.contention_during(start, time.monotonic()) == "idle_neighbours")
    nvml.scene = active_neighbour_scene()
    wait_for(lambda: history.contention_during(start, time.monotonic()) == "active_neighbours")
    (now,) = history.latest(time.monotonic())
    assert now.state == "active_neighbours"
    assert sampler.stop()
