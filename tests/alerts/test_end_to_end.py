"""The whole chain for real: a simulated engine, the proxy, Prometheus, Alertmanager, a webhook.

The engine is healthy, then contended, then cuts answers off at a limit, then dies, then is well
again; the alerts of config/alerts.yml fire and resolve in the right parts of that, and arrive.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest
from tokgauge.serve.background import BackgroundProxy
from tokgauge.settings import Settings
from tokgauge.simulator.demo_scenes import DemoScene, demo_scenes
from tokgauge.simulator.nvml import SimulatedNvml

from tests.alerts import services
from tests.alerts.services import Prometheus, Webhook, wait_until
from tests.alerts.test_rules import documented_queries, rules, run
from tests.support.programs import program

pytestmark = pytest.mark.timed

STREAMS = 4
CONTENDED = "TokgaugeEfficiencyLowContended"
TRUNCATION = "TokgaugeTruncationHigh"
DOWN = "TokgaugeUpstreamDown"
NEIGHBOUR = "TokgaugeNeighbourActive"


class Traffic:
    """A few people who ask again and again; each answer is 30 tokens long, or cut at the limit."""

    def __init__(self, url: str) -> None:
        self.max_tokens = 100
        self._url = url
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._person) for _ in range(STREAMS)]

    def __enter__(self) -> "Traffic":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _person(self) -> None:
        with httpx2.Client(base_url=self._url, trust_env=False, timeout=20) as client:
            while not self._end.is_set():
                try:
                    status = self._ask(client)
                except httpx2.HTTPError:
                    status = 0
                if status != 200:
                    self._end.wait(0.3)

    def _ask(self, client: httpx2.Client) -> int:
        body = {
            "model": "Qwen/Qwen2.5-7B-Instruct",
            "stream": True,
            "max_tokens": self.max_tokens,
            "messages": [{"role": "user", "content": "Why is the sky blue?"}],
        }
        headers = {"x-simulate": "tokens=30"}
        with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
            for _ in answer.iter_raw():
                pass
            return answer.status_code


@contextmanager
def engine(directory: Path, port: int, profile: dict[str, object]) -> Iterator[None]:
    """A simulated engine as a process of its own; at the end it is killed, as by the kernel."""
    command = (sys.executable, "-c", "from tokgauge.cli import main; main()", "simulate")
    log = directory / "engine.log"
    with services.process(log, *command, "--port", str(port)) as running:

        def set_up() -> bool:
            assert running.poll() is None, log.read_text()
            return change(port, profile)

        wait_until("the engine is there", set_up, 30)
        yield
        running.kill()


def change(port: int, profile: dict[str, object]) -> bool:
    url = f"http://127.0.0.1:{port}/simulator/profile"
    try:
        return httpx2.post(url, json=profile, trust_env=False).status_code == 200
    except httpx2.TransportError:
        return False


def knows_the_model(url: str) -> bool:
    page = httpx2.get(f"{url}/tokgauge/metrics", trust_env=False).text
    return "tokgauge_ceiling_tokens_per_second{" in page


def efficiency_above(prometheus: Prometheus, limit: float) -> bool:
    return bool(
        prometheus.query(
            "min_over_time(instance_model:tokgauge_memory_bandwidth_utilization_ratio:judged[4s])"
            f" > {limit}"
            " and on (model) instance_model:tokgauge_judged:ratio_avg5m == 1"
        )
    )


def check_every_expression(prometheus: Prometheus, url: str) -> None:
    """Each rule and each documented query is answered; each name passes the linter."""
    now = time.time()
    evaluated = wait_until("all evaluated", lambda: prometheus.rules_evaluated_since(now), 20)
    assert [rule["name"] for rule in evaluated if rule["health"] != "ok"] == []
    for rule in (*rules("recording_rules.yml"), *rules("alerts.yml")):
        prometheus.query(rule["expr"])
    for _, query in documented_queries():
        prometheus.query(query)
    assert prometheus.query("vllm:num_preemptions_total"), "the engine's own metrics are scraped"
    scrape = httpx2.get(f"{url}/tokgauge/metrics", trust_env=False).text
    run("promtool", "check", "metrics", stdin=scrape)


@pytest.mark.timeout(400)
def test_alerts_fire_and_resolve_with_what_happens(tmp_path: Path) -> None:
    for name in ("prometheus", "promtool", "alertmanager"):
        program(name)
    healthy, contended, *_ = demo_scenes(tmp_path)
    gpu = SimulatedNvml(healthy.gpu)
    gpu.install()
    try:
        play(tmp_path, gpu, healthy, contended)
    finally:
        gpu.uninstall()


def play(directory: Path, gpu: SimulatedNvml, healthy: DemoScene, contended: DemoScene) -> None:
    port = services.free_port()
    settings = Settings(
        upstream=f"http://127.0.0.1:{port}", port=0, rate_window=4, engine_metrics_interval=0.5,
        poll_interval=1, drain_timeout=2, log_level="error",
    )  # fmt: skip
    with (
        BackgroundProxy(settings) as proxy,
        services.webhook() as webhook,
        services.alertmanager(directory, webhook.url) as manager,
        services.prometheus(directory, f"127.0.0.1:{proxy.port}", manager) as prometheus,
    ):
        with ExitStack() as stack:
            stack.enter_context(engine(directory, port, healthy.engine))
            # The proxy asks an engine that it does not know yet only while nobody else does.
            wait_until("the proxy knows the model", lambda: knows_the_model(proxy.url), 20)
            traffic = stack.enter_context(Traffic(proxy.url))
            began = time.time()
            wait_until("the engine is judged", lambda: efficiency_above(prometheus, 0.6), 60)
            time.sleep(4)
            check_every_expression(prometheus, proxy.url)
            assert prometheus.fired_between(began, time.time()) == set(), "healthy"

            at = time.time()
            gpu.scene = contended.gpu
            change(port, contended.engine)
            arrived(webhook, CONTENDED, "firing", 60)
            assert prometheus.fired_between(at, time.time()) <= {CONTENDED, NEIGHBOUR}
            wait_until("both fire", lambda: prometheus.firing() == {CONTENDED, NEIGHBOUR}, 20)

            gpu.scene = healthy.gpu
            change(port, healthy.engine)
            traffic.max_tokens = 15
            arrived(webhook, CONTENDED, "resolved", 60)
            arrived(webhook, TRUNCATION, "firing", 60)
            wait_until("nothing else fires", lambda: prometheus.firing() == {TRUNCATION}, 20)
            traffic.max_tokens = 100

        # Dead: nobody asks either, so that only the proxy's own look can tell.
        arrived(webhook, DOWN, "firing", 30)

        with engine(directory, port, healthy.engine), Traffic(proxy.url):
            arrived(webhook, DOWN, "resolved", 30)
            arrived(webhook, TRUNCATION, "resolved", 60)
            wait_until("nothing fires", lambda: not prometheus.firing(), 30)
            assert efficiency_above(prometheus, 0.6)

    names = [alert["labels"]["alertname"] for alert in webhook.received]
    assert NEIGHBOUR not in names, "info goes to nobody"
    for alert in webhook.received:
        for text in alert["annotations"].values():
            assert "<no value>" not in text
            assert "error" not in text.lower(), text


def arrived(webhook: Webhook, alert: str, status: str, seconds: float) -> None:
    wait_until(f"{alert} {status} at the webhook", lambda: webhook.has(alert, status), seconds)
