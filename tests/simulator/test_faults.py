"""Faults on demand: what a client sees of each word of `x-simulate`."""

import random
import socket
import time
from typing import Any

import httpx2
import openai
import pytest
from tokgauge.simulator import faults
from tokgauge.simulator.profile import EngineProfile
from tokgauge.simulator.server import running_engine

from tests.simulator.raw import Raw, exchange

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 10}


def ask(url: str, fault: str, *, stream: bool = True, timeout: float = 20.0) -> Raw:
    body = {**BODY, "stream": stream, "ignore_eos": True}
    return exchange(url, "POST", CHAT, body, headers={"x-simulate": fault}, timeout=timeout)


def test_the_header_is_read_word_by_word() -> None:
    assert faults.parse("cut-after=5; ttft=0.25 ;no-done") == faults.Faults(
        cut_after=5, ttft=0.25, no_done=True
    )
    assert faults.parse("slow") == faults.Faults(slow=4.0)
    for wrong in ("explode", "cut-after=x", "cut-after=-1", "ttft", "status", "status=200"):
        with pytest.raises(faults.FaultError):
            faults.parse(wrong)


def test_an_unknown_word_is_refused(fast: str) -> None:
    assert b"unknown word in x-simulate: explode" in ask(fast, "explode").body


def test_a_cut_ends_without_the_closing_chunk(fast: str) -> None:
    raw = ask(fast, "cut-after=5")
    assert (len(raw.chunks), raw.complete) == (5, False)


def test_a_cut_answer_is_shorter_than_announced(fast: str) -> None:
    raw = ask(fast, "cut-after", stream=False)
    assert not raw.complete
    assert 0 < len(raw.body) < int(raw.header("content-length") or 0)


def test_a_stall_sends_nothing_more_and_stays_open(fast: str) -> None:
    body = {**BODY, "stream": True}
    with (
        httpx2.Client(timeout=1.5) as client,
        client.stream("POST", fast + CHAT, json=body, headers={"x-simulate": "stall-after=3"}) as r,
    ):
        lines = (line for line in r.iter_lines() if line)
        assert [next(lines)[:5] for _ in range(3)] == ["data:"] * 3
        with pytest.raises(httpx2.ReadTimeout):
            next(lines)


def test_an_error_event_reaches_the_openai_client_as_an_exception(fast: str) -> None:
    with openai.OpenAI(base_url=f"{fast}/v1", api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="Qwen/Qwen2.5-7B-Instruct",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            extra_headers={"x-simulate": "error-after=3"},
        )
        with pytest.raises(openai.APIError, match="EngineCore encountered an issue"):
            list(stream)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_status_comes_with_an_error_body(fast: str, status: int) -> None:
    with openai.OpenAI(base_url=f"{fast}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.APIStatusError) as caught:
            client.chat.completions.create(
                model="Qwen/Qwen2.5-7B-Instruct",
                messages=[{"role": "user", "content": "hi"}],
                extra_headers={"x-simulate": f"status={status}"},
            )
        assert caught.value.status_code == status


def test_no_done_and_empty_end_cleanly(fast: str) -> None:
    raw = ask(fast, "no-done")
    assert raw.complete
    assert b"[DONE]" not in raw.body
    assert b'"finish_reason":"length"' in raw.chunks[-1]
    raw = ask(fast, "empty")
    assert (raw.status, raw.chunks, raw.complete) == ("HTTP/1.1 200 OK", [], True)


def test_close_comes_unannounced_after_the_whole_answer(fast: str) -> None:
    host, _, port = fast.removeprefix("http://").partition(":")
    for fault, expect_end in (("close", True), ("tokens=3", False)):
        with socket.create_connection((host, int(port)), timeout=2) as connection:
            data = b'{"messages":[{"role":"user","content":"hi"}],"max_tokens":2}'
            connection.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json"
                b"\r\nx-simulate: %s\r\ncontent-length: %d\r\n\r\n"
                % (fault.encode(), len(data))
                + data
            )
            received = b""
            while b'"metrics":null}' not in received:
                received += connection.recv(65536)
            assert b"connection: close" not in received
            connection.settimeout(0.3)
            if expect_end:
                assert connection.recv(1) == b""
            else:
                with pytest.raises(TimeoutError):
                    connection.recv(1)


def test_empty_deltas_keep_text_and_token_count(fast: str) -> None:
    plain, gappy = ask(fast, "tokens=10"), ask(fast, "tokens=10;empty-deltas")
    assert gappy.body.count(b'"delta":{"content":""}') == 5
    assert len(plain.chunks) == len(gappy.chunks)


def test_ttft_and_slow_change_only_this_request() -> None:
    with running_engine(EngineProfile(speed=10)) as url:
        start = time.monotonic()
        ask(url, "ttft=5")
        assert 0.5 <= time.monotonic() - start < 3
        start = time.monotonic()
        ask(url, "slow=20")
        # 9 gaps of 20 steps of 2.46 ms
        assert 0.4 <= time.monotonic() - start < 3


def test_random_faults_follow_their_rates() -> None:
    rates = {"cut-after=5": 0.2, "status=500": 0.1}
    chance = random.Random(1)
    drawn = [faults.draw(rates, chance) for _ in range(5000)]
    assert sum(f.cut_after == 5 for f in drawn) == pytest.approx(1000, rel=0.15)
    assert sum(f.status == 500 for f in drawn) == pytest.approx(500, rel=0.2)
    with running_engine(EngineProfile(speed=50, random_faults={"status=503": 1.0})) as url:
        assert exchange(url, "POST", CHAT, BODY).status.startswith("HTTP/1.1 503")
