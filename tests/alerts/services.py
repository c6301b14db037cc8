"""Prometheus, Alertmanager and a receiver of webhooks, on free loopback ports, for one test."""

import json
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import yaml

from tests.support.programs import program

CONFIG = Path(__file__).parents[2] / "config"

COMPRESSION = 75
"""Every duration of the rules is divided by this: 10 minutes become 8 seconds."""

_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\[|\boffset |\bfor: )(\d+)([smhd])\b")


def compressed(rules: str) -> str:
    """The rules with every range, offset and `for` divided by `COMPRESSION`."""

    def shorter(found: re.Match[str]) -> str:
        before, number, unit = found.groups()
        seconds = int(number) * _UNIT_SECONDS[unit] / COMPRESSION
        return f"{before}{round(seconds * 1000)}ms"

    return _DURATION.sub(shorter, rules)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_until(what: str, look: Callable[[], Any], seconds: float) -> Any:
    """The first true value that `look` returns."""
    end = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.2)


class Webhook:
    """What Alertmanager has sent: alerts in the order of their arrival."""

    def __init__(self) -> None:
        received: list[dict[str, Any]] = []
        self.received = received

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                received.extend(json.loads(body)["alerts"])
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"

    def has(self, alert: str, status: str) -> bool:
        return any(
            got["labels"]["alertname"] == alert and got["status"] == status for got in self.received
        )


@contextmanager
def webhook() -> Iterator[Webhook]:
    receiver = Webhook()
    thread = threading.Thread(target=receiver.server.serve_forever, kwargs={"poll_interval": 0.1})
    thread.start()
    try:
        yield receiver
    finally:
        receiver.server.shutdown()
        thread.join()
        receiver.server.server_close()


@contextmanager
def process(log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as output:
        running = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def _is_ready(url: str, running: subprocess.Popen[bytes], log: Path) -> bool:
    assert running.poll() is None, log.read_text()
    try:
        return httpx2.get(f"{url}/-/ready", trust_env=False).status_code == 200
    except httpx2.TransportError:
        return False


@contextmanager
def alertmanager(directory: Path, receiver: str) -> Iterator[str]:
    """config/alertmanager.yml with short waits and the receiver's address: the own address."""
    config = yaml.safe_load((CONFIG / "alertmanager.yml").read_text())
    for route in (config["route"], *config["route"]["routes"]):
        route |= {"group_wait": "0s", "group_interval": "1s"}
    config["receivers"][0]["webhook_configs"][0]["url"] = receiver
    file, log = directory / "alertmanager.yml", directory / "alertmanager.log"
    file.write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    with process(
        log, program("alertmanager"), f"--config.file={file}", f"--web.listen-address={address}",
        f"--storage.path={directory / 'alertmanager'}", "--cluster.listen-address=",
    ) as running:  # fmt: skip
        url = f"http://{address}"
        wait_until("Alertmanager ready", lambda: _is_ready(url, running, log), 30)
        yield url


_FIRING = 'ALERTS{alertstate="firing",alertname!="TokgaugeOverheadHigh"}'
"""Without the one that a busy machine may set off in all honesty."""


class Prometheus:
    """Questions to a running Prometheus."""

    def __init__(self, url: str) -> None:
        self._client = httpx2.Client(base_url=f"{url}/api/v1", trust_env=False, timeout=20)

    def close(self) -> None:
        self._client.close()

    def get(self, path: str, **parameters: Any) -> Any:
        answer = self._client.get(path, params=parameters).json()
        assert answer["status"] == "success", (parameters, answer)
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self.get("/query", query=expression)["result"]
        return result

    def firing(self) -> set[str]:
        found = self.query(_FIRING)
        return {series["metric"]["alertname"] for series in found}

    def fired_between(self, start: float, end: float) -> set[str]:
        """Alerts that fired at any time from `start` to `end` (seconds of the wall clock)."""
        found = self.get("/query_range", query=_FIRING, start=start, end=end, step=1)["result"]
        return {series["metric"]["alertname"] for series in found}

    def rules_evaluated_since(self, at: float) -> list[dict[str, Any]] | None:
        """All rules, once each has been evaluated after `at`."""
        rules = [rule for group in self.get("/rules")["groups"] for rule in group["rules"]]
        for rule in rules:
            text = re.sub(r"(\.\d{6})\d+", r"\1", rule["lastEvaluation"])
            if datetime.fromisoformat(text).timestamp() <= at:
                return None
        return rules


@contextmanager
def prometheus(directory: Path, target: str, alertmanager: str) -> Iterator[Prometheus]:
    """config/prometheus.yml with that target, every second, and the compressed rules."""
    config = yaml.safe_load((CONFIG / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": [target]}]
    managers = config["alerting"]["alertmanagers"]
    managers[0]["static_configs"] = [{"targets": [alertmanager.removeprefix("http://")]}]
    for name in config["rule_files"]:
        (directory / name).write_text(compressed((CONFIG / name).read_text()))
    file, log = directory / "prometheus.yml", directory / "prometheus.log"
    file.write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    with process(
        log, program("prometheus"), f"--config.file={file}", f"--web.listen-address={address}",
        f"--storage.tsdb.path={directory / 'prometheus'}",
        "--rules.alert.resend-delay=1s", "--log.level=warn",
    ) as running:  # fmt: skip
        url = f"http://{address}"
        wait_until("Prometheus ready", lambda: _is_ready(url, running, log), 30)
        questions = Prometheus(url)
        try:
            yield questions
        finally:
            questions.close()
