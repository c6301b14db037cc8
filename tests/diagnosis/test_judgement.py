"""Situations and the verdict that an expert would give on them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokgauge.diagnosis.evidence import Evidence
from tokgauge.diagnosis.expected_time import Interval, Normal
from tokgauge.diagnosis.judgement import judge
from tokgauge.diagnosis.verdict import (
    CAUSE_KINDS,
    LEVELS,
    NOT_JUDGED_REASONS,
    CauseKind,
    Level,
    NotJudgedReason,
    Verdict,
)
from tokgauge.diagnosis.wording import in_words
from tokgauge.diagnosis.work import NoEfficiency, WhyNoEfficiency
from tokgauge.gpu.readings import THROTTLE_REASONS

pytestmark = pytest.mark.socketless

MIB = 1024**2


LOW, HIGH = 0.70, 0.89
"""The normal range of the founding case: a 7B model in 16 bits on an A6000."""


def founding(share: float, **known: Any) -> Normal:
    """The founding case with this share of the bandwidth."""
    return Normal(
        expected=Interval(1 / HIGH, 1 / LOW), seconds=1 / share, ideal=1.0, source="typical",
        **known,
    )  # fmt: skip


def diagnose(evidence: Evidence) -> Verdict:
    """The verdict; what is normal is that of the founding case where nothing else is said."""
    share = evidence.efficiency
    if evidence.normal is None and share is not None and 0 < share < math.inf:
        evidence = replace(evidence, normal=founding(share))
    return in_words(judge(evidence))


# One stream of a 7B model on an A6000, traffic enough, nothing else known.
BUSY = Evidence(
    basis="streamed", decoded_tokens=2_400, window_seconds=60, busy_ratio=1.0, mean_batch=1.0
)
# The same with everything looked at and nothing wrong.
CLEAN = replace(
    BUSY,
    contention="none",
    gpu_utilization=0.98,
    memory_clock_mhz=8_001,
    max_memory_clock_mhz=8_001,
    throttle_reasons=frozenset(),
    kv_cache_usage=0.30,
    preemptions_per_second=0.0,
    waiting=0,
    ridge_batch=202,
    prefill_share=0.01,
)


@dataclass(frozen=True)
class Situation:
    name: str
    evidence: Evidence
    level: Level
    causes: tuple[CauseKind, ...] = ()
    ruled_out: tuple[CauseKind, ...] | None = None
    """Checked only when given."""
    says: tuple[str, ...] = ()
    """Must be in the verdict's texts."""
    never_says: tuple[str, ...] = ()
    reason: NotJudgedReason | None = None


SITUATIONS = [
    Situation(
        "founding scene: six processes, five of them only hold memory",
        replace(
            BUSY, efficiency=0.747, tokens_per_second=40.6, contention="idle_neighbours",
            neighbours=5, neighbour_memory_bytes=3_626 * MIB, gpu_utilization=0.0,
            memory_clock_mhz=405, max_memory_clock_mhz=8_001,
        ),
        "healthy",
        ruled_out=("active_neighbour",),
        says=(
            "Healthy: decoding reaches 75 % of the hardware's ceiling (streamed bytes), 70 to 89 %"
            " is normal here, 40.6 tok/s.",
            "5 other processes on the GPU only hold memory (3,626 MiB) and do not compute",
        ),
    ),
    Situation(
        "one idle neighbour",
        replace(BUSY, efficiency=0.75, contention="idle_neighbours", neighbours=1),
        "healthy",
        ruled_out=("active_neighbour",),
        says=("1 other process on the GPU only holds memory and does not compute",),
    ),
    Situation(
        "active neighbour",
        replace(
            CLEAN, efficiency=0.38, contention="active_neighbours", neighbours=2,
            neighbour_sm_ratio=0.41,
        ),
        "suspect",
        causes=("active_neighbour",),
        says=(
            "Slow: decoding reaches 38 % of the hardware's ceiling (streamed bytes), 70 to 89 % is"
            " normal here; most likely because somebody else is computing on the engine's GPU.",
            "others compute beside the engine with 41 % of the GPU's SM time"
            " (2 other processes on the GPU)",
        ),
    ),
    Situation(
        "active neighbour of which only the state is known",
        replace(BUSY, efficiency=0.38, contention="active_neighbours"),
        "suspect",
        causes=("active_neighbour",),
        says=("others compute beside the engine",),
        never_says=("None",),
    ),
    Situation(
        "active neighbour, healthy all the same",
        replace(CLEAN, efficiency=0.78, contention="active_neighbours", neighbour_sm_ratio=0.07),
        "healthy",
        says=("others compute beside the engine with 7 % of the GPU's SM time; the engine is",),
    ),
    Situation(
        "idle neighbours and slow: they are not accused",
        replace(CLEAN, efficiency=0.4, contention="idle_neighbours", neighbours=5),
        "suspect",
        says=("The usual causes are ruled out.",),
    ),
    Situation(
        "contention unknown and slow: nobody is accused",
        replace(CLEAN, efficiency=0.4, contention="unknown", neighbours=3),
        "suspect",
        says=("cause unknown", "whether others compute on the GPU"),
    ),
    Situation(
        "memory clock locked below its maximum",
        replace(CLEAN, efficiency=0.45, memory_clock_mhz=5_001),
        "suspect",
        causes=("memory_clock_low",),
        says=("the memory clock is 5,001 of 8,001 MHz (63 %)", "nvidia-smi -rmc"),
    ),
    Situation(
        "GeForce memory clock while computing is full enough",
        replace(CLEAN, efficiency=0.6, memory_clock_mhz=9_501, max_memory_clock_mhz=9_751),
        "watch",
        says=("no cause stands out",),
    ),
    Situation(
        "clocks of a card at rest are no throttling",
        replace(
            BUSY, efficiency=0.6, gpu_utilization=0.0, memory_clock_mhz=405,
            max_memory_clock_mhz=8_001, busy_ratio=0.5,
        ),
        "watch",
    ),
    Situation(
        "thermal",
        replace(
            CLEAN, efficiency=0.44, memory_clock_mhz=6_001,
            throttle_reasons=frozenset({"hw_slowdown", "hw_thermal_slowdown", "sw_power_cap"}),
        ),
        "suspect",
        causes=("thermal_throttling",),
        says=("the driver reports hw_thermal_slowdown", "airflow"),
    ),
    Situation(
        "thermal without clocks",
        replace(BUSY, efficiency=0.44, throttle_reasons=frozenset({"sw_thermal_slowdown"})),
        "suspect",
        causes=("thermal_throttling",),
        says=("the driver reports sw_thermal_slowdown",),
    ),
    Situation(
        "power cap with full memory clock is normal",
        replace(
            CLEAN, efficiency=0.55, throttle_reasons=frozenset({"sw_power_cap"}), power_watts=300
        ),
        "watch",
        ruled_out=(
            "active_neighbour", "power_throttling", "kv_cache_full", "long_prefills",
            "compute_bound", "cpu_bound",
        ),
        says=("the power cap is active, which is normal under load",),
    ),
    Situation(
        "power cap with unknown memory clock: neither accused nor cleared",
        replace(BUSY, efficiency=0.45, throttle_reasons=frozenset({"sw_power_cap"})),
        "suspect",
        ruled_out=(),
        says=("cause unknown",),
    ),
    Situation(
        "power cap that lowers the memory clock",
        replace(
            CLEAN, efficiency=0.45, memory_clock_mhz=5_001, power_watts=180,
            throttle_reasons=frozenset({"sw_power_cap"}),
        ),
        "suspect",
        causes=("power_throttling",),
        says=("the card draws 180 W", "nvidia-smi -pl"),
    ),
    Situation(
        "power brake",
        replace(CLEAN, efficiency=0.45, throttle_reasons=frozenset({"hw_power_brake_slowdown"})),
        "suspect",
        causes=("power_throttling",),
        says=("the driver reports hw_power_brake_slowdown",),
    ),
    Situation(
        "hardware slowdown of unknown origin",
        replace(CLEAN, efficiency=0.45, throttle_reasons=frozenset({"hw_slowdown"})),
        "suspect",
        causes=("hardware_slowdown",),
    ),
    Situation(
        "applications clocks lower the memory clock",
        replace(
            CLEAN, efficiency=0.45, memory_clock_mhz=5_001,
            throttle_reasons=frozenset({"applications_clocks_setting"}),
        ),
        "suspect",
        causes=("memory_clock_low",),
        says=("the driver reports applications_clocks_setting; the memory clock is 5,001 of",),
    ),
    Situation(
        "applications clocks at full memory clock",
        replace(
            CLEAN, efficiency=0.6, throttle_reasons=frozenset({"applications_clocks_setting"})
        ),
        "watch",
    ),
    Situation(
        "KV cache full, requests are preempted",
        replace(
            CLEAN, efficiency=0.42, kv_cache_usage=0.99, preemptions_per_second=2.5, waiting=14,
            mean_batch=48.0,
        ),
        "suspect",
        causes=("preemption",),
        says=(
            "2.5 requests a second are interrupted and computed again later;"
            " the KV cache is 99 % full",
            "14 requests wait in the queue",
        ),
    ),
    Situation(
        "KV cache full, requests wait",
        replace(CLEAN, efficiency=0.6, kv_cache_usage=0.97, waiting=1, mean_batch=48.0),
        "watch",
        causes=("kv_cache_full",),
        says=("the KV cache is 97 % full and 1 request waits in the queue",),
    ),
    Situation(
        "KV cache full of old prefixes, nobody waits",
        replace(CLEAN, efficiency=0.6, kv_cache_usage=0.99),
        "watch",
        says=("the KV cache is 99 % full, but nobody waits", "The usual causes are ruled out."),
    ),
    Situation(
        "one preemption in ten minutes",
        replace(CLEAN, efficiency=0.6, preemptions_per_second=1 / 600),
        "watch",
    ),
    Situation(
        "a queue alone explains no low efficiency",
        replace(CLEAN, efficiency=0.6, waiting=9, mean_batch=16.0),
        "watch",
        says=("9 requests wait in the queue",),
    ),
    Situation(
        "prompts that nobody has counted were computed between the steps",
        replace(CLEAN, efficiency=0.55, others_prefill_share=0.33),
        "watch",
        causes=("long_prefills",),
        says=("somebody waited for a first token during 33 % of the time",),
    ),
    Situation(
        "mostly prompts, computed as fast as they should be",
        replace(
            CLEAN, normal=founding(0.75, prefill_share=0.8), prefill_share=0.8, mean_batch=16.0,
            no_efficiency=NoEfficiency(why="mostly_prefill", share=0.8),
        ),
        "healthy",
        says=("Healthy: the work took as long as it should (prompts about 80 % of it).",),
    ),
    Situation(
        "mostly prompts, and slow",
        replace(CLEAN, normal=founding(0.35, prefill_share=0.8), prefill_share=0.8),
        "suspect",
        says=("Slow: the work took 2.0 to 2.5 times as long as it should (prompts about 80 %",),
    ),
    Situation(
        "a small model on a fast card: 45 % is healthy",
        replace(
            CLEAN, efficiency=0.45, normal=replace(founding(0.45), expected=Interval(1.75, 3.2))
        ),
        "healthy",
        says=("reaches 45 % of the hardware's ceiling (streamed bytes), 31 to 57 % is normal",),
    ),
    Situation(
        "calibrated here",
        replace(CLEAN, efficiency=0.45, normal=replace(founding(0.45), source="calibrated")),
        "suspect",
        says=("70 to 89 % is as calibrated here",),
    ),
    Situation(
        "nothing is known of model and card: the range tells nothing",
        replace(
            CLEAN, efficiency=0.45, normal=replace(founding(0.45), expected=Interval(1.7, 8.0))
        ),
        "not_judged",
        reason="range_too_wide",
        says=("12 to 59 % is normal here, and that is too wide a range to tell", "calibrate"),
    ),
    Situation(
        "so slow that a wide range tells as well",
        replace(
            CLEAN, efficiency=0.05, normal=replace(founding(0.05), expected=Interval(1.7, 8.0))
        ),
        "suspect",
    ),
    Situation(
        "the engine costs more than usual, as without CUDA graphs",
        replace(
            CLEAN, efficiency=0.4,
            normal=founding(0.4, slow_parts=frozenset({"engine"}), like_eager=True),
        ),
        "suspect",
        causes=("slow_engine",),
        ruled_out=(
            "active_neighbour", "memory_clock_low", "kv_cache_full", "long_prefills",
            "compute_bound", "cpu_bound", "slow_card",
        ),
        says=("as much as without CUDA graphs", "--enforce-eager"),
    ),
    Situation(
        "the card is read slowly, and the engine is cleared",
        replace(CLEAN, efficiency=0.4, normal=founding(0.4, slow_parts=frozenset({"card"}))),
        "suspect",
        causes=("slow_card",),
        ruled_out=(
            "active_neighbour", "memory_clock_low", "kv_cache_full", "long_prefills",
            "compute_bound", "cpu_bound", "slow_engine",
        ),
    ),
    Situation(
        "prompts are computed slowly",
        replace(CLEAN, efficiency=0.4, normal=founding(0.4, slow_parts=frozenset({"prefill"}))),
        "suspect",
        causes=("slow_prefill",),
    ),
    Situation(
        "compute-bound batch of 256",
        replace(CLEAN, efficiency=0.48, mean_batch=256.0, tokens_per_second=3_200),
        "suspect",
        causes=("compute_bound",),
        says=("256 sequences run together; from 202 on this GPU computes longer than it reads",),
    ),
    Situation(
        "batch of 256 on a card that computes faster",
        replace(CLEAN, efficiency=0.48, mean_batch=256.0, ridge_batch=295),
        "suspect",
        says=("256 sequences a step; computing becomes the limit from 295 on",),
    ),
    Situation(
        "no batch is compute-bound with contexts that are read longer than computed",
        replace(CLEAN, efficiency=0.48, mean_batch=256.0, ridge_batch=math.inf),
        "suspect",
        says=("256 sequences a step; with contexts as long as these, reading stays the limit",),
    ),
    Situation(
        "healthy batch of 256: 17 tok/s a stream at 80 %",
        replace(
            CLEAN, efficiency=0.80, mean_batch=256.0, tokens_per_second=4_448, request_ratio=0.32,
            sequence_tokens_per_second=17.4,
        ),
        "healthy",
        says=(
            "80 % of the hardware's ceiling (streamed bytes), 70 to 89 % is normal here,"
            " 4,448 tok/s over 256 sequences (17.4 each)",
            "a stream gets 32 % of the ceiling of one that is alone, because 256 sequences share",
        ),
    ),
    Situation(
        "CPU-bound engine",
        replace(CLEAN, efficiency=0.35, gpu_utilization=0.52),
        "suspect",
        causes=("cpu_bound",),
        says=("the GPU is busy 52 % of the time although requests run all the while",),
    ),
    Situation(
        "GPU idle because the traffic pauses",
        replace(CLEAN, efficiency=0.6, gpu_utilization=0.52, busy_ratio=0.55),
        "watch",
        says=("worth a look: whether the GPU waits for the CPU (nvidia-smi dmon).",),
    ),
    Situation(
        "a neighbour's kernels do not clear the engine's CPU",
        replace(CLEAN, efficiency=0.4, contention="active_neighbours"),
        "suspect",
        causes=("active_neighbour",),
        ruled_out=("memory_clock_low", "kv_cache_full", "long_prefills", "compute_bound"),
    ),
    Situation(
        "wrong weight bytes: 160 %",
        replace(BUSY, efficiency=1.6, speculative=False),
        "above_ceiling",
        causes=("wrong_ceiling_inputs", "cached_weights"),
        says=("Above the ceiling: decoding reaches 160 %", "tokgauge check"),
    ),
    Situation(
        "above, whole checkpoint counted (MoE, vision tower)",
        replace(BUSY, efficiency=2.4, basis="checkpoint"),
        "above_ceiling",
        causes=("wrong_ceiling_inputs", "speculative_decoding", "cached_weights"),
        says=("(whole checkpoint)", "a step reads less than that"),
    ),
    Situation(
        "above, nothing known of speculation",
        replace(BUSY, efficiency=1.9),
        "above_ceiling",
        causes=("speculative_decoding", "wrong_ceiling_inputs", "cached_weights"),
        says=("whether the engine decodes speculatively is not known", "; either "),
    ),
    Situation(
        "above, speculation is on with unknown gain",
        replace(BUSY, efficiency=2.1, speculative=True, basis="checkpoint"),
        "above_ceiling",
        causes=("speculative_decoding", "wrong_ceiling_inputs", "cached_weights"),
        says=("most likely because speculative decoding gives several tokens per step",),
    ),
    Situation(
        "above although the engine itself counted the steps: not speculation",
        replace(BUSY, efficiency=1.3, speculative=True, steps_source="engine"),
        "above_ceiling",
        causes=("wrong_ceiling_inputs", "cached_weights"),
    ),
    Situation(
        "above although tokens per step were divided out",
        replace(BUSY, efficiency=1.3, speculative=True, tokens_per_step=3.1),
        "above_ceiling",
        causes=("wrong_ceiling_inputs", "cached_weights"),
    ),
    Situation(
        "speculation known and divided out",
        replace(
            CLEAN, efficiency=0.78, speculative=True, tokens_per_step=3.1, tokens_per_second=140
        ),
        "healthy",
        says=("speculative decoding: 3.1 tokens per step, divided out", "140 tok/s"),
    ),
    Situation(
        "speculation on with unknown gain below the ceiling: 80 % may be 27 %",
        replace(CLEAN, efficiency=0.80, speculative=True),
        "not_judged",
        reason="speculation_unknown",
        says=("several tokens of one step may have been counted as several steps",),
    ),
    Situation(
        "speculation on, the engine counted the steps",
        replace(CLEAN, efficiency=0.80, speculative=True, steps_source="engine"),
        "healthy",
    ),
    Situation(
        "bandwidth sources disagree, the one in use is too high",
        replace(CLEAN, efficiency=0.47, bandwidth_ratio=0.53),
        "suspect",
        causes=("wrong_ceiling_inputs",),
        says=("the other source of the bandwidth says 47 % less than the one in use",),
    ),
    Situation(
        "bandwidth sources disagree the other way: a note, no cause",
        replace(CLEAN, efficiency=0.47, bandwidth_ratio=1.2),
        "suspect",
        says=("the other source of the bandwidth says 20 % more", "cause unknown"),
    ),
    Situation(
        "bandwidth sources differ by 5 %: that is rounding of vendors",
        replace(CLEAN, efficiency=0.47, bandwidth_ratio=0.95),
        "suspect",
        never_says=("other source of the bandwidth",),
    ),
    Situation(
        "above, and the other bandwidth source is higher",
        replace(CLEAN, efficiency=1.2, bandwidth_ratio=2.0),
        "above_ceiling",
        causes=("wrong_ceiling_inputs", "speculative_decoding", "cached_weights"),
        says=("most likely because the bandwidth or the bytes behind the ceiling are wrong",),
    ),
    Situation(
        "engine estimates twice our bytes",
        replace(CLEAN, efficiency=0.40, engine_read_ratio=2.0),
        "suspect",
        causes=("wrong_ceiling_inputs",),
        says=("the engine's own estimate of the bytes read is 100 % more than ours",),
    ),
    Situation(
        "the card measures far more than the tokens explain",
        replace(CLEAN, efficiency=0.40, measured_ratio=0.83),
        "suspect",
        causes=("wrong_ceiling_inputs",),
        says=("the card itself measures 83 % of its bandwidth in use",),
    ),
    Situation(
        "what the card measures may be a neighbour's",
        replace(CLEAN, efficiency=0.40, measured_ratio=0.83, contention="active_neighbours"),
        "suspect",
        causes=("active_neighbour",),
        never_says=("measures",),
    ),
    Situation(
        "healthy, and the card measures far less",
        replace(CLEAN, efficiency=0.80, measured_ratio=0.40),
        "healthy",
        says=("the card itself measures 40 % of its bandwidth in use, 80 % is what the tokens",),
    ),
    Situation(
        "the card measures less because the traffic pauses",
        replace(CLEAN, efficiency=0.80, measured_ratio=0.40, busy_ratio=0.5),
        "healthy",
        never_says=("measures",),
    ),
    Situation(
        "the card measures less, and pauses are not known",
        replace(CLEAN, efficiency=0.80, measured_ratio=0.40, busy_ratio=None),
        "healthy",
        never_says=("measures",),
    ),
    Situation(
        "above, and a cross-check is even higher: a note",
        replace(CLEAN, efficiency=1.2, bandwidth_ratio=0.5, speculative=False),
        "above_ceiling",
        causes=("wrong_ceiling_inputs", "cached_weights"),
        says=("the other source of the bandwidth says 50 % less",),
    ),
    Situation(
        "healthy, and a cross-check differs",
        replace(CLEAN, efficiency=0.80, engine_read_ratio=0.5),
        "healthy",
        says=("the engine's own estimate of the bytes read is 50 % less than ours",),
    ),
    Situation(
        "idle hour",
        Evidence(decoded_tokens=0, window_seconds=3_600, efficiency=0.0),
        "not_judged",
        reason="too_little_traffic",
        says=("Not judged: nothing was decoded in 3,600 s.",),
    ),
    Situation(
        "one token a minute",
        Evidence(decoded_tokens=120, window_seconds=7_200, efficiency=0.02),
        "not_judged",
        reason="too_little_traffic",
        says=("only 120 tokens decoded in 7,200 s",),
    ),
    Situation(
        "one short answer",
        Evidence(decoded_tokens=1, window_seconds=5, efficiency=0.4),
        "not_judged",
        reason="too_little_traffic",
        says=("only 1 token decoded in 5.0 s",),
    ),
    Situation(
        "decoding for moments only",
        replace(BUSY, efficiency=0.3, busy_ratio=0.04),
        "not_judged",
        reason="too_little_traffic",
        says=("the engine decoded during only 4 % of the time",),
    ),
    Situation(
        "too few steps were seen",
        Evidence(no_efficiency=NoEfficiency(why="few_steps")),
        "not_judged",
        reason="too_little_traffic",
    ),
    Situation(
        "an average over pauses",
        replace(BUSY, efficiency=0.3, mean_batch=0.4, busy_ratio=None),
        "not_judged",
        reason="too_little_traffic",
        says=("0.40 sequences ran on average, so the figures include pauses",),
    ),
    Situation(
        "unknown everything",
        Evidence(),
        "not_judged",
        reason="no_efficiency",
        ruled_out=(),
        says=("the share of the hardware's ceiling is not known.", "tokgauge check"),
    ),
    Situation(
        "only the ratio of requests is known",
        Evidence(request_ratio=0.32, decoded_tokens=5_000),
        "not_judged",
        reason="no_efficiency",
        says=("single requests ran at 32 %", "says nothing about a shared GPU"),
    ),
    Situation(
        "not a number",
        replace(BUSY, efficiency=math.nan),
        "not_judged",
        reason="no_efficiency",
    ),
    Situation(
        "slow, and no evidence at all",
        Evidence(efficiency=0.31),
        "suspect",
        ruled_out=(),
        says=(
            "Slow: decoding reaches 31 % of the hardware's ceiling, 70 to 89 % is normal here;"
            " cause unknown.",
            "Not known here and worth a look: whether others compute on the GPU (nvidia-smi);"
            " the memory clock",
            "KV cache and preemptions",
        ),
    ),
    Situation(
        "slow, everything looked at, nothing found",
        replace(CLEAN, efficiency=0.31),
        "suspect",
        ruled_out=(
            "active_neighbour", "memory_clock_low", "kv_cache_full", "long_prefills",
            "compute_bound", "cpu_bound",
        ),
        says=("cause unknown", "The usual causes are ruled out.", "profile the engine"),
    ),
    Situation(
        "two causes: a neighbour before the queue",
        replace(
            CLEAN, efficiency=0.3, contention="active_neighbours", kv_cache_usage=1.0,
            preemptions_per_second=0.5, waiting=3,
        ),
        "suspect",
        causes=("active_neighbour", "preemption"),
        says=("30 requests a minute are interrupted",),
    ),
    Situation(
        "all causes at once, in their order",
        replace(
            CLEAN, efficiency=0.2, contention="active_neighbours", memory_clock_mhz=5_001,
            preemptions_per_second=1.0, kv_cache_usage=1.0, waiting=3, mean_batch=300.0,
            others_prefill_share=0.4, gpu_utilization=0.5, bandwidth_ratio=0.5,
            normal=founding(0.2, slow_parts=frozenset({"engine", "card", "prefill"})),
        ),
        "suspect",
        causes=(
            "active_neighbour", "memory_clock_low", "preemption", "long_prefills",
            "compute_bound", "cpu_bound", "slow_engine", "wrong_ceiling_inputs", "slow_card",
            "slow_prefill",
        ),
        ruled_out=(),
    ),
    Situation(
        "healthy, and people wait in the queue",
        replace(CLEAN, efficiency=0.82, waiting=12, mean_batch=64.0),
        "healthy",
        says=("; 12 requests wait in the queue.", "shorten the queue"),
    ),
    Situation(
        "healthy, but it does not feel so: not streamed, and cut",
        replace(
            CLEAN, efficiency=0.75, unstreamed_ratio=0.8, silent_wait_seconds=12.6,
            truncated_ratio=0.3,
        ),
        "healthy",
        says=(
            "80 % of the answers were not streamed; half of those came only after 12.6 s or more",
            "30 % of the answers were cut off by a token limit",
            "`stream: true`",
            "max_tokens",
        ),
    ),
    Situation(
        "feelings are explained without a ceiling, too",
        Evidence(unstreamed_ratio=1.0),
        "not_judged",
        reason="no_efficiency",
        says=("100 % of the answers were not streamed", "`stream: true`"),
    ),
    Situation(
        "not streamed, but nobody had to wait",
        replace(CLEAN, efficiency=0.75, unstreamed_ratio=1.0, silent_wait_seconds=0.9),
        "healthy",
        says=("100 % of the answers were not streamed",),
        never_says=("`stream: true`",),
    ),
    Situation(
        "a few answers not streamed or cut are nothing to mention",
        replace(CLEAN, efficiency=0.75, unstreamed_ratio=0.19, truncated_ratio=0.04),
        "healthy",
        never_says=("streamed;", "cut off", "stream: true"),
    ),
    # Boundaries.
    Situation("0.70", replace(CLEAN, efficiency=0.70), "healthy", says=("reaches 70 %",)),
    Situation(
        "just below 0.70", replace(CLEAN, efficiency=0.69999), "watch", says=("reaches 69.9 %",)
    ),
    Situation("0.53", replace(CLEAN, efficiency=0.53), "watch", says=("reaches 53 %",)),
    Situation(
        "far below the range", replace(CLEAN, efficiency=0.5249), "suspect",
        says=("reaches 52 %",),
    ),
    Situation(
        "0.85", replace(CLEAN, efficiency=0.85), "healthy", says=("as good as hardware gets",)
    ),
    Situation(
        "just below 0.85", replace(CLEAN, efficiency=0.8499), "healthy",
        never_says=("as good as",),
    ),
    Situation(
        "1.0", replace(CLEAN, efficiency=1.0), "healthy",
        says=("reaches 100 %", "more than hardware usually gives", "tokgauge check"),
    ),
    Situation(
        "just above 1.0", replace(CLEAN, efficiency=1.0001), "above_ceiling",
        causes=("speculative_decoding", "wrong_ceiling_inputs", "cached_weights"),
        says=("reaches 100.1 %",),
    ),
    Situation("64 tokens are enough", Evidence(efficiency=0.7, decoded_tokens=64), "healthy"),
    Situation(
        "63 tokens are not", Evidence(efficiency=0.7, decoded_tokens=63), "not_judged",
        reason="too_little_traffic",
    ),
    Situation(
        "hardly anything", replace(BUSY, efficiency=0.001), "suspect",
        says=("reaches less than 1 %",),
    ),
]  # fmt: skip


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
def test_situation(situation: Situation) -> None:
    verdict = diagnose(situation.evidence)
    assert verdict.level == situation.level, verdict
    assert tuple(cause.kind for cause in verdict.causes) == situation.causes, verdict
    if situation.ruled_out is not None:
        assert tuple(item.kind for item in verdict.ruled_out) == situation.ruled_out
    assert verdict.reason == situation.reason
    said = "\n".join(
        (
            verdict.headline,
            *(text for cause in verdict.causes for text in (cause.evidence, cause.advice)),
            *(item.evidence for item in verdict.ruled_out),
            *verdict.notes,
            *verdict.advice,
        )
    )
    for text in situation.says:
        assert text in said
    for text in situation.never_says:
        assert text not in said


# What is changed on a slow, otherwise clean engine: from which value on it is accused.
THRESHOLDS = [
    ("preemptions_per_second", 1 / 61, 1 / 60, "preemption", {}),
    ("kv_cache_usage", 0.949, 0.95, "kv_cache_full", {"waiting": 1}),
    ("waiting", 0, 1, "kv_cache_full", {"kv_cache_usage": 0.95}),
    ("others_prefill_share", 0.149, 0.15, "long_prefills", {}),
    ("mean_batch", 201.9, 202.0, "compute_bound", {}),
    ("gpu_utilization", 0.80, 0.799, "cpu_bound", {}),
    ("busy_ratio", 0.89, 0.90, "cpu_bound", {"gpu_utilization": 0.5}),
    ("memory_clock_mhz", 950, 949, "memory_clock_low", {"max_memory_clock_mhz": 1_000}),
    ("gpu_utilization", 0.049, 0.05, "memory_clock_low",
     {"memory_clock_mhz": 405, "busy_ratio": 0.5}),
    ("bandwidth_ratio", 0.95, 0.949, "wrong_ceiling_inputs", {}),
    ("engine_read_ratio", 1.15, 1.151, "wrong_ceiling_inputs", {}),
    ("measured_ratio", 0.549, 0.551, "wrong_ceiling_inputs", {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "innocent", "guilty", "kind", "others"), THRESHOLDS)
def test_threshold(
    name: str, innocent: Any, guilty: Any, kind: CauseKind, others: dict[str, Any]
) -> None:
    slow = replace(CLEAN, efficiency=0.4, **others)
    assert diagnose(replace(slow, **{name: innocent})).causes == ()
    assert [cause.kind for cause in diagnose(replace(slow, **{name: guilty})).causes] == [kind]


@pytest.mark.parametrize(
    ("name", "too_little", "enough", "others"),
    [
        ("busy_ratio", 0.099, 0.1, {}),
        ("window_seconds", 641.0, 640.0, {"decoded_tokens": 64}),
        ("mean_batch", 0.89, 0.9, {}),
    ],
)
def test_threshold_of_judging(
    name: str, too_little: Any, enough: Any, others: dict[str, Any]
) -> None:
    slow = replace(CLEAN, efficiency=0.4, **others)
    assert diagnose(replace(slow, **{name: too_little})).level == "not_judged"
    assert diagnose(replace(slow, **{name: enough})).level == "suspect"


def test_names_are_unique() -> None:
    names = [situation.name for situation in SITUATIONS]
    assert len(names) == len(set(names))


def test_every_kind_and_level_is_met() -> None:
    """A kind that no situation yields has no meaning."""
    verdicts = [diagnose(situation.evidence) for situation in SITUATIONS]
    assert {cause.kind for verdict in verdicts for cause in verdict.causes} == set(CAUSE_KINDS)
    assert {verdict.level for verdict in verdicts} == set(LEVELS)
    assert {verdict.reason for verdict in verdicts} - {None} == set(NOT_JUDGED_REASONS)


# Each value with its share of nonsense, boundaries and absence.
_NUMBERS = st.one_of(
    st.none(),
    st.sampled_from([0.0, -1.0, 0.05, 0.5, 0.7, 0.95, 1.0, 1.2, 2.0, math.nan, math.inf, 1e308]),
    st.floats(0, 2),
    st.integers(0, 10_000),
)
_WORDS = {
    "basis": st.sampled_from([None, "streamed", "checkpoint"]),
    "steps_source": st.sampled_from([None, "engine", "streams"]),
    "contention": st.sampled_from(["none", "idle_neighbours", "active_neighbours", "unknown"]),
    "throttle_reasons": st.none() | st.frozensets(st.sampled_from([*THROTTLE_REASONS.values()])),
    "no_efficiency": st.none()
    | st.builds(
        NoEfficiency,
        why=st.sampled_from(get_args(WhyNoEfficiency)),
        bandwidth=st.just("no GPU is seen"),
        **dict.fromkeys(("steps", "busy_seconds", "tokens", "share"), st.floats(0, 100)),
        needed=st.integers(1, 20),
    ),
    "normal": st.none()
    | st.builds(
        founding,
        st.floats(0.001, 2),
        prefill_share=st.none() | st.floats(0, 1),
        slow_parts=st.none() | st.frozensets(st.sampled_from(["card", "engine", "prefill"])),
    ),
    "speculative": st.sampled_from([None, True, False]),
}
_COUNTS = ("decoded_tokens", "neighbours", "neighbour_memory_bytes", "waiting")
_ANYTHING = st.builds(
    Evidence,
    **{
        item.name: _WORDS.get(
            item.name,
            st.none() | st.integers(-1, 10_000) if item.name in _COUNTS else _NUMBERS,
        )
        for item in fields(Evidence)
    },
)


@settings(max_examples=100, deadline=None)
@given(_ANYTHING)
def test_laws(evidence: Evidence) -> None:
    verdict = diagnose(evidence)
    assert verdict == diagnose(evidence)
    kinds = [cause.kind for cause in verdict.causes]
    assert len(kinds) == len(set(kinds))
    assert not set(kinds) & {item.kind for item in verdict.ruled_out}
    assert all(cause.evidence and cause.advice for cause in verdict.causes)
    assert (verdict.reason is not None) == (verdict.level == "not_judged")
    if verdict.level in ("healthy", "not_judged"):
        assert verdict.causes == ()
    else:
        assert verdict.causes or verdict.level != "above_ceiling"
    if evidence.efficiency is not None and 1 < evidence.efficiency < math.inf:
        assert verdict.level in ("above_ceiling", "not_judged")
    if "active_neighbour" in kinds:
        assert evidence.contention == "active_neighbours"
    texts = [verdict.headline, *verdict.notes, *verdict.advice]
    texts += [cause.evidence for cause in verdict.causes]
    texts += [item.evidence for item in verdict.ruled_out]
    for text in texts:
        assert text
        assert not {"None", "nan", "inf"} & set(text.replace(",", " ").split())
    assert verdict.headline.endswith(".")
    assert "\n" not in verdict.headline


def test_the_headline_shows_both_bases() -> None:
    """The founding run: 75 % of what a step reads, 80 % of the file by the rule of thumb."""
    verdict = diagnose(Evidence(efficiency=0.747, basis="streamed", checkpoint_efficiency=0.805))
    assert verdict.headline.startswith(
        "Healthy: decoding reaches 75 % of the hardware's ceiling (streamed bytes; 80 % by the "
        "rule of thumb, the whole checkpoint)"
    )
