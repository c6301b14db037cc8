"""Overview: is it normal?"""

from __future__ import annotations

from defined import help_text
from panels import Json, Query, State, gauge, stat, state_timeline, table, timeseries
from queries import increase, quantile, rate, select
from shared import (
    CONTENTION,
    EFFICIENCY_STEPS,
    HOLDS,
    LEVELS,
    UP,
    UP_STEPS,
    contention,
    dashboard,
    documents,
    gpu,
    judged_efficiency,
    runbooks,
    verdict,
    worst_verdict,
)

_TTFT = "tokgauge_time_to_first_token_seconds"
_WAIT = "tokgauge_silent_wait_seconds"
_RATE = "tokgauge_decode_tokens_per_second"


def board() -> Json:
    """The dashboard to look at first."""
    efficiency = judged_efficiency()
    ceiling = select("tokgauge_ceiling_tokens_per_second")
    normal_from, normal_to = (select(f"tokgauge_normal_share_{end}") for end in ("low", "high"))
    truncated = increase("tokgauge_truncations_total", "$__rate_interval", by="model")
    choices = increase("tokgauge_finish_reasons_total", "$__rate_interval", by="model")
    return dashboard(
        "tokgauge-overview",
        "tokgauge: overview",
        "Is it normal? Speed against the hardware's ceiling, waiting, and why when it is low.",
        [gpu()],
        {
            "Is it normal?": [
                gauge(
                    "Efficiency",
                    help_text("tokgauge_memory_bandwidth_utilization_ratio")
                    + " What is normal depends on card, model and load: see below.",
                    "percentunit",
                    Query(efficiency, "{{instance}} {{model}}"),
                    steps=EFFICIENCY_STEPS,
                    links=runbooks("TokgaugeEfficiencyLow", "TokgaugeAboveCeiling"),
                ),
                stat(
                    "Worst of the three answers",
                    "Speed, waiting, whole answers: what is suspect, else what is worth watching, "
                    "else the speed. Below is each by itself.",
                    "none",
                    Query(worst_verdict(), "{{instance}} {{model}}"),
                    states=list(LEVELS.values()),
                    links=documents("verdict.md"),
                    height=8,
                ),
                stat(
                    "Contention",
                    help_text("tokgauge_gpu_contention"),
                    "none",
                    Query(contention(), "{{instance}} GPU {{gpu}}"),
                    states=list(CONTENTION.values()),
                    links=runbooks("TokgaugeNeighbourActive"),
                    height=8,
                ),
                stat(
                    "Engine reachable",
                    help_text("tokgauge_upstream_up"),
                    "none",
                    Query(select("tokgauge_upstream_up"), "{{upstream}}"),
                    states=UP,
                    steps=UP_STEPS,
                    links=runbooks("TokgaugeUpstreamDown"),
                    height=8,
                ),
                stat(
                    "Output, all streams",
                    help_text("tokgauge_output_tokens_per_second"),
                    "suffix: tok/s",
                    Query(f"sum({select('tokgauge_output_tokens_per_second')})", "output"),
                    decimals=1,
                    height=8,
                ),
                stat(
                    "Ceiling of one stream",
                    help_text("tokgauge_ceiling_tokens_per_second"),
                    "suffix: tok/s",
                    Query(ceiling, "{{model}} ({{basis}})"),
                    decimals=1,
                    links=documents("measuring.md#the-ceiling"),
                    height=8,
                ),
            ],
            "Speed": [
                timeseries(
                    "Efficiency and what is normal",
                    "The gauge above over time, and the range that is normal for this card, this "
                    "model and this load. Far below is less than three quarters of its lower end. "
                    "A gap means that it could not be judged: no traffic, or mostly prompts.",
                    "percentunit",
                    Query(efficiency, "{{instance}} {{model}} ({{basis}})"),
                    Query(normal_from, "{{instance}} {{model}} normal from"),
                    Query(normal_to, "{{instance}} {{model}} normal to"),
                    steps=EFFICIENCY_STEPS,
                    width=12,
                    links=runbooks("TokgaugeEfficiencyLow", "TokgaugeEfficiencyLowContended"),
                ),
                timeseries(
                    "Time that the work took against what it should take",
                    help_text("tokgauge_expected_time_ratio"),
                    "none",
                    Query(select("tokgauge_expected_time_ratio"), "{{instance}} {{model}}"),
                    width=12,
                    links=documents("normal.md"),
                ),
                timeseries(
                    "One stream and its ceiling",
                    "Median decode rate of a stream, and the most that the memory allows one "
                    "stream on both bases. In a batch each stream is rightly far below the "
                    "ceiling: judge by efficiency, not by this distance.",
                    "suffix: tok/s",
                    Query(quantile(0.5, _RATE, "model"), "{{model}} median of a stream"),
                    Query(f"max by (model, basis) ({ceiling})", "{{model}} ceiling ({{basis}})"),
                    links=documents("measuring.md#the-ceiling"),
                ),
                timeseries(
                    "Output of all streams",
                    help_text("tokgauge_output_tokens_per_second"),
                    "suffix: tok/s",
                    Query(select("tokgauge_output_tokens_per_second"), "{{instance}} {{model}}"),
                ),
                timeseries(
                    "Prompt tokens computed, and the most that could be",
                    help_text("tokgauge_prefill_tokens_per_second"),
                    "suffix: tok/s",
                    Query(
                        select("tokgauge_prefill_tokens_per_second"),
                        "{{instance}} {{model}} computed",
                    ),
                    Query(
                        select("tokgauge_prefill_ceiling_tokens_per_second"),
                        "{{instance}} {{model}} ceiling",
                    ),
                ),
                state_timeline(
                    "The three answers over time",
                    help_text("tokgauge_verdict"),
                    Query(verdict("speed"), "{{instance}} {{model}} speed"),
                    Query(verdict("waiting"), "{{instance}} {{model}} waiting"),
                    Query(verdict("answers"), "{{instance}} {{model}} whole answers"),
                    states=list(LEVELS.values()),
                    links=documents("verdict.md"),
                ),
                state_timeline(
                    "Causes that the verdict names",
                    "A cause is named only with evidence of its own; nothing here while all three "
                    "answers are healthy.",
                    Query(
                        "max by (instance, question, cause) "
                        f"({select('tokgauge_verdict_cause')}) == 1",
                        "{{instance}} {{question}}: {{cause}}",
                    ),
                    states=(State(1, "named", "orange"),),
                    no_value="no cause named",
                    links=runbooks(
                        "TokgaugeEfficiencyLow", "TokgaugePeopleWait", "TokgaugeKvCachePressure"
                    ),
                ),
            ],
            "What people notice": [
                timeseries(
                    "Time to first token",
                    help_text(_TTFT),
                    "s",
                    Query(quantile(0.5, _TTFT, "model"), "{{model}} median"),
                    Query(quantile(0.95, _TTFT, "model"), "{{model}} 95 %"),
                    links=runbooks("TokgaugeTimeToFirstTokenHigh"),
                ),
                timeseries(
                    "Silent wait (95 %)",
                    help_text(_WAIT) + ' The most frequent cause of "slow".',
                    "s",
                    Query(quantile(0.95, _WAIT, "stream", stream="true"), "streamed"),
                    Query(quantile(0.95, _WAIT, "stream", stream="false"), "not streamed"),
                    links=runbooks("TokgaugeSilentWaitHigh"),
                ),
                timeseries(
                    "Truncated answers",
                    "Share of the choices that ended with finish_reason=length.",
                    "percentunit",
                    Query(f"{truncated} / ({choices} > 0)", "{{model}}"),
                    maximum=1,
                    links=runbooks("TokgaugeTruncationHigh"),
                ),
                timeseries(
                    "Requests by outcome",
                    help_text("tokgauge_requests_total"),
                    "reqps",
                    Query(rate("tokgauge_requests_total", "outcome"), "{{outcome}}"),
                    stacked=True,
                    links=runbooks("TokgaugeStreamsCut"),
                ),
                state_timeline(
                    "Contention over time",
                    help_text("tokgauge_gpu_contention"),
                    Query(contention(), "{{instance}} GPU {{gpu}}"),
                    states=list(CONTENTION.values()),
                    links=runbooks("TokgaugeNeighbourActive"),
                    width=8,
                    height=8,
                ),
                state_timeline(
                    "Streams gone silent",
                    help_text("tokgauge_streams_stalled"),
                    Query(f"clamp_max({select('tokgauge_streams_stalled')}, 1)", "{{instance}}"),
                    states=(State(0, "none", "green"), *HOLDS),
                    links=runbooks("TokgaugeStreamsStalled"),
                    width=8,
                    height=8,
                ),
            ],
            "What it is made of": [
                table(
                    "Where the ceiling's inputs come from",
                    help_text("tokgauge_model_info"),
                    Query(select("tokgauge_model_info")),
                    {
                        "instance": "tokgauge",
                        "model": "model",
                        "root": "weights",
                        "streamed_source": "bytes read by a step",
                        "checkpoint_source": "bytes of the checkpoint",
                        "kv_source": "bytes of KV cache",
                    },
                    width=16,
                ),
                table(
                    "Versions",
                    help_text("tokgauge_build_info"),
                    Query(select("tokgauge_build_info")),
                    {"instance": "tokgauge", "version": "version", "python": "Python"},
                    width=8,
                ),
            ],
        },
    )
