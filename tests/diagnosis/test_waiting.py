"""Situations of waiting, and the answer that an expert would give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import pytest
from tokgauge.diagnosis.expected_time import Interval
from tokgauge.diagnosis.verdict import Level, WaitingCause
from tokgauge.diagnosis.waiting import Waits, judge_waiting
from tokgauge.diagnosis.wording_waiting import in_words
from tokgauge.engine.facts import Down

pytestmark = pytest.mark.socketless

PROMPTS = {"prompt_seconds": Interval(0.1, 0.3)}
QUICK = {
    "first_tokens": 12, "first_token_seconds": 0.2, "beyond_prompts": Interval(-0.1, 0.2), **PROMPTS
}  # fmt: skip
IDLE_QUEUE = {"queue_seconds": 0.02, "queued": 12, "queue_share": 0.0, "waiting": 0}
ROOM = {"kv_cache_usage": 0.4, "preemptions_per_second": 0.0}


@dataclass(frozen=True)
class Situation:
    name: str
    waits: dict[str, Any]
    level: Level
    causes: tuple[WaitingCause, ...] = ()
    says: tuple[str, ...] = ()


def late(seconds: float, *, beyond: Interval | None, **more: Any) -> dict[str, Any]:
    """First tokens after so many seconds."""
    return {"first_tokens": 12, "first_token_seconds": seconds, "beyond_prompts": beyond} | more


SITUATIONS = [
    Situation(
        "healthy", QUICK | IDLE_QUEUE | ROOM, "healthy",
        says=("Nobody waits long: less than 0.1 s in the engine's queue (mean of 12), 0.2 s",),
    ),
    Situation("healthy, and the engine tells nothing", QUICK, "healthy"),
    Situation(
        "a full cache of old prefixes while nobody waits",
        QUICK | IDLE_QUEUE | {"kv_cache_usage": 0.99, "preemptions_per_second": 0.0}, "healthy",
    ),
    Situation("a queue of a moment", QUICK | IDLE_QUEUE | {"queue_share": 0.2}, "healthy"),
    Situation("a short queue all the time", QUICK | IDLE_QUEUE | {"queue_share": 1.0}, "healthy"),
    Situation(
        "a queue of nine seconds",
        late(9.2, beyond=Interval(8.9, 9.1), queue_seconds=9.0, queued=7, queue_share=1.0,
             waiting=5, **ROOM, **PROMPTS),
        "suspect", ("queue",),
        ("People wait long: 9.0 s in the engine's queue (mean of 7), 9.2 s until the first token",
         "5 requests wait in the queue", "the KV cache is 40 % full", "max_num_seqs"),
    ),
    Situation(
        "a queue of two seconds",
        late(2.2, beyond=Interval(1.9, 2.1), queue_seconds=2.0, queued=7, queue_share=1.0, **ROOM),
        "watch", ("queue",), ("People wait: 2.0 s",),
    ),
    Situation(
        "not streamed at all, and a queue", {"queue_seconds": 6.0, "queued": 3}, "suspect",
        ("queue",),
    ),
    Situation(
        "nobody has left the queue yet",
        {"queue_share": 1.0, "waiting": 3, "first_tokens": 2, "first_token_seconds": 9.0,
         "still_waiting": 2, "longest_wait": 9.5, **ROOM},
        "suspect", ("queue",), ("2 of them still waiting", "the longest wait so far is 9.5 s"),
    ),
    Situation(
        "a queue, and nothing tells how long it takes", {"queue_share": 1.0, "waiting": 3},
        "watch", ("queue",), ("People wait: 3 requests wait in the queue;",),
    ),
    Situation(
        "a full cache and a queue",
        late(9.2, beyond=Interval(8.9, 9.1), queue_seconds=9.0, queued=7, queue_share=1.0,
             waiting=5, kv_cache_usage=0.98, preemptions_per_second=0.0),
        "suspect", ("kv_cache_full",),
        ("the KV cache is 98 % full and 5 requests wait", "A larger batch limit would not help"),
    ),
    Situation(
        "preemptions, before anybody waits long",
        QUICK | IDLE_QUEUE | {"kv_cache_usage": 0.99, "preemptions_per_second": 0.5}, "watch",
        ("preemption",), ("30 requests a minute are interrupted", "the KV cache is 99 % full"),
    ),
    Situation(
        "one preemption in a long time",
        QUICK | IDLE_QUEUE | {"preemptions_per_second": 0.01}, "healthy",
    ),
    Situation(
        "long prompts, without a queue",
        late(3.0, beyond=Interval(-4.0, 0.6), prompt_seconds=Interval(2.4, 7.0), **IDLE_QUEUE),
        "watch", ("long_prefills",), ("takes 2.4 s to 7.0 s alone", "nothing is wrong"),
    ),
    Situation(
        "very long prompts are no fault of the engine",
        late(20.0, beyond=Interval(-40.0, 0.6), **IDLE_QUEUE), "watch", ("long_prefills",),
    ),
    Situation(
        "first tokens late without a queue, and prompts may explain it",
        late(6.0, beyond=Interval(-1.0, 5.0), **IDLE_QUEUE), "watch", ("long_prefills",),
    ),
    Situation(
        "first tokens late without a queue, and prompts do not explain it",
        late(6.0, beyond=Interval(5.0, 5.9), **PROMPTS, **IDLE_QUEUE), "suspect",
        ("slow_first_tokens",), ("0.1 s to 0.3 s alone", "tokenising"),
    ),
    Situation(
        "first tokens late, and the engine tells nothing of a queue",
        late(6.0, beyond=Interval(5.0, 5.9), **PROMPTS), "suspect", ("queue_or_prefills",),
        ("the engine does not tell which",),
    ),
    Situation(
        "first tokens late, and not even the speed of prefill is known", late(6.0, beyond=None),
        "suspect", ("queue_or_prefills",), ("how fast this engine computes prompts is not known",),
    ),
    Situation(
        "llama.cpp: a queue, of which only the length is told",
        late(6.0, beyond=Interval(5.0, 5.9), queue_share=1.0, waiting=4), "suspect", ("queue",),
    ),
    Situation(
        "a queue that is there, and prompts that explain all the waiting",
        late(3.0, beyond=Interval(-4.0, 0.6), queue_share=1.0, waiting=1), "watch",
        ("long_prefills",),
    ),
    Situation(
        "the engine is down", QUICK | {"down": Down(1_800_000_000.0, "Connection refused")},
        "suspect", ("engine_down",),
        ("The engine cannot be reached since 08:00:00 UTC: Connection refused.",),
    ),
    Situation(
        "two cold streams", {"first_tokens": 2, "first_token_seconds": 30.0}, "not_judged",
        says=("Not judged: 2 streams lately, of 3 that it takes.",),
    ),
    Situation("nobody asks", {"queue_share": 0.0, "waiting": 0}, "not_judged",
              says=("nobody has asked",)),
]  # fmt: skip


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
def test_situations(situation: Situation) -> None:
    judgement = judge_waiting(Waits(**situation.waits))
    assert (judgement.level, judgement.causes) == (situation.level, situation.causes)
    verdict = in_words(judgement)
    text = " ".join(
        [verdict.headline, *verdict.advice, *(cause.evidence for cause in verdict.causes)]
    )
    for words in situation.says:
        assert words in text
    assert verdict.headline[0].isupper()
    assert verdict.headline.endswith(".")
    assert (verdict.reason is None) == (verdict.level != "not_judged")
    assert all(cause.evidence and cause.advice for cause in verdict.causes)


def test_every_cause_is_named_in_a_situation() -> None:
    assert {cause for one in SITUATIONS for cause in one.causes} == set(get_args(WaitingCause))


def test_the_levels_change_where_the_text_says() -> None:
    def level(seconds: float) -> Level:
        return judge_waiting(Waits(queue_seconds=seconds, queued=3)).level

    assert [level(1.0), level(1.01), level(5.0), level(5.01)] == [
        "healthy", "watch", "watch", "suspect"
    ]  # fmt: skip
