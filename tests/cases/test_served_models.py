"""Cases 56 and 57: whose context and whose ceiling, where the engine lists several models."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import Rig
from tests.support.chat import CHAT, ask
from tests.support.engine import DONE, ROLE, ScriptedEngine, chat_event, json_answer, send, stream
from tests.support.engine import usage_event as usage
from tests.support.metrics import wait_until

FAST = {"models": (), "rate_window": 1, "engine_metrics_interval": 0.1, "poll_interval": 0.2}
INPUTS = {"weights_bytes": 14e9, "kv_bytes_per_token": 57_344, "gpu_bandwidth": 700e9}
CEILING = "ceiling_tokens_per_second"


def before(
    new_rig: Callable[..., Rig], engine: ScriptedEngine, *cards: Any, **settings: Any
) -> Rig:
    """A proxy before an engine that lists these cards."""
    engine.on("/v1/models", send(json_answer({"object": "list", "data": list(cards)})))
    rig = new_rig(engine, **FAST, **settings)
    engine.wait_requests(1)
    return rig


def answers(rig: Rig, answered: str, *, asked: str, finish: str = "stop", prompt: int = 5) -> None:
    """One stream; the engine says that `answered` gave it."""
    events = [ROLE, chat_event("a"), chat_event("b", finish=finish), usage(12, prompt)]
    named = [e.replace(b'"model":"qwen"', f'"model":"{answered}"'.encode()) for e in events]
    rig.engine.on(CHAT, stream(*named, DONE))
    ask(rig.port, model=asked)


def labels(rig: Rig) -> set[str]:
    return {found["model"] for found in rig.scrape().labels(CEILING)}


@pytest.mark.parametrize(
    ("card", "limit"),
    [
        ({"parent": "base"}, "context"),
        ({"parent": "/models/base"}, "context"),
        ({"parent": "a name that is not served"}, "unknown"),
        ({"parent": "base", "max_model_len": None}, "context"),
        ({"parent": "base", "max_model_len": 1024}, "unknown"),
        ({"parent": "adapter"}, "unknown"),
    ],
    ids=["id", "root", "unlisted", "null", "its own", "itself"],
)
def test_case_56_an_adapter_has_the_context_of_its_base(
    new_rig: Callable[..., Rig], card: dict[str, Any], limit: str
) -> None:
    with ScriptedEngine() as engine:
        base = {"id": "base", "root": "/models/base", "parent": None, "max_model_len": 512}
        other = {"id": "other-base", "root": "/models/other", "max_model_len": 4096}
        rig = before(new_rig, engine, base, other, {"id": "adapter", "root": "/lora", **card})
        watch = rig.watch()
        answers(rig, "adapter", asked="adapter", finish="length", prompt=500)
        gained = watch.after()
        assert gained.total("truncations_total", model="adapter", limit=limit) == 1


def test_case_56_the_only_base_needs_no_name(new_rig: Callable[..., Rig]) -> None:
    with ScriptedEngine() as engine:
        base = {"id": "base", "root": "/models/base", "parent": None, "max_model_len": 512}
        rig = before(new_rig, engine, base, {"id": "adapter", "parent": "as trained"})
        watch = rig.watch()
        answers(rig, "adapter", asked="adapter", finish="length", prompt=500)
        assert watch.after().total("truncations_total", model="adapter", limit="context") == 1


@pytest.mark.parametrize(
    "cards",
    [
        [{"id": "first"}, {"id": "second"}],
        [{"id": "first", "root": "/models/first"}, {"id": "second", "root": "/models/second"}],
        [{"id": "first"}, {"id": "adapter", "parent": "second"}, {"id": "second"}],
    ],
    ids=["no_roots", "roots", "adapter"],
)
def test_case_57_figures_are_of_the_model_that_the_answers_name(
    new_rig: Callable[..., Rig], cards: list[dict[str, Any]]
) -> None:
    served = "adapter" if len(cards) == 3 else "second"
    with ScriptedEngine() as engine:
        rig = before(new_rig, engine, *cards, **INPUTS)
        wait_until(lambda: rig.scrape().total("verdict") is not None)
        time.sleep(0.3)
        assert labels(rig) == set(), "nothing tells which of them is read"
        assert rig.scrape().total("model_info") is None
        answers(rig, served, asked="whatever")
        wait_until(lambda: labels(rig) == {"second"})
        assert rig.scrape().total("model_info", model="second") == 1
        answers(rig, "first", asked="whatever")
        wait_until(lambda: labels(rig) == set(), what="two models in one window")
        end = time.monotonic() + 5
        while labels(rig) != {"first"}:
            assert time.monotonic() < end
            answers(rig, "first", asked="whatever")
            time.sleep(0.1)


def test_case_57_names_of_one_model_share_its_figures(new_rig: Callable[..., Rig]) -> None:
    with ScriptedEngine() as engine:
        cards = [{"id": name, "root": "/models/one"} for name in ("one", "alias")]
        rig = before(new_rig, engine, *cards, **INPUTS)
        wait_until(lambda: labels(rig) == {"one"})
        answers(rig, "alias", asked="alias")
        wait_until(lambda: labels(rig) == {"alias"})


def test_case_57_names_that_are_set(new_rig: Callable[..., Rig]) -> None:
    """Where the engine lists none, the names in the settings are those that may be served."""
    with ScriptedEngine() as engine:
        engine.on("/v1/models", send(json_answer({"error": "no"}, "401 Unauthorized")))
        rig = new_rig(engine, **{**FAST, **INPUTS, "models": ("first", "second")})
        time.sleep(0.3)
        assert labels(rig) == set()
        answers(rig, "second", asked="second")
        wait_until(lambda: labels(rig) == {"second"})
