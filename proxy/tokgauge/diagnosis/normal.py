"""What would be normal for the work that was seen: its expected time beside the time it took."""

from __future__ import annotations

from tokgauge.diagnosis.efficiency import StepBytes
from tokgauge.diagnosis.expected_time import Constants, Costs, Interval, Normal, SlowPart, StepWork
from tokgauge.diagnosis.inputs import Inputs, ModelBytes
from tokgauge.diagnosis.typical import Setup, eager_fixed, typical
from tokgauge.diagnosis.work import Work
from tokgauge.gpu.catalogue import MemoryKind
from tokgauge.model.ceiling import ComputeRoof
from tokgauge.model.weights import Streamed, WeightsFound

_BITS_AT_LEAST, _BITS_AT_MOST = 4, 16
"""Of a weight, where its type is not told."""


def normal_of(inputs: Inputs, work: Work, step: StepBytes) -> Normal | None:
    """None without a bandwidth, or where prompts were computed and nothing tells how fast."""
    bandwidth = inputs.bandwidth.bytes_per_second
    setup = setup_of(inputs, step)
    if bandwidth is None or setup is None or work.busy_seconds <= 0:
        return None
    ends = works(inputs, work, step)
    costs = costs_of(inputs, setup, prompts=ends[1].prompt_tokens > 0)
    shortest, longest = (costs.expected(end) for end in ends)
    if shortest is None or longest is None:
        return None
    return Normal(
        expected=Interval(shortest.low, longest.high + work.uncounted),
        seconds=work.working_seconds,
        ideal=ends[0].ideal_seconds(bandwidth),
        source=costs.constants.source,
        prefill_share=_prefill_share(costs.constants, ends, longest.middle),
        slow_parts=_slow_parts(inputs.fitted, costs.constants),
        like_eager=inputs.fitted is not None and _like_eager(inputs.fitted, setup),
    )


def costs_of(inputs: Inputs, setup: Setup, *, prompts: bool) -> Costs:
    """What a step should cost: as calibrated, unless that tells nothing of the prompts."""
    calibrated = inputs.calibrated
    if calibrated is None or (prompts and calibrated.constants.prefill is None):
        return typical(setup)
    return calibrated


def setup_of(inputs: Inputs, step: StepBytes) -> Setup | None:
    """Card, model and engine as far as they are known; None without a bandwidth."""
    bandwidth = inputs.bandwidth
    if bandwidth.bytes_per_second is None:
        return None
    return setup_for(
        bandwidth.bytes_per_second,
        _streamed(inputs.model),
        step.weights[step.basis],
        measured=bandwidth.source == "measured",
        memory=bandwidth.card.memory_kind if bandwidth.card is not None else None,
        roof=inputs.roof,
        tensor_parallel=inputs.tensor_parallel,
    )


def setup_for(
    bandwidth: float, streamed: Streamed | None, weight_bytes: float, *, measured: bool = False,
    memory: MemoryKind | None, roof: ComputeRoof | None, tensor_parallel: int,
) -> Setup:  # fmt: skip
    """The same from its parts; weight_bytes: that a step reads."""
    return Setup(
        bandwidth=bandwidth,
        measured=measured,
        memory=memory,
        layers=streamed.layers if streamed is not None else None,
        dequantised=streamed.dequantised if streamed is not None else None,
        experts=streamed is not None and streamed.experts > 0,
        speedup=streamed.speedup if streamed is not None else 1.0,
        parameters=_parameters(streamed, weight_bytes),
        roof=roof,
        tensor_parallel=tensor_parallel,
        draft_passes=streamed.draft.passes if streamed is not None and streamed.draft else 0,
    )


def _streamed(model: ModelBytes | None) -> Streamed | None:
    if model is None or not isinstance(model.weights, WeightsFound):
        return None
    return model.weights.streamed


def _parameters(streamed: Streamed | None, weight_bytes: float) -> Interval:
    """That a token is multiplied with; by the bytes of a step where nothing else tells."""
    if streamed is not None and streamed.parameters is not None:
        return Interval(streamed.parameters, streamed.parameters)
    bits = 8 * weight_bytes
    return Interval(bits / _BITS_AT_MOST, bits / _BITS_AT_LEAST)


def works(inputs: Inputs, work: Work, step: StepBytes) -> tuple[StepWork, StepWork]:
    """The work with the fewest and with the most prompt tokens that it may hold."""
    shape = work.shape
    sequences = work.steps * max(1.0, shape.sequences)
    verified = inputs.model.verified if inputs.model is not None else None
    prompts = work.prompt_tokens or Interval(0.0, 0.0)

    def with_prompts(tokens: float) -> StepWork:
        return StepWork(
            steps=work.steps,
            bytes=work.steps * step.total(),
            sequence_steps=sequences,
            prompt_tokens=tokens,
            prompts=work.prompts,
            decoded_tokens=sequences * (verified or shape.tokens_per_step or 1.0),
        )

    return with_prompts(prompts.low), with_prompts(prompts.high)


def _prefill_share(
    constants: Constants, ends: tuple[StepWork, StepWork], expected: float
) -> float | None:
    """About which share of the expected time goes into prompts."""
    if not ends[1].prompt_tokens:
        return 0.0
    if constants.prefill is None:
        return None
    return ends[1].prompt_tokens / constants.prefill.middle / expected


def _slow_parts(fitted: Costs | None, usual: Constants) -> frozenset[SlowPart] | None:
    if fitted is None:
        return None
    here = fitted.constants
    slow: set[SlowPart] = set()
    if here.bandwidth.high < usual.bandwidth.low:
        slow.add("card")
    if here.fixed.low > usual.fixed.high or here.per_sequence.low > usual.per_sequence.high:
        slow.add("engine")
    if here.prefill and usual.prefill and here.prefill.high < usual.prefill.low:
        slow.add("prefill")
    return frozenset(slow)


def _like_eager(fitted: Costs, setup: Setup) -> bool:
    fixed = fitted.constants.fixed
    return not fixed.meets(typical(setup).fixed) and fixed.meets(eager_fixed(setup))
