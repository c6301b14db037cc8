"""The one list of metrics: every name, label and formula."""

from __future__ import annotations

from typing import Literal

import msgspec

RATE_BUCKETS = (1, 2, 5, 10, 15, 20, 25, 30, 40, 50, 60, 80, 100, 150, 200, 300, 500, 1000)
"""Upper bounds of `decode_tokens_per_second`, tokens per second of one sequence."""

OVERHEAD_BUCKETS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
)  # fmt: skip

RATIO_BUCKETS = (
    0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.25, 1.5,
    2.0, 4.0,
)  # fmt: skip


class Family(msgspec.Struct, frozen=True):
    """Name, help text and labels of one metric.

    buckets: upper bounds of a histogram; none: those of time, as the setting duration_buckets says.
    """

    name: str
    text: str
    labels: tuple[str, ...] = ()
    kind: Literal["gauge", "counter", "histogram"] = "gauge"
    buckets: tuple[float, ...] = ()


PUBLISHED = (
    Family(
        "tokgauge_ceiling_tokens_per_second",
        "Most tokens per second that the memory allows one stream at a short context: bandwidth of "
        "the GPUs that serve a step / bytes of weights. basis=streamed: the bytes that one decode "
        "step reads; basis=checkpoint: the whole checkpoint (the rule of thumb).",
        ("model", "basis"),
    ),
    Family(
        "tokgauge_memory_bandwidth_utilization_ratio",
        "Achieved bandwidth / bandwidth of the GPUs that serve a step (model bandwidth "
        "utilisation), over the last rate_window seconds, while decoding. Not clamped: above 1 the "
        "inputs are wrong or a step yields more than is known. Absent when it cannot be judged.",
        ("model", "basis"),
    ),
    Family(
        "tokgauge_achieved_bandwidth_bytes_per_second",
        "Steps per second while decoding x bytes per step (weights + KV cache of the running "
        "sequences); steps from the engine's own count, else from the event rate of the streams.",
        ("model", "basis"),
    ),
    Family(
        "tokgauge_engine_estimated_bandwidth_bytes_per_second",
        "vLLM's own estimate of the bytes it reads (--enable-mfu-metrics), per second of decoding, "
        "all GPUs that serve a step.",
        ("model",),
    ),
    Family(
        "tokgauge_engine_to_computed_bandwidth_ratio",
        "engine_estimated_bandwidth_bytes_per_second / achieved_bandwidth_bytes_per_second: "
        "1 when vLLM and tokgauge count the same bytes.",
        ("model",),
    ),
    Family(
        "tokgauge_expected_time_ratio",
        "Time with work / expected time of that work, over the last rate_window seconds: steps x "
        "t0 + sequences x steps x t_seq + bytes / B_eff + computed prompt tokens / P_eff, at the "
        "middle of its range. 1 is as expected; normal_share_low and _high have the range.",
        ("model",),
    ),
    Family(
        "tokgauge_normal_share_low",
        "Lowest normal share of the bandwidth: bytes / bandwidth of the GPUs / longest expected "
        "time of the work of the last rate_window seconds, prompts included.",
        ("model",),
    ),
    Family(
        "tokgauge_normal_share_high",
        "Highest normal share of the bandwidth: bytes / bandwidth of the GPUs / shortest expected "
        "time of the work of the last rate_window seconds, prompts included.",
        ("model",),
    ),
    Family(
        "tokgauge_constants_source",
        "1 for where the constants of the expected time come from, else 0. calibrated: tokgauge "
        "calibrate; typical: usual for such a card, model and engine.",
        ("model", "source"),
    ),
    Family(
        "tokgauge_fixed_step_seconds",
        "t0: what a step costs whatever it reads, the middle of its interval. source=calibrated: "
        "tokgauge calibrate; source=fitted: the traffic itself, where bytes vary enough.",
        ("model", "source"),
    ),
    Family(
        "tokgauge_effective_bandwidth_bytes_per_second",
        "B_eff: what the GPUs that serve a step are read with while it runs, the middle of its "
        "interval; source as for fixed_step_seconds.",
        ("model", "source"),
    ),
    Family(
        "tokgauge_prefill_tokens_per_second",
        "Prompt tokens computed (those that the prefix cache gave left out, by the engine's own "
        "count) / time with work, over the last rate_window seconds.",
        ("model",),
    ),
    Family(
        "tokgauge_prefill_ceiling_tokens_per_second",
        "Dense FLOP/s of the GPUs that serve a step / (2 x parameters that a token is multiplied "
        "with): the most prompt tokens per second that could be computed.",
        ("model",),
    ),
    Family(
        "tokgauge_verdict",
        "1 for the level that is shown, else 0, of each question: speed (is the engine as fast as "
        "is normal here), waiting (do people wait), answers (do people get whole answers). What is "
        "suspect, worth watching or has causes is shown for 10 s at least.",
        ("model", "question", "level"),
    ),
    Family(
        "tokgauge_verdict_cause",
        "1 for the causes that the verdict on a question names, each on evidence, else 0.",
        ("model", "question", "cause"),
    ),
    Family(
        "tokgauge_model_info",
        "Always 1; the model's root and where the bytes of weights and KV cache come from.",
        ("model", "root", "streamed_source", "checkpoint_source", "kv_source"),
    ),
    Family("tokgauge_nvml_up", "1 while NVML answers, 0 while it does not."),
    Family(
        "tokgauge_nvml_errors_total",
        "Failed NVML calls by kind, expected ones (not_supported) included.",
        ("kind",),
        kind="counter",
    ),
    Family("tokgauge_gpu_info", "Always 1; UUID and name of a GPU.", ("gpu", "uuid", "name")),
    Family(
        "tokgauge_gpu_utilization_ratio",
        "Share of the last second in which at least one kernel ran (NVML), 0-1.",
        ("gpu",),
    ),
    Family("tokgauge_gpu_memory_used_bytes", "Memory in use (NVML).", ("gpu",)),
    Family("tokgauge_gpu_memory_total_bytes", "Memory of the GPU (NVML).", ("gpu",)),
    Family(
        "tokgauge_gpu_memory_bandwidth_bytes_per_second",
        "Theoretical memory bandwidth. source: settings; measured (settings); catalogue (table of "
        "cards); nvml (bus width / 8 x maximum memory clock x 2).",
        ("gpu", "source"),
    ),
    Family(
        "tokgauge_gpu_dram_bandwidth_ratio",
        "NVML's own measurement of DRAM bandwidth used / maximum (GPM, Hopper and later), 0-1.",
        ("gpu",),
    ),
    Family("tokgauge_gpu_power_watts", "Power draw (NVML).", ("gpu",)),
    Family(
        "tokgauge_gpu_throttle",
        "1 while the reason holds clocks down, else 0 (NVML; idle is not throttling).",
        ("gpu", "reason"),
    ),
    Family(
        "tokgauge_gpu_neighbour_processes",
        "Processes on the engine's GPU that are not the engine. active: own SM time above 5 %, or "
        "the GPU busy while the engine has nothing to do; idle: they only hold memory.",
        ("gpu", "activity"),
    ),
    Family("tokgauge_gpu_neighbour_memory_bytes", "Memory that neighbours hold.", ("gpu",)),
    Family(
        "tokgauge_gpu_neighbour_sm_ratio",
        "Sum of the neighbours' share of SM time, 0-1 each.",
        ("gpu",),
    ),
    Family(
        "tokgauge_gpu_contention",
        "1 for the state that holds on an engine's GPU: none, idle_neighbours, active_neighbours, "
        "unknown; else 0.",
        ("gpu", "state"),
    ),
)
"""Figures of the engine and its GPUs, absent while they are not known."""

COUNTED = (
    Family(
        "tokgauge_requests_total",
        "Exchanges that ended. outcome: ok; client_closed (before the answer's last event); "
        "upstream_error (status >= 400); "
        "stream_error (error event in a 200); upstream_incomplete (cut before its end, or a "
        "200 to a generating request without a whole answer in it); "
        "upstream_stalled (silent for stream_idle_timeout); upstream_unreachable; timeout; "
        "rejected (by the proxy: its limits, or no valid request); "
        "proxy_shutdown (cut at the drain limit); "
        "proxy_error (cut by a bug of the proxy, which is in its log).",
        (
            "model",
            "route",
            "stream",
            "outcome",
            "code",
        ),
        kind="counter",
    ),
    Family(
        "tokgauge_requests_in_flight",
        "Exchanges begun and not ended.",
        ("model",),
    ),
    Family(
        "tokgauge_streams_stalled",
        "Streams in flight that gave a first token and then no byte for stall_after seconds.",
    ),
    Family(
        "tokgauge_finish_reasons_total",
        "Choices that ended, by the finish_reason that the engine gave "
        "(Anthropic's stop reasons under OpenAI's names).",
        (
            "model",
            "reason",
        ),
        kind="counter",
    ),
    Family(
        "tokgauge_truncations_total",
        "Choices with finish_reason=length, by what cut them: request (tokens reached the "
        "request's limit), context (prompt + completion reached the model's length), unknown.",
        (
            "model",
            "limit",
        ),
        kind="counter",
    ),
    Family(
        "tokgauge_prompt_tokens_total",
        "Prompt tokens, cached ones included, from the engine's usage.",
        ("model",),
        kind="counter",
    ),
    Family(
        "tokgauge_cached_prompt_tokens_total",
        "Prompt tokens that came from the prefix cache, from the engine's usage.",
        ("model",),
        kind="counter",
    ),
    Family(
        "tokgauge_completion_tokens_total",
        "Completion tokens of ended exchanges. source=usage: the engine's count (the last one "
        "seen); source=events: token events counted where the engine gave no usage, or one "
        "that the stream contradicts.",
        (
            "model",
            "source",
        ),
        kind="counter",
    ),
    Family(
        "tokgauge_reasoning_tokens_total",
        "Completion tokens that were reasoning, from the engine's usage.",
        ("model",),
        kind="counter",
    ),
    Family(
        "tokgauge_token_events_total",
        "Stream events that carried a token, counted while they run (updated every second).",
        ("model",),
        kind="counter",
    ),
    Family(
        "tokgauge_request_duration_seconds",
        "Request fully received -> end of the answer.",
        (
            "model",
            "route",
            "stream",
        ),
        kind="histogram",
    ),
    Family(
        "tokgauge_time_to_first_token_seconds",
        "Request fully received -> first event that carries a token, reasoning included; "
        "streamed answers only.",
        ("model",),
        kind="histogram",
    ),
    Family(
        "tokgauge_time_to_first_output_seconds",
        "Request fully received -> first event with a token that is not reasoning; "
        "streamed answers only.",
        ("model",),
        kind="histogram",
    ),
    Family(
        "tokgauge_inter_chunk_latency_seconds",
        "Gap between the arrivals of consecutive token events of one stream.",
        ("model",),
        kind="histogram",
    ),
    Family(
        "tokgauge_time_per_output_token_seconds",
        "(last token event - first token event) / (completion tokens - tokens of the first "
        "event), per sequence. Absent below 16 tokens or 8 separate arrivals, and for tool "
        "calls whose tokens did not each come with an event. source: where the token count "
        "comes from.",
        (
            "model",
            "source",
        ),
        kind="histogram",
    ),
    Family(
        "tokgauge_silent_wait_seconds",
        "What a person waited without seeing anything: time to first token when streamed, "
        "the whole duration when not.",
        (
            "model",
            "stream",
        ),
        kind="histogram",
    ),
    Family(
        "tokgauge_decode_tokens_per_second",
        "1 / time_per_output_token_seconds: tokens per second of one sequence.",
        (
            "model",
            "source",
        ),
        kind="histogram",
        buckets=RATE_BUCKETS,
    ),
    Family(
        "tokgauge_request_ceiling_ratio",
        "Decode steps per second of one request / those of the single-stream ceiling at its "
        "own context: bandwidth / (bytes of weights + KV cache). alone: no other request was "
        "generating; in a batch a low ratio is normal. contended: a neighbour was active on "
        "the engine's GPU.",
        (
            "model",
            "alone",
            "contended",
        ),
        kind="histogram",
        buckets=RATIO_BUCKETS,
    ),
    Family(
        "tokgauge_proxy_overhead_seconds",
        "Time of one exchange spent inside the proxy: request fully received -> handed to the "
        "engine's connection, plus, for each chunk, arrival -> handed to the client's "
        "connection; waiting for a slow client does not count.",
        kind="histogram",
        buckets=OVERHEAD_BUCKETS,
    ),
    Family(
        "tokgauge_output_tokens_per_second",
        "Tokens per second over the last rate_window seconds, or since the first token where "
        "that is less. Of ended answers the engine's count, spread evenly over their decoding; "
        "of running ones token events x tokens per event of the model's finished answers (1 "
        "until one has told).",
        ("model",),
    ),
    Family(
        "tokgauge_upstream_up",
        "1 when the engine's last answer came, 0 when it could not be reached; "
        "absent before the first try.",
        ("upstream",),
    ),
    Family(
        "tokgauge_usage_injection",
        "1 for the state of usage injection that holds, else 0. learning: streams pass "
        "unchanged until one has shown how they end; on: usage is asked for on behalf of "
        "clients; off_unneeded: the engine tells it unasked; off_refused: it refuses the "
        "wish; off_differs: more than one event differs with it; off_ignored: it tells no "
        "usage all the same; off_setting: inject_usage = false. Of several relays each "
        "learns by itself: 1 for every state that holds in one of them.",
        (
            "route",
            "state",
        ),
    ),
    Family(
        "tokgauge_upstream_retries_total",
        "Requests sent once more: a reused connection had died before any response byte, or "
        "a request with the wish for usage had not the response that it should have.",
        kind="counter",
    ),
    Family(
        "tokgauge_measurement_errors_total",
        "Failures of the measuring side, by place; the traffic was not affected.",
        ("where",),
        kind="counter",
    ),
    Family(
        "tokgauge_records_lost_total",
        "Frames that relays could not send to the analyst: ended exchanges and looks at the "
        "running ones that are missing in these figures. The traffic was not affected.",
        kind="counter",
    ),
    Family(
        "tokgauge_unparsed_responses_total",
        "Answers that could not be read completely for measuring: encoding (unknown or "
        "damaged), size (body too large), event_size (an event too large), json (invalid), "
        "usage (a count that the stream contradicts: tokens came after it, or more token "
        "events of one sequence than it counts tokens).",
        ("reason",),
        kind="counter",
    ),
    Family("tokgauge_build_info", "Always 1; the proxy's version.", ("version", "python")),
)
"""What exchanges and relays tell, counted from the start."""
