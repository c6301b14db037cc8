"""The published GPU figures: what is not known yields no sample."""

import pytest
from tokgauge.gpu import figures
from tokgauge.gpu.contention import EngineOnGpu, judge_snapshot
from tokgauge.gpu.nvml import NvmlReader
from tokgauge.gpu.readings import GpuReading, Snapshot
from tokgauge.simulator.gpu import Scene
from tokgauge.simulator.gpu_scenes import (
    active_neighbour_scene,
    empty_list_scene,
    founding_scene,
    mig_scene,
    no_process_utilization_scene,
    throttled_scene,
    wsl_scene,
)
from tokgauge.simulator.nvml import SimulatedNvml

pytestmark = pytest.mark.socketless

MIB = 1024**2


def look(scene: Scene) -> Snapshot:
    library = SimulatedNvml(scene)
    library.install()
    reader = NvmlReader(process_names=True)
    try:
        return reader.read()
    finally:
        reader.close()
        library.uninstall()


def test_the_founding_scene_in_figures() -> None:
    snapshot = look(founding_scene())
    assert list(figures.nvml_up(snapshot)) == [((), 1.0)]
    assert list(figures.gpu_utilization_ratio(snapshot)) == [
        (("0",), 0.0),
        (("1",), 0.47),
        (("2",), 0.0),
    ]
    assert list(figures.gpu_memory_used_bytes(snapshot)) == [
        (("0",), 38970.0 * MIB),
        (("1",), 36750.0 * MIB),
        (("2",), 29104.0 * MIB),
    ]
    assert list(figures.gpu_memory_total_bytes(snapshot)) == [
        (("0",), 49140.0 * MIB),
        (("1",), 49140.0 * MIB),
        (("2",), 49140.0 * MIB),
    ]
    assert list(figures.gpu_power_watts(snapshot)) == [
        (("0",), 24.0),
        (("1",), 182.0),
        (("2",), 24.0),
    ]
    assert list(figures.gpu_memory_bandwidth_bytes_per_second(snapshot)) == [
        (("0", "catalogue"), 768e9),
        (("1", "catalogue"), 768e9),
        (("2", "catalogue"), 768e9),
    ]
    assert list(figures.gpu_memory_bandwidth_bytes_per_second(snapshot, measured_value=700e9)) == [
        (("0", "measured"), 700e9),
        (("1", "measured"), 700e9),
        (("2", "measured"), 700e9),
    ]
    assert list(figures.gpu_dram_bandwidth_ratio(snapshot)) == []
    assert [labels[2] for labels, _ in figures.gpu_info(snapshot)] == ["NVIDIA RTX A6000"] * 3
    assert {value for _, value in figures.gpu_throttle(snapshot)} == {0.0}

    contentions = judge_snapshot(snapshot, EngineOnGpu(), None)
    assert list(figures.gpu_contention(contentions)) == [
        (("0", "none"), 0.0),
        (("0", "idle_neighbours"), 1.0),
        (("0", "active_neighbours"), 0.0),
        (("0", "unknown"), 0.0),
    ]
    assert list(figures.gpu_neighbour_processes(contentions)) == [
        (("0", "idle"), 5.0),
        (("0", "active"), 0.0),
        (("0", "unknown"), 0.0),
    ]
    assert list(figures.gpu_neighbour_memory_bytes(contentions)) == [(("0",), 3626.0 * MIB)]
    assert list(figures.gpu_neighbour_sm_ratio(contentions)) == [(("0",), 0.0)]


def test_throttling_in_figures() -> None:
    snapshot = look(throttled_scene())
    reasons = {labels for labels, value in figures.gpu_throttle(snapshot) if value == 1.0}
    assert reasons == {("0", "sw_power_cap"), ("0", "sw_thermal_slowdown")}


def test_an_active_neighbour_in_figures() -> None:
    contentions = judge_snapshot(look(active_neighbour_scene()), EngineOnGpu(), True)
    assert list(figures.gpu_neighbour_sm_ratio(contentions)) == [(("0",), 0.38)]
    counts = dict(figures.gpu_neighbour_processes(contentions))
    assert (counts["0", "active"], counts["0", "idle"]) == (1.0, 4.0)


def test_what_is_not_known_is_absent_and_never_zero() -> None:
    nothing = Snapshot(at=0.0, up=True, gpus=(GpuReading(index=0),))
    for figure in (
        figures.gpu_utilization_ratio,
        figures.gpu_memory_used_bytes,
        figures.gpu_memory_total_bytes,
        figures.gpu_power_watts,
        figures.gpu_dram_bandwidth_ratio,
        figures.gpu_throttle,
        figures.gpu_memory_bandwidth_bytes_per_second,
        figures.gpu_info,
        figures.nvml_errors_total,
    ):
        assert list(figure(nothing)) == []
        assert list(figure(None)) == []
    assert list(figures.nvml_up(None)) == [((), 0.0)]
    assert list(figures.nvml_up(Snapshot(at=0.0, up=False))) == [((), 0.0)]


def test_hidden_neighbours_are_not_counted_as_none() -> None:
    for scene in (wsl_scene(), empty_list_scene(), mig_scene()):
        contentions = judge_snapshot(look(scene), EngineOnGpu(gpus=frozenset({0})), True)
        assert list(figures.gpu_neighbour_processes(contentions)) == []
        assert list(figures.gpu_neighbour_memory_bytes(contentions)) == []
        assert list(figures.gpu_neighbour_sm_ratio(contentions)) == []
        states = dict(figures.gpu_contention(contentions))
        assert states["0", "unknown"] == 1.0


def test_neighbours_whose_sm_time_is_hidden_have_memory_but_no_share() -> None:
    scene = no_process_utilization_scene()
    contentions = judge_snapshot(look(scene), EngineOnGpu(), True)
    assert list(figures.gpu_neighbour_sm_ratio(contentions)) == []
    assert list(figures.gpu_neighbour_memory_bytes(contentions)) == [(("0",), 3626.0 * MIB)]
    assert dict(figures.gpu_neighbour_processes(contentions))["0", "unknown"] == 5.0


def test_errors_are_published_by_kind() -> None:
    kinds = dict(figures.nvml_errors_total(look(wsl_scene())))
    assert kinds[("not_supported",)] == 2.0


def test_an_old_snapshot_is_no_snapshot() -> None:
    snapshot = Snapshot(at=100.0, up=True)
    assert figures.fresh(snapshot, 104.0) is snapshot
    assert figures.fresh(snapshot, 106.0) is None
    assert figures.fresh(None, 0.0) is None
