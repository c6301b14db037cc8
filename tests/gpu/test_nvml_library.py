"""The reader against a real shared library, loaded by the real bindings in a process of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import program

HERE = Path(__file__).parent / "nvml_stub"
MIB = 1024**2

FOUNDING = f"""\
count 2
gpu0.name NVIDIA RTX A6000
gpu0.uuid GPU-a
gpu0.total {49140 * MIB}
gpu0.used {38970 * MIB}
gpu0.gpu 0
gpu0.memory 0
gpu0.clock 405
gpu0.maxclock 8001
gpu0.bus 384
gpu0.power 24500
gpu0.reasons 1
gpu0.mig 0
gpu0.ecc 1
gpu0.process 4242 {35344 * MIB} -1 VLLM::EngineCore
gpu0.process 4301 {334 * MIB} -1 python
gpu0.process 4302 {528 * MIB} -1 python
gpu0.process 4303 {334 * MIB} -1 python
gpu0.process 4304 {2002 * MIB} -1 python
gpu0.process 4305 {428 * MIB} -1 python
gpu1.name NVIDIA RTX A6000
gpu1.uuid GPU-b
gpu1.total {49140 * MIB}
gpu1.used {20480 * MIB}
gpu1.gpu 47
gpu1.memory 21
gpu1.clock 8001
gpu1.maxclock 8001
gpu1.bus 384
gpu1.power 182000
gpu1.reasons 36
gpu1.mig 0
gpu1.ecc 0
gpu1.process 777 {20480 * MIB} 46 /usr/bin/python3
"""


def compile_stub(folder: Path, *options: str) -> Path:
    library = folder / "libnvidia-ml.so.1"
    command = [program("gcc"), "-O1", "-Wall", "-Werror", "-shared", "-fPIC", *options]
    source = HERE / "nvml_stub.c"
    subprocess.run(
        [*command, "-Wl,-soname,libnvidia-ml.so.1", "-o", library, source], check=True, timeout=60
    )
    return folder


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_stub(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="session")
def old_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_stub(tmp_path_factory.mktemp("old_driver"), "-DOLD_DRIVER")


class ReaderProcess:
    """A process that reads the GPUs when asked, on the scene that the test has set."""

    def __init__(self, library: Path, scene: Path) -> None:
        self._scene = scene
        self.show(FOUNDING)
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(library),
            "NVML_STUB_SCENE": str(scene),
            "PYTHONPATH": str(HERE.parents[2] / "proxy"),
        }
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "reader_process.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )

    def show(self, scene: str) -> None:
        new = self._scene.with_suffix(".new")
        new.write_text(scene)
        new.replace(self._scene)

    def read(self, seconds_later: float = 1.0) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{seconds_later}\n")
        self._process.stdin.flush()
        document: dict[str, Any] = json.loads(self._process.stdout.readline())
        return document

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        assert self._process.wait(timeout=30) == 0
        self._process.stdout.close()


@pytest.fixture
def gpus(driver: Path, tmp_path: Path) -> Iterator[ReaderProcess]:
    process = ReaderProcess(driver, tmp_path / "scene")
    yield process
    process.close()


def without(scene: str, *prefixes: str) -> str:
    return "".join(
        line for line in scene.splitlines(keepends=True) if not line.startswith(prefixes)
    )


def test_the_founding_scene_is_read(gpus: ReaderProcess) -> None:
    snapshot = gpus.read()
    assert snapshot["up"]
    assert snapshot["errors"] == {}
    first, second = snapshot["gpus"]
    assert first["name"] == "NVIDIA RTX A6000"
    assert first["uuid"] == "GPU-a"
    assert first["memory_total_bytes"] == 49140 * MIB
    assert first["memory_used_bytes"] == 38970 * MIB
    assert first["utilization_ratio"] == 0.0
    assert (first["memory_clock_mhz"], first["max_memory_clock_mhz"]) == (405, 8001)
    assert first["memory_bus_bits"] == 384
    assert first["power_watts"] == 24.5
    assert first["throttle_reasons"] == []
    assert (first["mig"], first["ecc"]) == (False, True)
    assert first["dram_bandwidth_ratio"] is None
    assert [process["used_memory_bytes"] // MIB for process in first["processes"]] == [
        35344,
        334,
        528,
        334,
        2002,
        428,
    ]
    assert first["processes"][0]["name"] == "VLLM::EngineCore"
    assert {process["sm_ratio"] for process in first["processes"]} == {0.0}
    assert second["utilization_ratio"] == 0.47
    assert second["throttle_reasons"] == ["sw_power_cap", "sw_thermal_slowdown"]
    assert second["processes"][0]["sm_ratio"] == 0.46


def test_fields_come_and_go_while_running(gpus: ReaderProcess) -> None:
    assert gpus.read()["gpus"][0]["power_watts"] == 24.5
    gpus.show(without(FOUNDING, "gpu0.power", "gpu0.mig", "gpu0.gpu"))
    first, second = gpus.read()["gpus"]
    assert first["power_watts"] is None
    assert first["mig"] is None
    assert first["utilization_ratio"] is None
    assert first["memory_used_bytes"] == 38970 * MIB
    assert second["power_watts"] == 182.0
    gpus.show(FOUNDING)
    snapshot = gpus.read()
    assert snapshot["gpus"][0]["power_watts"] == 24.5
    assert snapshot["errors"] == {"not_supported": 3}


def test_processes_hidden_and_memory_not_available(gpus: ReaderProcess) -> None:
    gpus.show(without(FOUNDING, "gpu0.process"))
    assert gpus.read()["gpus"][0]["processes"] == []
    gpus.show(without(FOUNDING, "gpu0.process") + "gpu0.process 4242 -1 250 VLLM::EngineCore\n")
    (process,) = gpus.read()["gpus"][0]["processes"]
    assert process["used_memory_bytes"] is None
    assert process["sm_ratio"] is None, "a share of 250 % is not a share"
    gpus.show(FOUNDING + "error.nvmlDeviceGetProcessUtilization 3\n")
    assert gpus.read()["gpus"][0]["processes"][0]["sm_ratio"] is None
    gpus.show(FOUNDING + "error.nvmlDeviceGetComputeRunningProcesses_v3 3\n")
    assert gpus.read()["gpus"][0]["processes"] is None


def test_a_bus_width_of_zero_is_not_told(gpus: ReaderProcess) -> None:
    gpus.show(FOUNDING.replace("gpu0.bus 384", "gpu0.bus 0"))
    assert gpus.read()["gpus"][0]["memory_bus_bits"] is None


def test_names_that_are_not_utf8_are_absent(gpus: ReaderProcess, tmp_path: Path) -> None:
    (tmp_path / "scene").write_bytes(FOUNDING.encode().replace(b"RTX A6000", b"RTX \xff\xfe", 1))
    snapshot = gpus.read()
    assert snapshot["gpus"][0]["name"] is None
    assert snapshot["gpus"][0]["uuid"] == "GPU-a"
    assert snapshot["errors"] == {"unicode": 1}


def test_a_lost_gpu_leaves_the_other_and_comes_back(gpus: ReaderProcess) -> None:
    gpus.read()
    gpus.show(FOUNDING + "gpu0.error 15\n")
    for _ in range(5):
        snapshot = gpus.read(seconds_later=10)
        assert snapshot["up"]
        assert snapshot["problem"] == "gpu_is_lost"
        assert snapshot["gpus"][0]["lost"]
        assert snapshot["gpus"][0]["memory_used_bytes"] is None
        assert snapshot["gpus"][1]["utilization_ratio"] == 0.47
    gpus.show(FOUNDING)
    snapshot = gpus.read(seconds_later=100)
    assert not snapshot["gpus"][0]["lost"]
    assert snapshot["gpus"][0]["memory_used_bytes"] == 38970 * MIB
    assert snapshot["problem"] is None


@pytest.mark.parametrize(
    ("code", "kind"), [(9, "driver_not_loaded"), (18, "lib_rm_version_mismatch")]
)
def test_a_driver_that_goes_is_opened_again_with_growing_pauses(
    gpus: ReaderProcess, code: int, kind: str
) -> None:
    assert gpus.read()["up"]
    gpus.show(FOUNDING + f"driver {code}\n")
    snapshot = gpus.read()
    assert not snapshot["up"]
    assert snapshot["gpus"] == []
    assert snapshot["problem"] == kind
    failures = [gpus.read(seconds_later=0.5)["errors"][kind] for _ in range(40)]
    assert failures[-1] - failures[0] <= 5, "tried again without pause"
    gpus.show(FOUNDING)
    assert gpus.read(seconds_later=60)["up"]


def test_a_driver_that_comes_after_the_start(driver: Path, tmp_path: Path) -> None:
    gpus = ReaderProcess(driver, tmp_path / "scene")
    gpus.show("driver 9\n")
    try:
        assert gpus.read()["problem"] == "driver_not_loaded"
        gpus.show(FOUNDING)
        assert not gpus.read(seconds_later=0.1)["up"], "the pause is kept"
        assert len(gpus.read(seconds_later=1.5)["gpus"]) == 2
    finally:
        gpus.close()


def test_no_library_at_all(tmp_path: Path) -> None:
    gpus = ReaderProcess(tmp_path, tmp_path / "scene")
    try:
        snapshot = gpus.read()
        if snapshot["up"] or snapshot["problem"] != "library_not_found":
            pytest.skip("this machine has an NVML library of its own")
        assert snapshot["gpus"] == []
    finally:
        gpus.close()


def test_an_old_driver_answers_through_older_functions(old_driver: Path, tmp_path: Path) -> None:
    gpus = ReaderProcess(old_driver, tmp_path / "scene")
    try:
        gpus.read()
        snapshot = gpus.read()
        first, second = snapshot["gpus"]
        assert first["memory_used_bytes"] == (38970 + 300) * MIB, "version 1 counts the reserve"
        assert len(first["processes"]) == 6
        assert second["throttle_reasons"] == ["sw_power_cap", "sw_thermal_slowdown"]
        assert first["memory_bus_bits"] is None
        # Asked once, not at every look: memory v2, bus, event reasons, compute list v3, the MPS
        # and graphics lists in both versions, GPM.
        assert snapshot["errors"] == {"function_not_found": 9}
    finally:
        gpus.close()


def test_dram_bandwidth_is_measured_between_two_looks(gpus: ReaderProcess) -> None:
    gpus.show(FOUNDING + "gpu0.dram 63\n")
    assert gpus.read()["gpus"][0]["dram_bandwidth_ratio"] is None
    first, second = gpus.read()["gpus"]
    assert first["dram_bandwidth_ratio"] == 0.63
    assert second["dram_bandwidth_ratio"] is None
    gpus.show(FOUNDING + "gpu0.dram 81\n")
    assert gpus.read()["gpus"][0]["dram_bandwidth_ratio"] == 0.81
    assert gpus.read(seconds_later=0.01)["gpus"][0]["dram_bandwidth_ratio"] is None, "too soon"
    gpus.show(FOUNDING + "gpu0.dram 81\nerror.nvmlGpmSampleGet 4\n")
    snapshot = gpus.read()
    assert snapshot["gpus"][0]["dram_bandwidth_ratio"] is None
    assert snapshot["errors"]["no_permission"] == 1
    gpus.show(FOUNDING + "gpu0.dram 40\n")
    assert gpus.read()["gpus"][0]["dram_bandwidth_ratio"] == 0.4


def test_slow_calls_only_take_time(gpus: ReaderProcess) -> None:
    gpus.show(FOUNDING + "delay.nvmlDeviceGetUtilizationRates 0.2\n")
    start = time.monotonic()
    assert gpus.read()["gpus"][1]["utilization_ratio"] == 0.47
    assert time.monotonic() - start >= 0.4
