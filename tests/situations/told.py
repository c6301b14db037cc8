"""What the product is told of a hidden engine, in the product's own terms.

Only what a user of a real engine could know: makers' figures, the model's files, NVML, streams.
"""

from tokgauge.diagnosis.causes import POWER_CAP
from tokgauge.diagnosis.inputs import ModelBytes
from tokgauge.gpu.catalogue import Card, load_catalogue
from tokgauge.gpu.readings import GpuProcess, GpuReading
from tokgauge.measure.record import Progress, Record
from tokgauge.model.kv import kv_from_bytes_per_token
from tokgauge.model.weights import Draft, Streamed, WeightsFound

from tests.physics.engine import Gpu
from tests.physics.requests import Request
from tests.physics.truth import Published


def model_bytes(known: Published) -> ModelBytes:
    """As the files of the checkpoint would tell it."""
    draft = None
    if known.draft_tokens:
        passes = known.draft_tokens if known.draft_bytes else 0
        draft = Draft(Streamed(known.draft_bytes), passes, known.draft_tokens + 1)
    streamed = Streamed(
        known.dense_bytes,
        expert_bytes=known.expert_bytes,
        experts=known.experts,
        experts_per_token=known.experts_per_token,
        parameters=known.parameters_per_token,
        speedup=2.0 if known.precision == "fp8" else 1.0,
        layers=known.layers,
        dequantised=known.precision != "bf16",
        draft=draft,
    )
    weights = WeightsFound(streamed, "safetensors:/hidden", None, None)
    return ModelBytes(weights, kv_from_bytes_per_token(known.kv_bytes_per_token), None)


def reading(card_name: str, gpu: Gpu, *, bystanders: bool) -> GpuReading:
    """One look of NVML. bystanders: see `Serving`."""
    card = next(card for card in load_catalogue() if card.name == card_name)
    taken = min(0.95, sum(gpu.neighbours))
    own = min(1.0, gpu.kernels / (1 - taken))
    engine = GpuProcess(100, "VLLM::EngineCore", 1 << 34, own * (1 - taken))
    others = [
        GpuProcess(200 + i, "python3", 1 << 30, share) for i, share in enumerate(gpu.neighbours)
    ]
    if bystanders:
        others.append(GpuProcess(300, "jupyter", 1 << 30, 0.0))
    full = card.max_memory_clock_mhz
    return GpuReading(
        index=0,
        uuid="GPU-0",
        name=card.name,
        memory_total_bytes=_total(card),
        memory_used_bytes=(1 << 34) + len(others) * (1 << 30),
        utilization_ratio=1 - (1 - own) * (1 - taken),
        memory_clock_mhz=round(full * gpu.memory_clock) if full else None,
        max_memory_clock_mhz=full,
        memory_bus_bits=card.bus_bits,
        throttle_reasons=frozenset({POWER_CAP} if bystanders else ()),
        processes=(engine, *others),
        mig=False,
    )


def _total(card: Card) -> int | None:
    return int(card.memory_gb * 0.98 * 1024**3) if card.bus_bits else None


def progress(request: Request, now: float) -> Progress:
    """As a relay tells it of a stream at `now`."""
    first = request.first_event_at
    began = first is not None and first <= now
    size = request.prompt_tokens
    return Progress(
        id=str(id(request)),
        opened_at=request.sent_at,
        requested="sim",
        answered="sim" if began else None,
        generates=True,
        streamed=began,
        decodes_from=first if began else None,
        decoded_to=request.finished_at,
        token_events=request.events if began else 0,
        silent_since=None,
        sequences=1,
        context_at_most=4.0 * size + request.max_tokens,
        context_at_least=0.0,
        calls_tools=False,
    )


def record(request: Request) -> Record:
    """As a relay tells it of a stream that has ended."""
    first, ended = request.first_event_at, request.finished_at
    assert first is not None and ended is not None  # noqa: PT018
    tokens, events = request.completion_tokens, request.events
    per_token = (ended - first) / (tokens - 1) if tokens > 15 else None
    return Record(
        progress=progress(request, ended),
        ended_at=ended,
        id=str(id(request)),
        method="POST",
        route="chat",
        stream=True,
        status=200,
        outcome="ok",
        retried=False,
        duration=ended - request.sent_at,
        time_to_first_token=first - request.sent_at,
        time_to_first_output=first - request.sent_at,
        silent_wait=first - request.sent_at,
        overhead=0.001,
        prompt_tokens=request.prompt_tokens,
        cached_prompt_tokens=request.cached_tokens,
        completion_tokens=tokens,
        reasoning_tokens=None,
        token_source="usage",
        token_events=events,
        tokens_per_event=tokens / events,
        sequences=1,
        time_per_output_token=per_token,
        decode_tokens_per_second=1 / per_token if per_token else None,
        gaps=(),
        gaps_total=0.0,
        alone=None,
        finish_reasons=("length",),
        truncations=("request",),
        terminated=True,
        unread=(),
    )
