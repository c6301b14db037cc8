"""Puts together, every few seconds, what is known of the engine and its GPUs, and publishes it.

Runs in the analyst. Holds no formula of its own: the window comes from `decoding` and the engine's
metrics page, the efficiency from `efficiency`, the verdict from `diagnose`, the GPU figures from
`gpu.figures`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

import msgspec

from tokgauge.diagnosis import answers, ceiling_inputs
from tokgauge.diagnosis.answers import Answers
from tokgauge.diagnosis.ceiling_inputs import ModelBytes
from tokgauge.diagnosis.decoding import Decoded, DecodingWatch, merge
from tokgauge.diagnosis.diagnose import diagnose
from tokgauge.diagnosis.efficiency import (
    Efficiency,
    NotJudged,
    Window,
    efficiency_of,
    prefill_share,
    request_ratio,
)
from tokgauge.diagnosis.evidence import Evidence
from tokgauge.diagnosis.figures import Figures
from tokgauge.diagnosis.traffic import Traffic
from tokgauge.diagnosis.verdict import CAUSE_KINDS, LEVELS, Verdict
from tokgauge.engine import metrics_page
from tokgauge.engine.facts import OTHER, EngineFacts, ServedNow
from tokgauge.engine.metrics_page import EngineRates, EngineReading
from tokgauge.engine.poll import EnginePoll
from tokgauge.gpu import figures as gpu_figures
from tokgauge.gpu.bandwidth import Bandwidth, gpu_bandwidth, nvml_bandwidth
from tokgauge.gpu.contention import ContentionHistory, was_busy, worst
from tokgauge.gpu.nvml import NvmlReader
from tokgauge.gpu.readings import GpuReading, Snapshot
from tokgauge.gpu.sampler import GpuSampler
from tokgauge.measure.record import Record
from tokgauge.model.ceiling import single_stream_ceiling
from tokgauge.model.kv import KvCache
from tokgauge.model.weights import Basis, WeightsFound, WeightsUnknown
from tokgauge.settings import Settings

_FILES_INTERVAL = 60.0
"""Seconds between looks at the files of a model whose bytes are not known yet."""

_FEW_TOKENS_PER_EVENT = 1.02
"""Up to here an event stands for one step; above, several steps or several tokens are in one."""


class _Look(NamedTuple):
    """The engine's page, what the streams and the ended answers showed since the look before, and
    how many sequences of this proxy's own were running when the page was asked for.
    """

    reading: EngineReading | None
    decoded: Decoded
    answers: Answers
    own_sequences: int


class Monitor:
    """The figures of the engine as a whole.

    traffic: what runs. publish: takes each new set of figures. report: is told where
    something failed, and what; in any thread, and never raises.
    """

    def __init__(
        self, settings: Settings, facts: EngineFacts, traffic: Traffic,
        publish: Callable[[Figures], None], report: Callable[[str, Exception], None],
    ) -> None:  # fmt: skip
        engine = settings.engine
        self._settings = settings
        self._facts = facts
        self._traffic = traffic
        self._publish_figures = publish
        self._figures: Figures | None = None
        self._report = report
        self._watch = DecodingWatch(monotonic())
        self._answers = Answers()
        self._served = ServedNow(facts, settings.rate_window)
        self._looks: deque[_Look] = deque()
        self._model: ModelBytes | None = None
        self._model_of: tuple[str | None, str | None] | None = None
        self._model_read_at = float("-inf")
        self._kv_cache_dtype: str | None = None
        self._tokens = 0
        self._events = 0
        self._contention = ContentionHistory(
            ceiling_inputs.engine_on_gpu(engine),
            self._engine_was_busy,
        )
        self._sampler: GpuSampler | None = None
        self.verdict: Verdict | None = None

    def pause(self) -> float:
        """Seconds until the next look."""
        return self._settings.engine_metrics_interval

    def close(self) -> None:
        """The last look has been taken."""
        if self._sampler is not None:
            self._sampler.stop(timeout_seconds=0.5)

    def ended(self, record: Record) -> None:
        """An exchange has ended."""
        progress = record.progress
        self._watch.ended(progress)
        if progress.generates:
            if record.completion_tokens:
                self._served.answered(progress.answered, record.ended_at)
            self._answers.add(record, streamed=progress.streamed)
        if (
            record.stream
            and record.token_source == "usage"
            and record.token_events
            and not progress.calls_tools
        ):
            self._tokens += record.completion_tokens or 0
            self._events += record.token_events

    def complete(self, record: Record) -> Record:
        """Add to a record what only the look at the GPU tells."""
        figures = self._figures
        if figures is None or not figures.is_fresh(monotonic()):
            return record
        contention = None
        if self._sampler is not None:
            contention = self._contention.contention_during(
                record.ended_at - record.duration, record.ended_at
            )
        served = self._served.reads(record.progress.answered)
        ratio = self._request_ratio(record, figures) if served else None
        if contention is None and ratio is None:
            return record
        return msgspec.structs.replace(record, contention=contention, ceiling_ratio=ratio)

    def _request_ratio(self, done: Record, figures: Figures) -> float | None:
        model, rate = self._model, done.decode_tokens_per_second
        if (
            rate is None
            or figures.bandwidth is None
            or figures.tokens_per_step is None
            or done.prompt_tokens is None
            or done.completion_tokens is None
            or model is None
            or not isinstance(model.weights, WeightsFound)
        ):
            return None
        context = done.prompt_tokens + done.completion_tokens / done.sequences / 2
        return request_ratio(
            rate, figures.tokens_per_step, model.weights, model.kv, figures.bandwidth, context
        )

    # one look

    async def look(self, poll: EnginePoll, refresh: Callable[[], Awaitable[None]]) -> None:
        """One look at everything. refresh: brings `traffic` up to now. Raises what fails."""
        if self._sampler is None and self._settings.nvml:
            self._sampler = GpuSampler(
                NvmlReader(process_names=None),
                on_snapshot=self._contention.add,
                on_error=partial(self._report, "gpu"),
            )
            self._sampler.start()
        await refresh()
        own = self._own_sequences()
        reading = await poll.metrics()
        await refresh()
        # A request that began or ended while the page was on its way may be on it.
        own = max(own, self._own_sequences())
        self._looks.append(_Look(reading, *self._seen(), own))
        self._forget_old_looks()
        if reading is not None:
            self._kv_cache_dtype = reading.kv_cache_dtype
        await self._read_model()
        if self._looks:
            self._judge(monotonic())

    def _seen(self) -> tuple[Decoded, Answers]:
        """What the exchanges showed since the last call."""
        ended, self._answers = self._answers, Answers()
        now = monotonic()
        running = list(self._traffic.running)
        for exchange in running:
            if exchange.token_events:
                self._served.answered(exchange.answered, now)
        return self._watch.look(now, running), ended

    def _own_sequences(self) -> int:
        return sum(exchange.sequences for exchange in self._traffic.running if exchange.generates)

    def _forget_old_looks(self) -> None:
        seconds = sum(look.decoded.seconds for look in self._looks)
        while len(self._looks) > 2:
            oldest = self._looks[0].decoded.seconds
            if seconds - oldest < self._settings.rate_window:
                break
            seconds -= oldest
            self._looks.popleft()

    async def _read_model(self) -> None:
        """Read the files of the served model again when another one is served."""
        if self._served.among_several:
            return
        base = self._served.base()
        served = (base.root if base is not None else None, self._kv_cache_dtype)
        known = self._model is not None and isinstance(self._model.weights, WeightsFound)
        due = monotonic() - self._model_read_at > _FILES_INTERVAL
        if served == self._model_of and (known or not due):
            return
        if self._model_of is not None and served != self._model_of:
            self._looks.clear()  # what was seen so far belongs to the other model
        self._model = await asyncio.to_thread(
            ceiling_inputs.model_bytes, self._settings.engine, *served
        )
        self._model_of = served
        self._model_read_at = monotonic()

    def _engine_was_busy(self, at: float) -> bool | None:
        """Whether the engine had work that a GPU reading at `at` looks back on (any thread)."""
        reading = self._looks[-1].reading if self._looks else None
        fresh = 2 * self._settings.engine_metrics_interval
        if reading is not None and at - reading.at < fresh and _has_work(reading):
            return True
        return was_busy(at, self._traffic.generating, self._traffic.last_ended_at)

    # what follows from it

    def _judge(self, now: float) -> None:
        snapshot = gpu_figures.fresh(self._sampler.latest() if self._sampler else None, now)
        gpus = self._engine_gpus(snapshot, now)
        bandwidth = ceiling_inputs.bandwidth(self._settings.engine, gpus)
        looks, rates = self._since_first_look()
        decoded = merge([look.decoded for look in looks])
        window = self._window(decoded, rates)
        judged = self._efficiency(window, bandwidth)
        self.verdict = diagnose(
            self._evidence(window, judged, looks, decoded, rates, bandwidth, gpus, now)
        )
        self._publish(now, snapshot, bandwidth, window, judged, rates)

    def _since_first_look(self) -> tuple[list[_Look], EngineRates | None]:
        """The looks that the window is made of, and what the engine did over the same time.

        That is the time between the first and the last look at the engine's page where there are
        two, else all looks together.
        """
        looks = list(self._looks)
        told = [index for index, look in enumerate(looks) if look.reading is not None]
        if len(told) < 2:
            return looks[1:] or looks, None
        first, last = told[0], told[-1]
        earlier, later = looks[first].reading, looks[last].reading
        assert earlier is not None  # noqa: S101 - `told` holds only such
        assert later is not None  # noqa: S101
        return looks[first + 1 : last + 1], metrics_page.between(earlier, later)

    def _engine_gpus(self, snapshot: Snapshot | None, now: float) -> tuple[GpuReading, ...]:
        if snapshot is None:
            return ()
        used = {contention.gpu for contention in self._contention.latest(now)}
        return tuple(gpu for gpu in snapshot.gpus if gpu.index in used)

    def _window(self, decoded: Decoded, rates: EngineRates | None) -> Window | NotJudged:
        busy = decoded.busy_seconds
        per_step = self._tokens_per_step(rates)
        samples = [look.reading for look in self._looks if look.reading is not None]
        loaded = [reading for reading in samples if reading.running]
        sequences = decoded.sequence_seconds / busy if busy else 0.0
        if rates is not None and rates.steps_per_second_per_engine is not None:
            steps = rates.steps_per_second_per_engine * rates.seconds
            if not self._traffic_is_ours():
                # How long it was busy is only known when it always was.
                if len(loaded) < len(samples):
                    return NotJudged(
                        "the engine also serves requests that do not come through this proxy, and "
                        "was not busy all the time"
                    )
                busy = rates.seconds
            if loaded:
                sequences = sum(reading.running or 0 for reading in loaded) / len(loaded)
            return Window(
                steps=steps,
                busy_seconds=busy,
                steps_source="engine",
                sequences=sequences / (samples[-1].engines or 1) if samples else sequences,
                context_tokens=_context(loaded),
                context_tokens_at_most=decoded.context_tokens_at_most,
                tokens_per_step=per_step,
                prefill_share=_prefill(rates),
                context_tokens_at_least=decoded.context_tokens_at_least,
            )
        if self._events and self._tokens / self._events > _FEW_TOKENS_PER_EVENT:
            return NotJudged(
                f"events carry {self._tokens / self._events:.1f} tokens, and the engine does not "
                "tell whether that is one step (speculative decoding) or several"
            )
        if not decoded.event_seconds:
            return NotJudged("too little traffic: no stream was decoded")
        return Window(
            steps=decoded.sequence_events / decoded.event_seconds * busy,
            busy_seconds=busy,
            steps_source="streams",
            sequences=sequences,
            context_tokens=None,
            context_tokens_at_most=decoded.context_tokens_at_most,
            tokens_per_step=per_step,
            prefill_share=None,
            context_tokens_at_least=decoded.context_tokens_at_least,
        )

    def _traffic_is_ours(self) -> bool:
        """Whether the proxy's own requests account for those that the engine runs."""
        pairs = [
            (look.reading.running, look.own_sequences)
            for look in self._looks
            if look.reading is not None and look.reading.running is not None
        ]
        running = sum(theirs for theirs, _ in pairs)
        foreign = sum(max(0, theirs - ours) for theirs, ours in pairs)
        return foreign <= 0.1 * running

    def _tokens_per_step(self, rates: EngineRates | None) -> float | None:
        """Tokens that one sequence gains per step: by the engine, else by its events."""
        if rates is not None and rates.tokens_per_step is not None:
            return rates.tokens_per_step
        if self._events and self._tokens / self._events <= _FEW_TOKENS_PER_EVENT:
            return 1.0
        return None

    def _efficiency(
        self, window: Window | NotJudged, bandwidth: Bandwidth
    ) -> Efficiency | NotJudged:
        if isinstance(window, NotJudged):
            return window
        if self._served.among_several:
            return NotJudged(
                "the engine lists several models, and its answers do not tell which one it reads"
            )
        if self._model is None or not isinstance(self._model.weights, WeightsFound):
            unknown = self._model.weights if self._model is not None else None
            why = unknown.reason if isinstance(unknown, WeightsUnknown) else "not read yet"
            return NotJudged(f"the bytes of the weights are not known: {why}")
        reading = self._looks[-1].reading if self._looks else None
        if self._speculates(reading) and self._model.draft_unknown_because is not None:
            return NotJudged(f"it decodes speculatively, and {self._model.draft_unknown_because}")
        return efficiency_of(
            window, self._model.weights, self._model.kv, bandwidth.bytes_per_second,
            self._settings.engine.tensor_parallel_size,
        )  # fmt: skip

    def _publish(
        self, now: float, snapshot: Snapshot | None, bandwidth: Bandwidth,
        window: Window | NotJudged, judged: Efficiency | NotJudged, rates: EngineRates | None,
    ) -> None:  # fmt: skip
        base = self._served.base()
        model = base.id if base is not None else OTHER
        samples: dict[str, list[tuple[tuple[str, ...], float]]] = {}
        contentions = self._contention.latest(now)
        engine = self._settings.engine
        for name in _GPU_FIGURES if self._settings.nvml else ():
            samples[f"tokgauge_{name}"] = list(getattr(gpu_figures, name)(snapshot))
        samples["tokgauge_gpu_memory_bandwidth_bytes_per_second"] = list(
            gpu_figures.gpu_memory_bandwidth_bytes_per_second(
                snapshot,
                settings_value=engine.gpu_bandwidth,
                measured_value=engine.gpu_measured_bandwidth,
            )
        )
        for name in _CONTENTION_FIGURES:
            samples[f"tokgauge_{name}"] = list(getattr(gpu_figures, name)(contentions))
        samples["tokgauge_ceiling_tokens_per_second"] = self._ceilings(model, bandwidth)
        if isinstance(judged, Efficiency):
            labels = (model, judged.basis)
            if judged.ratio is not None:
                samples["tokgauge_memory_bandwidth_utilization_ratio"] = [(labels, judged.ratio)]
            samples["tokgauge_achieved_bandwidth_bytes_per_second"] = [(labels, judged.achieved)]
            theirs = self._estimated_bytes(rates, window)
            if theirs is not None:
                samples["tokgauge_engine_estimated_bandwidth_bytes_per_second"] = [
                    ((model,), theirs)
                ]
                samples["tokgauge_engine_to_computed_bandwidth_ratio"] = [
                    ((model,), theirs / judged.achieved)
                ]
        if self.verdict is not None:
            named = {cause.kind for cause in self.verdict.causes}
            samples["tokgauge_verdict"] = [
                ((model, level), float(level == self.verdict.level)) for level in LEVELS
            ]
            samples["tokgauge_verdict_cause"] = [
                ((model, kind), float(kind in named)) for kind in CAUSE_KINDS
            ]
        samples["tokgauge_model_info"] = self._model_info(model)
        figures = Figures(
            at=now,
            samples=samples,
            bandwidth=bandwidth.bytes_per_second,
            tokens_per_step=self._tokens_per_step(rates),
            verdict=asdict(self.verdict) if self.verdict is not None else None,
        )
        self._figures = figures
        self._publish_figures(figures)

    def _ceilings(self, model: str, bandwidth: Bandwidth) -> list[tuple[tuple[str, ...], float]]:
        if (
            self._model is None
            or self._served.among_several
            or not isinstance(self._model.weights, WeightsFound)
            or bandwidth.bytes_per_second is None
        ):
            return []
        found: list[tuple[tuple[str, ...], float]] = []
        bases: tuple[Basis, ...] = ("streamed", "checkpoint")
        for basis in bases:
            weight_bytes = self._model.weights.bytes_per_step(1.0, basis)
            if weight_bytes is not None:
                kv = self._model.kv if isinstance(self._model.kv, KvCache) else None
                rate = single_stream_ceiling(bandwidth.bytes_per_second, weight_bytes, kv)
                found.append(((model, basis), rate))
        return found

    def _estimated_bytes(
        self, rates: EngineRates | None, window: Window | NotJudged
    ) -> float | None:
        """The engine's own estimate of the bytes it reads per second of decoding, all GPUs."""
        if rates is None or isinstance(window, NotJudged) or not window.busy_seconds:
            return None
        per_gpu = rates.read_bytes_per_second_per_gpu
        if per_gpu is None:
            return None
        gpus = self._settings.engine.tensor_parallel_size
        return per_gpu * gpus * rates.seconds / window.busy_seconds

    def _model_info(self, model: str) -> list[tuple[tuple[str, ...], float]]:
        if self._model is None or self._served.among_several:
            return []
        weights, kv = self._model.weights, self._model.kv
        sources = (
            (weights.streamed_source or "", weights.checkpoint_source or "")
            if isinstance(weights, WeightsFound)
            else ("", "")
        )
        base = self._served.base()
        root = (base.root or "") if base is not None else ""
        return [((model, root, *sources, kv.source if isinstance(kv, KvCache) else ""), 1.0)]

    def _evidence(
        self, window: Window | NotJudged, judged: Efficiency | NotJudged, looks: list[_Look],
        decoded: Decoded, rates: EngineRates | None, bandwidth: Bandwidth,
        gpus: tuple[GpuReading, ...], now: float,
    ) -> Evidence:  # fmt: skip
        reading = self._looks[-1].reading
        worst_gpu = _most_throttled(gpus)
        contentions = self._contention.latest(now)
        known = [item for item in contentions if item.neighbours_known]
        neighbours = [neighbour for item in known for neighbour in item.neighbours]
        tables = [_other_source_ratio(gpu) for gpu in gpus]
        has_ratio = isinstance(judged, Efficiency) and judged.ratio is not None
        read_ratio = self._estimated_bytes(rates, window)
        ended = answers.merge([look.answers for look in looks])
        return Evidence(
            efficiency=judged.ratio if isinstance(judged, Efficiency) else None,
            checkpoint_efficiency=(
                judged.checkpoint_ratio if isinstance(judged, Efficiency) else None
            ),
            efficiency_unknown_because=(
                judged.reason if isinstance(judged, NotJudged) else bandwidth.explanation
            ),
            basis=judged.basis if isinstance(judged, Efficiency) else None,
            steps_source=window.steps_source if isinstance(window, Window) else None,
            request_ratio=ended.ratios.median(),
            tokens_per_second=_while_busy(rates, window),
            sequence_tokens_per_second=_of_one_sequence(window),
            decoded_tokens=_decoded_tokens(decoded, rates),
            window_seconds=decoded.seconds,
            busy_ratio=decoded.busy_seconds / decoded.seconds if decoded.seconds else None,
            enough_traffic=None if has_ratio or not _lacks_traffic(judged) else False,
            mean_batch=window.sequences if isinstance(window, Window) else None,
            ridge_batch=self._ridge(judged, bandwidth, reading),
            prefill_share=window.prefill_share if isinstance(window, Window) else None,
            contention=worst([item.state for item in contentions]),
            neighbours=len(neighbours) if known else None,
            neighbour_memory_bytes=_sum([item.memory_bytes for item in neighbours])
            if known
            else None,
            neighbour_sm_ratio=_sum([item.sm_ratio for item in neighbours]) if known else None,
            gpu_utilization=_lowest([gpu.utilization_ratio for gpu in gpus]),
            memory_clock_mhz=worst_gpu.memory_clock_mhz if worst_gpu is not None else None,
            max_memory_clock_mhz=worst_gpu.max_memory_clock_mhz if worst_gpu is not None else None,
            throttle_reasons=worst_gpu.throttle_reasons if worst_gpu is not None else None,
            power_watts=worst_gpu.power_watts if worst_gpu is not None else None,
            waiting=reading.waiting if reading is not None else None,
            kv_cache_usage=reading.kv_cache_usage if reading is not None else None,
            preemptions_per_second=rates.preemptions_per_second if rates is not None else None,
            speculative=self._speculates(reading),
            tokens_per_step=self._tokens_per_step(rates),
            engine_read_ratio=(
                read_ratio / judged.achieved
                if read_ratio is not None and isinstance(judged, Efficiency)
                else None
            ),
            bandwidth_ratio=next((ratio for ratio in tables if ratio is not None), None),
            measured_ratio=_lowest([gpu.dram_bandwidth_ratio for gpu in gpus]),
            unstreamed_ratio=ended.unstreamed_ratio,
            silent_wait_seconds=ended.waits.median(),
            truncated_ratio=ended.truncated_ratio,
        )

    def _ridge(
        self, judged: Efficiency | NotJudged, bandwidth: Bandwidth, reading: EngineReading | None
    ) -> float | None:
        """The batch from which on computing is the limit, with weights and contexts as they are."""
        if isinstance(judged, NotJudged) or bandwidth.bytes_per_second is None:
            return None
        if self._speculates(reading):
            return None  # drafts are computed as well, and nobody tells how many
        return ceiling_inputs.compute_ridge(
            self._settings.engine, bandwidth.bytes_per_second, judged.weight_bytes,
            judged.kv_bytes_per_sequence,
        )  # fmt: skip

    def _speculates(self, reading: EngineReading | None) -> bool | None:
        if reading is not None and reading.spec_drafts_total is not None:
            return reading.spec_drafts_total > 0
        if self._events and self._tokens / self._events <= _FEW_TOKENS_PER_EVENT:
            return False
        return None


_GPU_FIGURES = (
    "nvml_up", "nvml_errors_total", "gpu_info", "gpu_utilization_ratio", "gpu_memory_used_bytes",
    "gpu_memory_total_bytes", "gpu_power_watts", "gpu_dram_bandwidth_ratio", "gpu_throttle",
)  # fmt: skip

_CONTENTION_FIGURES = (
    "gpu_contention", "gpu_neighbour_processes", "gpu_neighbour_memory_bytes",
    "gpu_neighbour_sm_ratio",
)  # fmt: skip


def _has_work(reading: EngineReading) -> bool:
    return (reading.running or 0) + (reading.waiting or 0) > 0


def _context(loaded: list[EngineReading]) -> float | None:
    """Tokens of context of all sequences that one step serves, mean over the readings."""
    told = [
        reading.context_tokens_per_engine
        for reading in loaded
        if reading.context_tokens_per_engine is not None
    ]
    return sum(told) / len(told) if told else None


def _prefill(rates: EngineRates) -> float | None:
    """About which share of the steps' time went into prompt tokens."""
    per_iteration, share = rates.tokens_per_iteration, rates.prefill_token_share
    if per_iteration is None or share is None:
        return None
    return prefill_share(per_iteration * share)


def _decoded_tokens(decoded: Decoded, rates: EngineRates | None) -> int:
    """Tokens of the window: by the engine, which also counts what is not streamed, else events."""
    if rates is not None and rates.generation_tokens_per_second is not None:
        return round(rates.generation_tokens_per_second * rates.seconds)
    return round(decoded.sequence_events)


def _while_busy(rates: EngineRates | None, window: Window | NotJudged) -> float | None:
    """Tokens per second of all sequences, pauses left out."""
    if rates is None or rates.generation_tokens_per_second is None:
        return None
    if isinstance(window, NotJudged) or not window.busy_seconds:
        return None
    return rates.generation_tokens_per_second * rates.seconds / window.busy_seconds


def _of_one_sequence(window: Window | NotJudged) -> float | None:
    """Tokens per second of one sequence: it gains so many in each step of its engine.

    How many sequences run is only sampled, so it is not the tokens of all divided by that.
    """
    if isinstance(window, NotJudged) or window.tokens_per_step is None or not window.busy_seconds:
        return None
    return window.steps / window.busy_seconds * window.tokens_per_step


def _lacks_traffic(judged: Efficiency | NotJudged) -> bool:
    return isinstance(judged, NotJudged) and judged.reason.startswith("too little traffic")


def _most_throttled(gpus: tuple[GpuReading, ...]) -> GpuReading | None:
    """The GPU whose memory clock is furthest below its maximum: a step waits for the slowest."""

    def share(gpu: GpuReading) -> float:
        if not gpu.memory_clock_mhz or not gpu.max_memory_clock_mhz:
            return 1.0
        return gpu.memory_clock_mhz / gpu.max_memory_clock_mhz

    return min(gpus, key=share, default=None)


def _lowest(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return min(known) if known and len(known) == len(values) else None


def _sum(values: list[int | None] | list[float | None]) -> Any:
    """The sum, None when any part is unknown: a partial sum is no sum."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _other_source_ratio(gpu: GpuReading) -> float | None:
    """NVML's bandwidth ÷ that of the card table, where both are known."""
    by_formula, in_use = nvml_bandwidth(gpu), gpu_bandwidth(gpu)
    if by_formula is None or in_use.bytes_per_second is None or in_use.source != "catalogue":
        return None
    return by_formula / in_use.bytes_per_second
