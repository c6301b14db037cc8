"""Figures and evidence in plain words."""

from __future__ import annotations

import math

from tokgauge.diagnosis.evidence import Evidence, memory_clock_is_low
from tokgauge.diagnosis.expected_time import FAR, Normal

_WORTH_NAMING = 0.1
"""Share of the time from which on prompts are mentioned."""


def reached(e: Evidence) -> str:
    """How fast it is beside the ceiling and beside what is normal."""
    if e.efficiency is None:
        return _of_expected(e)
    basis = {"streamed": " (streamed bytes)", "checkpoint": " (whole checkpoint)", None: ""}[
        e.basis
    ]
    if e.basis == "streamed" and e.checkpoint_efficiency is not None:
        other = percent(e.checkpoint_efficiency)
        basis = f" (streamed bytes; {other} by the rule of thumb, the whole checkpoint)"
    share = share_in_band(e.efficiency, e)
    return f"decoding reaches {share} of the hardware's ceiling{basis}{_normal(e)}"


def _normal(e: Evidence) -> str:
    """The normal range beside a share of decoding alone."""
    if e.normal is None:
        return ""
    if e.efficiency is None or _is_mixed(e.normal):
        return f"; {_of_expected(e)}"
    normal = e.normal.range
    known = "as calibrated here" if e.normal.source == "calibrated" else "normal here"
    return f", {normal.low * 100:.0f} to {percent(normal.high)} is {known}"


def _of_expected(e: Evidence) -> str:
    """The time that the work took, prompts and all."""
    if e.normal is None:
        return "nothing tells what would be normal"
    expected, took = e.normal.expected, e.normal.seconds
    prompts = (
        ""
        if e.prefill_share is None or e.prefill_share < _WORTH_NAMING
        else f" (prompts about {percent(e.prefill_share)} of it)"
    )
    low, high = took / expected.high, took / expected.low
    if took > expected.high:
        return f"the work took {low:.1f} to {high:.1f} times as long as it should{prompts}"
    if took < expected.low:
        return f"the work was done in {percent(took / expected.low)} of the expected time{prompts}"
    return f"the work took as long as it should{prompts}"


def _is_mixed(normal: Normal) -> bool:
    """Whether prompts matter to the range, which is then not one of decoding alone."""
    return normal.prefill_share is None or normal.prefill_share >= _WORTH_NAMING


def speed(e: Evidence) -> str:
    """What follows `reached`: tokens per second, together and each; empty when not known."""
    if e.tokens_per_second is None:
        return ""
    total = f", {_rate(e.tokens_per_second)} tok/s"
    if e.mean_batch is None or e.mean_batch < 1.5:
        return total
    each = e.sequence_tokens_per_second
    told = "" if each is None else f" ({_rate(each)} each)"
    return f"{total} over {e.mean_batch:,.0f} sequences{told}"


def queue(e: Evidence) -> str:
    """What ends a headline: who waits; empty when nobody does."""
    return f"; {waiting(e.waiting)}" if e.waiting else ""


def prefill_seen(e: Evidence) -> str:
    """How much of the time goes into prefills."""
    if e.others_prefill_share is not None:
        share = percent(e.others_prefill_share)
        return f"somebody waited for a first token during {share} of the time"
    return f"prompts should take about {percent(e.prefill_share or 0.0)} of the time"


def memory_clock(e: Evidence) -> str:
    """The memory clock beside its maximum; empty when it tells nothing."""
    low = memory_clock_is_low(e)
    if low is None or e.memory_clock_mhz is None or not e.max_memory_clock_mhz:
        return ""
    share = e.memory_clock_mhz / e.max_memory_clock_mhz
    clock = f"the memory clock is {e.memory_clock_mhz:,.0f} of {e.max_memory_clock_mhz:,.0f} MHz"
    return f"{clock} ({percent(share)})"


def neighbours_run(e: Evidence) -> str:
    """That others compute, and how much of the GPU they take."""
    share = (
        ""
        if e.neighbour_sm_ratio is None
        else f" with {percent(e.neighbour_sm_ratio)} of the GPU's SM time"
    )
    # How many of them compute is not known here, so nobody is counted as guilty.
    among = "" if not e.neighbours else f" ({count(e.neighbours, 'other process')} on the GPU)"
    return f"others compute beside the engine{share}{among}"


def waiting(requests: int) -> str:
    """How many wait in the engine's queue."""
    return f"{count(requests, 'request')} {'waits' if requests == 1 else 'wait'} in the queue"


def count(number: int, noun: str) -> str:
    """The number with its noun, which is given in the singular."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def sequences(batch: float) -> str:
    """The mean size of a batch."""
    return f"{batch:,.0f} {'sequence' if round(batch) == 1 else 'sequences'}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def per_time(rate: float) -> str:
    """A rate of requests [1/s], as the subject of a clause."""
    return (
        f"{rate:.1f} requests a second are"
        if rate >= 1
        else f"{rate * 60:.0f} requests a minute are"
    )


def seconds(value: float) -> str:
    """A time [s]."""
    return f"{value:,.0f} s" if value >= 20 else f"{value:.1f} s"


def percent(share: float) -> str:
    """A share in whole percent; never 0 % for what is above 0."""
    if 0 < share < 0.005:
        return "less than 1 %"
    return f"{share * 100:.0f} %"


def share_in_band(ratio: float, e: Evidence) -> str:
    """Like `percent`, but never rounded into another band: 0.6999 is 69.9 %, not 70 %."""
    low = e.normal.range.low if e.normal is not None else 0.0
    rounded = round(ratio * 100) / 100
    if all((rounded >= edge) == (ratio >= edge) for edge in (FAR * low, low)) and (
        (rounded > 1) == (ratio > 1)
    ):
        return percent(ratio)
    tenths = ratio * 1000
    return f"{(math.ceil(tenths) if rounded < ratio else math.floor(tenths)) / 10:.1f} %"
