"""`simulate` in a process of its own: its options, its rate and what it costs."""

import asyncio
import contextlib
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest
from click.testing import CliRunner
from tokgauge.commands.simulate import command
from tokgauge.simulator.profile import EngineProfile

from tests.simulator.raw import exchange

CODE = "from tokgauge.commands.simulate import command; command()"


@contextlib.contextmanager
def simulate(*options: str) -> Iterator[tuple[str, psutil.Process]]:
    with subprocess.Popen(
        [sys.executable, "-c", CODE, "--port", "0", *options], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                    yield found[0], psutil.Process(process.pid)
                    break
            else:
                raise AssertionError("it did not start")
        finally:
            process.terminate()
    # uvicorn stops in order and then lets the signal end the process.
    assert process.returncode in (0, -15)


async def read_stream(url: str, number: int, tokens: int) -> tuple[float, float, int]:
    """Time of the first and the last read of a stream, and the number of its token events."""
    loop = asyncio.get_running_loop()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    body = json.dumps(
        {
            "messages": [{"role": "user", "content": f"hello {number}"}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % len(body) + body
    )
    first, last, events, data = 0.0, 0.0, 0, b""
    while not data.endswith(b"0\r\n\r\n"):
        data = await reader.read(65_536)
        assert data
        if count := data.count(b'"delta":{"content"'):
            last = loop.time()
            first = first or last
            events += count
    writer.close()
    await writer.wait_closed()
    return first, last, events


def test_64_streams_keep_their_rate_and_cost_less_than_half_a_core() -> None:
    tokens = 120

    async def measure(url: str) -> list[tuple[float, float, int]]:
        return await asyncio.gather(*(read_stream(url, n, tokens) for n in range(64)))

    with simulate() as (url, process):
        before = process.cpu_times()
        streams = asyncio.run(measure(url))
        after = process.cpu_times()
    assert [events for _, _, events in streams] == [tokens] * 64
    seconds = max(last for _, last, _ in streams) - min(first for first, _, _ in streams)
    cpu = after.user + after.system - before.user - before.system
    assert cpu / seconds < 0.5
    profile = EngineProfile()
    expected = sum(profile.step_seconds(64 * (10 + made), 64) for made in range(1, tokens))
    # Not all 64 requests come in time for the first step.
    assert expected * 0.97 < seconds < expected * 1.5


def test_options_reach_the_profile() -> None:
    options = ("--model", "m", "--speed", "50", "--tokens-per-event", "2", "--no-chunked-prefill")
    with simulate(*options) as (url, _):
        shown = json.loads(exchange(url, "GET", "/simulator/profile").body)
        assert shown["model"] == "m"
        assert shown["speed"] == 50
        assert shown["tokens_per_event"] == 2
        assert shown["chunked_prefill"] is False
        assert shown["efficiency"] == EngineProfile().efficiency
        assert "api_key" not in shown


def test_a_wrong_value_is_a_usage_error() -> None:
    result = CliRunner().invoke(command, ["--efficiency", "0"])
    assert result.exit_code == 2
    assert "efficiency must be above 0" in result.output


@pytest.mark.parametrize("stops_in_mid_stream", [False, True])
def test_faults_and_a_stop_leave_no_traceback_in_the_log(stops_in_mid_stream: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CODE, "--port", "0", "--speed", "50"],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        line = ""
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", line)):
            line = process.stderr.readline()
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        for fault in ("cut-after=2", "close", "error-after=1", "empty", "status=500"):
            exchange(found[0], "POST", "/v1/chat/completions", body, headers={"x-simulate": fault})
        if stops_in_mid_stream:
            with socket.create_connection(("127.0.0.1", int(found[0].rpartition(":")[2]))) as raw:
                data = json.dumps(body).encode()
                raw.sendall(
                    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
                    b"x-simulate: stall-after=1\r\n"
                    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
                    % len(data)
                    + data
                )
                assert raw.recv(10)
                process.terminate()
                process.wait(20)
        process.terminate()
        log = process.stderr.read()
    assert ("ERROR" in log) == stops_in_mid_stream  # uvicorn says that it cut a response
    assert "Traceback" not in log
