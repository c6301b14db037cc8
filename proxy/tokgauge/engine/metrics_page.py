"""What the engine says about itself: its /metrics page read into values and rates, no sockets.

A page of vLLM is 50 to 65 kB. Parsing all of it takes about 35 ms; only the lines that are needed
are handed to the parser, which takes about 2 ms. A page may be anything, up to some megabytes: then
`read` takes up to a second, and so it belongs into a thread.

Names differ by engine and version (metric_names.py): for each value the first known name that is on
the page counts. What a page does not tell is None, and so is what it tells only in part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tokgauge.engine.metric_names import (
    CACHE_CONFIG,
    COMPUTED,
    KIND_OF,
    NAMES,
    OF_ONE_MODEL,
    PROCESS_START,
    WANTED,
    EngineKind,
)

__all__ = ["EngineKind", "EngineRates", "EngineReading", "between", "read"]


@dataclass(frozen=True, slots=True)
class EngineReading:
    """An engine's own figures at the monotonic time `at` (seconds), as the page told them.

    Counts are summed over data-parallel engines (`engines` of them). Where the page names several
    `models`, values that belong to the steps of one model are None. `problem` says in a few words
    why there is nothing at all.
    """

    at: float
    kind: EngineKind | None = None
    problem: str | None = None
    models: tuple[str, ...] = ()
    engines: int | None = None
    started_at: float | None = None
    """Unix time when the process that serves the page started [s]."""

    running: int | None = None
    waiting: int | None = None
    kv_cache_usage: float | None = None
    """0 to 1, of the fullest engine: that is where requests have to wait."""
    context_tokens_per_engine: float | None = None
    """Tokens in the KV cache of an engine, mean over the engines."""
    kv_cache_dtype: str | None = None
    """As set; `auto` means that of the model. None when engines differ."""

    preemptions_total: int | None = None
    iterations_total: int | None = None
    """Engine steps, prefills included."""
    prompt_tokens_total: int | None = None
    """Of the prompts whose prefill has ended, what the prefix cache gave included (llama.cpp: what
    was computed)."""
    computed_prompt_tokens_total: int | None = None
    """The same without what any cache gave."""
    prefix_cache_hits_total: int | None = None
    """Prompt tokens that the prefix cache gave."""
    generation_tokens_total: int | None = None
    """llama.cpp and SGLang count the tokens of a request when it ends."""
    spec_drafts_total: int | None = None
    spec_accepted_total: int | None = None
    queued_total: int | None = None
    """Requests whose time in the queue is known: vLLM adds it when the request ends."""
    queue_seconds_sum: float | None = None
    """What they waited in the queue [s]."""
    estimated_read_bytes_total: float | None = None
    """By vLLM's own model (--enable-mfu-metrics), per GPU, summed over engines [bytes]."""


@dataclass(frozen=True, slots=True)
class EngineRates:
    """What happened between two readings `seconds` apart. Rates are per second of wall time.

    `problem` says why everything is None (the engine was restarted, for one). An idle engine makes
    no steps: over a window with pauses the rates are those of the window, not of the work.
    """

    seconds: float
    problem: str | None = None
    steps_per_second_per_engine: float | None = None
    """To be compared with the bandwidth of the GPUs of one engine."""
    generation_tokens_per_second: float | None = None
    """vLLM's only, which counts them as they come."""
    preemptions_per_second: float | None = None
    tokens_per_step: float | None = None
    """Speculative decoding: 1 + accepted / drafts, tokens that a sequence gains per step."""
    prompt_tokens_per_second: float | None = None
    """Of the prompts whose prefill has ended, what caches gave included."""
    computed_prompt_tokens_per_second: float | None = None
    """The same without what caches gave."""
    read_bytes_per_second_per_gpu: float | None = None
    queued: int | None = None
    """Requests that told how long they were in the queue."""
    queue_seconds: float | None = None
    """Their mean; None when there are none."""


_COUNTERS = (
    "preemptions_total",
    "iterations_total",
    "prompt_tokens_total",
    "computed_prompt_tokens_total",
    "prefix_cache_hits_total",
    "generation_tokens_total",
    "spec_drafts_total",
    "spec_accepted_total",
    "queued_total",
    "queue_seconds_sum",
    "estimated_read_bytes_total",
)
_LONGEST_LINE = 16_384
_MOST_LINES = 50_000
_MOST_DIGITS = 15
_MOST = 1e15
"""No engine has counted so far; up to here a float holds every whole number."""


def read(page: bytes, at: float) -> EngineReading:
    """The figures on an engine's /metrics page (Prometheus text format). Never raises.

    at: monotonic time when the page was fetched [s].
    """
    if not page.endswith(b"\n"):
        # The format ends every line; a number that was cut off would be a wrong number.
        return EngineReading(at, problem="the page is empty or cut off")
    if page.count(b"\n") > _MOST_LINES:
        return EngineReading(at, problem="the page has more lines than engines write")
    try:
        samples = _samples(page.decode())
    except UnicodeDecodeError:
        return EngineReading(at, problem="the page is not UTF-8 text")
    except (ValueError, IndexError, KeyError):
        return EngineReading(at, problem="the page is not in the Prometheus text format")
    kinds = sorted({KIND_OF[name] for name in samples if name in KIND_OF})
    if not kinds:
        return EngineReading(
            at,
            problem="no metric of a known engine is on the page",
            started_at=_started_at(samples.get(PROCESS_START, [])),
        )
    if len(kinds) > 1:
        return EngineReading(at, problem=f"metrics of several engines: {', '.join(kinds)}")
    return _reading(at, kinds[0], samples)


def between(earlier: EngineReading, later: EngineReading) -> EngineRates:
    """Rates from two readings of the same engine; all None when they do not belong together.

    A counter that went back, or another start time of the process, means that the engine was
    restarted: then no difference means anything.
    """
    seconds = later.at - earlier.at
    problem = _unrelated(earlier, later)
    if problem is not None:
        return EngineRates(seconds, problem=problem)

    def grown(name: str) -> float | None:
        before, after = getattr(earlier, name), getattr(later, name)
        return None if before is None or after is None else float(after - before)

    def per_second(amount: float | None) -> float | None:
        return None if amount is None else amount / seconds

    steps = grown("iterations_total")
    prompts, computed = grown("prompt_tokens_total"), grown("computed_prompt_tokens_total")
    if computed is None and grown("prefix_cache_hits_total") == 0:
        computed = prompts
    generated = grown("generation_tokens_total")
    read_bytes = grown("estimated_read_bytes_total")
    accepted = _ratio(grown("spec_accepted_total"), grown("spec_drafts_total"))
    queued = grown("queued_total")
    engines = later.engines or 1
    return EngineRates(
        seconds=seconds,
        steps_per_second_per_engine=per_second(None if steps is None else steps / engines),
        # Elsewhere the tokens of a request are counted when it ends, whenever they were decoded.
        generation_tokens_per_second=per_second(generated) if later.kind == "vllm" else None,
        preemptions_per_second=per_second(grown("preemptions_total")),
        tokens_per_step=None if accepted is None else 1 + accepted,
        # SGLang counts prompts when the request ends.
        prompt_tokens_per_second=per_second(prompts) if later.kind != "sglang" else None,
        computed_prompt_tokens_per_second=per_second(computed) if later.kind != "sglang" else None,
        read_bytes_per_second_per_gpu=per_second(
            None if read_bytes is None else read_bytes / engines
        ),
        queued=None if queued is None else int(queued),
        queue_seconds=_ratio(grown("queue_seconds_sum"), queued),
    )


def _samples(text: str) -> Mapping[str, list[Sample]]:
    """The samples that are wanted, by their names on the page. Raises ValueError and the like."""
    # Without the comments the parser takes each sample as it is and renames none. Not splitlines():
    # label values may hold other line separators.
    lines = [line for line in text.split("\n") if _name(line) in WANTED]
    if any(len(line) > _LONGEST_LINE for line in lines):
        raise ValueError("a line is too long to be a sample")
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families("\n".join(lines)):
        for sample in family.samples:
            if sample.labels.get("source", COMPUTED) != COMPUTED:
                continue
            found.setdefault(sample.name, []).append(sample)
    return found


def _name(line: str) -> str:
    head = line.partition("{")[0].split(None, 1)
    return head[0] if head else ""


def _reading(at: float, kind: EngineKind, samples: Mapping[str, list[Sample]]) -> EngineReading:
    series = {
        field: next((samples[name] for name in candidates if name in samples), [])
        for field, candidates in NAMES[kind].items()
    }
    identities = {_identity(sample) for found in series.values() for sample in found}
    models = tuple(sorted({model for model, _ in identities if model}))
    of_engines = {(model, engine) for model, engine in identities if engine}
    values = _values(series, models, of_engines)

    def count(field: str) -> int | None:
        parts = values.get(field)
        if parts is None or not all(part.is_integer() and part < _MOST for part in parts):
            return None
        return int(sum(parts))

    queue_seconds = values.get("queue_seconds_sum")
    usage = values.get("kv_cache_usage", ())
    if not all(part <= 1 for part in usage):
        usage = ()
    config = samples.get(CACHE_CONFIG, []) if kind == "vllm" and len(models) < 2 else []
    engines = len({engine for _, engine in of_engines}) or 1
    iterations = count("iterations_total")
    read_bytes: float | None = sum(values.get("estimated_read_bytes_total", ())) or None
    if read_bytes is None and iterations == 0 and "estimated_read_bytes_total" in values:
        read_bytes = 0.0  # later, 0 means that the estimates are switched off
    sizes = values.get("kv_cache_tokens_capacity", ())
    if kind == "vllm" and len(config) == engines:
        sizes = _cache_sizes(config)
    held = None
    if len(usage) == len(sizes) == engines and all(sizes):
        held = sum(share * size for share, size in zip(usage, sizes, strict=True)) / engines
    return EngineReading(
        at=at,
        kind=kind,
        models=models,
        engines=engines,
        started_at=_started_at(samples.get(PROCESS_START, [])),
        running=count("running"),
        waiting=count("waiting"),
        kv_cache_usage=max(usage, default=None),
        context_tokens_per_engine=held,
        kv_cache_dtype=_common_label(config, "cache_dtype"),
        preemptions_total=count("preemptions_total"),
        iterations_total=iterations,
        prompt_tokens_total=count("prompt_tokens_total"),
        computed_prompt_tokens_total=count("computed_prompt_tokens_total"),
        prefix_cache_hits_total=count("prefix_cache_hits_total"),
        generation_tokens_total=count("generation_tokens_total"),
        spec_drafts_total=count("spec_drafts_total"),
        spec_accepted_total=count("spec_accepted_total"),
        queued_total=count("queued_total"),
        queue_seconds_sum=None if queue_seconds is None else sum(queue_seconds),
        estimated_read_bytes_total=read_bytes,
    )


def _values(
    series: Mapping[str, list[Sample]], models: tuple[str, ...], of_engines: set[tuple[str, str]]
) -> Mapping[str, tuple[float, ...]]:
    """Each field's value for every engine, or for the whole server, in the order of the engines."""
    of_server = {(model, "") for model in models or ("",)}
    values: dict[str, tuple[float, ...]] = {}
    for field, found in series.items():
        by_identity = _by_identity(found)
        # A sum that lacks an engine or a model is no sum.
        if by_identity is None or by_identity.keys() not in (of_engines, of_server):
            continue
        if field in OF_ONE_MODEL and len(models) > 1:
            continue
        values[field] = tuple(by_identity[key] for key in sorted(by_identity))
    return values


def _identity(sample: Sample) -> tuple[str, str]:
    """Model and data-parallel engine that a sample belongs to."""
    labels = sample.labels
    return labels.get("model_name", ""), labels.get("engine", labels.get("dp_rank", ""))


def _by_identity(samples: Iterable[Sample]) -> Mapping[tuple[str, str], float] | None:
    """One value for each model and engine, or None when one is missing or not plain.

    Further labels name copies of the same figure (SGLang: one per tensor-parallel rank). Copies
    that agree are one value; copies that differ are not understood.
    """
    found: dict[tuple[str, str], float] = {}
    for sample in samples:
        value = float(sample.value)
        if not math.isfinite(value) or value < 0:
            return None
        if found.setdefault(_identity(sample), value) != value:
            return None
    return found or None


def _cache_sizes(config: Iterable[Sample]) -> tuple[int, ...]:
    """Tokens that each KV cache holds: as the engine says, else blocks × tokens per block.

    In the order of the engines; empty when one of them is not told.
    """
    sizes = []
    for sample in sorted(config, key=_identity):
        labels = sample.labels
        tokens = _whole(labels.get("kv_cache_size_tokens"))
        if tokens is None:
            blocks, size = _whole(labels.get("num_gpu_blocks")), _whole(labels.get("block_size"))
            if blocks is None or size is None:
                return ()
            tokens = blocks * size
        sizes.append(tokens)
    return tuple(sizes)


def _whole(text: str | None) -> int | None:
    """The number, or None for what is not one (vLLM writes `None`) or none of this world."""
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > _MOST_DIGITS:
        return None
    return int(text)


def _common_label(samples: Iterable[Sample], label: str) -> str | None:
    values = {sample.labels.get(label) for sample in samples}
    return values.pop() if len(values) == 1 else None


def _started_at(samples: list[Sample]) -> float | None:
    if len(samples) != 1 or not math.isfinite(samples[0].value):
        return None
    return float(samples[0].value)


def _unrelated(earlier: EngineReading, later: EngineReading) -> str | None:
    """Why two readings cannot be compared, or None."""
    if earlier.problem or later.problem:
        return earlier.problem or later.problem
    if later.at <= earlier.at:
        return "no time lies between the readings"
    if (earlier.kind, earlier.models, earlier.engines) != (
        later.kind,
        later.models,
        later.engines,
    ):
        return "the readings are of different engines"
    if None not in (earlier.started_at, later.started_at) and (
        earlier.started_at != later.started_at
    ):
        return "the engine was restarted"
    for name in _COUNTERS:
        before, after = getattr(earlier, name), getattr(later, name)
        if before is not None and after is not None and after < before:
            return "the engine was restarted"
    return None


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole
