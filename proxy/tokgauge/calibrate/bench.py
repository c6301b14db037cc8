"""What the experiment needs of an engine, whether it is real or runs in virtual time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Load:
    """So many sequences that run together, each with a prompt that no cache knows, of about
    `context` tokens, and an answer of `tokens`.
    """

    sequences: int
    context: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The time in which all sequences decoded and no prompt was computed.

    context: tokens of all sequences together, mean. tokens_per_step: of one sequence.
    """

    steps: float
    seconds: float
    sequences: float
    context: float
    tokens_per_step: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """decoded: None where nothing is known of the steps, and `because` says why. together: the most
    sequences that decoded at once. prompt_tokens, first_token: of a load of one sequence; tokens
    that were computed, seconds until the first one of the answer.
    """

    decoded: Decoded | None = None
    because: str | None = None
    together: int | None = None
    prompt_tokens: float | None = None
    first_token: float | None = None


class Bench(Protocol):
    """An engine that takes a load and tells what came of it."""

    def now(self) -> float:
        """Seconds, of whatever clock the engine runs by."""

    async def measure(self, load: Load) -> Measured:
        """Put the load on the engine; returns when nothing of it runs any more.

        Raises `CalibrationError` where nothing can be measured at all.
        """

    async def others(self) -> str | None:
        """Who else uses the engine while no load of ours runs, in words; None where nobody is
        seen.
        """
