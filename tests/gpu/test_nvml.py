"""The reader in this process, on simulated GPUs behind the real bindings."""

import logging
from collections.abc import Iterator
from dataclasses import replace

import pynvml
import pytest
from tokgauge.gpu.nvml import NvmlReader, in_host_pid_namespace
from tokgauge.gpu.readings import THROTTLE_REASONS
from tokgauge.simulator import nvml as simulated_nvml
from tokgauge.simulator.gpu import Scene, SimulatedGpu, SimulatedProcess
from tokgauge.simulator.gpu_scenes import founding_scene, lost_gpu_scene
from tokgauge.simulator.nvml import SimulatedNvml

pytestmark = pytest.mark.socketless

NOT_FOUND = pynvml.NVML_ERROR_NOT_FOUND
KNOWN_ERRORS = sorted(
    value
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(value, int)
)


@pytest.fixture
def reader(nvml: SimulatedNvml) -> Iterator[NvmlReader]:
    reader = NvmlReader(process_names=True)
    yield reader
    reader.close()


def test_the_simulation_leaves_no_trace() -> None:
    library_before = pynvml.nvmlLib
    library = SimulatedNvml(founding_scene())
    library.install()
    assert pynvml.nvmlLib is library
    library.uninstall()
    library.uninstall()
    assert pynvml.nvmlLib is library_before
    assert "nvmlInitWithFlags" not in pynvml._nvmlGetFunctionPointer_cache


@pytest.mark.parametrize("function", sorted(simulated_nvml._ANSWERS))
def test_no_error_of_any_function_gets_out(nvml: SimulatedNvml, function: str) -> None:
    scene = founding_scene()
    scene = replace(scene, gpus=tuple(replace(gpu, dram_percent=50.0) for gpu in scene.gpus))
    # Older functions are asked only when the newest is missing; the last two are for tidying up.
    seldom = {"nvmlDeviceGetMemoryInfo", "nvmlShutdown", "nvmlGpmSampleFree"}
    for code in [*KNOWN_ERRORS, 12345]:
        nvml.scene = replace(scene, errors={function: code})
        clock = map(float, range(1000))
        reader = NvmlReader(process_names=True, clock=clock.__next__)
        snapshots = [reader.read(), reader.read()]
        reader.close()
        idle = function == "nvmlDeviceGetProcessUtilization" and code == NOT_FOUND
        assert idle or function in seldom or snapshots[1].errors, code
        assert all(snapshot.up or not snapshot.gpus for snapshot in snapshots)
        assert {gpu.index for gpu in snapshots[1].gpus} <= {0, 1, 2}


@pytest.mark.parametrize(
    "error",
    [
        pynvml.NVMLLibraryMismatchError("versions differ"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        TypeError("wrong struct"),
        OSError("exception: access violation"),
        pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION),
        pynvml.NVMLError(4242),
    ],
)
@pytest.mark.usefixtures("nvml")
def test_errors_of_the_bindings_are_absent_values(
    reader: NvmlReader, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*args: object) -> None:
        raise error

    for name in ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetComputeRunningProcesses_v3"):
        monkeypatch.setattr(pynvml, name, fail)
    first = reader.read().gpus[0]
    assert first.power_watts is None
    assert first.processes is None
    assert first.utilization_ratio == 0.0


def test_a_function_that_the_bindings_lack_is_logged_once(
    reader: NvmlReader, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="tokgauge.gpu")
    monkeypatch.delattr(pynvml, "nvmlDeviceGetEccMode")
    for _ in range(3):
        assert reader.read().gpus[0].ecc is None
    assert reader.read().errors == {"function_not_found": 1}
    assert [record.getMessage() for record in caplog.records] == [
        "NVML function nvmlDeviceGetEccMode cannot be used here (function_not_found)"
    ]


def test_an_outage_is_logged_once_and_its_end_too(
    nvml: SimulatedNvml, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="tokgauge.gpu")
    now = 0.0
    reader = NvmlReader(process_names=True, clock=lambda: now)
    working = nvml.scene
    codes = {"nvmlInitWithFlags": pynvml.NVML_ERROR_DRIVER_NOT_LOADED}
    nvml.scene = replace(working, errors=codes)
    for _ in range(20):
        assert not reader.read().up
        now += 10.0
    nvml.scene = working
    now += 60.0
    assert reader.read().up
    reader.close()
    assert [record.getMessage() for record in caplog.records] == [
        "NVML: nvmlInit failed: driver_not_loaded",
        "NVML opened again after: driver_not_loaded",
    ]


def test_no_names_where_pids_mean_something_else(nvml: SimulatedNvml) -> None:
    reader = NvmlReader(process_names=False)
    processes = reader.read().gpus[0].processes
    reader.close()
    assert processes is not None
    assert [process.name for process in processes] == [None] * 6
    assert processes[0].used_memory_bytes == 35344 * 1024**2


def test_the_pid_namespace_decides_when_nothing_is_set(
    nvml: SimulatedNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.readlink", lambda path: "pid:[4026532589]")
    assert not in_host_pid_namespace()
    reader = NvmlReader()
    processes = reader.read().gpus[0].processes or ()
    reader.close()
    assert {process.name for process in processes} == {None}
    monkeypatch.setattr("os.readlink", lambda path: "pid:[4026531836]")
    assert in_host_pid_namespace()


def test_mps_and_graphics_processes_are_listed_once_each(
    nvml: SimulatedNvml, reader: NvmlReader
) -> None:
    gpu = SimulatedGpu(
        processes=(
            SimulatedProcess(1, "Xorg", 10, kind="graphics"),
            SimulatedProcess(2, "VLLM::EngineCore", 20, kind="mps"),
            SimulatedProcess(2, "VLLM::EngineCore", 20, kind="graphics"),
        )
    )
    nvml.scene = Scene(gpus=(gpu,))
    processes = reader.read().gpus[0].processes or ()
    assert [(process.pid, process.kind) for process in processes] == [
        (2, "mps"),
        (1, "graphics"),
    ]


def test_idle_is_not_throttling(nvml: SimulatedNvml, reader: NvmlReader) -> None:
    nvml.scene = Scene(gpus=(SimulatedGpu(clock_reasons=0x1),))
    assert reader.read().gpus[0].throttle_reasons == frozenset()
    nvml.scene = Scene(gpus=(SimulatedGpu(clock_reasons=0x1FF),))
    assert reader.read().gpus[0].throttle_reasons == frozenset(THROTTLE_REASONS.values())
    assert not any("idle" in reason for reason in THROTTLE_REASONS.values())


def test_closing_twice_and_reading_again_is_harmless(reader: NvmlReader) -> None:
    reader.close()
    assert reader.read().up
    reader.close()
    reader.close()
    assert reader.read().up


def test_snapshots_and_readings_cannot_be_changed(reader: NvmlReader) -> None:
    snapshot = reader.read()
    with pytest.raises(AttributeError):
        snapshot.gpus[0].power_watts = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        snapshot.errors["x"] = 1  # type: ignore[index]
    assert snapshot.age(snapshot.at + 3.0) == pytest.approx(3.0)


@pytest.mark.parametrize(
    "code",
    [
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    ],
)
def test_one_call_that_finds_the_session_ended_ends_it(
    nvml: SimulatedNvml, reader: NvmlReader, code: int
) -> None:
    nvml.scene = replace(nvml.scene, errors={"nvmlDeviceGetPowerUsage": code})
    snapshot = reader.read()
    assert not snapshot.up
    assert snapshot.gpus == ()


def test_a_lost_gpu_does_not_open_the_session_at_every_look(
    nvml: SimulatedNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    openings = 0
    nvml_init = pynvml.nvmlInit

    def count_openings() -> None:
        nonlocal openings
        openings += 1
        nvml_init()

    monkeypatch.setattr(pynvml, "nvmlInit", count_openings)
    nvml.scene = lost_gpu_scene()
    now = 0.0
    reader = NvmlReader(process_names=True, clock=lambda: now)
    for _ in range(10):
        assert reader.read().gpus[0].lost
    assert openings == 1
    now = 1.5
    reader.read()
    assert openings == 2
    now = 3.0
    reader.read()
    assert openings == 2, "the second pause is longer"
    reader.close()


def test_a_new_driver_is_asked_again_for_what_the_old_one_lacked(
    nvml: SimulatedNvml, reader: NvmlReader
) -> None:
    working = nvml.scene
    missing = {"nvmlDeviceGetEccMode": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}
    nvml.scene = replace(working, errors=missing)
    assert reader.read().gpus[0].ecc is None
    nvml.scene = working
    assert reader.read().gpus[0].ecc is None, "an unknown function is not asked for again"
    reader.close()
    assert reader.read().gpus[0].ecc is False


def test_a_total_of_zero_is_not_told(nvml: SimulatedNvml, reader: NvmlReader) -> None:
    nvml.scene = Scene(gpus=(SimulatedGpu(memory_total_bytes=0),))
    assert reader.read().gpus[0].memory_total_bytes is None


def test_gpm_samples_are_given_back(nvml: SimulatedNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml.scene = Scene(gpus=(SimulatedGpu(dram_percent=72.5),))
    alive = 0
    allocate, free = pynvml.nvmlGpmSampleAlloc, pynvml.nvmlGpmSampleFree

    def count_allocated() -> object:
        nonlocal alive
        alive += 1
        return allocate()

    def count_freed(sample: object) -> None:
        nonlocal alive
        alive -= 1
        free(sample)

    monkeypatch.setattr(pynvml, "nvmlGpmSampleAlloc", count_allocated)
    monkeypatch.setattr(pynvml, "nvmlGpmSampleFree", count_freed)
    clock = iter(range(100))
    reader = NvmlReader(process_names=True, clock=lambda: float(next(clock)))
    ratios = [reader.read().gpus[0].dram_bandwidth_ratio for _ in range(5)]
    assert ratios == [None, 0.725, 0.725, 0.725, 0.725]
    assert alive == 1
    failing = {"nvmlGpmSampleGet": pynvml.NVML_ERROR_NO_PERMISSION}
    nvml.scene = replace(nvml.scene, errors=failing)
    reader.read()
    assert alive == 1
    reader.close()
    assert alive == 0


def test_a_mig_card_has_no_bandwidth_share_of_its_own(nvml: SimulatedNvml) -> None:
    nvml.scene = Scene(gpus=(SimulatedGpu(mig=True, dram_percent=50.0),))
    clock = iter(range(100))
    reader = NvmlReader(process_names=True, clock=lambda: float(next(clock)))
    assert [reader.read().gpus[0].dram_bandwidth_ratio for _ in range(3)] == [None] * 3
    reader.close()
