"""Every few seconds: collects what is known of the engine and its GPUs, assesses, publishes.

Runs in the analyst. Holds no formula of its own: `assess` has them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from time import monotonic

import msgspec

from tokgauge.diagnosis import ceiling_inputs
from tokgauge.diagnosis.assess import assess
from tokgauge.diagnosis.calibration_file import Entry, holds_for
from tokgauge.diagnosis.calibrations import Calibrations
from tokgauge.diagnosis.conditions import Conditions, conditions
from tokgauge.diagnosis.efficiency import request_ratio
from tokgauge.diagnosis.engine_gpus import EngineGpus, GpusNow
from tokgauge.diagnosis.expected_time import Costs
from tokgauge.diagnosis.figures import Figures
from tokgauge.diagnosis.fit import Fitted
from tokgauge.diagnosis.inputs import Inputs
from tokgauge.diagnosis.lately import WINDOWS, Lately
from tokgauge.diagnosis.live_fit import LiveFit
from tokgauge.diagnosis.model_files import ModelFiles
from tokgauge.diagnosis.publishing import figures_of, three_answers
from tokgauge.diagnosis.three_answers import OnShow
from tokgauge.diagnosis.traffic import Traffic
from tokgauge.diagnosis.traffic_window import TrafficWindow
from tokgauge.diagnosis.verdict_log import VerdictLog
from tokgauge.engine.facts import EngineFacts, ServedNow
from tokgauge.engine.metrics_page import EngineReading
from tokgauge.engine.poll import EnginePoll
from tokgauge.gpu.contention import State, was_busy, worst
from tokgauge.measure.record import Progress, Record
from tokgauge.settings import Settings

_LATELY = 10.0
"""Seconds for which a neighbour that computed counts as active: many compute in bursts, and each
of them would be a new time, too short to judge."""


class Monitor:
    """The figures of the engine as a whole.

    traffic: what runs. calibrations: of the file that is named in the settings. publish: takes each
    new set of figures. report: is told where something failed, and what; in any thread, and never
    raises.
    """

    def __init__(
        self, settings: Settings, facts: EngineFacts, traffic: Traffic,
        calibrations: Sequence[Entry],
        publish: Callable[[Figures], None], report: Callable[[str, Exception], None],
    ) -> None:  # fmt: skip
        self._settings = settings
        self._traffic = traffic
        self._publish = publish
        self._figures: Figures | None = None
        self._conditions = Conditions(None, None, None)
        self._window = TrafficWindow(settings.rate_window, monotonic())
        self._lately = Lately(WINDOWS * settings.rate_window)
        self._on_show = OnShow()
        self._log = VerdictLog()
        self._facts = facts
        self._calibrations = Calibrations(calibrations)
        self._live_fit = LiveFit()
        self._served = ServedNow(facts, settings.rate_window)
        self._files = ModelFiles(settings.engine)
        self._gpus = EngineGpus(settings.engine, self._engine_was_busy, partial(report, "gpu"))

    def pause(self) -> float:
        """Seconds until the next look."""
        return self._settings.engine_metrics_interval

    def close(self) -> None:
        """The last look has been taken."""
        self._gpus.stop()

    def ended(self, record: Record) -> None:
        """An exchange has ended."""
        if record.progress.generates and record.completion_tokens:
            self._served.answered(record.progress.answered, record.ended_at)
        self._window.ended(record)
        self._lately.ended(record)

    def complete(self, record: Record) -> Record:
        """Add to a record what only the look at the GPU tells."""
        figures = self._figures
        if figures is None or not figures.is_fresh(monotonic()):
            return record
        contention = self._gpus.contention_during(
            record.ended_at - record.duration, record.ended_at
        )
        ratio = self._request_ratio(record, figures)
        if ratio is not None and not self._served.reads(record.progress.answered):
            ratio = None
        if contention is None and ratio is None:
            return record
        return msgspec.structs.replace(record, contention=contention, ceiling_ratio=ratio)

    def _request_ratio(self, done: Record, figures: Figures) -> float | None:
        model, rate = self._files.found, done.decode_tokens_per_second
        if (
            rate is None
            or figures.bandwidth is None
            or figures.tokens_per_step is None
            or done.prompt_tokens is None
            or done.completion_tokens is None
            or model is None
            or (done.route == "completions" and done.sequences > 1)  # prompts, or choices of one?
        ):
            return None
        context = done.prompt_tokens + done.completion_tokens / done.sequences / 2
        return request_ratio(
            rate, figures.tokens_per_step, model, figures.bandwidth, context,
            self._settings.engine.tensor_parallel_size,
        )  # fmt: skip

    async def look(self, poll: EnginePoll, refresh: Callable[[], Awaitable[None]]) -> None:
        """One look at everything. refresh: brings `traffic` up to now. Raises what fails."""
        if self._settings.nvml:
            self._gpus.start()
        await refresh()
        own = self._own_sequences()
        reading = await poll.metrics()
        await refresh()
        # A request that began or ended while the page was on its way may be on it.
        own = max(own, self._own_sequences())
        now = monotonic()
        running = list(self._traffic.running)
        for exchange in running:
            if exchange.token_events:
                self._served.answered(exchange.answered, now)
            if exchange.silent_since is not None:
                # Who sends tokens is up, even if it was too busy for a question.
                self._facts.reached(True, exchange.silent_since)
        self._window.look(now, running, reading, own)
        if await self._files.look(self._served, reading):
            self._window.forget()
            self._on_show.forget_speed()
            return
        now = monotonic()
        gpus = self._gpus.now(now)
        contention = self._contention(gpus, now)
        self._keep_apart(conditions(reading, contention, gpus.of_engine))
        base = self._served.base()
        several = self._served.among_several
        assessment = assess(self._inputs(gpus, contention, running, now))
        if assessment.observed is not None:
            key = (self._conditions, base.id if base is not None else None)
            self._live_fit.add(now, assessment.observed, key, assessment.bandwidth.bytes_per_second)
        shown = self._on_show.show(three_answers(assessment), now)
        self._log.note(shown)
        self._figures = figures_of(
            assessment, shown, now, gpus=gpus, engine=self._settings.engine,
            nvml=self._settings.nvml, served=base, model=None if several else self._files.found,
        )  # fmt: skip
        self._publish(self._figures)

    def _keep_apart(self, now: Conditions) -> None:
        """A window holds one state of the engine and its GPUs, never a mixture of two."""
        if now.differ(self._conditions):
            self._window.split()
        self._conditions = now.since(self._conditions)

    def _contention(self, gpus: GpusNow, now: float) -> State:
        """That of now, or that somebody computed lately."""
        if self._gpus.contention_during(now - _LATELY, now) == "active_neighbours":
            return "active_neighbours"
        return worst([item.state for item in gpus.contentions])

    def _inputs(
        self, gpus: GpusNow, contention: State, running: list[Progress], now: float
    ) -> Inputs:
        engine = self._settings.engine
        bandwidth = ceiling_inputs.bandwidth(engine, gpus.of_engine)
        fitted = self._live_fit.fitted()
        return Inputs(
            bandwidth=bandwidth,
            model=self._files.found,
            several_models=self._served.among_several,
            tensor_parallel=engine.tensor_parallel_size,
            roof=ceiling_inputs.compute_roof(
                bandwidth.card,
                self._files.found.streamed if self._files.found is not None else None,
                engine.tensor_parallel_size,
                flops=engine.gpu_flops,
                parameters=engine.matmul_parameters,
            ),
            calibrated=self._calibrated(gpus),
            fitted=fitted if isinstance(fitted, Fitted) else None,
            seen=self._window.seen(),
            gpus=gpus.of_engine,
            contention=contention,
            contentions=gpus.contentions,
            lately=self._lately.seen(now),
            unanswered=tuple(_unanswered(running, now)),
            down=self._facts.down,
        )

    def _calibrated(self, gpus: GpusNow) -> Costs | None:
        engine, base, found = self._settings.engine, self._served.base(), self._files.found
        if base is None or found is None:
            return None
        card = gpus.of_engine[0].name if gpus.of_engine else engine.gpu
        kind, version = self._facts.kind, self._facts.version
        return self._calibrations.of(holds_for(engine, base, found, kind, version, card))

    def _own_sequences(self) -> int:
        return sum(exchange.sequences for exchange in self._traffic.running if exchange.generates)

    def _engine_was_busy(self, at: float) -> bool | None:
        """Whether the engine had work that a GPU reading at `at` looks back on (any thread)."""
        reading = self._window.last_reading
        fresh = 2 * self._settings.engine_metrics_interval
        if reading is not None and at - reading.at < fresh and _has_work(reading):
            return True
        return was_busy(at, self._traffic.generating, self._traffic.last_ended_at)


def _unanswered(running: Iterable[Progress], now: float) -> Iterator[float]:
    """How long those have waited that have no token yet and will see it when it comes [s]."""
    for exchange in running:
        # Before the name of its model is known, its client is still sending the request.
        is_asked = exchange.generates and exchange.requested is not None
        if is_asked and exchange.decodes_from is None:
            yield now - exchange.opened_at


def _has_work(reading: EngineReading) -> bool:
    return (reading.running or 0) + (reading.waiting or 0) > 0
