"""Records under OpenTelemetry's GenAI names, through its SDK (the extra `otel`).

Names, units, attributes and bucket boundaries: OpenTelemetry semantic conventions, "GenAI server
metrics". Where they go is told to the SDK by its own variables (OTEL_EXPORTER_OTLP_ENDPOINT, …).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokgauge import __version__
from tokgauge.measure.record import Record

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider

_OPERATIONS = {
    "chat_completions": "chat",
    "responses": "chat",
    "messages": "chat",
    "completions": "text_completion",
    "embeddings": "embeddings",
}

_DURATION = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
)  # fmt: skip
_FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
_OUTPUT_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)


def check_extra() -> None:
    """Raises OSError when the extra is not installed."""
    try:
        import opentelemetry.exporter.otlp.proto.http.metric_exporter
        import opentelemetry.sdk.metrics  # noqa: F401
    except ImportError as error:
        what = "otel is set, but its extra is missing: pip install 'tokgauge[otel]'"
        raise OSError(what) from error


def exporting_provider() -> MeterProvider:
    """A meter provider that sends to an OTLP collector from a thread of its own."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource

    resource = Resource.create({"service.name": "tokgauge", "service.version": __version__})
    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    return MeterProvider([reader], resource=resource)


class Telemetry:
    """Records measurements as `gen_ai.server.*` histograms of `provider`."""

    def __init__(self, provider: MeterProvider) -> None:
        self._provider = provider
        meter = provider.get_meter("tokgauge", __version__)
        self._duration = meter.create_histogram(
            "gen_ai.server.request.duration",
            "s",
            "Generative AI server request duration such as time-to-last byte or last output token.",
            explicit_bucket_boundaries_advisory=_DURATION,
        )
        self._first_token = meter.create_histogram(
            "gen_ai.server.time_to_first_token",
            "s",
            "Time to generate first token for successful responses.",
            explicit_bucket_boundaries_advisory=_FIRST_TOKEN,
        )
        self._output_token = meter.create_histogram(
            "gen_ai.server.time_per_output_token",
            "s",
            "Time per output token generated after the first token for successful responses.",
            explicit_bucket_boundaries_advisory=_OUTPUT_TOKEN,
        )

    def record(self, done: Record, model: str) -> None:
        """Record one exchange under the model's label; what does not generate is passed over."""
        operation = _OPERATIONS.get(done.route)
        if operation is None:
            return
        attributes = {"gen_ai.operation.name": operation, "gen_ai.request.model": model}
        if done.outcome != "ok":
            attributes["error.type"] = done.outcome
        self._duration.record(done.duration, attributes)
        if done.outcome != "ok":
            return
        if done.time_to_first_token is not None:
            self._first_token.record(done.time_to_first_token, attributes)
        if done.time_per_output_token is not None:
            self._output_token.record(done.time_per_output_token, attributes)

    def close(self) -> None:
        """Send what is left and stop."""
        self._provider.shutdown()
