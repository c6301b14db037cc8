"""Contention: who is accused, who is cleared, and when nobody can say (CASES 38 and 39)."""

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tokgauge.gpu.contention import (
    DEFAULT_ENGINE_NAMES,
    Contention,
    ContentionHistory,
    EngineOnGpu,
    judge_snapshot,
    was_busy,
    worst,
)
from tokgauge.gpu.nvml import NvmlReader
from tokgauge.gpu.readings import GpuProcess, GpuReading, Snapshot
from tokgauge.simulator.gpu_scenes import (
    active_neighbour_scene,
    empty_list_scene,
    lost_gpu_scene,
    mig_scene,
    no_process_utilization_scene,
    throttled_scene,
    wsl_scene,
)
from tokgauge.simulator.nvml import SimulatedNvml

pytestmark = pytest.mark.socketless

MIB = 1024**2
GIB = 1024**3
ENGINE = GpuProcess(100, "VLLM::EngineCore", 20 * GIB, 0.0)
NEIGHBOUR = GpuProcess(200, "python", 2 * GIB, 0.0)


@pytest.fixture
def reader(nvml: SimulatedNvml) -> Iterator[NvmlReader]:
    reader = NvmlReader(process_names=True)
    yield reader
    reader.close()


def gpu(*processes: GpuProcess, utilization: float | None = 0.0, **values: object) -> GpuReading:
    used = sum(process.used_memory_bytes or 0 for process in processes)
    given = {
        "index": 0,
        "memory_total_bytes": 48 * GIB,
        "memory_used_bytes": used,
        "utilization_ratio": utilization,
        "processes": processes,
        **values,
    }
    return GpuReading(**given)  # type: ignore[arg-type]


def judge(
    *gpus: GpuReading, engine: EngineOnGpu | None = None, busy: bool | None = None
) -> tuple[Contention, ...]:
    return judge_snapshot(Snapshot(at=0.0, up=True, gpus=gpus), engine or EngineOnGpu(), busy)


@pytest.mark.parametrize("busy", [True, False, None])
def test_the_founding_scene_clears_the_neighbours(reader: NvmlReader, busy: bool | None) -> None:
    snapshot = reader.read()
    assert [gpu.utilization_ratio for gpu in snapshot.gpus] == [0.0, 0.47, 0.0]
    assert len(snapshot.gpus[0].processes or ()) == 6

    (contention,) = judge_snapshot(snapshot, EngineOnGpu(), busy)

    assert contention.gpu == 0
    assert contention.state == "idle_neighbours"
    assert contention.evidence == "5 neighbours with 3,626 MiB of memory; none of them runs"
    held = [(item.memory_bytes or 0) // MIB for item in contention.neighbours]
    assert held == [334, 528, 334, 2002, 428]
    assert {item.activity for item in contention.neighbours} == {"idle"}
    assert contention.engine_processes == 1
    assert contention.neighbours_known


def test_the_busy_gpu_next_door_accuses_nobody(reader: NvmlReader) -> None:
    """GPU 1 runs at 47 %, but the engine is not on it."""
    contentions = judge_snapshot(reader.read(), EngineOnGpu(), False)
    assert [item.gpu for item in contentions] == [0]


@pytest.mark.parametrize("busy", [True, False, None])
def test_a_neighbour_with_its_own_sm_time_is_active(
    nvml: SimulatedNvml, reader: NvmlReader, busy: bool | None
) -> None:
    nvml.scene = active_neighbour_scene()
    (contention,) = judge_snapshot(reader.read(), EngineOnGpu(), busy)
    assert contention.state == "active_neighbours"
    assert "pid 90004 (/opt/conda/bin/python) at 38% of SM time" in contention.evidence
    active = [item for item in contention.neighbours if item.activity == "active"]
    assert [(item.memory_bytes or 0) // MIB for item in active] == [2002]


def test_a_throttled_card_is_not_contended(nvml: SimulatedNvml, reader: NvmlReader) -> None:
    nvml.scene = throttled_scene()
    snapshot = reader.read()
    (contention,) = judge_snapshot(snapshot, EngineOnGpu(), True)
    assert contention.state == "idle_neighbours"
    assert snapshot.gpus[0].throttle_reasons == frozenset({"sw_power_cap", "sw_thermal_slowdown"})


@pytest.mark.parametrize(
    ("busy", "state"),
    [(True, "unknown"), (None, "unknown"), (False, "active_neighbours")],
)
def test_a_busy_gpu_without_process_utilisation_accuses_only_when_the_engine_is_idle(
    nvml: SimulatedNvml, reader: NvmlReader, busy: bool | None, state: str
) -> None:
    nvml.scene = no_process_utilization_scene()
    (contention,) = judge_snapshot(reader.read(), EngineOnGpu(), busy)
    assert contention.state == state
    assert {item.activity for item in contention.neighbours} == {"unknown"}
    if state == "active_neighbours":
        assert contention.evidence == "the GPU is 92% busy while the engine has nothing to do"


@pytest.mark.parametrize(
    "scene",
    [
        wsl_scene,
        mig_scene,
        empty_list_scene,
        lost_gpu_scene,
    ],
)
@pytest.mark.parametrize("busy", [True, False, None])
def test_what_nvml_hides_is_unknown(
    nvml: SimulatedNvml, reader: NvmlReader, scene: object, busy: bool | None
) -> None:
    nvml.scene = scene()  # type: ignore[operator]
    engine = EngineOnGpu(gpus=frozenset({0}))
    (contention,) = judge_snapshot(reader.read(), engine, busy)
    assert contention.state == "unknown"
    assert not contention.neighbours_known
    assert contention.neighbours == ()


def test_a_gpu_at_rest_clears_even_when_nothing_else_is_told(
    nvml: SimulatedNvml, reader: NvmlReader
) -> None:
    nvml.scene = wsl_scene()
    engine = EngineOnGpu(pids=frozenset({81_204}))
    (contention,) = judge_snapshot(reader.read(), engine, True)
    assert contention.state == "idle_neighbours"
    assert contention.evidence == (
        "5 neighbours with memory that NVML does not tell; none of them runs"
    )


def test_an_empty_list_with_memory_in_use_is_not_none() -> None:
    named = EngineOnGpu(gpus=frozenset({0}))
    (hidden,) = judge(gpu(memory_used_bytes=35 * GIB), engine=named)
    assert hidden.state == "unknown"
    (unknown_memory,) = judge(gpu(memory_used_bytes=None), engine=named)
    assert unknown_memory.state == "unknown"
    (unused,) = judge(gpu(memory_used_bytes=4 * MIB), engine=named)
    assert unused.state == "none"


def test_an_empty_list_on_a_busy_gpu_is_active_while_the_engine_is_idle() -> None:
    hidden = gpu(utilization=0.6, memory_used_bytes=35 * GIB)
    (contention,) = judge(hidden, busy=False)
    assert contention.state == "active_neighbours"
    (contention,) = judge(hidden, busy=True)
    assert contention.state == "unknown"


def test_a_list_that_cannot_be_had_is_unknown() -> None:
    (contention,) = judge(gpu(processes=None, memory_used_bytes=GIB))
    assert contention.state == "unknown"
    assert contention.evidence == "NVML cannot list the processes of this GPU"


def test_the_engine_alone_is_none() -> None:
    (contention,) = judge(gpu(ENGINE, utilization=0.9), busy=True)
    assert contention.state == "none"
    assert contention.neighbours_known


def test_the_engine_alone_explains_a_busy_gpu_that_the_proxy_knows_nothing_of() -> None:
    """Others use the engine without the proxy."""
    (contention,) = judge(gpu(ENGINE, utilization=0.9), busy=False)
    assert contention.state == "none"
    running = replace(ENGINE, sm_ratio=0.85)
    (contention,) = judge(gpu(running, NEIGHBOUR, utilization=0.9), busy=False)
    assert contention.state == "idle_neighbours"


def test_memory_that_no_listed_process_holds_means_hidden_processes() -> None:
    hidden = gpu(ENGINE, memory_used_bytes=30 * GIB)
    (contention,) = judge(hidden)
    assert contention.state == "unknown"
    assert not contention.neighbours_known
    (contention,) = judge(replace(hidden, utilization_ratio=0.5), busy=False)
    assert contention.state == "active_neighbours"
    with_neighbour = gpu(ENGINE, NEIGHBOUR, memory_used_bytes=40 * GIB, utilization=0.9)
    (contention,) = judge(with_neighbour, busy=True)
    assert contention.state == "unknown"
    (contention,) = judge(replace(with_neighbour, utilization_ratio=0.0), busy=True)
    assert contention.state == "idle_neighbours"


def test_tensor_parallel_workers_are_not_neighbours() -> None:
    workers = [GpuProcess(300 + rank, f"VLLM::Worker_TP{rank}", 20 * GIB, 0.95) for rank in (0, 1)]
    contexts = replace(workers[1], pid=workers[1].pid, used_memory_bytes=500 * MIB, sm_ratio=0.0)
    contentions = judge(
        gpu(workers[0], contexts, utilization=1.0),
        gpu(workers[1], utilization=1.0, index=1),
        gpu(NEIGHBOUR, utilization=1.0, index=2),
        busy=True,
    )
    assert [(item.gpu, item.state) for item in contentions] == [(0, "none"), (1, "none")]
    assert [item.engine_processes for item in contentions] == [2, 1]


def test_processes_without_names_are_not_matched_by_pid_unless_set() -> None:
    engine, neighbour = replace(ENGINE, name=None), replace(NEIGHBOUR, name=None)
    (contention,) = judge(gpu(engine, neighbour))
    assert contention.state == "unknown"
    assert contention.neighbours == ()
    (contention,) = judge(gpu(engine, neighbour), engine=EngineOnGpu(pids=frozenset({100})))
    assert contention.state == "idle_neighbours"
    assert [item.pid for item in contention.neighbours] == [200]


def test_a_pid_setting_outweighs_known_names() -> None:
    """Two engines on one card: only the one that is set is ours."""
    other = replace(ENGINE, pid=101, sm_ratio=0.6)
    (contention,) = judge(
        gpu(ENGINE, other, utilization=0.6), engine=EngineOnGpu(pids=frozenset({100}))
    )
    assert contention.state == "active_neighbours"
    assert [item.pid for item in contention.neighbours] == [101]


def test_a_name_pattern_finds_an_unknown_engine() -> None:
    own = replace(ENGINE, name="/opt/serve/my-engine")
    (contention,) = judge(gpu(own, NEIGHBOUR))
    assert contention.state == "unknown"
    (contention,) = judge(gpu(own, NEIGHBOUR), engine=EngineOnGpu(name=re.compile("my-engine")))
    assert contention.state == "idle_neighbours"


def test_an_engine_elsewhere_makes_no_judgement_of_this_machine() -> None:
    """All processes of the only GPU have names and none is an engine: it runs somewhere else."""
    (contention,) = judge(gpu(NEIGHBOUR, utilization=0.9), busy=False)
    assert contention.state == "unknown"
    (contention,) = judge(gpu(memory_used_bytes=3 * MIB), busy=False)
    assert contention.state == "unknown"


def test_a_busy_gpu_is_no_evidence_while_the_engine_may_be_on_another() -> None:
    nameless = replace(NEIGHBOUR, name=None, sm_ratio=None)
    contentions = judge(
        gpu(nameless, utilization=0.0), gpu(nameless, utilization=0.8, index=1), busy=False
    )
    assert [item.state for item in contentions] == ["unknown", "unknown"]


def test_gpus_are_set_by_index_or_uuid() -> None:
    gpus = (gpu(ENGINE, NEIGHBOUR, uuid="GPU-a"), gpu(ENGINE, index=1, uuid="GPU-b"))
    (by_index,) = judge(*gpus, engine=EngineOnGpu(gpus=frozenset({1})))
    (by_uuid,) = judge(*gpus, engine=EngineOnGpu(gpus=frozenset({"GPU-a"})))
    assert (by_index.gpu, by_index.state) == (1, "none")
    assert (by_uuid.gpu, by_uuid.state) == (0, "idle_neighbours")


@pytest.mark.parametrize(
    "name",
    [
        "VLLM::EngineCore",
        "VLLM::Worker_TP0",
        "vllm",
        "/usr/local/bin/vllm",
        "python3 -m vllm.entrypoints.openai.api_server",
        "sglang::scheduler_TP0",
        "/app/llama-server",
        "llama-server",
        "ollama",
    ],
)
def test_known_engines_are_found_by_name(name: str) -> None:
    assert DEFAULT_ENGINE_NAMES.search(name)


@pytest.mark.parametrize(
    "name", ["python", "/home/vllm/train.py", "notvllm", "/usr/lib/xorg/Xorg", "myollama", ""]
)
def test_other_programs_are_not_engines(name: str) -> None:
    assert not DEFAULT_ENGINE_NAMES.search(name)


def test_an_engine_that_finished_just_now_still_explains_the_utilisation() -> None:
    assert was_busy(100.0, in_flight=1, last_busy_at=None)
    assert was_busy(100.0, in_flight=0, last_busy_at=99.2)
    assert not was_busy(100.0, in_flight=0, last_busy_at=97.0)
    assert not was_busy(100.0, in_flight=0, last_busy_at=None)


def test_the_worst_of_several_states() -> None:
    assert worst(["none", "idle_neighbours"]) == "idle_neighbours"
    assert worst(["idle_neighbours", "unknown"]) == "unknown"
    assert worst(["unknown", "active_neighbours", "none"]) == "active_neighbours"
    assert worst([]) == "unknown"


def test_an_exchange_carries_the_worst_that_it_met() -> None:
    active = replace(NEIGHBOUR, sm_ratio=0.5)
    history = ContentionHistory(EngineOnGpu(), engine_busy=lambda at: True)
    assert history.contention_during(0.0, 5.0) == "unknown"
    assert history.latest(0.0) == ()
    for at, processes in enumerate([(ENGINE,), (ENGINE, NEIGHBOUR), (ENGINE, active), (ENGINE,)]):
        history.add(Snapshot(at=float(at), up=True, gpus=(gpu(*processes, utilization=0.9),)))

    assert history.contention_during(0.0, 0.5) == "none"
    assert history.contention_during(0.0, 1.5) == "idle_neighbours"
    assert history.contention_during(0.0, 9.0) == "active_neighbours"
    assert history.contention_during(3.0, 9.0) == "none"
    # Shorter than a sampling period: the sample before it counts, while it is fresh.
    assert history.contention_during(2.2, 2.4) == "active_neighbours"
    assert history.contention_during(4.0, 4.1) == "none"
    assert history.contention_during(40.0, 41.0) == "unknown"
    assert [item.state for item in history.latest(3.5)] == ["none"]
    assert history.latest(10.0) == ()


def test_a_snapshot_without_nvml_is_unknown_to_an_exchange() -> None:
    history = ContentionHistory(EngineOnGpu(), engine_busy=lambda at: None)
    history.add(Snapshot(at=1.0, up=False, problem="driver_not_loaded"))
    assert history.contention_during(0.0, 2.0) == "unknown"
    assert history.latest(1.0) == ()
