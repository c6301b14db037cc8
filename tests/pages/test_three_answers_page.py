"""The three answers on the page, in a real browser: the worst on top, and nothing jumps."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tokgauge.diagnosis.three_answers import ThreeAnswers
from tokgauge.diagnosis.verdict import Cause, Verdict
from tokgauge.pages.status import PAGE

from tests.pages.browser import Pages, look_at, served_by

pytestmark = pytest.mark.timed

QUEUE = Cause("queue", "9.0 s in the engine's queue (mean of 7)", "Raise the batch limit.")
CACHE = Cause(
    "kv_cache_full", "the KV cache is 98 % full and 5 requests wait", "Give it room. " * 9
)
BROKEN = Cause("broken_off", "3 of 20 answers (15 %) were broken off", "Look at its log. " * 9)

FINE = ThreeAnswers(
    speed=Verdict("healthy", "Healthy: 75 %."),
    waiting=Verdict("healthy", "Nobody waits long."),
    answers=Verdict("not_judged", "Not judged: 4 answers.", reason="too_little_traffic"),
)
BAD = ThreeAnswers(
    speed=Verdict("watch", "Worth watching: " + "a long sentence with figures, " * 4, (QUEUE,)),
    waiting=Verdict("suspect", "People wait long: " + "a long sentence, " * 6, (CACHE,)),
    answers=Verdict("suspect", "Answers are missing: 15 %.", (BROKEN,)),
)

_WHERE = """<script>
new MutationObserver(() => {
  const top = Math.round(document.getElementById("tiles").getBoundingClientRect().top);
  document.body.dataset.tops = (document.body.dataset.tops || "") + " " + top;
}).observe(document.getElementById("updated"), { childList: true });
</script>"""
"""Writes down where the figures stand after each refresh."""


@contextmanager
def page_of(*told: ThreeAnswers) -> Iterator[str]:
    """The page, from a tokgauge that says these one after the other, and the last one again."""
    turns: Sequence[ThreeAnswers] = told
    asked: list[str] = []

    class Handler(Pages):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            if self.path == "/tokgauge/status":
                self.wfile.write(PAGE.replace("</body>", f"{_WHERE}</body>").encode())
                return
            turn = turns[min(len(asked), len(turns) - 1)]
            asked.append(self.path)
            live = {
                "verdict": turn.as_json(), "figures": {}, "live": {}, "problems": [],
                "usage_injection": {}, "version": "1",
            }  # fmt: skip
            self.wfile.write(json.dumps(live).encode())

    with served_by(Handler) as url:
        yield url


def test_the_worst_stands_on_top_and_its_reasons_first(tmp_path: Path) -> None:
    with page_of(BAD) as url:
        page = look_at(f"{url}/tokgauge/status", tmp_path)
    assert page.text("answer") == "✕ People wait long"
    assert page.text("headline") == BAD.waiting.headline
    assert "! Slower than it could be" in page.text("speed")
    assert "✕ People wait long" in page.text("waiting")
    assert "✕ Answers are missing" in page.text("answers")
    assert BAD.answers.headline in page.text("answers")
    assert re.findall(r"(\w+): [a-z]+ [a-z ]*", page.text("reasons"))[0] == "waiting"
    for cause in (CACHE, QUEUE, BROKEN):
        assert cause.evidence in page.text("reasons")
        assert cause.advice.strip() in page.text("reasons")


def test_all_is_well(tmp_path: Path) -> None:
    with page_of(FINE) as url:
        page = look_at(f"{url}/tokgauge/status", tmp_path)
    assert page.text("answer") == "✓ Yes, this is normal"
    assert "✓ Nobody waits long" in page.text("waiting")
    assert "– Cannot be judged now" in page.text("answers")
    assert page.text("reasons") == "Nothing to add."


def test_what_is_read_does_not_jump_when_a_reason_comes_and_goes(tmp_path: Path) -> None:
    with page_of(FINE, BAD, FINE) as url:
        page = look_at(f"{url}/tokgauge/status", tmp_path)
    tops = re.search(r'data-tops="([^"]*)"', page.dom)
    assert tops is not None
    assert len(tops[1].split()) >= 3, "all three were shown"
    assert len(set(tops[1].split())) == 1, tops[1]
