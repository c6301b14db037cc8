"""What is wrong is told at once: in the log, on the live page and on the page for people."""

import logging

import pytest

from tests.conftest import start_proxy
from tests.support.client import fetch
from tests.support.engine import ScriptedEngine, answer, send
from tests.support.metrics import wait_until


def problems(port: int) -> list[str]:
    found = fetch(port, "GET", "/tokgauge/live").json()
    assert isinstance(found, dict)
    return list(found["problems"])


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        ("401 Unauthorized", b"{}", "wants a key (401): set api_key"),
        ("403 Forbidden", b"", "wants a key (403): set api_key"),
        ("404 Not Found", b"{}", "answers 404"),
        ("200 OK", b'{"data":[]}', "lists none"),
        ("200 OK", b"<html>", "cannot be read"),
        ("200 OK", b"[" * 100_000, "cannot be read"),
    ],
)
def test_models_without_names(
    caplog: pytest.LogCaptureFixture, status: str, body: bytes, words: str
) -> None:
    caplog.set_level(logging.WARNING, "tokgauge")
    with ScriptedEngine() as engine:
        engine.on("/v1/models", send(answer(body, status)))
        with start_proxy(upstream=engine.url, models=(), poll_interval=0.1) as proxy:
            engine.wait_requests(4)
            (told,) = problems(proxy.port)
            assert words in told
            assert "their names can be set with models" in told
            logged = [record.getMessage() for record in caplog.records]
            assert len([line for line in logged if words in line]) == 1, "not with every poll"
            engine.on("/v1/models", send(answer(b'{"data":[{"id":"a"}]}')))
            wait_until(lambda: problems(proxy.port) == [], 10, "it has a name now")
        with start_proxy(upstream=engine.url, models=("a",)) as proxy:
            assert problems(proxy.port) == []


def test_a_card_that_does_not_exist(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedEngine() as engine:
        with start_proxy(upstream=engine.url, gpu="RTX A600") as proxy:
            (told,) = problems(proxy.port)
            assert "'RTX A600' is no card of the table (near it: NVIDIA RTX A6000" in told
            assert told in caplog.text
        with start_proxy(upstream=engine.url, gpu="RTX A6000") as proxy:
            assert problems(proxy.port) == []
