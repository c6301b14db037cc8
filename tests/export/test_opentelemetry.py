"""OpenTelemetry's GenAI metrics, read back from the real SDK and from its OTLP exporter."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx2
import pytest

sdk = pytest.importorskip("opentelemetry.sdk.metrics", reason="the extra otel is not installed")

from tokgauge.serve.background import BackgroundProxy  # noqa: E402
from tokgauge.settings import Settings  # noqa: E402
from tokgauge.simulator.server import running_engine  # noqa: E402


def test_measurements_reach_an_otlp_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    collector = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=collector.serve_forever, daemon=True)
    thread.start()
    endpoint = f"http://127.0.0.1:{collector.server_port}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    model = "Qwen/Qwen2.5-7B-Instruct"
    try:
        with (
            running_engine() as engine,
            BackgroundProxy(Settings(upstream=engine, port=0, nvml=False, otel=True)) as proxy,
        ):
            answer = httpx2.post(
                f"{proxy.url}/v1/chat/completions",
                json={
                    "model": model,
                    "max_tokens": 20,
                    "stream": True,
                    "messages": [{"role": "user", "content": "a secret question"}],
                },
            )
            assert answer.status_code == 200
    finally:
        collector.shutdown()
        collector.server_close()
        thread.join()
    sent = b"".join(received)
    for name in (
        b"gen_ai.server.request.duration",
        b"gen_ai.server.time_to_first_token",
        b"gen_ai.server.time_per_output_token",
        b"gen_ai.request.model",
        model.encode(),
    ):
        assert name in sent
    assert b"secret" not in sent
