"""The two processes under comparison, started for a `with` block and always ended with it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2

ENGINE_START_SECONDS = 300.0
PROXY_START_SECONDS = 20.0
STOP_SECONDS = 20.0

MODEL = "qwen"
CONTEXT_LENGTH = 512

ENGINE_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_TARGET_DEVICE": "cpu",
}


class NotStartedError(RuntimeError):
    """A process ended, or did not get ready in time; the text holds the end of its log."""


@contextmanager
def running_engine(
    vllm: Path, model: Path, log: Path, extra: tuple[str, ...] = ()
) -> Iterator[str]:
    """A vLLM that serves `model` as `qwen` on a free port; gives its address."""
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        str(vllm), "serve", str(model), "--served-model-name", MODEL,
        "--host", "127.0.0.1", "--port", str(port),
        "--max-model-len", str(CONTEXT_LENGTH), "--max-num-seqs", "32",
        "--enforce-eager", "--dtype", "float32", "--enable-mfu-metrics", *extra,
    ]  # fmt: skip
    with _running(command, {**os.environ, **ENGINE_ENVIRONMENT}, log) as process:
        _wait_until_ready(process, f"{url}/health", ENGINE_START_SECONDS, log)
        yield url


@contextmanager
def running_proxy(upstream: str, weights_bytes: int, log: Path) -> Iterator[str]:
    """`tokgauge serve` before `upstream`; gives its address once it knows the engine.

    weights_bytes: what a decode step reads. For a checkpoint in float32 the proxy does not tell by
    itself, nor the size of the KV cache, since engines usually cast those.
    """
    command = [
        str(Path(sys.executable).with_name("tokgauge")), "serve",
        "--upstream", upstream, "--port", "0", "--poll-interval", "1",
        "--weights-bytes", str(weights_bytes), "--kv-cache-dtype", "float32", "--no-nvml",
        "--engine-metrics-interval", "1", "--rate-window", "8",
    ]  # fmt: skip
    # Somebody's own settings would change what is compared.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TOKGAUGE_")}
    with _running(command, environment, log) as process:
        url = _announced_address(process, log)
        _wait_until_ready(process, f"{url}/tokgauge/readyz", PROXY_START_SECONDS, log)
        yield url


@contextmanager
def _running(
    command: list[str], environment: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    # A process group of its own: vLLM's engine core is a child that must go with it. Not a session:
    # Linux shares the cores out by session (autogroups), and vLLM's processes on a CPU wait in
    # sched_yield. With the proxy in another session the kernel (seen on 6.18) let its runnable
    # thread wait for 0.4 s, about once in 40 streams, and the clients' too.
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    try:
        yield process
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
    with suppress(ProcessLookupError):  # nothing is left of the group
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _announced_address(process: subprocess.Popen[bytes], log: Path) -> str:
    end = time.monotonic() + PROXY_START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        found = re.search(r"listens on (http://[\d.]+:\d+)", log.read_text(errors="replace"))
        if found:
            return found[1]
        time.sleep(0.05)
    raise NotStartedError(_complaint(process, log))


def _wait_until_ready(
    process: subprocess.Popen[bytes], url: str, seconds: float, log: Path
) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        try:
            if httpx2.get(url, timeout=5).status_code == 200:
                return
        except httpx2.TransportError:
            pass  # not listening yet
        time.sleep(0.2)
    raise NotStartedError(_complaint(process, log))


def _complaint(process: subprocess.Popen[bytes], log: Path) -> str:
    state = "not ready in time" if process.poll() is None else f"ended with {process.returncode}"
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    return f"{state}; the end of {log}:\n{tail}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
