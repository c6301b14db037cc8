"""What would be normal for the work that was seen: its expected time beside the time it took."""

from __future__ import annotations

from dataclasses import replace

from tokgauge.diagnosis.efficiency import StepBytes
from tokgauge.diagnosis.evidence import ALWAYS_BUSY
from tokgauge.diagnosis.expected_time import Constants, Costs, Interval, Normal, SlowPart, StepWork
from tokgauge.diagnosis.inputs import Inputs, WindowSeen
from tokgauge.diagnosis.other_bandwidth import other_bandwidth_ratio
from tokgauge.diagnosis.typical import Setup, eager_fixed, typical
from tokgauge.diagnosis.work import Work
from tokgauge.gpu.catalogue import MemoryKind
from tokgauge.model.ceiling import ComputeRoof
from tokgauge.model.weights import Streamed

_FEW, _MOST = 0.25, 0.5
"""Share of the expected time up to which a window is about decoding, and from which on about
prompts; how fast they are computed is known to a factor of three only."""

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
    normal = Normal(
        expected=Interval(shortest.low, longest.high + work.uncounted),
        seconds=work.working_seconds,
        ideal=ends[0].ideal_seconds(bandwidth),
        source=costs.constants.source,
        prefill_share=_prefill_share(costs.constants, ends, longest.middle),
    )
    return replace(
        normal,
        slow_parts=_slow_parts(inputs, setup, costs.constants, ends[1], normal),
        normal_by_the_other_bandwidth=_is_normal_by_the_other(inputs, setup, work, ends[1]),
        like_eager=inputs.fitted is not None and _like_eager(inputs.fitted, setup),
    )


def costs_of(inputs: Inputs, setup: Setup, *, prompts: bool) -> Costs:
    """What a step should cost: as calibrated, unless that tells nothing of the prompts."""
    calibrated = inputs.calibrated
    if calibrated is None or (prompts and calibrated.constants.prefill is None):
        return typical(setup)
    return calibrated


def _is_normal_by_the_other(inputs: Inputs, setup: Setup, work: Work, most: StepWork) -> bool:
    """Whether another source of the bandwidth makes the same time a normal one."""
    ratio = other_bandwidth_ratio(inputs)
    if ratio is None or inputs.calibrated is not None:
        return False
    longest = typical(replace(setup, bandwidth=setup.bandwidth * ratio)).expected(most)
    return longest is not None and work.working_seconds <= longest.high + work.uncounted


def setup_of(inputs: Inputs, step: StepBytes) -> Setup | None:
    """Card, model and engine as far as they are known; None without a bandwidth."""
    bandwidth = inputs.bandwidth
    if bandwidth.bytes_per_second is None:
        return None
    return setup_for(
        bandwidth.bytes_per_second,
        inputs.model.streamed if inputs.model is not None else None,
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


def _slow_parts(
    inputs: Inputs, setup: Setup, usual: Constants, work: StepWork, normal: Normal
) -> frozenset[SlowPart] | None:
    if inputs.fitted is not None:
        return _by_the_fit(inputs.fitted.constants, usual)
    return _by_the_resting_gpu(inputs, setup, usual, work, normal)


def _by_the_resting_gpu(
    inputs: Inputs, setup: Setup, usual: Constants, work: StepWork, normal: Normal
) -> frozenset[SlowPart] | None:
    """Whether it is the time in which no kernel runs that is too long, or that of the kernels.

    None where the work is not slow, or where it is not known that the GPU rests because of the
    engine: requests may pause, and others' kernels would hide it.
    """
    resting = _resting(inputs, normal.seconds)
    if resting is None or normal.seconds <= normal.expected.high:
        return None
    beside = usual.fixed.times(work.steps).plus(usual.per_sequence.times(work.sequence_steps))
    too_long = resting - beside.middle
    if too_long >= (normal.seconds - normal.expected.middle) / 2:
        return frozenset(("engine",))
    if normal.prefill_share is not None and normal.prefill_share >= _MOST:
        return frozenset(("prefill",))
    # Kernels that are not fused take longer, too, and that is not the card's fault.
    not_fused = (eager_fixed(setup).low - typical(setup).fixed.low) * work.steps
    only_reading = normal.prefill_share is not None and normal.prefill_share < _FEW
    if only_reading and normal.seconds > normal.expected.high + not_fused:
        return frozenset(("card",))
    return frozenset()


def _resting(inputs: Inputs, working: float) -> float | None:
    """Seconds of so many in which no kernel ran, of a GPU that has work all the time."""
    shares = [gpu.utilization_ratio for gpu in inputs.gpus]
    known = [share for share in shares if share is not None]
    seen = inputs.seen
    if not known or len(known) < len(shares) or not isinstance(seen, WindowSeen):
        return None
    alone = inputs.contention in ("none", "idle_neighbours")
    if not alone or working < ALWAYS_BUSY * seen.decoded.seconds:
        return None
    return (1 - min(known)) * working


def _by_the_fit(here: Constants, usual: Constants) -> frozenset[SlowPart]:
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
