"""Which loads tell the most, and how many of them there is time for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tokgauge.calibrate.bench import Load

SHORT = 64
_LONG = 8192
"""Tokens of context that are enough: with 4 sequences, a cache of some GB."""

_MOST_TOGETHER = 131_072
"""Tokens of all prompts of a load: computing them takes time that tells nothing of steps."""

_LEAST_STEPS, _MOST_STEPS = 16, 300
_BETWEEN = 0.3
"""Seconds that a load takes beside its steps and prompts."""

_PROMPTS = (512, 2048, 8192, 1024, 4096, 16_384)


@dataclass(slots=True)
class Pace:
    """What is known of the engine's speed so far: step [s] by bytes, prompts [tokens/s], tokens
    that a sequence gains in a step.
    """

    seconds_per_byte: float
    prompt_tokens_per_second: float
    tokens_per_step: float = 1.0

    def seconds(self, load: Load, read: float) -> float:
        """About how long a load takes whose steps read so many bytes."""
        prompts = load.sequences * load.context / self.prompt_tokens_per_second
        steps = load.tokens / self.tokens_per_step
        return steps * read * self.seconds_per_byte + prompts + _BETWEEN


def loads(longest: int, affordable: float) -> Iterator[tuple[int, int]]:
    """Sequences and context, those that tell most first: both ends, then between; then again.

    longest: context in tokens that a sequence may have. affordable: tokens of prompts that there is
    time for in a load of four sequences.
    """
    short = min(SHORT, longest // 4)
    long = max(2 * short, min(_LONG, longest, int(affordable / 4)))
    middle = round((short * long) ** 0.5)
    once = (
        (1, short), (1, long), (16, short), (4, long), (16, middle), (64, short), (4, middle),
        (8, long), (32, middle), (1, middle), (4, short), (16, long), (2, long), (64, middle),
        (8, middle), (32, short),
    )  # fmt: skip
    for _ in range(2):
        yield from (
            (sequences, context) for sequences, context in once
            if sequences * context <= _MOST_TOGETHER
        )  # fmt: skip


def prompts(longest: int) -> Iterator[int]:
    """Lengths of single prompts, each twice; for a short context parts of it."""
    lengths = [tokens for tokens in _PROMPTS if tokens <= longest]
    if len(lengths) < 4:
        lengths = sorted({max(8, longest * part // 8) for part in (1, 2, 4, 6, 8)})
    yield from (*lengths, *lengths)


def tokens_for(sequences: int, context: int, steps: float, pace: Pace, room: int) -> int:
    """Length of the answers: about so many steps after the last sequence has joined.

    While prompts are computed in parts, the first sequences decode already.
    """
    joining = 8 + sequences * context // 512 if sequences > 1 else 2
    wanted = round(min(_MOST_STEPS, max(_LEAST_STEPS, steps)))
    return max(1, min(room, round((joining + wanted) * pace.tokens_per_step)))
