"""Whether people got whole answers: situations, and the answer that an expert would give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import msgspec
import pytest
from tokgauge.diagnosis.answers import Answers
from tokgauge.diagnosis.lately import Lately
from tokgauge.diagnosis.verdict import AnswersCause, Level
from tokgauge.diagnosis.whole_answers import LIMITS, judge_answers
from tokgauge.diagnosis.wording_answers import in_words
from tokgauge.measure.record import Progress, Record

pytestmark = pytest.mark.socketless


def record(outcome: str = "ok", *, streamed: bool = True, at: float = 1.0, **known: Any) -> Record:
    progress = Progress(
        id="1", opened_at=0.0, requested="m", answered="m", generates=True, streamed=streamed,
        decodes_from=0.5, decoded_to=1.0, token_events=1, silent_since=None, sequences=1,
        context_at_most=None, context_at_least=0.0, calls_tools=False,
    )  # fmt: skip
    given: dict[str, Any] = {
        "progress": progress, "ended_at": at, "outcome": outcome, "silent_wait": 0.2,
        "finish_reasons": ("stop",) if outcome == "ok" else (), "truncations": (), **known,
    }  # fmt: skip
    unknown: dict[str, Any] = {f.name: None for f in msgspec.structs.fields(Record) if f.required}
    return Record(**unknown | given)


def answers(records: Sequence[Record]) -> Answers:
    found = Answers()
    for done in records:
        found.add(done, streamed=done.progress.streamed)
    return found


def cut(by: str | int) -> Record:
    return record(finish_reasons=("length",), truncations=(by,))


WHOLE = record()
LATE = record(streamed=False, silent_wait=12.65)


@pytest.mark.parametrize(
    ("records", "level", "causes", "says"),
    [
        ([WHOLE] * 20, "healthy", (), "People get whole answers: 20 lately"),
        ([WHOLE] * 9, "not_judged", (), "Not judged: 9 answers lately, of 10 that it takes."),
        ([], "not_judged", (), "no answer has ended lately"),
        ([record("stream_error")] * 9, "not_judged", (), "9 answers"),
        (
            [WHOLE] * 7 + [record("upstream_incomplete")] * 3, "suspect", ("broken_off",),
            "Answers are missing: 30 % of the answers were broken off by the engine.",
        ),
        (
            [WHOLE] * 97 + [record("upstream_stalled"), record("stream_error")] * 2, "watch",
            ("broken_off",), "4 of 101 answers (4 %)",
        ),
        ([WHOLE] * 8 + [record("stream_error")] * 2, "healthy", (), "whole"),
        (
            [WHOLE] * 10 + [record("upstream_error", status=503)] * 5, "suspect",
            ("engine_errors",), "status of 500",
        ),
        ([WHOLE] * 10 + [record("upstream_error", status=400)] * 50, "healthy", (), ": 10 lately"),
        ([WHOLE] * 10 + [record("rejected", status=429)] * 50, "healthy", (), ": 10 lately"),
        (
            [WHOLE] * 10 + [record("upstream_unreachable", status=502)] * 3
            + [record("timeout", status=504)], "suspect", ("engine_unreachable",), "4 of 14",
        ),
        ([WHOLE] * 10 + [record("proxy_error")] * 3, "suspect", ("proxy_errors",), "report"),
        (
            [WHOLE] * 15 + [cut("request")] * 5, "watch", ("cut_by_request_limit",),
            "Worth watching: 25 % of the answers were cut off by the token limit of the request.",
        ),
        ([cut("request")] * 20, "watch", ("cut_by_request_limit",), "max_tokens"),
        ([WHOLE] * 30 + [cut("request")], "healthy", (), "whole"),
        ([WHOLE] * 18 + [cut("context")] * 2, "watch", ("cut_by_context",), "max_model_len"),
        ([WHOLE] * 10 + [cut("context")] * 10, "suspect", ("cut_by_context",), "context was full"),
        ([WHOLE] * 10 + [cut(4000)] * 10, "watch", ("cut_by_unknown_limit",), "50 %"),
        (
            [WHOLE] * 10 + [record("client_closed")] * 5, "watch", ("clients_leave",),
            "were left by the client before their end",
        ),
        (
            [WHOLE] * 10 + [LATE] * 5, "watch", ("not_streamed",),
            "33 % of the answers were not streamed; half of those came only after 12.6 s or more",
        ),
        ([WHOLE] * 10 + [record(streamed=False)] * 5, "healthy", (), "whole"),
        (
            [WHOLE] * 5 + [record("upstream_incomplete")] * 3 + [LATE] * 5, "suspect",
            ("broken_off", "not_streamed"), "and more is wrong (1)",
        ),
    ],
)  # fmt: skip
def test_situations(
    records: list[Record], level: Level, causes: tuple[AnswersCause, ...], says: str
) -> None:
    judgement = judge_answers(answers(records))
    assert (judgement.level, judgement.causes) == (level, causes)
    verdict = in_words(judgement)
    text = " ".join([verdict.headline, *verdict.advice, *(one.evidence for one in verdict.causes)])
    assert says in text
    assert (verdict.reason is None) == (level != "not_judged")
    assert all(cause.evidence and cause.advice for cause in verdict.causes)


def test_every_cause_has_limits() -> None:
    assert set(LIMITS) == set(get_args(AnswersCause))


def test_where_nobody_counts_nothing_is_judged() -> None:
    assert in_words(judge_answers(None)).level == "not_judged"


def test_answers_are_forgotten_after_their_time() -> None:
    lately = Lately(60.0)
    for second in range(100):
        lately.ended(record(at=float(second)))
    lately.ended(msgspec.structs.replace(
        WHOLE, ended_at=99.0, progress=msgspec.structs.replace(WHOLE.progress, generates=False)
    ))  # fmt: skip
    assert 57 <= lately.seen(100.0).endings.total() <= 63
    assert lately.seen(200.0).endings.total() == 0
