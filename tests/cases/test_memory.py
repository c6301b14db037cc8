"""What an exchange may hold: neither a long stream nor a large event stays in memory."""

import json
import socket
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.support.chat import CHAT
from tests.support.engine import (
    DONE,
    EVENT_STREAM,
    LAST_CHUNK,
    Conversation,
    ScriptedEngine,
    chat_event,
    usage_event,
)
from tests.support.metrics import scrape
from tests.support.process import Process, serving

TOKENS = 100_000
BATCH = 500
LARGE = 10_000_000

HELD = 12_000_000
"""Bytes by which the process may grow: buffers of sockets and of the allocator. A stream of 100,000
tokens has 20 MB, the large event 10 MB, and a copy of either would show."""


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as engine:
        yield engine


def read_stream(port: int) -> int:
    """Bytes of a streamed answer, which must end cleanly; nothing of it is kept here."""
    body = json.dumps({"model": "qwen", "stream": True, "messages": []}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: t\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    total, tail = 0, b""
    end = time.monotonic() + 60
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(head + body)
        while not tail.endswith(b"\r\n0\r\n\r\n"):
            piece = client.recv(1 << 20)
            assert piece, "cut"
            assert time.monotonic() < end
            total += len(piece)
            tail = (tail + piece)[-16:]
    return total


def resident(proxy: Process) -> int:
    memory: int = psutil.Process(proxy.popen.pid).memory_info().rss
    return memory


def warm_up(engine: ScriptedEngine, proxy: Process) -> None:
    async def short(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        await c.chunk(*[chat_event(" a")] * 2000, DONE)
        await c.send(LAST_CHUNK)

    engine.on(CHAT, short)
    for _ in range(3):
        read_stream(proxy.port)


def test_a_stream_of_100_000_tokens_is_counted_and_not_kept(engine: ScriptedEngine) -> None:
    token = chat_event(" a")

    async def long(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        for _ in range(TOKENS // BATCH):
            # Whole events of one chunk each, many of them in one write.
            await c.send(b"%x\r\n%b\r\n" % (len(token), token) * BATCH)
        await c.chunk(usage_event(TOKENS), DONE)
        await c.send(LAST_CHUNK)

    with serving(engine.url) as proxy:
        warm_up(engine, proxy)
        engine.on(CHAT, long)
        before, counted = resident(proxy), scrape(proxy.port)
        assert read_stream(proxy.port) > TOKENS * len(token)
        assert resident(proxy) - before < HELD
        gained = scrape(proxy.port).since(counted)
    assert gained.total("completion_tokens_total", source="usage") == TOKENS
    assert gained.total("token_events_total") == TOKENS


def test_an_event_of_10_mb_passes_and_is_not_kept(engine: ScriptedEngine) -> None:
    large = chat_event("x" * LARGE)

    async def script(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        for event in (chat_event(" a"), large, chat_event(" b"), DONE):
            await c.send(b"%x\r\n" % len(event))
            for at in range(0, len(event), 65536):
                await c.send(event[at : at + 65536])
            await c.send(b"\r\n")
        await c.send(LAST_CHUNK)

    with serving(engine.url) as proxy:
        warm_up(engine, proxy)
        engine.on(CHAT, script)
        before = resident(proxy)
        for _ in range(5):
            assert read_stream(proxy.port) > LARGE
        assert resident(proxy) - before < HELD
