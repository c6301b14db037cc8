"""What is said of whole answers: the only place where its sentences are."""

from __future__ import annotations

from collections.abc import Mapping

from tokgauge.diagnosis.phrases import count, percent, seconds
from tokgauge.diagnosis.verdict import AnswersCause, Cause, Verdict
from tokgauge.diagnosis.whole_answers import MIN_ANSWERS, AnswersJudgement, Found

_TITLES: Mapping[AnswersCause, str] = {
    "engine_unreachable": "had no answer, because the engine could not be reached in time",
    "engine_errors": "had an error of the engine instead of an answer",
    "broken_off": "were broken off by the engine",
    "proxy_errors": "were cut by an error of tokgauge itself",
    "cut_by_context": "were cut off because the model's context was full",
    "cut_by_request_limit": "were cut off by the token limit of the request",
    "cut_by_unknown_limit": "were cut off by a token limit",
    "clients_leave": "were left by the client before their end",
    "not_streamed": "were not streamed",
}
"""What happened to so many of the answers."""

_ADVICE: Mapping[AnswersCause, str] = {
    "engine_unreachable": (
        "Look at the engine's process and log; if it is only slow to answer, raise"
        " first_byte_timeout."
    ),
    "engine_errors": "Look at the engine's log: it answers with a status of 500 or above.",
    "broken_off": (
        "Look at the engine's log: it ended, ran out of memory or was restarted in mid-answer, or"
        " something between tokgauge and the engine cuts connections."
    ),
    "proxy_errors": "Look at tokgauge's log, and please report what it says.",
    "cut_by_context": (
        "Shorten prompts or conversations, or serve the model with a larger max_model_len."
    ),
    "cut_by_request_limit": (
        "Let the clients ask for more tokens (max_tokens), unless short answers are what they want."
    ),
    "cut_by_unknown_limit": (
        "Let the clients ask for more tokens (max_tokens); where they set no limit, see which one"
        " the engine sets by itself."
    ),
    "clients_leave": (
        "Look at the clients' own time-outs, and at those of balancers before tokgauge. People"
        " who stop an answer do so because it came too slowly, or because they have read enough."
    ),
    "not_streamed": "Let the clients stream (`stream: true`): the first words come at once.",
}


def in_words(judgement: AnswersJudgement) -> Verdict:
    """The judgement for people."""
    causes = tuple(Cause(kind, _seen(kind, judgement), _ADVICE[kind]) for kind in judgement.causes)
    return Verdict(
        level=judgement.level,
        headline=_headline(judgement),
        causes=causes,
        advice=tuple(cause.advice for cause in causes),
        reason=None if judgement.judged else "too_little_traffic",
    )


def _headline(judgement: AnswersJudgement) -> str:
    if not judgement.judged:
        if not judgement.asked:
            return "Not judged: no answer has ended lately."
        ended = count(judgement.asked, "answer")
        return f"Not judged: {ended} lately, of {MIN_ANSWERS} that it takes."
    if not judgement.causes:
        return f"People get whole answers: {judgement.asked} lately, hardly any of them cut."
    first, *others = judgement.causes
    share = percent(judgement.found[first].share)
    more = f", and more is wrong ({len(others)})" if others else ""
    opening = "Answers are missing" if judgement.level == "suspect" else "Worth watching"
    return f"{opening}: {share} of the answers {_TITLES[first]}{_wait(first, judgement)}{more}."


def _seen(kind: AnswersCause, judgement: AnswersJudgement) -> str:
    found = judgement.found[kind]
    return f"{_so_many(found)} {_TITLES[kind]}{_wait(kind, judgement)}"


def _so_many(found: Found) -> str:
    return f"{found.number:,} of {count(found.of, 'answer')} ({percent(found.share)})"


def _wait(kind: AnswersCause, judgement: AnswersJudgement) -> str:
    if kind != "not_streamed" or judgement.wait is None:
        return ""
    return f"; half of those came only after {seconds(judgement.wait)} or more"
