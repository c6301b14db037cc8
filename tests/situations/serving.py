"""What `serve` does with a hidden engine, in virtual time: a look every two seconds.

The order of things is the monitor's; all that is judged is judged by the product's own parts.
"""

from tokgauge.diagnosis import ceiling_inputs
from tokgauge.diagnosis.assess import Assessment, assess
from tokgauge.diagnosis.conditions import Conditions, conditions
from tokgauge.diagnosis.fit import Fitted
from tokgauge.diagnosis.inputs import Inputs
from tokgauge.diagnosis.live_fit import LiveFit
from tokgauge.diagnosis.traffic_window import TrafficWindow
from tokgauge.engine.metrics_page import read
from tokgauge.gpu.bandwidth import engine_bandwidth
from tokgauge.gpu.contention import EngineOnGpu, judge_snapshot, worst
from tokgauge.gpu.readings import Snapshot
from tokgauge.settings import Settings

from tests.physics.engine import Engine
from tests.physics.requests import Request
from tests.situations import told

_DEFAULTS = Settings(upstream="http://127.0.0.1:1")
INTERVAL = _DEFAULTS.engine_metrics_interval
WINDOW = _DEFAULTS.rate_window


class Serving:
    """gpu_bandwidth: as set by a user [bytes/s]; None: by the table of cards.

    bystanders: a process that only holds memory, and a power cap that leaves the memory alone.
    """

    def __init__(
        self, engine: Engine, *, gpu_bandwidth: float | None = None, bystanders: bool = False
    ) -> None:
        self._engine = engine
        self._set = gpu_bandwidth
        self._bystanders = bystanders
        self._model = told.model_bytes(engine.truth.published)
        self._window = TrafficWindow(WINDOW, engine.time)
        self._live_fit = LiveFit()
        self._conditions = Conditions(None, None, None)
        self._known = 0
        self._open: list[Request] = []

    def look(self) -> Assessment:
        """One look at everything, at the engine's time."""
        engine, now = self._engine, self._engine.time
        running = self._running(now)
        page = read(engine.page(), now)
        self._window.look(now, [told.progress(r, now) for r in running], page, len(running))
        gpu = told.reading(engine.truth.card.name, engine.gpu(), bystanders=self._bystanders)
        contentions = judge_snapshot(Snapshot(now, True, (gpu,)), EngineOnGpu(), bool(running))
        contention = worst([found.state for found in contentions])
        seen = conditions(page, contention, (gpu,))
        if seen.differ(self._conditions):
            self._window.split()
        self._conditions = seen.since(self._conditions)
        bandwidth = engine_bandwidth((gpu,), settings_value=self._set)
        fitted = self._live_fit.fitted()
        assessment = assess(
            Inputs(
                bandwidth=bandwidth,
                model=self._model,
                roof=ceiling_inputs.compute_roof(bandwidth.card, self._model.streamed, 1),
                fitted=fitted if isinstance(fitted, Fitted) else None,
                seen=self._window.seen(),
                gpus=(gpu,),
                contention=contention,
                contentions=contentions,
            )
        )
        if assessment.observed is not None:
            key = (self._conditions, "sim")
            self._live_fit.add(now, assessment.observed, key, bandwidth.bytes_per_second)
        return assessment

    def _running(self, now: float) -> list[Request]:
        """What runs; what has ended is told."""
        new = self._engine.requests[self._known :]
        self._known += len(new)
        running, self._open = [], [*self._open, *new]
        open_still = []
        for request in self._open:
            if request.sent_at <= now and not _has_ended(request, now):
                running.append(request)
            if _has_ended(request, now):
                self._window.ended(told.record(request))
            else:
                open_still.append(request)
        self._open = open_still
        return running


def _has_ended(request: Request, now: float) -> bool:
    return request.finished_at is not None and request.finished_at <= now
