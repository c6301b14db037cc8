"""Requests: how long, how fast, and how they ended."""

from __future__ import annotations

from defined import help_text
from panels import Json, Query, heatmap, timeseries
from queries import buckets, grouped, quantile, rate, select
from shared import dashboard, documents, runbooks

_TTFT = "tokgauge_time_to_first_token_seconds"
_OUTPUT = "tokgauge_time_to_first_output_seconds"
_WAIT = "tokgauge_silent_wait_seconds"
_DURATION = "tokgauge_request_duration_seconds"
_GAP = "tokgauge_inter_chunk_latency_seconds"
_TPOT = "tokgauge_time_per_output_token_seconds"
_RATE = "tokgauge_decode_tokens_per_second"
_CEILING = "tokgauge_request_ceiling_ratio"
_OVERHEAD = "tokgauge_proxy_overhead_seconds"


def _quantiles(histogram: str) -> list[Query]:
    return [
        Query(quantile(share, histogram, "model"), f"{{{{model}}}} {share:.0%}")
        for share in (0.5, 0.95, 0.99)
    ]


def _ceiling_ratio(title: str, contended: str) -> list[Query]:
    return [
        Query(
            quantile(0.5, _CEILING, "model", alone=alone, contended=contended),
            f"{{{{model}}}} {name}, {title}",
        )
        for alone, name in (("true", "alone"), ("false", "in a batch"))
    ]


def board() -> Json:
    """The dashboard about single requests."""
    cached = rate("tokgauge_cached_prompt_tokens_total", "model")
    prompt = rate("tokgauge_prompt_tokens_total", "model")
    return dashboard(
        "tokgauge-requests",
        "tokgauge: requests",
        "How long requests take, how fast they decode, how they end, and what measuring costs.",
        [],
        {
            "Waiting": [
                heatmap(
                    "Time to first token",
                    help_text(_TTFT),
                    "s",
                    Query(buckets(_TTFT)),
                    links=runbooks("TokgaugeTimeToFirstTokenHigh"),
                ),
                heatmap(
                    "Silent wait",
                    help_text(_WAIT),
                    "s",
                    Query(buckets(_WAIT)),
                    links=runbooks("TokgaugeSilentWaitHigh"),
                ),
                heatmap("Duration", help_text(_DURATION), "s", Query(buckets(_DURATION))),
                timeseries(
                    "Time to first output",
                    help_text(_OUTPUT) + " The distance to the time to first token is reasoning.",
                    "s",
                    *_quantiles(_OUTPUT),
                ),
                timeseries(
                    "Duration by route (95 %)",
                    help_text(_DURATION),
                    "s",
                    Query(quantile(0.95, _DURATION, "route stream"), "{{route}} stream={{stream}}"),
                ),
                timeseries(
                    "In flight",
                    help_text("tokgauge_requests_in_flight"),
                    "short",
                    Query(f"sum by (model) ({select('tokgauge_requests_in_flight')})", "{{model}}"),
                    Query(f"sum({select('tokgauge_streams_stalled')})", "gone silent"),
                    links=runbooks("TokgaugeStreamsStalled"),
                ),
            ],
            "Decoding": [
                heatmap(
                    "Decode rate of a stream",
                    help_text(_RATE),
                    "suffix: tok/s",
                    Query(buckets(_RATE)),
                ),
                timeseries("Time per output token", help_text(_TPOT), "s", *_quantiles(_TPOT)),
                timeseries(
                    "Inter-chunk latency",
                    help_text(_GAP) + " A high 99 % beside a low median is a stutter: long "
                    "prefills of others, preemption.",
                    "s",
                    *_quantiles(_GAP),
                ),
                timeseries(
                    "Share of the single-stream ceiling, quiet card (median)",
                    help_text(_CEILING),
                    "percentunit",
                    *_ceiling_ratio("quiet card", "false"),
                    width=12,
                    links=documents("measuring.md#the-ceiling"),
                ),
                timeseries(
                    "Share of the single-stream ceiling, contended or unknown (median)",
                    "The same for requests that met an active neighbour, or of which that is not "
                    "known. Compare streams that were alone with those on the left.",
                    "percentunit",
                    *_ceiling_ratio("contended", "true"),
                    *_ceiling_ratio("unknown", "unknown"),
                    width=12,
                    links=runbooks("TokgaugeEfficiencyLowContended"),
                ),
            ],
            "How they end": [
                timeseries(
                    "Outcomes",
                    help_text("tokgauge_requests_total"),
                    "reqps",
                    Query(rate("tokgauge_requests_total", "outcome"), "{{outcome}}"),
                    stacked=True,
                    links=runbooks("TokgaugeStreamsCut", "TokgaugeUpstreamDown"),
                ),
                timeseries(
                    "Status codes by route",
                    "Ended requests by route and the status that the client got.",
                    "reqps",
                    Query(rate("tokgauge_requests_total", "route code"), "{{route}} {{code}}"),
                    stacked=True,
                ),
                timeseries(
                    "Finish reasons",
                    help_text("tokgauge_finish_reasons_total"),
                    "suffix: choices/s",
                    Query(rate("tokgauge_finish_reasons_total", "reason"), "{{reason}}"),
                    stacked=True,
                ),
                timeseries(
                    "Truncated by",
                    help_text("tokgauge_truncations_total"),
                    "suffix: choices/s",
                    Query(rate("tokgauge_truncations_total", "limit"), "{{limit}}"),
                    links=runbooks("TokgaugeTruncationHigh"),
                ),
                timeseries(
                    "Tokens",
                    "Counted when a request ends; token events are counted while it runs, and only "
                    "for streams.",
                    "suffix: tok/s",
                    Query(prompt, "{{model}} prompt"),
                    Query(
                        rate("tokgauge_completion_tokens_total", "model source"),
                        "{{model}} completion (by {{source}})",
                    ),
                    Query(
                        rate("tokgauge_reasoning_tokens_total", "model"),
                        "{{model}} of that reasoning",
                    ),
                    Query(rate("tokgauge_token_events_total", "model"), "{{model}} token events"),
                ),
                timeseries(
                    "Prompt tokens from the prefix cache",
                    help_text("tokgauge_cached_prompt_tokens_total"),
                    "percentunit",
                    Query(f"{cached} / ({prompt} > 0)", "{{model}}"),
                    maximum=1,
                ),
            ],
            "The proxy itself": [
                timeseries(
                    "Time spent inside the proxy",
                    help_text(_OVERHEAD),
                    "s",
                    Query(quantile(0.5, _OVERHEAD), "median"),
                    Query(quantile(0.95, _OVERHEAD), "95 %"),
                    Query(quantile(0.99, _OVERHEAD), "99 %"),
                    links=runbooks("TokgaugeOverheadHigh"),
                ),
                timeseries(
                    "Requests sent once more",
                    help_text("tokgauge_upstream_retries_total"),
                    "reqps",
                    Query(rate("tokgauge_upstream_retries_total", "instance"), "{{instance}}"),
                    width=4,
                ),
                timeseries(
                    "Usage asked for on behalf of clients",
                    help_text("tokgauge_usage_injection"),
                    "short",
                    Query(
                        grouped(
                            "sum",
                            "route state",
                            "tokgauge_usage_injection",
                            select("tokgauge_usage_injection"),
                        )
                        + " > 0",
                        "{{route}}: {{state}}",
                    ),
                    width=4,
                ),
                timeseries(
                    "Failures of measuring",
                    help_text("tokgauge_measurement_errors_total"),
                    "suffix: errors/s",
                    Query(rate("tokgauge_measurement_errors_total", "where"), "{{where}}"),
                    Query(
                        rate("tokgauge_records_lost_total", "instance"),
                        "lost records, {{instance}}",
                    ),
                    width=4,
                    links=runbooks("TokgaugeMeasurementErrors"),
                ),
                timeseries(
                    "Responses not read completely",
                    help_text("tokgauge_unparsed_responses_total"),
                    "suffix: answers/s",
                    Query(rate("tokgauge_unparsed_responses_total", "reason"), "{{reason}}"),
                    width=4,
                    links=runbooks("TokgaugeResponsesUnparsed"),
                ),
            ],
        },
    )
