"""Which of the three answers is shown first, how long a reason stays, and what is logged."""

import logging

import pytest
from tokgauge.diagnosis.steady import SHOWN_AT_LEAST, Steady
from tokgauge.diagnosis.three_answers import OnShow, ThreeAnswers
from tokgauge.diagnosis.verdict import LEVELS, Cause, CauseKind, Level, Verdict, WaitingCause
from tokgauge.diagnosis.verdict_log import VerdictLog

pytestmark = pytest.mark.socketless


def verdict(level: Level, *kinds: CauseKind | WaitingCause, headline: str = "") -> Verdict:
    causes = tuple(Cause(kind, "seen", "do") for kind in kinds)
    return Verdict(level, headline or level, causes)


def three(speed: Level, waiting: Level, answers: Level) -> ThreeAnswers:
    return ThreeAnswers(speed=verdict(speed), waiting=verdict(waiting), answers=verdict(answers))


@pytest.mark.parametrize(
    ("levels", "worst"),
    [
        (("healthy", "healthy", "healthy"), ("speed", "healthy")),
        (("healthy", "not_judged", "not_judged"), ("speed", "healthy")),
        (("not_judged", "healthy", "healthy"), ("speed", "not_judged")),
        (("not_judged", "watch", "healthy"), ("waiting", "watch")),
        (("not_judged", "healthy", "suspect"), ("answers", "suspect")),
        (("above_ceiling", "healthy", "healthy"), ("speed", "above_ceiling")),
        (("above_ceiling", "healthy", "watch"), ("answers", "watch")),
        (("watch", "suspect", "watch"), ("waiting", "suspect")),
        (("suspect", "suspect", "suspect"), ("speed", "suspect")),
        (("healthy", "watch", "watch"), ("waiting", "watch")),
    ],
)
def test_the_worst(levels: tuple[Level, Level, Level], worst: tuple[str, Level]) -> None:
    question, found = three(*levels).worst
    assert (question, found.level) == worst


def test_an_engine_that_is_down_comes_first() -> None:
    down = verdict("suspect", "engine_down")
    slow = ThreeAnswers(
        speed=verdict("suspect", "cpu_bound"), waiting=down, answers=verdict("suspect")
    )
    assert slow.worst == ("waiting", down)


def test_json_has_the_worst_beside_the_three() -> None:
    found = three("healthy", "suspect", "not_judged").as_json()
    assert list(found) == ["level", "headline", "question", "speed", "waiting", "answers"]
    assert (found["level"], found["headline"], found["question"]) == (
        "suspect", "suspect", "waiting"
    )  # fmt: skip
    speed = found["speed"]
    assert isinstance(speed, dict)
    assert {"level", "headline", "causes", "advice", "notes", "ruled_out"} <= set(speed)


class TestSteady:
    @pytest.mark.parametrize("later", [level for level in LEVELS if level != "suspect"])
    def test_an_alarm_stays_long_enough_to_be_read(self, later: Level) -> None:
        steady = Steady()
        steady.show(verdict("suspect", "queue"), 100.0)
        after = 100.0 + SHOWN_AT_LEAST
        assert steady.show(verdict(later), after - 0.1) == verdict("suspect", "queue")
        assert steady.show(verdict(later), after) == verdict(later)

    @pytest.mark.parametrize("level", ["watch", "suspect"])
    def test_what_is_worse_shows_at_once(self, level: Level) -> None:
        steady = Steady()
        steady.show(verdict("healthy"), 100.0)
        assert steady.show(verdict(level), 100.1) == verdict(level)

    def test_what_is_worse_shows_at_once_beside_a_reason_that_would_stay(self) -> None:
        steady = Steady()
        steady.show(verdict("watch", "queue"), 100.0)
        assert steady.show(verdict("suspect", "engine_down"), 101.0).level == "suspect"
        assert steady.show(verdict("watch", "queue"), 110.9).level == "suspect"

    def test_another_reason_waits_and_a_further_one_does_not(self) -> None:
        steady = Steady()
        steady.show(verdict("watch", "queue"), 100.0)
        assert steady.show(verdict("watch", "preemption"), 105.0) == verdict("watch", "queue")
        both = verdict("watch", "queue", "preemption")
        assert steady.show(both, 106.0) == both
        assert steady.show(verdict("watch", "queue"), 115.9) == both
        assert steady.show(verdict("watch", "queue"), 116.0) == verdict("watch", "queue")

    def test_a_reason_that_holds_on_may_go_when_it_ends(self) -> None:
        steady = Steady()
        for second in range(60):
            steady.show(verdict("watch", "queue"), 100.0 + second)
        assert steady.show(verdict("healthy"), 160.0) == verdict("healthy")

    def test_numbers_are_renewed(self) -> None:
        steady = Steady()
        steady.show(verdict("watch", "queue", headline="2 s"), 100.0)
        assert steady.show(verdict("watch", "queue", headline="3 s"), 101.0).headline == "3 s"

    @pytest.mark.parametrize("first", ["healthy", "not_judged"])
    def test_what_has_no_reason_gives_way_at_once(self, first: Level) -> None:
        steady = Steady()
        steady.show(verdict(first), 100.0)
        for level in LEVELS:
            assert Steady().show(verdict(level), 0.0) == verdict(level)
        assert steady.show(verdict("not_judged"), 100.1) == verdict("not_judged")

    def test_nothing_stays_of_another_model(self) -> None:
        steady = Steady()
        steady.show(verdict("suspect", "queue"), 100.0)
        steady.forget()
        assert steady.show(verdict("healthy"), 100.1) == verdict("healthy")


def test_each_question_is_steady_by_itself() -> None:
    on_show = OnShow()
    on_show.show(three("suspect", "suspect", "healthy"), 100.0)
    on_show.forget_speed()
    shown = on_show.show(three("healthy", "healthy", "watch"), 101.0)
    assert [found.level for _, found in shown] == ["healthy", "suspect", "watch"]


def test_each_change_of_the_worst_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    log = VerdictLog()
    with caplog.at_level(logging.INFO, "tokgauge"):
        for levels in (
            ("not_judged", "not_judged", "not_judged"),
            ("healthy", "healthy", "healthy"),
            ("healthy", "watch", "healthy"),
            ("healthy", "watch", "watch"),
            ("healthy", "suspect", "watch"),
            ("not_judged", "not_judged", "not_judged"),
            ("healthy", "suspect", "healthy"),
            ("above_ceiling", "healthy", "healthy"),
            ("healthy", "healthy", "healthy"),
        ):
            log.note(three(*levels))
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "speed: healthy"),
        ("WARNING", "waiting: watch"),
        ("WARNING", "waiting: suspect"),
        ("INFO", "speed: above_ceiling"),
        ("INFO", "speed: healthy"),
    ]
