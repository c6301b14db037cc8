"""vLLM's own router, written in Rust, as its wheel on PyPI brings it."""

from __future__ import annotations

from bench.candidates.launch import Launch, Place, from_pypi, installed_version
from bench.processes import free_port

NAME = "vllm-router"


def start(place: Place) -> Launch:
    path = from_pypi("vllm-router", "vllm-router", "vllm-router")
    return Launch(
        (
            str(path), "--host", "127.0.0.1", "--port", str(place.port),
            "--worker-urls", f"http://127.0.0.1:{place.engine_port}", "--policy", "round_robin",
            "--prometheus-port", str(free_port()), "--log-level", "error",
        )
    )  # fmt: skip


def version() -> str:
    path = from_pypi("vllm-router", "vllm-router", "vllm-router")
    return installed_version(path.with_name("python"), "vllm-router")
