"""What follows from the timeline of an exchange that has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokgauge.dialects.answer import AnswerReader
from tokgauge.dialects.routes import READERS
from tokgauge.dialects.usage import NO_USAGE
from tokgauge.measure.record import Outcome, Record, TokenSource
from tokgauge.measure.response_text import ResponseText

if TYPE_CHECKING:
    from tokgauge.measure.timeline import RequestTimeline

MIN_TOKENS_FOR_RATE = 16
"""Below this many tokens of a sequence a decode rate says more about jitter than about speed."""

MIN_ARRIVALS_FOR_RATE = 8
"""Below this many separate arrivals the tokens were held back somewhere: the span is not theirs."""

MOST_TOKENS_PER_CALL_EVENT = 1.05
"""Tokens per event of an answer that calls tools, above which a parser has held tokens back."""

_NOT_CARRIED = ("upstream_unreachable", "timeout", "rejected")
"""Outcomes of requests that the engine may never have had."""


def conclude(timeline: RequestTimeline, at: float, outcome: Outcome) -> Record:
    """The record of an exchange that ended at `at`; outcome: as the relay saw it."""
    text, usage = timeline.text, NO_USAGE
    if text is not None:
        text.count()
        usage = text.read_rest()
    reader = text.reader if text is not None else None
    progress = timeline.progress()
    started = timeline.received_at if timeline.received_at is not None else timeline.opened_at
    duration = max(0.0, at - started)
    completion, source = _completion_tokens(text, usage.completion)
    first_token = first_output = tpot = None
    gaps, gaps_total = timeline.take_gaps()
    if text is not None and progress.token_events:
        first_token = _since(started, text.times.first)
        first_output = _since(started, text.times.first_output)
        if completion is not None:
            tpot = _time_per_output_token(text, completion, source)
    reasons = tuple(reader.finish_reasons.values()) if reader is not None else ()
    return Record(
        progress=progress,
        ended_at=at,
        gaps=tuple(gaps),
        gaps_total=gaps_total,
        id=timeline.id,
        method=timeline.method,
        route=timeline.route,
        stream=timeline.stream or timeline.asked.stream,
        status=timeline.status,
        outcome=_outcome(timeline, outcome),
        retried=timeline.retried,
        duration=duration,
        time_to_first_token=first_token,
        time_to_first_output=first_output,
        silent_wait=_silent_wait(timeline, first_token, duration),
        overhead=_overhead(timeline, started, outcome),
        prompt_tokens=usage.prompt,
        cached_prompt_tokens=usage.cached_prompt,
        completion_tokens=completion,
        reasoning_tokens=usage.reasoning,
        token_source=source,
        token_events=progress.token_events,
        tokens_per_event=(
            completion / progress.token_events
            if completion is not None and source == "usage" and progress.token_events
            else None
        ),
        sequences=progress.sequences,
        time_per_output_token=tpot,
        decode_tokens_per_second=1.0 / tpot if tpot else None,
        finish_reasons=reasons,
        truncations=_truncations(reader, completion, timeline.asked.max_tokens),
        alone=timeline.alone,
        terminated=reader.done if reader is not None and timeline.stream else None,
        unread=tuple(text.unread) if text is not None else (),
    )


def _since(start: float, moment: float | None) -> float | None:
    return None if moment is None else max(0.0, moment - start)


def _outcome(timeline: RequestTimeline, seen: Outcome) -> Outcome:
    reader = timeline.reader
    if seen == "client_closed" and timeline.is_over:
        seen = "ok"  # it had got all of the response
    if seen != "ok":
        return seen
    if timeline.status is not None and timeline.status >= 400:
        return "upstream_error"
    if reader is not None and reader.error:
        return "stream_error"
    return "ok" if _is_whole(timeline) else "upstream_incomplete"


def _is_whole(timeline: RequestTimeline) -> bool:
    """Whether a response of text is here to its end, as far as it could be read."""
    text = timeline.text
    if text is None:
        return True
    if not text.has_begun:
        return timeline.status != 200  # nothing has come, or white space only
    if text.reader is None:
        return True
    return text.reader.finished or (text.stream and bool(text.unread))


def _silent_wait(
    timeline: RequestTimeline, first_token: float | None, duration: float
) -> float | None:
    if timeline.status is None or timeline.status >= 400 or timeline.route not in READERS:
        return None
    if timeline.stream:
        return first_token
    reader = timeline.reader
    return duration if reader is not None and reader.finished else None


def _overhead(timeline: RequestTimeline, started: float, outcome: Outcome) -> float | None:
    if timeline.sent_at is None or outcome in _NOT_CARRIED:
        return None
    return max(0.0, timeline.sent_at - started) + timeline.in_proxy


def _completion_tokens(
    text: ResponseText | None, counted: int | None
) -> tuple[int | None, TokenSource | None]:
    reader = text.reader if text is not None else None
    if text is None or reader is None or (reader.error and not reader.token_events):
        return None, None
    if counted is not None:
        return counted, "usage"
    # A finish without a token event is no count of 0: a parser of tool calls may hold all back.
    if text.stream and "event_size" not in text.unread and reader.token_events:
        return reader.token_events, "events"
    return None, None


def _time_per_output_token(
    text: ResponseText, tokens: int, source: TokenSource | None
) -> float | None:
    """Seconds per token of one sequence, from its first token event to its last.

    The first event's tokens belong to the prefill. Continuous usage tells how many they are; else
    it is one a sequence, as engines emit the prefill's token by itself. Parsers of tool calls hold
    tokens back, also before the first event: then the span is not that of the tokens.
    """
    reader, times = text.reader, text.times
    if reader is None or times.first is None or times.last is None:
        return None
    sequences = reader.sequences
    if tokens < MIN_TOKENS_FOR_RATE * sequences or times.arrivals < MIN_ARRIVALS_FOR_RATE:
        return None
    if reader.calls and (
        source == "events" or tokens > MOST_TOKENS_PER_CALL_EVENT * reader.token_events
    ):
        return None
    elapsed = times.last - times.first
    decoded = tokens - (reader.first_event_tokens or sequences)
    if elapsed <= 0 or decoded <= 0:
        return None
    return elapsed * sequences / decoded


def _truncations(
    reader: AnswerReader | None, tokens: int | None, limit: int | None
) -> tuple[str | int, ...]:
    """What cut each of the choices that were cut: see `Record`. limit: what the request set."""
    if reader is None:
        return ()
    reasons = reader.finish_reasons
    cut = [index for index, reason in reasons.items() if reason == "length"]
    if reader.sequences == 1:
        return tuple([_cut_by(tokens, reader.usage.prompt, limit) for _ in cut])
    if tokens != reader.token_events:
        # Events are not tokens here, so one choice's share is not known.
        all_at_limit = limit is not None and tokens == limit * reader.sequences
        how = "request" if all_at_limit and len(cut) == len(reasons) else "unknown"
        return (how,) * len(cut)
    return tuple([_cut_by(reader.events_of(index), reader.usage.prompt, limit) for index in cut])


def _cut_by(tokens: int | None, prompt: int | None, limit: int | None) -> str | int:
    if tokens is None:
        return "unknown"
    if limit is not None and tokens >= limit:
        return "request"
    return "unknown" if prompt is None else prompt + tokens
