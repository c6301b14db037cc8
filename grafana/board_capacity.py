"""Capacity and cost: how much is used, what limits it, what a token costs."""

from __future__ import annotations

from defined import help_text
from panels import Json, Query, Steps, stat, timeseries, typed
from queries import increase, mean, rate, select
from shared import dashboard, judged_efficiency, runbooks

_MONTH = 2_629_800
"""Seconds of a mean month (365.25 days / 12)."""

_EVEN: Steps = ((None, "red"), (1, "green"))


def board() -> Json:
    """The dashboard about money and room."""
    prompt = increase("tokgauge_prompt_tokens_total")
    completion = increase("tokgauge_completion_tokens_total")
    million = f"(({prompt} + {completion}) / 1e6)"
    month = f"{million} * {_MONTH} / $__range_s"
    own = f"$monthly_cost * $__range_s / {_MONTH}"
    # Requests without a model of the engine's list are scrapes and health checks, not load.
    in_flight = f"sum({select('tokgauge_requests_in_flight', model='!other')})"
    usage = select("vllm:kv_cache_usage_perc")
    waiting = select("vllm:num_requests_waiting")
    return dashboard(
        "tokgauge-capacity",
        "tokgauge: capacity and cost",
        "How many tokens, how much of the time, what limits more, and what a token costs.",
        [
            typed(
                "monthly_cost",
                "Cost of a month",
                "What the machine costs in a month, in any currency: rent, or purchase price over "
                "its life plus power. The default is only an example.",
                "1000",
            ),
            typed(
                "api_price",
                "API price",
                "What a million tokens, prompt and completion mixed as yours are, would cost from "
                "an API, in the same currency. The default is only an example.",
                "1.00",
            ),
        ],
        {
            "Load": [
                timeseries(
                    "Tokens a day",
                    "Prompt and completion tokens of the 24 hours up to each moment.",
                    "short",
                    Query(
                        increase("tokgauge_prompt_tokens_total", "1d", "model"), "{{model}} prompt"
                    ),
                    Query(
                        increase("tokgauge_completion_tokens_total", "1d", "model"),
                        "{{model}} completion",
                    ),
                    stacked=True,
                    bars=True,
                    interval="1h",
                    width=12,
                ),
                stat(
                    "Tokens in the time shown",
                    "Prompt and completion tokens.",
                    "short",
                    Query(prompt, "prompt", now=True),
                    Query(completion, "completion", now=True),
                    height=8,
                ),
                stat(
                    "Share of the time in use",
                    "Share of the time shown in which at least one request was in flight. An "
                    "idle machine costs as much as a busy one.",
                    "percentunit",
                    Query(f"avg_over_time(({in_flight} > bool 0)[$__range:])", "in use", now=True),
                    decimals=0,
                    height=8,
                ),
                stat(
                    "Most requests at once",
                    help_text("tokgauge_requests_in_flight"),
                    "short",
                    Query(f"max_over_time({in_flight}[$__range:])", "at once", now=True),
                    height=8,
                ),
            ],
            "Room": [
                timeseries(
                    "KV cache in use (the engine's figure)",
                    "vllm:kv_cache_usage_perc. Full alone is normal: old prefixes stay until the "
                    "room is needed. Full while requests wait is pressure.",
                    "percentunit",
                    Query(
                        f"max by (instance, model_name) ({usage})", "{{instance}} {{model_name}}"
                    ),
                    maximum=1,
                    links=runbooks("TokgaugeKvCachePressure"),
                ),
                timeseries(
                    "Running and waiting",
                    "In the engine (vllm:num_requests_running, _waiting) beside what is in flight "
                    "here. More running than in flight: clients that bypass tokgauge.",
                    "short",
                    Query(f"sum({select('vllm:num_requests_running')})", "running in the engine"),
                    Query(f"sum({waiting})", "waiting in the engine"),
                    Query(in_flight, "in flight here"),
                    links=runbooks("TokgaugeKvCachePressure"),
                ),
                timeseries(
                    "Preemptions (the engine's figure)",
                    "vllm:num_preemptions_total: running requests that were interrupted for lack "
                    "of KV cache, and have to compute again what they had.",
                    "suffix: requests/s",
                    Query(
                        rate("vllm:num_preemptions_total", "instance model_name"),
                        "{{instance}} {{model_name}}",
                    ),
                    links=runbooks("TokgaugeKvCachePressure", "TokgaugeKvCacheSlowsDecoding"),
                ),
                timeseries(
                    "How much of the first wait is queueing (mean)",
                    "Time to first token as clients see it, and the engine's own queue time. A "
                    "small distance means too little room; a large one long prompts.",
                    "s",
                    Query(
                        mean("tokgauge_time_to_first_token_seconds"),
                        "time to first token",
                    ),
                    Query(mean("vllm:request_queue_time_seconds"), "in the engine's queue"),
                    width=12,
                    links=runbooks("TokgaugeTimeToFirstTokenHigh"),
                ),
                timeseries(
                    "How near decoding is to the card's limit",
                    help_text("tokgauge_memory_bandwidth_utilization_ratio")
                    + " High with many in flight: the card is used up, more load needs more cards.",
                    "percentunit",
                    Query(judged_efficiency(), "{{instance}} {{model}}"),
                    width=12,
                    links=runbooks("TokgaugeEfficiencyLow"),
                ),
            ],
            "Cost": [
                stat(
                    "Own cost of a million tokens",
                    "Cost of the time shown / tokens in it, prompt and completion, in the currency "
                    "that you typed in. It falls with use.",
                    "suffix: per million",
                    Query(f"{own} / ({million} > 0)", "own", now=True),
                    decimals=2,
                    width=5,
                ),
                stat(
                    "API bill of a month",
                    "The tokens of the time shown, extrapolated to a month, at the API price.",
                    "suffix: a month",
                    Query(f"{month} * $api_price", "API", now=True),
                    decimals=2,
                    width=5,
                ),
                stat(
                    "API bill / own cost",
                    "Above 1 your own machine is cheaper at the load of the time shown. People's "
                    "time and quality are not in it.",
                    "suffix: ×",
                    Query(f"{month} * $api_price / $monthly_cost", "API / own", now=True),
                    decimals=2,
                    steps=_EVEN,
                    width=4,
                ),
                stat(
                    "Tokens a day to break even",
                    "Cost of a day / API price of a token.",
                    "short",
                    Query(
                        f"vector($monthly_cost / $api_price * 1e6 * 86400 / {_MONTH})",
                        "needed",
                        now=True,
                    ),
                    width=5,
                ),
                stat(
                    "Tokens a day at this load",
                    "The tokens of the time shown, extrapolated to a day.",
                    "short",
                    Query(f"{million} * 1e6 * 86400 / $__range_s", "at this load", now=True),
                    width=5,
                ),
            ],
        },
    )
