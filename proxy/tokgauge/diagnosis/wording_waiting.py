"""What is said of waiting: the only place where its sentences are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from tokgauge.diagnosis.phrases import count, per_time, percent
from tokgauge.diagnosis.phrases import seconds as tenths
from tokgauge.diagnosis.phrases import waiting as in_the_queue
from tokgauge.diagnosis.verdict import Cause, Verdict, WaitingCause
from tokgauge.diagnosis.waiting import MIN_FIRST_TOKENS, WaitingJudgement, Waits

_TITLES: Mapping[WaitingCause, str] = {
    "engine_down": "the engine cannot be reached",
    "preemption": "the engine interrupts running requests for want of KV cache",
    "kv_cache_full": "the KV cache is full",
    "queue": "the engine has more to do than it takes on at once",
    "slow_first_tokens": "first tokens take longer than the prompts explain, without a queue",
    "queue_or_prefills": "requests queue or prompts take long, the engine does not tell which",
    "long_prefills": "the prompts are long",
}

_ROOM = (
    "Give the KV cache more room: more GPU memory for it (gpu_memory_utilization), an fp8 KV cache,"
    " a smaller max_model_len, another GPU."
)

_ADVICE: Mapping[WaitingCause, str] = {
    "engine_down": "Look at the engine's process and its log; restart it if it has ended.",
    "preemption": f"{_ROOM} A smaller batch limit (max_num_seqs) ends the interruptions, too: then"
    " people queue instead.",
    "kv_cache_full": f"{_ROOM} A larger batch limit would not help: the room is the limit.",
    "queue": (
        "There is room in the KV cache: raise the batch limit (max_num_seqs) as long as the speed"
        " of each stream allows, add a replica, or spread the requests over time."
    ),
    "slow_first_tokens": (
        "Look at the engine's CPU (tokenising, templates, images, guided decoding), at adapters"
        " that are loaded on demand, and at the network between tokgauge and the engine."
    ),
    "queue_or_prefills": (
        "Let the engine tell (vLLM and SGLang: the metrics page; llama-server: --metrics). Until"
        " then: shorter prompts, prefix caching, a larger batch, another replica."
    ),
    "long_prefills": (
        "Use prefix caching for prompts that repeat, shorten them, or compute them on more or"
        " faster GPUs; nothing is wrong with the engine."
    ),
}


def in_words(judgement: WaitingJudgement) -> Verdict:
    """The judgement for people."""
    waits = judgement.waits
    causes = tuple(Cause(kind, _SEEN[kind](waits), _ADVICE[kind]) for kind in judgement.causes)
    return Verdict(
        level=judgement.level,
        headline=_headline(judgement),
        causes=causes,
        advice=tuple(cause.advice for cause in causes),
        reason="too_little_traffic" if judgement.why is not None else None,
    )


def _headline(judgement: WaitingJudgement) -> str:
    waits = judgement.waits
    if waits.down is not None:
        return f"The engine cannot be reached since {_clock(waits.down.since)}: {_error(waits)}."
    if judgement.why == "no_requests":
        return "Not judged: nobody has asked for anything lately."
    if judgement.why == "few_first_tokens":
        asked = count(waits.first_tokens, "stream")
        return f"Not judged: {asked} lately, of {MIN_FIRST_TOKENS} that it takes."
    opening = {"healthy": "Nobody waits long", "watch": "People wait"}.get(
        judgement.level, "People wait long"
    )
    because = "".join(f"; {_TITLES[kind]}" for kind in judgement.causes)
    return f"{opening}{_felt(waits)}{because}."


def _felt(waits: Waits) -> str:
    parts = [_queued(waits), _first_tokens(waits)]
    told = [part for part in parts if part]
    return f": {', '.join(told)}" if told else ""


def _queued(waits: Waits) -> str:
    if waits.queue_seconds is None:
        return in_the_queue(waits.waiting) if waits.waiting else ""
    return f"{_seconds(waits.queue_seconds)} in the engine's queue (mean of {waits.queued})"


def _first_tokens(waits: Waits) -> str:
    if waits.first_token_seconds is None:
        return ""
    still = f", {waits.still_waiting} of them still waiting" if waits.still_waiting else ""
    return (
        f"{_seconds(waits.first_token_seconds)} until the first token"
        f" (median of {waits.first_tokens}{still})"
    )


def _seconds(value: float) -> str:
    return tenths(value) if value >= 0.05 else "less than 0.1 s"


def _clock(unix: float) -> str:
    return f"{datetime.fromtimestamp(unix, UTC):%H:%M:%S} UTC"


def _error(waits: Waits) -> str:
    error = waits.down.error if waits.down is not None else ""
    return error.rstrip(".") or "no answer"


def _cache(waits: Waits) -> str:
    return f"the KV cache is {percent(waits.kv_cache_usage or 0.0)} full"


def _down(waits: Waits) -> str:
    since = _clock(waits.down.since) if waits.down is not None else ""
    return f"no answer since {since}; the last try met: {_error(waits)}"


def _preemption(waits: Waits) -> str:
    rate = per_time(waits.preemptions_per_second or 0.0)
    seen = f"{rate} interrupted and computed again later"
    return seen if waits.kv_cache_usage is None else f"{seen}; {_cache(waits)}"


def _queue_seen(waits: Waits) -> str:
    told = [_queued(waits)]
    if waits.waiting and waits.queue_seconds is not None:
        told.append(in_the_queue(waits.waiting))
    if waits.longest_wait is not None:
        told.append(f"the longest wait so far is {_seconds(waits.longest_wait)}")
    if waits.kv_cache_usage is not None:
        told.append(_cache(waits))
    return "; ".join(part for part in told if part)


def _full(waits: Waits) -> str:
    return f"{_cache(waits)} and {in_the_queue(waits.waiting or 0)}"


def _prompts(waits: Waits) -> str:
    alone = waits.prompt_seconds
    if alone is None:
        return "how fast this engine computes prompts is not known"
    return f"a prompt of median length takes {_seconds(alone.low)} to {_seconds(alone.high)} alone"


def _first_tokens_and_prompts(waits: Waits) -> str:
    return f"{_first_tokens(waits)}; {_prompts(waits)}"


_SEEN: Mapping[WaitingCause, Callable[[Waits], str]] = {
    "engine_down": _down,
    "preemption": _preemption,
    "kv_cache_full": _full,
    "queue": _queue_seen,
    "slow_first_tokens": _first_tokens_and_prompts,
    "queue_or_prefills": _first_tokens_and_prompts,
    "long_prefills": _first_tokens_and_prompts,
}
