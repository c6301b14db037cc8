"""Cases 34-37: names that stay few, scrapes that disturb nobody, sums over workers, buckets."""

import asyncio
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.conftest import MODELS, Rig
from tests.support.chat import CHAT, ask, body_of, whole_answer
from tests.support.client import JSON, RawClient, fetch, post, request
from tests.support.engine import (
    DONE,
    EVENT_STREAM,
    LAST_CHUNK,
    ROLE,
    Conversation,
    ScriptedEngine,
    chat_event,
    json_answer,
    send,
    stream,
)
from tests.support.metrics import Scrape, scrape, wait_until

A = chat_event("a")
STOP = chat_event({}, finish="stop")

# What DESIGN promises for the traffic, as families (counters without `_total`).
FAMILIES = {
    "requests",
    "requests_in_flight",
    "finish_reasons",
    "truncations",
    "prompt_tokens",
    "cached_prompt_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "token_events",
    "request_duration_seconds",
    "time_to_first_token_seconds",
    "time_to_first_output_seconds",
    "inter_chunk_latency_seconds",
    "time_per_output_token_seconds",
    "silent_wait_seconds",
    "decode_tokens_per_second",
    "proxy_overhead_seconds",
    "output_tokens_per_second",
    "streams_stalled",
    "measurement_errors",
    "upstream_up",
    "build_info",
}


def test_case_34_invented_model_names_are_one_series(new_rig: Callable[..., Rig]) -> None:
    rig = new_rig()
    rig.engine.on(CHAT, send(json_answer({"error": {"message": "no model"}}, "404 Not Found")))
    watch = rig.watch()
    count = 2000
    with rig.client() as client:
        for number in range(count):
            body = body_of(model=f"invented-{number}")
            assert client.request("POST", CHAT, [JSON], body).read_response().status == 404
    gained = watch.after(count)
    assert {labels["model"] for labels in gained.labels("requests_total")} == {"other"}
    assert "invented" not in rig.scrape().text


@pytest.mark.parametrize(
    "model", ["qwen\n", "a" * 100_000, 'x"} 1\ntokgauge_fake 1', None, 7, ["qwen"], {}, "Qwen"]
)
def test_case_34_odd_model_names(rig: Rig, model: object) -> None:
    rig.engine.on(CHAT, send(json_answer({"error": {"message": "no model"}}, "404 Not Found")))
    watch = rig.watch()
    post(rig.port, CHAT, {"model": model, "messages": []})
    gained = watch.after()
    assert {labels["model"] for labels in gained.labels("requests_total")} == {"other"}


def test_case_34_invented_paths_methods_and_codes_are_few_series(
    new_rig: Callable[..., Rig],
) -> None:
    rig = new_rig()
    series_before = len(rig.scrape().samples)
    with rig.client() as client:
        for number in range(300):
            target = f"/invented/{number}?key=sk-secret-{number}"
            assert client.request("GET", target).read_response().status == 404
    for number in range(20):
        fetch(rig.port, f"M{number}", "/x")
    wait_until(lambda: (rig.scrape().total("requests_total") or 0) >= 300)
    after = rig.scrape()
    assert len(after.samples) - series_before < 200
    assert "sk-secret" not in after.text
    assert "/invented" not in after.text


def test_case_34_a_known_model_keeps_its_name(rig: Rig) -> None:
    rig.engine.on(CHAT, stream(*whole_answer("a", "b")))
    watch = rig.watch()
    ask(rig.port)
    gained = watch.after()
    assert gained.total("requests_total", model="qwen", outcome="ok", code="200") == 1
    assert gained.total("completion_tokens_total", model="qwen", source="usage") == 2


def test_case_34_models_learned_from_the_engine(new_rig: Callable[..., Rig]) -> None:
    with ScriptedEngine(["late-model"]) as engine:
        rig = new_rig(engine, models=(), poll_interval=0.1)
        rig.engine.on(CHAT, stream(*whole_answer("a", "b")))

        def known() -> bool:
            watch = rig.watch()
            ask(rig.port, model="late-model")
            return watch.after().total("requests_total", model="late-model") == 1

        wait_until(known, 5, "the model's name becomes a label")


def test_case_35_all_names_without_traffic_and_no_false_zeros(
    new_rig: Callable[..., Rig],
) -> None:
    rig = new_rig()
    idle = rig.scrape()
    assert set() == FAMILIES - idle.names
    # A sample of 0 would claim knowledge that nobody has.
    for name in (
        "output_tokens_per_second",
        "memory_bandwidth_utilization_ratio",
        "completion_tokens_total",
    ):
        assert idle.total(name) in (None, 0 if name.endswith("_total") else None), name
    for name in ("time_to_first_token_seconds", "decode_tokens_per_second"):
        assert not idle.count(name)


def test_case_35_metrics_are_wellformed(rig: Rig) -> None:
    rig.engine.on(CHAT, stream(*whole_answer("a", "b")))
    ask(rig.port)
    response = fetch(rig.port, "GET", "/tokgauge/metrics")
    assert response.header("content-type") is not None
    assert (response.header("content-type") or b"").startswith(b"text/plain")
    text = response.body.decode()
    own = [line for line in text.splitlines() if line.startswith("tokgauge_")]
    assert own
    names = {re.split(r"[ {]", line, maxsplit=1)[0] for line in own}
    for name in names:
        family = re.sub(r"_(bucket|count|sum|total|created)$", "", name)
        assert f"# HELP {family}" in text or f"# HELP {name} " in text, name
        assert f"# TYPE {family}" in text or f"# TYPE {name} " in text, name


@contextmanager
def running(port: int, engine: ScriptedEngine, count: int, gap: float) -> Iterator[None]:
    """`count` streams of one token per `gap` seconds, read by one thread."""
    stop = threading.Event()

    async def tokens(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        await c.chunk(ROLE)
        while not stop.is_set():
            await c.chunk(A)
            await c.pause(gap)
        await c.chunk(STOP, DONE)
        await c.send(LAST_CHUNK)

    engine.on("/v1/completions", tokens)

    async def reader() -> None:
        readable, writable = await asyncio.open_connection("127.0.0.1", port)
        writable.write(request("POST", "/v1/completions", [JSON], body_of()))
        while not (await readable.read(65536)).endswith(b"0\r\n\r\n"):
            pass
        writable.transport.abort()

    async def all_readers() -> None:
        await asyncio.gather(*(reader() for _ in range(count)))

    thread = threading.Thread(target=lambda: asyncio.run(all_readers()))
    thread.start()
    try:
        engine.wait_requests(count, 20)
        yield
    finally:
        stop.set()
        thread.join(30)


def test_case_35_a_scrape_delays_no_events(new_rig: Callable[..., Rig]) -> None:
    """Streams run, a probe stream is timed with and without scrapes beside it."""
    rig = new_rig()

    def delays(seconds: float) -> list[float]:
        sent: list[float] = []

        async def probe(c: Conversation) -> None:
            await c.send(EVENT_STREAM)
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                sent.append(time.monotonic())
                await c.chunk(A)
                await c.pause(0.01)
            await c.chunk(STOP, DONE)
            await c.send(LAST_CHUNK)

        rig.engine.on(CHAT, probe)
        response = ask(rig.port)
        return [response.arrival((n + 1) * len(A)) - at for n, at in enumerate(sent)]

    with running(rig.port, rig.engine, 200, 0.5):
        quiet = delays(1.5)
        stop = threading.Event()
        scrapes = 0

        def scraping() -> None:
            nonlocal scrapes
            while not stop.is_set():
                assert fetch(rig.port, "GET", "/tokgauge/metrics").status == 200
                scrapes += 1
                time.sleep(0.05)

        thread = threading.Thread(target=scraping)
        thread.start()
        scraped = delays(1.5)
        stop.set()
        thread.join()
    assert scrapes >= 5
    # One interpreter runs all of it here, so only a render on the event loop shows.
    assert statistics.median(scraped) < statistics.median(quiet) + 0.05
    assert sorted(scraped)[int(len(scraped) * 0.9)] < 0.5


def test_case_37_both_ends_fall_inside_the_buckets(rig: Rig) -> None:
    rig.engine.on(CHAT, stream(ROLE, *[A] * 20, STOP, DONE, gap=0.002))
    ask(rig.port)
    now = rig.scrape()
    for name in (
        "request_duration_seconds",
        "time_to_first_token_seconds",
        "time_to_first_output_seconds",
        "inter_chunk_latency_seconds",
        "time_per_output_token_seconds",
        "silent_wait_seconds",
    ):
        bounds = {float(labels["le"]) for labels in now.labels(f"{name}_bucket")} - {float("inf")}
        assert bounds, name
        assert min(bounds) <= 0.002, f"{name}: 2 ms falls into the lowest bucket"
        assert len([b for b in bounds if b <= 0.01]) >= 3, name
        if name in ("request_duration_seconds", "time_to_first_token_seconds"):
            assert max(bounds) >= 600, f"{name}: 10 minutes fall beyond the last bucket"


def test_case_37_buckets_can_be_set(new_rig: Callable[..., Rig]) -> None:
    rig = new_rig(duration_buckets=(0.5, 700.0))
    rig.engine.on(CHAT, stream(*whole_answer("a", "b")))
    ask(rig.port)
    wait_until(lambda: rig.scrape().count("request_duration_seconds") == 1)
    bounds = {labels["le"] for labels in rig.scrape().labels("request_duration_seconds_bucket")}
    assert bounds == {"0.5", "700.0", "+Inf"}


def test_exchange_ids_differ(rig: Rig) -> None:
    rig.engine.on(CHAT, stream(*whole_answer("a", "b")))
    ids = {ask(rig.port).header("x-tokgauge-id") for _ in range(5)}
    assert None not in ids
    assert len(ids) == 5


@dataclass
class Process:
    """`tokgauge serve` as a process of its own."""

    popen: "subprocess.Popen[str]"
    port: int

    @property
    def relays(self) -> list[psutil.Process]:
        """The processes that accept connections."""
        found = []
        for child in psutil.Process(self.popen.pid).children(recursive=True):
            with suppress(psutil.Error):
                if "tokgauge.serve.relay_process" in child.cmdline():
                    found.append(child)
        return found


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[subprocess.Popen[str]] = []
    readers: list[threading.Thread] = []

    def start(upstream: str, *flags: str, **environment: str) -> Process:
        command = [sys.executable, "-c", "from tokgauge.cli import main; main()", "serve"]
        command += ["--upstream", upstream, "--host", "127.0.0.1", "--port", "0", *flags]
        popen = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": str(tmp_path), **environment},
        )
        started.append(popen)
        assert popen.stdout is not None
        lines = []
        for line in popen.stdout:
            lines.append(line)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line.replace(upstream, "")):
                reader = threading.Thread(target=popen.stdout.read)
                reader.start()
                readers.append(reader)
                process = Process(popen, int(found.group(1)))
                wait_until(partial(ready, process.port), 40, "ready")
                return process
        raise AssertionError("".join(lines))

    yield start
    for popen in started:
        popen.send_signal(signal.SIGTERM)
    for popen in started:
        try:
            popen.wait(15)
        except subprocess.TimeoutExpired:
            for child in psutil.Process(popen.pid).children(recursive=True):
                child.kill()
            popen.kill()
            popen.wait(5)
    for reader in readers:
        reader.join(5)
    for popen in started:
        assert popen.stdout is not None
        popen.stdout.close()


def ready(port: int) -> bool:
    try:
        return fetch(port, "GET", "/tokgauge/readyz", timeout=5).status == 200
    except OSError:
        return False


def ok_requests(now: Scrape) -> float:
    return now.total("requests_total", outcome="ok") or 0.0


def ask_often(port: int, count: int) -> None:
    for _ in range(count):
        assert ask(port).status == 200  # a connection of its own, so that both workers serve some


def settled(port: int, count: int) -> None:
    wait_until(lambda: ok_requests(scrape(port)) == count, 5, f"{count} requests are counted")
    # Whichever worker answers the scrape, the sum is the same.
    assert {ok_requests(scrape(port)) for _ in range(10)} == {float(count)}


def test_case_36_two_workers_give_one_sum(rig: Rig, serve: Callable[..., Process]) -> None:
    rig.engine.on(CHAT, stream(*whole_answer("a", "b")))
    process = serve(rig.engine.url, "--workers", "2", TOKGAUGE_MODELS=",".join(MODELS))
    ask_often(process.port, 20)
    settled(process.port, 20)
    assert scrape(process.port).total("completion_tokens_total", source="usage") == 40
    relays = process.relays
    assert len(relays) == 2
    relays[0].kill()
    settled(process.port, 20)
    wait_until(lambda: len(process.relays) == 2, 20, "the relay comes back")
    wait_until(lambda: ready(process.port), 40, "ready again")
    settled(process.port, 20)
    ask_often(process.port, 10)
    settled(process.port, 30)


def test_case_36_earlier_runs_and_other_instances_are_never_mixed_in(
    rig: Rig, serve: Callable[..., Process]
) -> None:
    rig.engine.on(CHAT, stream(*whole_answer("a", "b")))
    first = serve(rig.engine.url, "--workers", "2")
    second = serve(rig.engine.url, "--workers", "2")
    ask_often(first.port, 6)
    settled(first.port, 6)
    assert ok_requests(scrape(second.port)) == 0
    first.popen.kill()
    for relay in first.relays:
        relay.kill()
    first.popen.wait(5)
    third = serve(rig.engine.url, "--workers", "2")
    assert ok_requests(scrape(third.port)) == 0


def test_serve_reads_file_and_environment_and_drains_on_sigterm(
    rig: Rig, serve: Callable[..., Process], tmp_path: Path
) -> None:
    """A running stream is finished, `readyz` says 503 first, and the exit is in order."""
    config = tmp_path / "tokgauge.toml"
    config.write_text('inject_usage = false\nmodels = ["qwen"]\ndrain_delay = 2.0\n')
    process = serve(rig.engine.url, "--config", str(config), TOKGAUGE_DRAIN_TIMEOUT="10")

    async def slow(c: Conversation) -> None:
        await c.send(EVENT_STREAM)
        await c.chunk(ROLE)
        for _ in range(30):
            await c.chunk(A)
            await c.pause(0.05)
        await c.chunk(STOP, DONE)
        await c.send(LAST_CHUNK)

    rig.engine.on(CHAT, slow)
    with RawClient(process.port) as client:
        client.request("POST", CHAT, [JSON], body_of())
        response = client.read_head()
        client.read_body(response, at_least=len(ROLE))
        assert b"stream_options" not in rig.engine.requests[0].body
        process.popen.send_signal(signal.SIGTERM)
        wait_until(
            lambda: fetch(process.port, "GET", "/tokgauge/readyz").status == 503, 1.5, "draining"
        )
        client.read_body(response)
        assert response.clean
        assert response.body == ROLE + A * 30 + STOP + DONE
    assert process.popen.wait(10) in (0, -signal.SIGTERM)
