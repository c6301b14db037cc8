"""Signals at any moment, and processes that are killed or stopped, for one relay and more."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.chat import CHAT
from tests.support.client import JSON, RawClient, Response, fetch, refuses, request
from tests.support.engine import DONE, EVENT_STREAM, LAST_CHUNK, Conversation, ScriptedEngine
from tests.support.metrics import wait_until
from tests.support.process import serving, status

pytestmark = pytest.mark.timeout(240)  # starting processes takes long on a busy machine

QUESTION = b'{"model":"qwen","stream":true,"messages":[]}'
WORKERS = pytest.mark.parametrize("workers", [1, 2])


class Held:
    """An engine whose streams end when they are told to."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.engine = ScriptedEngine()

    async def stream(self, conversation: Conversation) -> None:
        await conversation.send(EVENT_STREAM)
        await conversation.chunk(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n')
        await conversation.until(self.end, 60)
        await conversation.chunk(DONE)
        await conversation.send(LAST_CHUNK)


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held()
    with held.engine:
        held.engine.on(CHAT, held.stream)
        yield held
        held.end.set()


def begin(port: int) -> tuple[RawClient, Response]:
    client = RawClient(port, timeout=60)
    client.send(request("POST", CHAT, [JSON], QUESTION))
    response = client.read_head()
    assert response.status == 200
    client.read_body(response, at_least=1)
    return client, response


def finish(held: Held, client: RawClient, response: Response) -> None:
    held.end.set()
    client.read_body(response)
    client.close()
    assert response.clean
    assert response.body.endswith(b"data: [DONE]\n\n")


@WORKERS
def test_sighup_cuts_nothing(held: Held, workers: int) -> None:
    with serving(held.engine.url, "--workers", str(workers)) as proxy:
        client, response = begin(proxy.port)
        for _ in range(2):  # a closed terminal tells all of its processes
            for member in [psutil.Process(proxy.popen.pid), *proxy.children()]:
                member.send_signal(signal.SIGHUP)
        wait_until(lambda: "SIGHUP is ignored" in proxy.text, 10, "it says so")
        assert proxy.ready()
        assert len(proxy.relays()) == workers
        assert status(proxy.port, "/v1/models") == 200
        finish(held, client, response)
        proxy.signal(signal.SIGTERM)
        assert proxy.ended() == 0
    assert "Traceback" not in proxy.text


@WORKERS
def test_relays_drain_when_their_parent_is_killed(held: Held, workers: int, tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    options = ["--workers", str(workers), "--drain-delay", "0.2", "--request-log", str(log)]
    with serving(held.engine.url, *options) as proxy:
        family = proxy.children()
        assert len(family) == workers + 1
        client, response = begin(proxy.port)
        proxy.signal(signal.SIGKILL)
        proxy.popen.wait(10)
        wait_until(lambda: refuses(proxy.port), 20, "new connections are refused")
        finish(held, client, response)
        _, alive = psutil.wait_procs(family, 20)
        assert not alive
    assert "the parent process is gone" in proxy.text
    assert '"outcome":"ok"' in log.read_text(), "the analyst goes after the last relay"


def test_a_stopped_relay_does_not_hold_up_the_end(held: Held) -> None:
    options = ["--workers", "2", "--drain-delay", "0", "--drain-timeout", "1"]
    with serving(held.engine.url, *options) as proxy:
        stopped = proxy.relays()[0]
        stopped.send_signal(signal.SIGSTOP)
        proxy.signal(signal.SIGTERM)
        assert proxy.ended(30) == 0
        assert not stopped.is_running()
    assert "killed" in proxy.text


@WORKERS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_starts_ends_it(held: Held, workers: int, number: signal.Signals) -> None:
    slow = threading.Event()

    async def models(conversation: Conversation) -> None:
        await conversation.until(slow, 30)
        conversation.close()

    held.engine.on("/v1/models", models)
    with serving(held.engine.url, "--workers", str(workers), up=False) as proxy:
        began = time.monotonic()
        proxy.signal(number)
        assert proxy.ended(20) == 0
        assert time.monotonic() - began < 15
        assert "Traceback" not in proxy.text
    slow.set()


@WORKERS
def test_a_second_sigterm_neither_cuts_nor_postpones(held: Held, workers: int) -> None:
    options = ["--workers", str(workers), "--drain-delay", "1"]
    with serving(held.engine.url, *options) as proxy:
        client, response = begin(proxy.port)
        began = time.monotonic()
        while not refuses(proxy.port):
            assert time.monotonic() - began < 8, "each signal made it wait again"
            proxy.signal(signal.SIGTERM)
            time.sleep(0.2)
        finish(held, client, response)
        end = time.monotonic() + 20
        while proxy.popen.poll() is None and time.monotonic() < end:  # up to its last moment
            proxy.signal(signal.SIGTERM)
            proxy.signal(signal.SIGHUP)
            time.sleep(0.002)
        assert proxy.ended() == 0


def test_ctrl_c_twice_at_the_parent_does_not_wait_for_streams(held: Held) -> None:
    with serving(held.engine.url, "--workers", "2", "--drain-delay", "60") as proxy:
        client, response = begin(proxy.port)
        proxy.signal(signal.SIGINT)
        wait_until(lambda: refuses(proxy.port), 10, "no delay after Ctrl-C")
        assert proxy.popen.poll() is None
        proxy.signal(signal.SIGINT)
        assert proxy.ended(20) == 0
        client.read_body(response)
        assert not response.clean
        client.close()
    assert "Traceback" not in proxy.text


def test_a_relay_that_ends_is_replaced_and_others_go_on(held: Held) -> None:
    with serving(held.engine.url, "--workers", "2") as proxy:
        first = proxy.relays()
        for number in (signal.SIGTERM, signal.SIGKILL):
            victim = proxy.relays()[0]
            os.kill(victim.pid, number)
            victim.wait(20)
            assert fetch(proxy.port, "GET", "/v1/models").status == 200
            wait_until(lambda: len(proxy.relays()) == 2, 30, "another one came")
            assert fetch(proxy.port, "GET", "/v1/models").status == 200
        assert {one.pid for one in first} != {one.pid for one in proxy.relays()}
