"""The constants of the expected time from what was observed: work and how long it took.

    t = n t0 + s t_seq + bytes / B_eff + prompt tokens c_token + pairs c_pair + starts x t_start

By least squares with relative errors (`linear`), no constant below 0 and no bandwidth above the
cards' own. Attention compares each token of a prompt with all before it, so a long prompt takes
longer than its tokens tell: pairs, half the square of its length. P_eff is told of prompts of a
usual length. The last term is for times to a first token that were seen from outside: HTTP,
tokenising and one pass over the weights, whatever the length of the prompt. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tokgauge.diagnosis.expected_time import Constants, Interval, StepWork
from tokgauge.diagnosis.linear import Matrix, Solution, solve

Constant = Literal["fixed", "per_sequence", "bandwidth", "prefill"]

_MATTERS = 0.5
"""A constant is told where its error is no larger than this share of all that was observed …"""

_TOLD = 0.30
"""… or than this share of itself."""

_PART = 2048
"""Tokens of a prompt that an engine computes in one step, where it is longer: vLLM's smallest usual
limit."""

_READS = 2.0
"""A prompt that takes less than so many times the shortest one shows reading, not computing."""

_ENOUGH = 6
"""Prompts that show computing; with fewer, the short ones count too."""

_USUAL_PROMPT = 2048
"""Tokens of the prompts that P_eff is told of; longer ones take more for each token."""

_VARIES = 1.3
"""Amounts of a step that are less than so many times apart hardly vary."""


@dataclass(frozen=True, slots=True)
class Observation:
    """work took `seconds`; starts: answers whose time to the first token these are (then `work` is
    their prompts alone). weight: how much it counts, up to 1.
    """

    work: StepWork
    seconds: float
    starts: float = 0.0
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A constant that the observations do not tell, and what would tell it."""

    constant: Constant
    because: str
    would_tell: str


@dataclass(frozen=True, slots=True)
class NotTold:
    """Why nothing follows from the observations."""

    missing: tuple[Missing, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Constants that were observed together: `Costs`.

    coefficients and covariance: of t0 [s], t_seq [s], 1 / B_eff [s/byte], c_token [s]
    and c_pair [s], these 0 for a prefill that is not told. longest_prompt: that was observed
    [tokens], 0 for none. scatter, prompt_scatter: how far off new work is, as a share.
    largest_batch: of a step that was observed, on average over its observation.
    """

    constants: Constants
    coefficients: tuple[float, ...]
    covariance: Matrix
    scatter: float
    prompt_scatter: float
    quantile: float
    largest_batch: float
    longest_prompt: float
    observations: int
    missing: tuple[Missing, ...] = ()

    def expected(self, work: StepWork) -> Interval | None:
        """Seconds that the work should take, right in 19 of 20 cases; None without P_eff.

        What is decoded is computed within t_seq, up to the batches that were observed.
        """
        if work.prompt_tokens and self.constants.prefill is None:
            return None
        pairs = _pairs(work)
        if not work.prompts:  # between none and those of the longest prompts
            pairs = work.prompt_tokens * self.longest_prompt / 4
        amounts = (work.steps, work.sequence_steps, work.bytes, work.prompt_tokens, pairs)
        parts = [amount * c for amount, c in zip(amounts, self.coefficients, strict=True)]
        size = range(len(amounts))
        variance = sum(amounts[i] * amounts[j] * self.covariance[i][j] for i in size for j in size)
        fixed, reading, prompts = parts[0] + parts[1], parts[2], parts[3] + parts[4]
        variance += (self.scatter * (fixed + reading)) ** 2 + (self.prompt_scatter * prompts) ** 2
        error = self.quantile * math.sqrt(variance)
        # Prompts whose lengths differ as by chance have twice the pairs of equal ones.
        longest = fixed + reading + prompts + parts[4]
        if work.sequence_steps > self.largest_batch * work.steps:
            decoding = work.decoded_tokens * self.coefficients[3]
            longest += max(0.0, decoding - reading)
        shortest = fixed + reading + prompts - min(_hidden(work, reading), prompts)
        if not work.prompts:
            shortest -= parts[4]
        return Interval(max(shortest - error, shortest / 10), longest + error)


def _hidden(work: StepWork, reading: float) -> float:
    """Seconds of reading that may overlap with computing: in the steps that do both."""
    if not work.prompts or not work.steps:
        return reading
    mixed = work.prompts + work.prompt_tokens / _PART
    return reading * min(1.0, mixed / work.steps)


def _pairs(work: StepWork) -> float:
    """As if all prompts were as long as their mean; more where they differ."""
    return work.prompt_tokens**2 / (2 * work.prompts) if work.prompts else 0.0


def fit(
    observations: Sequence[Observation],
    source: Literal["calibrated", "fitted"],
    bandwidth: float | None = None,
) -> Fitted | NotTold:
    """The constants, with intervals that hold 95 % each.

    bandwidth: theoretical, of all GPUs that serve a step [bytes/s]; None where not known.
    """
    useful = [o for o in observations if o.seconds > 0 and o.weight > 0]
    steps = [o for o in useful if not o.starts and o.work.steps > 0]
    prompts = [o for o in useful if o.starts and o.work.prompt_tokens > 0]
    mixed = any(o.work.prompt_tokens for o in steps)
    columns = 4 if mixed else 3
    decode = _solved(steps, [_of_steps(o)[:columns] for o in steps], _least(bandwidth)[:columns])
    if decode is None:
        return NotTold((_few("bandwidth", len(steps)),))
    computing, prompt_scatter = None, decode.scatter
    prompts = _showing_computing(prompts)
    found = _of_prompts(prompts)
    if found is not None:
        computing = _Computing(found.coefficients[:2], found.covariance)
        prompt_scatter = found.scatter
    elif mixed:
        rate, error = decode.coefficients[3], decode.covariance[3][3]
        computing = _Computing((rate, 0.0), ((error, 0.0), (0.0, 0.0)))
    missing = [m for m in _missing(steps, decode, bandwidth) if m is not None]
    quantile = max(decode.quantile, found.quantile if found is not None else 0.0)
    of_a_token = computing.of_a_token(quantile) if computing is not None else None
    if of_a_token is None:
        computing = None
        missing.append(_prefill_missing(prompts or [o for o in steps if o.work.prompt_tokens]))
    if any(m.constant != "prefill" for m in missing):
        return NotTold(tuple(missing))
    longest = max((o.work.prompt_tokens for o in prompts), default=0.0)
    return _fitted(steps, decode, computing, of_a_token, prompt_scatter, quantile, missing,
                   source, bandwidth, mixed=mixed and found is None, count=len(useful),
                   longest_prompt=longest)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Computing:
    """What prompts cost: c_token and c_pair [s], and the covariance of both."""

    coefficients: tuple[float, ...]
    covariance: Matrix

    def of_a_token(self, quantile: float) -> Interval | None:
        """Seconds, in a usual prompt; None where that is not told."""
        pairs = _USUAL_PROMPT / 2
        (rate, pair), of = self.coefficients, self.covariance
        value = rate + pair * pairs
        variance = of[0][0] + 2 * pairs * of[0][1] + pairs**2 * of[1][1]
        error = quantile * math.sqrt(max(0.0, variance))
        return _interval(value, error) if error <= _TOLD * value else None


def _showing_computing(prompts: list[Observation]) -> list[Observation]:
    """A short prompt takes one pass over the weights, whatever its length: it shows none."""
    shortest = min((o.seconds / o.starts for o in prompts), default=0.0)
    longer = [o for o in prompts if o.seconds / o.starts > _READS * shortest]
    return longer if len(longer) >= _ENOUGH else prompts


def _of_prompts(prompts: Sequence[Observation]) -> Solution | None:
    rows = [(o.work.prompt_tokens, _pairs(o.work), o.starts) for o in prompts]
    return _solved(prompts, rows, (0.0, 0.0, 0.0))


def _solved(
    observations: Sequence[Observation],
    rows: Sequence[Sequence[float]],
    least: Sequence[float],
) -> Solution | None:
    if any(not any(row[j] > 0 for row in rows) for j in range(len(least))):
        return None
    return solve(rows, [o.seconds for o in observations], [o.weight for o in observations], least)


def _of_steps(o: Observation) -> tuple[float, ...]:
    work = o.work
    return (work.steps, work.sequence_steps, work.bytes, work.prompt_tokens)


def _least(bandwidth: float | None) -> tuple[float, ...]:
    return (0.0, 0.0, 1 / bandwidth if bandwidth is not None else 0.0, 0.0)


def _fitted(
    steps: Sequence[Observation], decode: Solution, computing: _Computing | None,
    of_a_token: Interval | None,
    prompt_scatter: float, quantile: float, missing: Sequence[Missing],
    source: Literal["calibrated", "fitted"], bandwidth: float | None, *, mixed: bool,
    longest_prompt: float, count: int,
) -> Fitted:  # fmt: skip
    c = [*decode.coefficients[:3], *(computing.coefficients if computing else (0.0, 0.0))]
    covariance = [[0.0] * 5 for _ in range(5)]
    known = 4 if mixed and computing is not None else 3
    for i in range(known):
        for j in range(known):
            covariance[i][j] = decode.covariance[i][j]
    if computing is not None:
        for i in range(2):
            for j in range(2):
                covariance[3 + i][3 + j] = computing.covariance[i][j]
    within = [_interval(value, quantile * math.sqrt(covariance[i][i])) for i, value in enumerate(c)]
    prefill = None
    if of_a_token is not None:
        prefill = Interval(1 / of_a_token.high, 1 / of_a_token.low)
    slowest = 1 / within[2].high
    fastest = 1 / within[2].low if within[2].low > 0 else math.inf
    return Fitted(
        constants=Constants(
            fixed=within[0],
            per_sequence=within[1],
            bandwidth=Interval(slowest, min(fastest, bandwidth or math.inf)),
            prefill=prefill,
            source=source,
        ),
        coefficients=tuple(c),
        covariance=tuple(tuple(row) for row in covariance),
        scatter=decode.scatter,
        prompt_scatter=prompt_scatter,
        quantile=quantile,
        largest_batch=max(o.work.sequence_steps / o.work.steps for o in steps),
        longest_prompt=longest_prompt,
        observations=count,
        missing=tuple(missing),
    )


def _interval(value: float, error: float) -> Interval:
    return Interval(max(0.0, value - error), value + error)


def _missing(
    steps: Sequence[Observation], decode: Solution, bandwidth: float | None
) -> list[Missing | None]:
    """Which of t0, t_seq and B_eff the observations do not tell."""
    bytes_vary = _varies([o.work.bytes / o.work.steps for o in steps])
    batches_vary = _varies([o.work.sequence_steps / o.work.steps for o in steps])
    both = "batch and context to vary apart from each other"
    found: list[Missing | None] = []
    for j, constant in enumerate(_DECODE):
        value = decode.coefficients[j]
        error = decode.quantile * math.sqrt(decode.covariance[j][j])
        share = min(o.seconds / _of_steps(o)[j] for o in steps if _of_steps(o)[j] > 0)
        unbounded = constant == "bandwidth" and bandwidth is None and error >= value
        if not unbounded and (error <= _MATTERS * share or error <= _TOLD * value):
            continue
        if not bytes_vary and constant != "per_sequence":
            because = "all steps read about as many bytes, so their fixed cost is not told from it"
            found.append(
                Missing(
                    constant=constant, because=because,
                    would_tell="batches or contexts that make some steps read more than others",
                )
            )  # fmt: skip
        elif not batches_vary and constant != "bandwidth":
            because = "all steps had about as many sequences, so theirs is not told from fixed cost"
            found.append(
                Missing(constant=constant, because=because, would_tell="batches that differ")
            )
        else:
            because = "the times scatter too much, or what they depend on varies only together"
            found.append(Missing(constant=constant, because=because, would_tell=both))
    return found


_DECODE: tuple[Constant, ...] = ("fixed", "per_sequence", "bandwidth")


def _varies(amounts: Sequence[float]) -> bool:
    return max(amounts) > _VARIES * min(amounts)


def _few(constant: Constant, count: int) -> Missing:
    return Missing(
        constant=constant,
        because=f"only {count} observations, or most of them too far from the others",
        would_tell="more of them, with batches and contexts that differ",
    )


def _prefill_missing(prompts: Sequence[Observation]) -> Missing:
    if not prompts:
        because = "no prompt was observed"
    else:
        because = "the times of prompts scatter too much, or their lengths hardly vary"
    return Missing(
        constant="prefill", because=because, would_tell="prompts of several lengths, some long"
    )
