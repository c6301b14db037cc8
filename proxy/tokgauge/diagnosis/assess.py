"""The chain: bandwidth, bytes of a step, step rate, efficiency, causes. Pure, and the only one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tokgauge.diagnosis.efficiency import (
    Efficiency,
    StepBytes,
    StreamCeiling,
    efficiency_of,
    step_bytes,
    stream_ceilings,
)
from tokgauge.diagnosis.expected_time import Constants, Normal
from tokgauge.diagnosis.fit import Observation
from tokgauge.diagnosis.gathering import engine_read, evidence_of
from tokgauge.diagnosis.inputs import Inputs, StreamSeen, WindowSeen
from tokgauge.diagnosis.judgement import Judgement, judge
from tokgauge.diagnosis.normal import normal_of, works
from tokgauge.diagnosis.waiting import WaitingJudgement, judge_waiting
from tokgauge.diagnosis.waiting_evidence import waits_of
from tokgauge.diagnosis.whole_answers import AnswersJudgement, judge_answers
from tokgauge.diagnosis.work import (
    ONE_SHORT_STREAM,
    NoEfficiency,
    Work,
    speculates,
    stream_shape,
    tokens_per_step,
    unfit,
    work_of,
)
from tokgauge.gpu.bandwidth import Bandwidth
from tokgauge.model.weights import Basis

_UNCOUNTED_MATTERS = 0.02
"""Share of the time that may have gone into what is not counted."""

_PREFILL_SHARE_LIMIT = 0.3
"""The share of the bandwidth is one of decoding: above this share of prompts there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What follows from the inputs; what does not follow is None or absent.

    ceilings: of the stream that was measured, else of one alone with a short context. efficiency:
    as computed, also where `speed` does not rely on it. normal: expected time beside the time that
    it took. observed: the work itself, where all of it is known. constants: of a step, as measured
    here or as the traffic shows them. prefill_rate, prefill_ceiling: prompt tokens that are
    computed, and could be at most [1/s]. engine_read: the engine's own estimate of what it reads
    [bytes/s]. speed: the answer to "is the GPU as fast as it should be?".
    """

    bandwidth: Bandwidth
    ceilings: Mapping[Basis, StreamCeiling] = field(default_factory=dict)
    efficiency: Efficiency | None = None
    normal: Normal | None = None
    observed: Observation | None = None
    constants: Constants | None = None
    prefill_rate: float | None = None
    prefill_ceiling: float | None = None
    engine_read: float | None = None
    tokens_per_step: float | None = None
    speed: Judgement
    waiting: WaitingJudgement
    answers: AnswersJudgement


def assess(inputs: Inputs) -> Assessment:
    """The judgement with all that it stands on."""
    seen = inputs.seen
    work = work_of(seen)
    step = _step(inputs, work)
    normal = None
    if isinstance(work, Work) and isinstance(step, StepBytes):
        normal = normal_of(inputs, work, step)
    efficiency = _efficiency(inputs, work, step, normal)
    doubt = _doubt(inputs, efficiency, normal) if isinstance(efficiency, Efficiency) else None
    if doubt is not None:
        normal = None
    return Assessment(
        bandwidth=inputs.bandwidth,
        ceilings=_ceilings(inputs),
        efficiency=efficiency if isinstance(efficiency, Efficiency) else None,
        normal=normal,
        observed=_observed(inputs, work, step) if normal is not None else None,
        constants=_constants(inputs),
        prefill_rate=_prefill_rate(work),
        prefill_ceiling=None if inputs.roof is None else 1 / inputs.roof.seconds(1),
        engine_read=engine_read(inputs, work),
        tokens_per_step=tokens_per_step(seen),
        speed=judge(evidence_of(inputs, work, doubt or efficiency, normal)),
        waiting=judge_waiting(waits_of(inputs)),
        answers=judge_answers(inputs.lately),
    )


def _observed(
    inputs: Inputs, work: Work | NoEfficiency, step: StepBytes | NoEfficiency
) -> Observation | None:
    """None where a part of the time may have gone into what is not counted."""
    if isinstance(work, NoEfficiency) or isinstance(step, NoEfficiency):
        return None
    fewest, most = works(inputs, work, step)
    if fewest != most or work.uncounted > _UNCOUNTED_MATTERS * work.working_seconds:
        return None
    return Observation(fewest, work.working_seconds)


def _constants(inputs: Inputs) -> Constants | None:
    costs = inputs.calibrated or inputs.fitted
    return costs.constants if costs is not None else None


def _prefill_rate(work: Work | NoEfficiency) -> float | None:
    """Where it is known how many of them were computed."""
    if isinstance(work, NoEfficiency) or work.prompt_tokens is None or not work.working_seconds:
        return None
    fewest, most = work.prompt_tokens.low, work.prompt_tokens.high
    return fewest / work.working_seconds if fewest == most else None


def _ceilings(inputs: Inputs) -> Mapping[Basis, StreamCeiling]:
    seen, bandwidth = inputs.seen, inputs.bandwidth.bytes_per_second
    shape = stream_shape(seen) if isinstance(seen, StreamSeen) else ONE_SHORT_STREAM
    step = step_bytes(shape, inputs.model, inputs.tensor_parallel)
    if inputs.several_models or bandwidth is None or not isinstance(step, StepBytes):
        return {}
    return stream_ceilings(bandwidth, step)


def _step(inputs: Inputs, work: Work | NoEfficiency) -> StepBytes | NoEfficiency:
    """What a step of this work reads, and that the work tells something of decoding."""
    if isinstance(work, NoEfficiency):
        return work
    if inputs.several_models:
        return NoEfficiency(why="several_models")
    step = step_bytes(work.shape, inputs.model, inputs.tensor_parallel)
    draft_unknown = inputs.model.draft_unknown_because if inputs.model is not None else None
    weights_unknown = isinstance(step, NoEfficiency) and step.weights is not None
    if draft_unknown is not None and not weights_unknown and speculates(inputs.seen):
        return NoEfficiency(why="draft_unknown", draft=draft_unknown)
    is_window = isinstance(inputs.seen, WindowSeen)
    unusable = unfit(work) if is_window and not weights_unknown else None
    return unusable or step


def _efficiency(
    inputs: Inputs, work: Work | NoEfficiency, step: StepBytes | NoEfficiency,
    normal: Normal | None,
) -> Efficiency | NoEfficiency:  # fmt: skip
    """Of decoding: there is none where prompts took much of the time."""
    if isinstance(step, NoEfficiency):
        return step
    assert isinstance(work, Work)  # noqa: S101 - a step has a shape
    share = normal.prefill_share if normal is not None else None
    if share is not None and share > _PREFILL_SHARE_LIMIT:
        return NoEfficiency(why="mostly_prefill", share=share)
    return efficiency_of(work, step, inputs.bandwidth.bytes_per_second)


def _doubt(inputs: Inputs, efficiency: Efficiency, normal: Normal | None) -> NoEfficiency | None:
    """Why the ratio of one stream says nothing; None where it does, and for a window."""
    seen = inputs.seen
    draft_unknown = inputs.model.draft_unknown_because if inputs.model is not None else None
    share = efficiency.ratio
    if not isinstance(seen, StreamSeen) or share is None:
        return None
    if seen.alone is False and (normal is None or not normal.tells or normal.band != "healthy"):
        return NoEfficiency(why="others_served", share=share, tokens=seen.tokens_of_others)
    per_step = seen.tokens_per_step
    if per_step is not None and per_step > 1 and draft_unknown is not None:
        return NoEfficiency(why="draft_unknown", share=share, tokens=per_step, draft=draft_unknown)
    if per_step is None and share <= 1:
        return NoEfficiency(why="steps_unknown", share=share)
    return None
