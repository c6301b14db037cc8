"""What is worth saying beside the causes: notes, and advice where nothing is accused."""

from __future__ import annotations

from collections.abc import Iterator

from tokgauge.diagnosis.cross_checks import disagreements
from tokgauge.diagnosis.evidence import Evidence, memory_clock_is_low
from tokgauge.diagnosis.verdict import RuledOut
from tokgauge.diagnosis.wording import CHECK_INPUTS, neighbours_run, percent, seconds
from tokgauge.model.ceiling import band_of

_MANY_UNSTREAMED = 0.2
_MANY_TRUNCATED = 0.05
_FELT_WAIT = 1.0
"""A wait [s] from which on it interrupts what a person thinks."""


def notes(e: Evidence) -> Iterator[str]:
    """What is worth knowing at every level."""
    if e.tokens_per_step is not None and e.tokens_per_step > 1:
        yield f"speculative decoding: {e.tokens_per_step:.1f} tokens per step, divided out"
    if e.unstreamed_ratio is not None and e.unstreamed_ratio >= _MANY_UNSTREAMED:
        wait = (
            ""
            if e.silent_wait_seconds is None or e.silent_wait_seconds < _FELT_WAIT
            else f"; half of those came only after {seconds(e.silent_wait_seconds)} or more,"
            " with nothing to see until then"
        )
        yield f"{percent(e.unstreamed_ratio)} of the answers were not streamed{wait}"
    if e.truncated_ratio is not None and e.truncated_ratio >= _MANY_TRUNCATED:
        yield f"{percent(e.truncated_ratio)} of the answers were cut off by a token limit"


def notes_on_health(e: Evidence) -> Iterator[str]:
    """What looks bad beside a healthy efficiency, and doubts about it."""
    if e.contention == "active_neighbours":
        yield f"{neighbours_run(e)}; the engine is fast all the same"
    if (
        e.request_ratio is not None
        and e.mean_batch is not None
        and e.mean_batch >= 2
        and band_of(e.request_ratio) in ("watch", "suspect")
    ):
        yield (
            f"a stream gets {percent(e.request_ratio)} of the ceiling of one that is alone,"
            f" because {e.mean_batch:,.0f} sequences share each step: that is normal"
        )
    for _, text in disagreements(e):
        yield text


def client_side_advice(e: Evidence) -> Iterator[str]:
    """For what is felt as slow and has nothing to do with the GPU."""
    felt = e.silent_wait_seconds is None or e.silent_wait_seconds >= _FELT_WAIT
    if e.unstreamed_ratio is not None and e.unstreamed_ratio >= _MANY_UNSTREAMED and felt:
        yield "Let the clients stream (`stream: true`): the first words come at once."
    if e.truncated_ratio is not None and e.truncated_ratio >= _MANY_TRUNCATED:
        yield (
            "Let the clients ask for more tokens (max_tokens) where answers are cut off;"
            " tokgauge_truncations_total tells which were cut by the model's context instead."
        )


def where_to_look(e: Evidence, ruled_out: tuple[RuledOut, ...]) -> str:
    """Advice when nothing is accused: first what could not be checked."""
    cleared = {item.kind for item in ruled_out}
    unknown = [
        text
        for known, text in (
            ("active_neighbour" in cleared, "whether others compute on the GPU (nvidia-smi)"),
            (memory_clock_is_low(e) is not None, "the memory clock (nvidia-smi -q -d CLOCK)"),
            (e.throttle_reasons is not None, "throttling (nvidia-smi -q -d PERFORMANCE)"),
            ("kv_cache_full" in cleared, "KV cache and preemptions (the engine's /metrics)"),
            ("long_prefills" in cleared, "how much of the time goes into prefill"),
            ("compute_bound" in cleared, "whether the batch is compute-bound"),
            ("cpu_bound" in cleared, "whether the GPU waits for the CPU (nvidia-smi dmon)"),
        )
        if not known
    ]
    if unknown:
        return f"Not known here and worth a look: {'; '.join(unknown)}."
    return f"The usual causes are ruled out. {CHECK_INPUTS} Then profile the engine."
