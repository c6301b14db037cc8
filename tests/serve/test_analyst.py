"""The analyst may die, hang and come back: no client notices, and figures are soon there again."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.chat import CHAT
from tests.support.client import JSON, fetch, request
from tests.support.engine import DONE, EVENT_STREAM, LAST_CHUNK, Conversation, ScriptedEngine
from tests.support.metrics import scrape, wait_until
from tests.support.process import Process, serving, status

pytestmark = pytest.mark.timeout(240)

QUESTION = b'{"model":"qwen","stream":true,"messages":[]}'
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
WORKERS = pytest.mark.parametrize("workers", [1, 2])
STREAMS = 50


class Streaming:
    """An engine whose streams give a token every 50 ms until they are told to end."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.sent: list[int] = []
        self.engine = ScriptedEngine(["qwen"])
        self.engine.on(CHAT, self.stream)

    async def stream(self, conversation: Conversation) -> None:
        await conversation.send(EVENT_STREAM)
        sent = 0
        while not self.end.is_set():
            await conversation.chunk(TOKEN)
            sent += 1
            await conversation.pause(0.05)
        await conversation.chunk(DONE)
        await conversation.send(LAST_CHUNK)
        self.sent.append(sent)


@pytest.fixture
def streaming() -> Iterator[Streaming]:
    streaming = Streaming()
    with streaming.engine:
        yield streaming
        streaming.end.set()


class Readers:
    """Clients that read their streams to the end, in a thread."""

    def __init__(self, port: int) -> None:
        self.received: list[bytes] = []
        self._port = port
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()))
        self._thread.start()

    async def _all(self) -> None:
        await asyncio.gather(*(self._one() for _ in range(STREAMS)))

    async def _one(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(request("POST", CHAT, [JSON, ("Connection", "close")], QUESTION))
        received = bytearray()
        while piece := await reader.read(65536):
            received += piece
        self.received.append(bytes(received))
        writer.close()

    def ended(self) -> list[bytes]:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.received


@contextmanager
def probes(proxy: Process) -> Iterator[list[int | None]]:
    """What healthz and readyz say all the while."""
    said: list[int | None] = []
    over = threading.Event()

    def ask() -> None:
        while not over.wait(0.05):
            said.extend(status(proxy.port, f"/tokgauge/{name}") for name in ("healthz", "readyz"))

    thread = threading.Thread(target=ask)
    thread.start()
    yield said
    over.set()
    thread.join(30)


def in_flight(proxy: Process) -> float:
    return scrape(proxy.port).total("requests_in_flight", model="qwen") or 0.0


@WORKERS
def test_no_client_notices_that_the_analyst_is_killed(streaming: Streaming, workers: int) -> None:
    with serving(streaming.engine.url, "--workers", str(workers)) as proxy:
        readers = Readers(proxy.port)
        streaming.engine.wait_requests(STREAMS, 30)
        wait_until(lambda: in_flight(proxy) == STREAMS, 30, "all streams are in flight")
        with probes(proxy) as said:
            for _ in range(2):
                analyst = proxy.analyst()
                assert analyst is not None
                analyst.kill()
                page = fetch(proxy.port, "GET", "/tokgauge/metrics", timeout=30)
                assert page.status == 200 or page.json()["error"]["code"] == "analyst_unavailable"
                wait_until(
                    lambda: status(proxy.port, "/tokgauge/metrics") == 200, 20, "another one"
                )  # fmt: skip
                wait_until(lambda: in_flight(proxy) == STREAMS, 20, "it knows of all streams")
        assert said
        assert set(said) == {200}
        streaming.end.set()
        received = readers.ended()
        assert len(received) == STREAMS
        assert sorted(each.count(TOKEN) for each in received) == sorted(streaming.sent)
        for each in received:
            assert each.startswith(b"HTTP/1.1 200 ")
            assert each.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        wait_until(
            lambda: scrape(proxy.port).total("requests_total", outcome="ok") == STREAMS,
            20, "they are counted by the one that came last",
        )  # fmt: skip
        assert scrape(proxy.port).total("records_lost_total") is not None
        proxy.signal(signal.SIGTERM)
        assert proxy.ended() == 0
    assert "Traceback" not in proxy.text
    assert "the analyst ended" in proxy.text


def test_an_analyst_that_hangs_holds_up_neither_traffic_nor_the_end(
    streaming: Streaming, tmp_path: Path
) -> None:
    options = ["--drain-delay", "0", "--drain-timeout", "5"]
    with serving(streaming.engine.url, *options, TMPDIR=str(tmp_path)) as proxy:
        analyst = proxy.analyst()
        assert analyst is not None
        analyst.send_signal(signal.SIGSTOP)
        streaming.end.set()
        for _ in range(20):
            assert fetch(proxy.port, "POST", CHAT, [JSON], QUESTION).status == 200
        assert status(proxy.port, "/tokgauge/readyz") == 200
        analyst.send_signal(signal.SIGCONT)
        wait_until(
            lambda: scrape(proxy.port).total("requests_total", outcome="ok") == 20, 20, "all"
        )
        analyst.send_signal(signal.SIGSTOP)
        family = proxy.children()
        proxy.signal(signal.SIGTERM)
        assert proxy.ended(30) == 0
        _, alive = psutil.wait_procs(family, 10)
        assert not alive
    assert not list(tmp_path.iterdir())


def test_an_analyst_that_cannot_come_back_costs_figures_only(
    streaming: Streaming, tmp_path: Path
) -> None:
    """What it needed at the start is gone when it is started again."""
    streaming.end.set()
    logs = tmp_path / "logs"
    logs.mkdir()
    with serving(streaming.engine.url, "--request-log", str(logs / "requests.jsonl")) as proxy:
        for path in logs.iterdir():
            path.unlink()
        logs.rmdir()
        analyst = proxy.analyst()
        assert analyst is not None
        analyst.kill()
        wait_until(lambda: "code 3" in proxy.text, 30, "another one could not start")
        assert fetch(proxy.port, "POST", CHAT, [JSON], QUESTION).status == 200
        assert status(proxy.port, "/tokgauge/healthz") == 200
        logs.mkdir()
        wait_until(lambda: status(proxy.port, "/tokgauge/metrics") == 200, 60, "it is back")
        assert fetch(proxy.port, "POST", CHAT, [JSON], QUESTION).status == 200
        proxy.signal(signal.SIGTERM)
        assert proxy.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_behind(
    streaming: Streaming, tmp_path: Path, number: signal.Signals
) -> None:
    streaming.end.set()
    with serving(streaming.engine.url, "--workers", "2", TMPDIR=str(tmp_path)) as proxy:
        family = proxy.children()
        assert len(family) == 3
        if number == signal.SIGKILL:  # all at once, as when a container is killed
            for member in [psutil.Process(proxy.popen.pid), *family]:
                member.send_signal(signal.SIGSTOP)
            for member in family:
                os.kill(member.pid, number)
        proxy.signal(number)
        assert proxy.ended() == (-number if number == signal.SIGKILL else 0)
        _, alive = psutil.wait_procs(family, 20)
        assert not alive
    assert not list(tmp_path.iterdir())


def test_the_parent_is_small(streaming: Streaming) -> None:
    """It holds nothing: what it imports, it does not need."""
    streaming.end.set()
    with serving(streaming.engine.url) as proxy:
        parent = psutil.Process(proxy.popen.pid)
        own = parent.memory_info().rss
        every = own + sum(child.memory_info().rss for child in proxy.children())
        assert own < 24 * 2**20
        assert every < 130 * 2**20, "all processes, idle"
