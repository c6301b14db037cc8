"""A request, as its client sees it and as the scheduler keeps it."""

from array import array
from collections.abc import Callable


class Request:
    """Public: what a client sees. The tokens of an answer come in events, one each step."""

    def __init__(
        self,
        sent_at: float,
        prompt_tokens: int,
        max_tokens: int,
        cached_tokens: int,
        delay: float,
        step_ends: "array[float]",
        then: "Callable[[Request], None] | None",
    ) -> None:
        self.sent_at = sent_at
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.cached_tokens = cached_tokens
        """Of the prompt, as usage tells them."""
        self.completion_tokens = 0
        self.finished_at: float | None = None
        """When its last event came, None while it runs."""
        self._delay = delay
        self._step_ends = step_ends
        self._spans: list[list[int]] = []
        """[first, end) of the steps that brought an event."""
        self._amounts: bytearray | None = None
        """Tokens of each event; None while all bring one."""

        # The scheduler's:
        self.then = then
        self.computed = 0
        """Tokens whose keys and values are in the cache."""
        self.blocks = 0
        """Of its own; those of a shared prefix are the engine's."""
        self.scheduled_at: float | None = None

    @property
    def event_times(self) -> list[float]:
        """When each event came [s]."""
        ends, delay = self._step_ends, self._delay
        return [end + delay for first, stop in self._spans for end in ends[first:stop]]

    @property
    def event_tokens(self) -> list[int]:
        """Tokens of each event."""
        if self._amounts is None:
            return [1] * self.completion_tokens
        return list(self._amounts)

    @property
    def events(self) -> int:
        return sum(stop - first for first, stop in self._spans)

    @property
    def first_event_at(self) -> float | None:
        return self._step_ends[self._spans[0][0]] + self._delay if self._spans else None

    @property
    def last_event_at(self) -> float | None:
        return self._step_ends[self._spans[-1][1] - 1] + self._delay if self._spans else None

    @property
    def missing(self) -> int:
        """Tokens to compute before the next one can be sampled."""
        return self.prompt_tokens + self.completion_tokens - self.computed

    @property
    def left(self) -> int:
        return self.max_tokens - self.completion_tokens

    def gained(self, step: int, tokens: int, steps: int = 1) -> None:
        """`tokens` in each of so many steps from `step` on."""
        if self._spans and self._spans[-1][1] == step:
            self._spans[-1][1] += steps
        else:
            self._spans.append([step, step + steps])
        if tokens != 1 and self._amounts is None:
            self._amounts = bytearray([1]) * self.completion_tokens
        if self._amounts is not None:
            self._amounts.extend([tokens] * steps)
        self.completion_tokens += tokens * steps

    def finish(self) -> None:
        self.finished_at = self.last_event_at
