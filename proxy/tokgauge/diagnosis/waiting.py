"""Do people wait? From what is known of queue, KV cache and first tokens to a level and causes.

The level is how long people wait. The causes say what for, each on evidence of its own; where the
engine does not tell queueing and prefill apart, they are named together. docs/verdict.md has the
thresholds with their reasons.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tokgauge.diagnosis.expected_time import Interval
from tokgauge.diagnosis.notes import FELT_WAIT
from tokgauge.diagnosis.verdict import Level, WaitingCause
from tokgauge.engine.facts import Down

LONG_WAIT = 5.0
"""A wait [s] from which on people turn to something else: half of the 10 s after which they do not
come back to it (Nielsen, Usability Engineering, 1993)."""

MIN_FIRST_TOKENS = 3
"""A single slow first token may be the engine's first at all: it loads, compiles, captures graphs.
"""

CACHE_FULL = 0.95
"""Share of the KV cache in use from which on the next prompt hardly finds room."""

PREEMPTIONS_MATTER = 1 / 60
"""A second; one a minute. Each makes a person wait in mid-sentence, and is computed twice."""

QUEUE_STAYS = 0.5
"""Share of the looks with somebody in the queue from which on it is no passing burst."""

WhyOpen = Literal["no_requests", "few_first_tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """What is known of waiting in one window. None is what is not known.

    first_token_seconds: median, of `first_tokens` streams; those who still wait after FELT_WAIT
    (`still_waiting` of them, the longest for `longest_wait`) count with their wait so far.
    prompt_seconds: that a prompt of median length takes alone. beyond_prompts: median of first
    token less that; negative where prompts explain more than all. queue_seconds: mean by the
    engine's own count, over `queued` requests. waiting: in the queue at the last look. queue_share:
    of the looks that found somebody there.
    """

    down: Down | None = None
    first_tokens: int = 0
    first_token_seconds: float | None = None
    still_waiting: int = 0
    longest_wait: float | None = None
    prompt_seconds: Interval | None = None
    beyond_prompts: Interval | None = None
    queued: int = 0
    queue_seconds: float | None = None
    waiting: int | None = None
    queue_share: float | None = None
    kv_cache_usage: float | None = None
    preemptions_per_second: float | None = None

    @property
    def felt(self) -> float | None:
        """How long people wait: the longer one of first token and queue; None if nothing tells.

        A few first tokens tell only when the engine says that there is a queue.
        """
        enough = self.first_tokens >= MIN_FIRST_TOKENS or self.has_queue
        known = [self.queue_seconds, self.first_token_seconds if enough else None]
        return max((seconds for seconds in known if seconds is not None), default=None)

    @property
    def has_queue(self) -> bool:
        """Whether the engine shows a queue that stays."""
        return self.queue_share is not None and self.queue_share >= QUEUE_STAYS

    @property
    def cache_is_full(self) -> bool:
        """Whether hardly any room is left in the KV cache."""
        return self.kv_cache_usage is not None and self.kv_cache_usage >= CACHE_FULL

    @property
    def preempts(self) -> bool:
        """Whether running requests are interrupted for want of room."""
        rate = self.preemptions_per_second
        return rate is not None and rate >= PREEMPTIONS_MATTER


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingJudgement:
    """The answer, most likely cause first. `why` is set when nothing is judged, and only then."""

    waits: Waits
    level: Level
    causes: tuple[WaitingCause, ...] = ()
    why: WhyOpen | None = None


def judge_waiting(waits: Waits) -> WaitingJudgement:
    """Whether people wait, and what for."""
    if waits.down is not None:
        return WaitingJudgement(waits=waits, level="suspect", causes=("engine_down",))
    causes = tuple(_causes(waits))
    if waits.felt is None and not causes:
        why: WhyOpen = "few_first_tokens" if waits.first_tokens else "no_requests"
        return WaitingJudgement(waits=waits, level="not_judged", why=why)
    return WaitingJudgement(waits=waits, level=_level(waits, causes), causes=causes)


def _level(waits: Waits, causes: tuple[WaitingCause, ...]) -> Level:
    felt = waits.felt or 0.0
    # Long prompts take the time that they take: nothing is wrong with the engine.
    if felt > LONG_WAIT and causes != ("long_prefills",):
        return "suspect"
    return "watch" if felt > FELT_WAIT or causes else "healthy"


def _causes(waits: Waits) -> Iterator[WaitingCause]:
    pressed = _cache_pressure(waits)
    if pressed is not None:
        yield pressed
    elif _queues(waits):
        yield "queue"
    elif waits.felt is not None and waits.felt > FELT_WAIT:
        yield _of_slow_first_tokens(waits)


def _cache_pressure(waits: Waits) -> WaitingCause | None:
    if waits.preempts:
        return "preemption"
    # vLLM keeps old prefixes for as long as nobody needs the room: full is no want then.
    return "kv_cache_full" if waits.cache_is_full and waits.has_queue else None


def _queues(waits: Waits) -> bool:
    """Whether people wait in the engine's queue for longer than they should."""
    if waits.queue_seconds is not None and waits.queue_seconds > FELT_WAIT:
        return True
    if not waits.has_queue:
        return False
    if waits.felt is None:
        return True  # nobody has left it, so nobody knows how long it takes
    return waits.felt > FELT_WAIT and (
        waits.beyond_prompts is None or waits.beyond_prompts.high > FELT_WAIT
    )


def _of_slow_first_tokens(waits: Waits) -> WaitingCause:
    """First tokens come late, and the engine shows no queue, or nothing of its queue."""
    beyond = waits.beyond_prompts
    no_queue = waits.queue_seconds is not None or waits.queue_share == 0
    if beyond is None:
        return "queue_or_prefills"
    if beyond.high <= FELT_WAIT:
        return "long_prefills"
    if no_queue:
        return "slow_first_tokens" if beyond.low > FELT_WAIT else "long_prefills"
    return "queue_or_prefills"
