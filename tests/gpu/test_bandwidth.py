"""The bandwidth of the engine's GPUs and where it comes from."""

import pytest
from tokgauge.gpu.bandwidth import engine_bandwidth, gpu_bandwidth, nvml_bandwidth
from tokgauge.gpu.readings import GpuReading

pytestmark = pytest.mark.socketless

MIB = 1024**2


def a6000(index: int = 0, **values: object) -> GpuReading:
    given = {
        "index": index,
        "name": "NVIDIA RTX A6000",
        "memory_total_bytes": 49140 * MIB,
        "memory_bus_bits": 384,
        "max_memory_clock_mhz": 8001,
        **values,
    }
    return GpuReading(**given)  # type: ignore[arg-type]


def unknown_card(index: int = 0, **values: object) -> GpuReading:
    return a6000(index, name="NVIDIA RTX 9999", **values)


def test_settings_come_first_then_a_measurement_then_the_table_then_nvml() -> None:
    both = gpu_bandwidth(a6000(), settings_value=700e9, measured_value=690e9)
    assert (both.bytes_per_second, both.source) == (700e9, "settings")
    measured = gpu_bandwidth(a6000(), measured_value=690e9)
    assert (measured.bytes_per_second, measured.source) == (690e9, "measured")
    table = gpu_bandwidth(a6000())
    assert (table.bytes_per_second, table.source) == (768e9, "catalogue")
    assert table.warning is None
    formula = gpu_bandwidth(unknown_card())
    assert formula.bytes_per_second == pytest.approx(768.096e9)
    assert formula.source == "nvml"
    nothing = gpu_bandwidth(unknown_card(memory_bus_bits=None))
    assert (nothing.bytes_per_second, nothing.source) == (None, None)
    assert "not in the table" in nothing.explanation


def test_wrong_memory_falls_through_to_the_formula() -> None:
    assert gpu_bandwidth(a6000(memory_total_bytes=24576 * MIB)).source == "nvml"


@pytest.mark.parametrize(("clock", "warned"), [(14001, False), (14600, False), (15001, True)])
def test_a_tuned_card_is_warned_about(clock: int, warned: bool) -> None:
    tuned = a6000(
        name="NVIDIA GeForce RTX 5090",
        memory_total_bytes=32607 * MIB,
        memory_bus_bits=512,
        max_memory_clock_mhz=clock,
    )
    bandwidth = gpu_bandwidth(tuned)
    assert bandwidth.bytes_per_second == 1792e9
    assert bandwidth.source == "catalogue"
    assert (bandwidth.warning is not None) == warned
    if warned:
        assert "1792 GB/s, NVML 1920 GB/s" in str(bandwidth.warning)


def test_an_older_driver_on_a_b200_is_warned_about() -> None:
    b200 = a6000(
        name="NVIDIA B200",
        memory_total_bytes=183359 * MIB,
        memory_bus_bits=8192,
        max_memory_clock_mhz=3996,
    )
    assert gpu_bandwidth(b200).bytes_per_second == 7700e9
    assert gpu_bandwidth(b200).warning is not None


def test_a_mig_slice_does_not_get_the_whole_card() -> None:
    assert gpu_bandwidth(a6000(mig=True)).bytes_per_second is None
    assert gpu_bandwidth(unknown_card(mig=True)).bytes_per_second is None
    assert gpu_bandwidth(a6000(mig=True), settings_value=200e9).bytes_per_second == 200e9


def test_gb10_is_in_the_table_and_has_no_formula() -> None:
    gb10 = GpuReading(index=0, name="NVIDIA GB10")
    assert nvml_bandwidth(gb10) is None
    assert gpu_bandwidth(gb10).bytes_per_second == 273e9


def test_no_gpu_and_no_settings_is_unknown() -> None:
    assert gpu_bandwidth(None).bytes_per_second is None
    assert engine_bandwidth([]).bytes_per_second is None
    assert gpu_bandwidth(GpuReading(index=0, lost=True)).bytes_per_second is None


def test_tensor_parallel_gpus_add_up() -> None:
    total = engine_bandwidth([a6000(0), a6000(1)], tensor_parallel_size=2)
    assert (total.bytes_per_second, total.source) == (1536e9, "catalogue")
    assert total.warning is None
    assert total.explanation == "2 GPUs x 768 GB/s (table of cards: NVIDIA RTX A6000)"


def test_unlike_cards_count_as_the_slowest() -> None:
    fast = a6000(1, name="NVIDIA RTX 6000 Ada Generation")
    total = engine_bandwidth([a6000(0), fast], tensor_parallel_size=2)
    assert total.bytes_per_second == 2 * 768e9


def test_one_unknown_gpu_makes_the_whole_unknown() -> None:
    total = engine_bandwidth(
        [a6000(0), unknown_card(1, memory_bus_bits=None)], tensor_parallel_size=2
    )
    assert (total.bytes_per_second, total.source) == (None, None)


def test_gpus_that_cannot_be_seen_are_not_guessed() -> None:
    assert engine_bandwidth([a6000()], tensor_parallel_size=2).bytes_per_second is None
    remote = engine_bandwidth([], tensor_parallel_size=2, settings_value=768e9)
    assert (remote.bytes_per_second, remote.source) == (1536e9, "settings")


def test_pipeline_stages_do_not_add_up() -> None:
    staged = engine_bandwidth([a6000(0), a6000(1)])
    assert staged.bytes_per_second == 768e9
    assert "the engine uses 2 GPUs, and 1 count" in str(staged.warning)


def test_warnings_of_single_gpus_reach_the_sum() -> None:
    tuned = a6000(max_memory_clock_mhz=9001)
    assert "NVML 864 GB/s" in str(engine_bandwidth([tuned]).warning)
