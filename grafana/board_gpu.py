"""GPU: what the card does, for whom, and how far the cross-checks agree."""

from __future__ import annotations

from defined import help_text
from panels import Json, Query, gauge, stat, state_timeline, table, timeseries
from queries import rate, select
from shared import (
    CONTENTION,
    EFFICIENCY_STEPS,
    HOLDS,
    UP,
    UP_STEPS,
    contention,
    dashboard,
    documents,
    gpu,
    judged_efficiency,
    runbooks,
)

_GPU = "{{instance}} GPU {{gpu}}"


def board() -> Json:
    """The dashboard about the cards."""
    achieved = select("tokgauge_achieved_bandwidth_bytes_per_second")
    efficiency = judged_efficiency()
    used = select("tokgauge_gpu_memory_used_bytes")
    neighbours = select("tokgauge_gpu_neighbour_memory_bytes")
    return dashboard(
        "tokgauge-gpu",
        "tokgauge: GPU",
        "Bandwidth used and available, memory and who holds it, neighbours, throttling.",
        [gpu()],
        {
            "Bandwidth": [
                timeseries(
                    "Memory bandwidth: achieved and available",
                    "Achieved: "
                    + help_text("tokgauge_achieved_bandwidth_bytes_per_second")
                    + " Available: that of the GPUs that serve a step.",
                    "Bps",
                    Query(achieved, "{{instance}} {{model}} achieved ({{basis}})"),
                    Query(
                        f"{achieved} / {select('tokgauge_memory_bandwidth_utilization_ratio')}",
                        "{{instance}} {{model}} available",
                    ),
                    Query(
                        select("tokgauge_engine_estimated_bandwidth_bytes_per_second"),
                        "{{instance}} {{model}} the engine's own estimate",
                    ),
                    width=12,
                    links=documents("measuring.md#the-ceiling"),
                ),
                timeseries(
                    "Disagreement with the engine's estimate",
                    help_text("tokgauge_engine_to_computed_bandwidth_ratio")
                    + " vLLM sets weights in 8 bits or with scales too low: it is a cross-check, "
                    "no truth. Needs --enable-mfu-metrics.",
                    "percentunit",
                    Query(
                        select("tokgauge_engine_to_computed_bandwidth_ratio"),
                        "{{instance}} {{model}}",
                    ),
                    width=6,
                    links=runbooks("TokgaugeAboveCeiling"),
                ),
                gauge(
                    "Efficiency",
                    help_text("tokgauge_memory_bandwidth_utilization_ratio"),
                    "percentunit",
                    Query(efficiency, "{{instance}} {{model}}"),
                    steps=EFFICIENCY_STEPS,
                    width=6,
                    links=runbooks("TokgaugeEfficiencyLow"),
                ),
                timeseries(
                    "DRAM bandwidth as NVML measures it",
                    help_text("tokgauge_gpu_dram_bandwidth_ratio")
                    + " It counts everybody's traffic and pauses too, so it agrees with our "
                    "efficiency only while the engine decodes without a break.",
                    "percentunit",
                    Query(select("tokgauge_gpu_dram_bandwidth_ratio"), f"{_GPU} NVML"),
                    Query(efficiency, "{{instance}} {{model}} efficiency"),
                    width=12,
                ),
                stat(
                    "Theoretical bandwidth of a GPU",
                    help_text("tokgauge_gpu_memory_bandwidth_bytes_per_second"),
                    "Bps",
                    Query(
                        select("tokgauge_gpu_memory_bandwidth_bytes_per_second"),
                        "GPU {{gpu}} ({{source}})",
                    ),
                    width=6,
                    height=8,
                ),
                timeseries(
                    "Utilisation",
                    help_text("tokgauge_gpu_utilization_ratio")
                    + " It says nothing about bandwidth.",
                    "percentunit",
                    Query(select("tokgauge_gpu_utilization_ratio"), _GPU),
                    maximum=1,
                    width=6,
                ),
                timeseries(
                    "What the memory is read with while it is read",
                    help_text("tokgauge_effective_bandwidth_bytes_per_second")
                    + " Absent until it was calibrated or the traffic tells it.",
                    "Bps",
                    Query(
                        select("tokgauge_effective_bandwidth_bytes_per_second"),
                        "{{instance}} {{model}} {{source}}",
                    ),
                    width=12,
                    links=documents("calibrate.md"),
                ),
                timeseries(
                    "What a step costs beside reading",
                    help_text("tokgauge_fixed_step_seconds")
                    + " Absent until it was calibrated or the traffic tells it.",
                    "s",
                    Query(
                        select("tokgauge_fixed_step_seconds"),
                        "{{instance}} {{model}} {{source}}",
                    ),
                    width=12,
                    links=documents("calibrate.md"),
                ),
            ],
            "Memory and neighbours": [
                timeseries(
                    "Memory by owner",
                    "Neighbours: "
                    + help_text("tokgauge_gpu_neighbour_memory_bytes")
                    + " The rest in use is the engine's and the driver's. Only the engine's GPUs "
                    "are told apart.",
                    "bytes",
                    Query(f"{used} - {neighbours}", f"{_GPU} engine and driver"),
                    Query(neighbours, f"{_GPU} neighbours"),
                    stacked=True,
                ),
                timeseries(
                    "Memory used and total",
                    help_text("tokgauge_gpu_memory_used_bytes"),
                    "bytes",
                    Query(used, f"{_GPU} used"),
                    Query(select("tokgauge_gpu_memory_total_bytes"), f"{_GPU} total"),
                ),
                timeseries(
                    "Neighbours by activity",
                    help_text("tokgauge_gpu_neighbour_processes"),
                    "short",
                    Query(select("tokgauge_gpu_neighbour_processes"), f"{_GPU} {{{{activity}}}}"),
                    links=runbooks("TokgaugeNeighbourActive"),
                ),
                timeseries(
                    "SM time of neighbours",
                    help_text("tokgauge_gpu_neighbour_sm_ratio"),
                    "percentunit",
                    Query(select("tokgauge_gpu_neighbour_sm_ratio"), _GPU),
                    links=runbooks("TokgaugeNeighbourActive", "TokgaugeEfficiencyLowContended"),
                ),
                state_timeline(
                    "Contention",
                    help_text("tokgauge_gpu_contention"),
                    Query(contention(), _GPU),
                    states=list(CONTENTION.values()),
                    width=16,
                    height=8,
                    links=runbooks("TokgaugeNeighbourActive"),
                ),
            ],
            "Health of the card": [
                state_timeline(
                    "Throttling by reason",
                    help_text("tokgauge_gpu_throttle")
                    + " A power cap alone hardly slows decoding; a lower memory clock does.",
                    Query(
                        f"max by (instance, gpu, reason) ({select('tokgauge_gpu_throttle')}) == 1",
                        f"{_GPU} {{{{reason}}}}",
                    ),
                    states=HOLDS,
                    no_value="nothing holds the clocks down",
                    links=runbooks("TokgaugeEfficiencyLow"),
                ),
                timeseries(
                    "Power",
                    help_text("tokgauge_gpu_power_watts"),
                    "watt",
                    Query(select("tokgauge_gpu_power_watts"), _GPU),
                    height=6,
                ),
                stat(
                    "NVML",
                    help_text("tokgauge_nvml_up"),
                    "none",
                    Query(select("tokgauge_nvml_up"), "{{instance}}"),
                    states=UP,
                    steps=UP_STEPS,
                    height=6,
                    links=runbooks("TokgaugeNvmlLost"),
                ),
                timeseries(
                    "NVML calls that failed",
                    help_text("tokgauge_nvml_errors_total"),
                    "suffix: errors/s",
                    Query(
                        rate("tokgauge_nvml_errors_total", "instance kind"), "{{instance}} {{kind}}"
                    ),
                    links=runbooks("TokgaugeGpuLost"),
                ),
                table(
                    "GPUs",
                    help_text("tokgauge_gpu_info"),
                    Query(select("tokgauge_gpu_info")),
                    {"instance": "tokgauge", "gpu": "GPU", "name": "name", "uuid": "UUID"},
                    width=16,
                    height=8,
                ),
            ],
        },
    )
