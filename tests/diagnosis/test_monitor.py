"""What is published of the engine as a whole: true or absent."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tokgauge.diagnosis.calibration_file import Entry, HoldsFor, store_calibration
from tokgauge.diagnosis.expected_time import StepWork
from tokgauge.diagnosis.fit import Fitted, Observation, fit
from tokgauge.serve.background import BackgroundProxy
from tokgauge.settings import Settings
from tokgauge.simulator.checkpoint import write_awq, write_bf16
from tokgauge.simulator.demo_scenes import demo_scenes
from tokgauge.simulator.gpu_scenes import founding_scene
from tokgauge.simulator.nvml import SimulatedNvml
from tokgauge.simulator.profile import EngineProfile
from tokgauge.simulator.server import create_server, running_engine

from tests.support.chat import CHAT, whole_answer
from tests.support.chat import ask as ask_scripted
from tests.support.engine import Conversation, ScriptedEngine, answer, send, stream
from tests.support.metrics import Scrape, scrape, wait_until

pytestmark = pytest.mark.timed

MODEL = "Qwen/Qwen2.5-7B-Instruct"

FAST = {"rate_window": 3, "engine_metrics_interval": 0.3, "poll_interval": 0.5, "port": 0}


def published(proxy: BackgroundProxy, name: str, **labels: str) -> float:
    """The value of a sample, as soon as it is there."""
    found: list[float] = []

    def there() -> bool:
        value = scrape(proxy.port).total(name, **labels)
        if value is not None:
            found.append(value)
        return bool(found)

    wait_until(there, 15, f"{name} {labels}")
    return found[-1]


def ask(url: str, streams: int, tokens: int, words: int = 1) -> None:
    """Some streams at once, to their end; no prompt begins like another one."""

    async def one(client: httpx2.AsyncClient, number: int) -> None:
        body = {
            "model": MODEL, "stream": True, "max_tokens": tokens, "ignore_eos": True,
            "messages": [{"role": "user", "content": f"{number}" + " hi" * words}],
        }  # fmt: skip
        async with client.stream("POST", "/v1/chat/completions", json=body) as got:
            async for _ in got.aiter_raw():
                pass

    async def all_of_them() -> None:
        async with httpx2.AsyncClient(base_url=url, timeout=60) as client:
            await asyncio.gather(*(one(client, number) for number in range(streams)))

    asyncio.run(all_of_them())


def after_traffic(proxy: BackgroundProxy, url: str, streams: int = 2, tokens: int = 150) -> Scrape:
    """The figures while the traffic is still in the window."""
    ask(url, streams, tokens)
    time.sleep(0.7)
    return scrape(proxy.port)


@pytest.mark.parametrize(
    ("write", "streamed", "checkpoint"),
    [(write_bf16, 54.3, 50.4), (write_awq, 171.4, 137.9)],
    ids=["bf16", "awq"],
)
def test_the_ceiling_needs_no_settings_when_files_and_card_can_be_read(
    tmp_path: Path, nvml: SimulatedNvml, write: Any, streamed: float, checkpoint: float
) -> None:
    write(tmp_path / "model")
    profile = EngineProfile(root=str(tmp_path / "model"))
    with running_engine(profile) as url, BackgroundProxy(Settings(upstream=url, **FAST)) as proxy:
        found = published(proxy, "ceiling_tokens_per_second", model=MODEL, basis="streamed")
        rule = published(proxy, "ceiling_tokens_per_second", model=MODEL, basis="checkpoint")
        bandwidth = published(
            proxy, "gpu_memory_bandwidth_bytes_per_second", gpu="0", source="catalogue"
        )
    assert found == pytest.approx(streamed, abs=0.05)
    assert rule == pytest.approx(checkpoint, abs=0.05)
    assert bandwidth == 768e9


def test_without_inputs_there_is_no_ratio(nvml: SimulatedNvml) -> None:
    """The model's files are not on this machine and no setting says their size: absent, not 0."""
    with running_engine() as url, BackgroundProxy(Settings(upstream=url, **FAST)) as proxy:
        page = after_traffic(proxy, proxy.url)
        live = httpx2.get(f"{proxy.url}/tokgauge/live").json()["verdict"]["speed"]
    for name in (
        "ceiling_tokens_per_second",
        "memory_bandwidth_utilization_ratio",
        "request_ceiling_ratio_count",
    ):
        assert page.total(name) is None, name
    assert page.total("verdict", question="speed", level="not_judged") == 1
    assert live["level"] == "not_judged"
    assert "the bytes of the weights are not known" in live["headline"]


INPUTS = {"weights_bytes": 14.141e9, "kv_bytes_per_token": 57_344, "gpu_bandwidth": 768e9}


def test_a_small_gguf_model_is_judged_by_its_streams_alone(tmp_path: Path) -> None:
    """As llama.cpp's server is by default: no metrics page, and the file tells all the bytes."""
    pytest.importorskip("gguf")
    # One layer with the shapes of Gemma 3 270M's 18, and its tied embedding of 262144 x 640.
    path = gemma(tmp_path / "gemma.gguf")
    # 168 MB a step, in one of 10 ms, is what a card of 20 GB/s can do at 84 %.
    inputs: dict[str, Any] = {"model_path": str(path), "gpu_bandwidth": 20e9, "nvml": False}
    with ScriptedEngine(["gemma"]) as engine:
        events = whole_answer(*["word "] * 150)
        engine.on(CHAT, stream(*events, gap=0.01))
        engine.on("/metrics", send(answer(b"", status="404 Not Found")))
        with BackgroundProxy(Settings(upstream=engine.url, **inputs, **FAST)) as proxy:
            for _ in range(2):
                ask_scripted(proxy.port, asked=True, model="gemma")
            ratio = published(proxy, "memory_bandwidth_utilization_ratio", basis="streamed")
    assert 0.4 < ratio < 0.9


def gemma(path: Path) -> Path:
    import gguf
    import numpy

    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_block_count(1)
    writer.add_embedding_length(640)
    writer.add_head_count(4)
    writer.add_head_count_kv(1)
    writer.add_key_length(256)
    writer.add_value_length(256)
    writer.add_sliding_window(512)
    for name, rows, columns in (("token_embd", 262144, 640), ("blk.0.attn_q", 1024, 640)):
        data = numpy.zeros((rows, columns), dtype=numpy.int8)
        writer.add_tensor(f"{name}.weight", data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_answers_in_one_piece_are_judged_too() -> None:
    """Nothing is streamed: the engine's own count of steps is all there is."""
    with (
        running_engine() as url,
        BackgroundProxy(Settings(upstream=url, nvml=False, **INPUTS, **FAST)) as proxy,
    ):
        for _ in range(2):
            httpx2.post(
                f"{proxy.url}/v1/completions",
                json={"model": MODEL, "max_tokens": 100, "ignore_eos": True, "prompt": "a"},
                timeout=60,
            )
        time.sleep(0.5)
        page = scrape(proxy.port)
        live = httpx2.get(f"{proxy.url}/tokgauge/live").json()["verdict"]["speed"]
    assert page.total("memory_bandwidth_utilization_ratio") == pytest.approx(0.747, rel=0.1)
    assert live["level"] == "healthy"


def notes_of(proxy: BackgroundProxy) -> list[str]:
    live = httpx2.get(f"{proxy.url}/tokgauge/live").json()["verdict"]["speed"]
    return [*live["notes"], *live["advice"]]


def test_unstreamed_and_cut_answers_are_told_while_they_are_in_the_window() -> None:
    """What is felt as slow has often nothing to do with the GPU."""
    with (
        running_engine() as url,
        BackgroundProxy(Settings(upstream=url, nvml=False, **INPUTS, **FAST)) as proxy,
    ):
        start = time.monotonic()
        httpx2.post(
            f"{proxy.url}/v1/completions",
            json={"model": MODEL, "max_tokens": 60, "ignore_eos": True, "prompt": "a"},
            timeout=60,
        )
        waited = time.monotonic() - start
        time.sleep(0.5)
        told = "\n".join(notes_of(proxy))
        found = re.search(
            r"100 % of the answers were not streamed; half of those came only after ([\d.]+) s or ",
            told,
        )
        assert found, told
        assert waited - 0.3 < float(found[1]) <= waited
        assert "100 % of the answers were cut off by a token limit" in told
        assert "`stream: true`" in told
        assert "max_tokens" in told
        wait_until(
            lambda: "of the answers" not in "\n".join(notes_of(proxy)), 10, "they are forgotten"
        )


def test_nothing_is_said_of_answers_that_stream_to_their_end() -> None:
    with (
        running_engine(EngineProfile(natural_tokens=80)) as url,
        BackgroundProxy(Settings(upstream=url, nvml=False, **INPUTS, **FAST)) as proxy,
    ):
        body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "a"}]}
        httpx2.post(f"{proxy.url}/v1/chat/completions", json=body, timeout=60)
        httpx2.post(f"{proxy.url}/v1/embeddings", json={"model": MODEL, "input": "a"})
        time.sleep(0.5)
        assert "of the answers" not in "\n".join(notes_of(proxy))


def test_the_share_of_a_stream_alone_is_told_with_its_reason() -> None:
    """Long contexts share each step: no stream is near its own ceiling, the card is."""
    # Prompts cost next to nothing, so that the window holds decoding only.
    profile = EngineProfile(flops=1e18, max_num_batched_tokens=1_000_000)
    with (
        running_engine(profile) as url,
        BackgroundProxy(Settings(upstream=url, nvml=False, **INPUTS, **FAST)) as proxy,
    ):
        ask(proxy.url, 1, 4)  # shows how streams end: usage is asked for from now on
        ask(proxy.url, 1, 40)  # tells how many tokens an event carries
        time.sleep(0.7)
        ask(proxy.url, 8, 200, words=12_000)  # the prompts are out of the window at the end
        time.sleep(0.7)
        page = scrape(proxy.port)
        told = "\n".join(notes_of(proxy))
    mean = page.mean("request_ceiling_ratio", alone="false")
    found = re.search(r"a stream gets (\d+) % of the ceiling of one that is alone, because", told)
    assert found, told
    assert int(found[1]) / 100 == pytest.approx(mean, abs=0.02)
    assert mean < 0.7 < (page.total("memory_bandwidth_utilization_ratio") or 0)


def test_what_was_calibrated_judges_and_what_it_holds_not_for_does_not(tmp_path: Path) -> None:
    """A simulated step takes 24.6 ms; calibrated were 18.5: what is usual is slow here."""
    file = tmp_path / "calibration.json"
    half = EngineProfile(efficiency=2 * EngineProfile().efficiency)
    fitted = fit(
        [
            Observation(
                StepWork(steps=100, bytes=100 * read, sequence_steps=100 * sequences),
                100 * read / (half.bandwidth * half.efficiency / 1.5) + 1e-4 * sequences + 0.01,
            )
            for sequences in (1, 2, 4, 8)
            for read in (14.2e9, 18e9, 25e9)
        ],
        "calibrated",
    )
    assert isinstance(fitted, Fitted)
    here = HoldsFor(model=MODEL, weights_bytes=14.141e9, kv_cache=57_344.0)
    given = INPUTS | {"calibration": file, "nvml": False}
    for holds_for, source in ((replace(here, model="another"), "typical"), (here, "calibrated")):
        file.unlink(missing_ok=True)
        store_calibration(file, Entry(holds_for=holds_for, date="2026-01-02", fitted=fitted))
        with (
            running_engine() as url,
            BackgroundProxy(Settings(upstream=url, **given, **FAST)) as proxy,
        ):
            ask(proxy.url, 1, 4)
            page = after_traffic(proxy, proxy.url)
        assert page.total("constants_source", source=source) == 1
        ratio = page.total("expected_time_ratio")
        assert ratio is not None
        if source == "calibrated":
            assert ratio == pytest.approx(1.33, rel=0.15)
            assert page.total("verdict", question="speed", level="healthy") == 0
            assert page.total("fixed_step_seconds", source="calibrated") is not None
        else:
            assert page.total("fixed_step_seconds") is None


def test_an_idle_hour_is_not_judged() -> None:
    settings = Settings(upstream="http://127.0.0.1:9", nvml=False, **INPUTS, **FAST)
    with BackgroundProxy(settings) as proxy:
        time.sleep(1.0)
        page = scrape(proxy.port)
    assert page.total("memory_bandwidth_utilization_ratio") is None
    assert page.total("achieved_bandwidth_bytes_per_second") is None


def test_one_token_a_minute_is_not_judged() -> None:
    with (
        running_engine() as url,
        BackgroundProxy(Settings(upstream=url, nvml=False, **INPUTS, **FAST)) as proxy,
    ):
        page = after_traffic(proxy, proxy.url, streams=1, tokens=1)
    assert page.total("memory_bandwidth_utilization_ratio") is None
    assert page.total("verdict", question="speed", level="not_judged") == 1


def test_only_prefills_are_not_judged() -> None:
    """Long prompts with answers of two tokens: the decode model does not cover that."""
    with (
        running_engine() as url,
        BackgroundProxy(Settings(upstream=url, nvml=False, **INPUTS, **FAST)) as proxy,
    ):
        for number in range(3):
            httpx2.post(
                f"{proxy.url}/v1/completions",
                json={"model": MODEL, "max_tokens": 2, "prompt": f"{number}" + " word" * 6000},
                timeout=60,
            )
        time.sleep(0.5)
        page = scrape(proxy.port)
    assert page.total("memory_bandwidth_utilization_ratio") is None


def test_clients_that_bypass_the_proxy_do_not_make_it_look_fast() -> None:
    """Steps for others would be counted in the time of ours: rather no ratio than a wrong one."""
    with (
        running_engine() as url,
        BackgroundProxy(Settings(upstream=url, nvml=False, **INPUTS, **FAST)) as proxy,
    ):
        ask(proxy.url, 1, 30)
        page = after_traffic(proxy, url, streams=3, tokens=150)
    ratio = page.total("memory_bandwidth_utilization_ratio")
    assert ratio is None or ratio < 0.8


def test_requests_say_whether_they_were_alone_and_contended(
    tmp_path: Path, nvml: SimulatedNvml
) -> None:
    scenes = demo_scenes(tmp_path)
    profile = EngineProfile(root=str(scenes[0].engine["root"]))
    with running_engine(profile) as url, BackgroundProxy(Settings(upstream=url, **FAST)) as proxy:
        nvml.scene = scenes[0].gpu
        published(proxy, "ceiling_tokens_per_second", basis="streamed")
        ask(proxy.url, 1, 4)  # shows how streams end: usage is asked for from now on
        ask(proxy.url, 1, 40)  # tells how many tokens an event carries
        time.sleep(2.2)
        ask(proxy.url, 1, 60)
        first = scrape(proxy.port)
        nvml.scene = scenes[1].gpu
        time.sleep(2.2)
        ask(proxy.url, 2, 40)
        second = scrape(proxy.port).since(first)
        body = {
            "model": MODEL, "prompt": ["a", "b"], "stream": True, "max_tokens": 40,
            "ignore_eos": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        assert httpx2.post(f"{proxy.url}/v1/completions", json=body, timeout=60).is_success
        third = scrape(proxy.port).since(first).since(second)
    assert third.count("time_per_output_token_seconds", source="usage") == 1
    assert third.count("request_ceiling_ratio") == 0, "nobody tells the context of each"
    assert first.count("request_ceiling_ratio", alone="true", contended="false") >= 1
    assert first.count("request_ceiling_ratio", alone="false") == 0
    assert second.count("request_ceiling_ratio", alone="false", contended="true") == 2


def test_an_engine_that_comes_up_under_continuous_load_is_recognised() -> None:
    """Nobody may be asked for models while requests run, unless it is known to stand that."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    settings = Settings(upstream=f"http://127.0.0.1:{port}", nvml=False, **FAST)
    with BackgroundProxy(settings) as proxy:
        server = create_server(EngineProfile(), port=port, log_level="critical")
        thread = threading.Thread(target=server.run, daemon=True)

        async def one_after_the_other(client: httpx2.AsyncClient, end: float) -> None:
            body = {"model": MODEL, "prompt": "a", "max_tokens": 200, "ignore_eos": True}
            while time.monotonic() < end:
                with contextlib.suppress(httpx2.HTTPError):
                    await client.post("/v1/completions", json=body)

        async def load() -> None:
            end = time.monotonic() + 8
            async with httpx2.AsyncClient(base_url=proxy.url, timeout=60) as client:
                running = [asyncio.create_task(one_after_the_other(client, end)) for _ in range(4)]
                await asyncio.sleep(0.2)
                thread.start()
                await asyncio.gather(*running)

        asyncio.run(load())
        page = scrape(proxy.port)
        server.should_exit = True
        thread.join()
    assert page.total("requests_total", model=MODEL, outcome="ok")


def counted_in(proxy: BackgroundProxy, where: str) -> float | None:
    return scrape(proxy.port).total("measurement_errors_total", where=where)


@pytest.mark.parametrize(
    ("where", "broken"),
    [
        ("judge", "tokgauge.diagnosis.monitor.assess"),
        ("gpu", "tokgauge.diagnosis.engine_gpus.NvmlReader.read"),
        ("live", "tokgauge.diagnosis.live.LiveMeter.look"),
        ("poll", "tokgauge.engine.poll.read_models"),
    ],
)
def test_failures_beside_the_requests_are_counted_and_pass(
    nvml: SimulatedNvml, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    where: str, broken: str,
) -> None:  # fmt: skip
    def fail(*_: object) -> None:
        raise RuntimeError("a fault of our own")

    with running_engine() as url, BackgroundProxy(Settings(upstream=url, **FAST)) as proxy:
        with monkeypatch.context() as patch:
            patch.setattr(broken, fail)
            wait_until(
                lambda: (counted_in(proxy, where) or 0) >= 2,
                10, f"failures in {where}",
            )  # fmt: skip
            ask(proxy.url, 1, 5)
            page = scrape(proxy.port)
            assert page.outcomes == {"ok": 1}
            assert {labels["where"] for labels in page.labels("measurement_errors_total")} == {
                where
            }
        published(proxy, "gpu_utilization_ratio", gpu="0")
        published(proxy, "verdict", question="speed", level="not_judged")
        counted = published(proxy, "measurement_errors_total")
        time.sleep(1.5)
        assert scrape(proxy.port).total("measurement_errors_total") == counted, "it has passed"
    logged = [record for record in caplog.records if record.exc_info]
    assert logged
    # A proxy that other tests share may run beside this one, in its own thread.
    assert len({record.thread for record in logged}) == len(logged)
    assert all(f"measuring failed in {where}" in record.getMessage() for record in logged)


def test_losing_nvml_costs_its_figures_and_nothing_else(
    tmp_path: Path, nvml: SimulatedNvml
) -> None:
    from tokgauge.simulator.gpu_scenes import lost_gpu_scene

    with running_engine() as url, BackgroundProxy(Settings(upstream=url, **FAST)) as proxy:
        published(proxy, "gpu_utilization_ratio", gpu="0")
        nvml.scene = lost_gpu_scene()
        wait_until(lambda: scrape(proxy.port).total("gpu_utilization_ratio", gpu="0") is None, 10)
        ask(proxy.url, 1, 5)
        assert scrape(proxy.port).outcomes == {"ok": 1}
        nvml.scene = founding_scene()
        published(proxy, "gpu_utilization_ratio", gpu="0")


def test_the_speed_of_a_sequence_comes_from_the_steps() -> None:
    """How many run is only sampled: here one more is seen than there are on average."""
    start = time.monotonic()

    async def page(c: Conversation) -> None:
        steps = 1000 + int(50 * (time.monotonic() - start))
        figures = {
            "num_requests_running": 5, "num_requests_waiting": 0,
            "iteration_tokens_total_count": steps, "iteration_tokens_total_sum": 4 * steps,
            "generation_tokens_total": 4 * steps,
        }  # fmt: skip
        labels = '{engine="0",model_name="qwen"}'
        lines = [f"vllm:{name}{labels} {value}\n" for name, value in figures.items()]
        await c.send(answer("".join(lines).encode(), content_type="text/plain"))

    inputs = {**INPUTS, "kv_bytes_per_token": 1e-9}
    with ScriptedEngine() as engine:
        engine.models = ["qwen"]
        engine.on("/metrics", page)
        long = stream(*whole_answer(*["a"] * 200), gap=0.02)
        engine.on(CHAT, stream(*whole_answer(*["a"] * 30)), long)
        settings = Settings(upstream=engine.url, nvml=False, **inputs, **FAST)
        with BackgroundProxy(settings) as proxy:
            ask_scripted(proxy.port)
            running = threading.Thread(target=ask_scripted, args=(proxy.port,))
            running.start()
            told: list[tuple[str, str]] = []

            def found() -> bool:
                live = httpx2.get(f"{proxy.url}/tokgauge/live").json()["verdict"]["speed"]
                told[:] = re.findall(
                    r"([\d.]+) tok/s over 5 sequences \(([\d.]+) each\)", live["headline"]
                )
                return bool(told)

            wait_until(found, 15, "the speed of each")
            running.join()
    total, each = map(float, told[0])
    assert total == pytest.approx(200, rel=0.1)
    assert each == pytest.approx(50, rel=0.1)
