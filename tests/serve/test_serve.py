"""The proxy as a process: its drain, its workers, its second port and its request log."""

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokgauge.simulator.server import running_engine

from tests.support.client import JSON, RawClient, Response, fetch, refuses, request
from tests.support.metrics import scrape, wait_until
from tests.support.process import Process, run, serving, status

pytestmark = pytest.mark.timeout(240)  # starting processes takes long on a busy machine

CHAT = "/v1/chat/completions"
MODEL = "Qwen/Qwen2.5-7B-Instruct"
PROMPT = "the-prompt-of-nobody"
KEY = "sk-the-key-of-nobody"


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """40 tokens per second for one stream."""
    with running_engine() as url:
        yield url


def question(tokens: int, *, stream: bool = True) -> bytes:
    return json.dumps(
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": PROMPT}],
            "stream": stream,
            "max_tokens": tokens,
            "ignore_eos": True,
        }
    ).encode()


class Stream:
    """A running stream, read in a thread."""

    def __init__(self, port: int, tokens: int) -> None:
        self._client = RawClient(port, timeout=60)
        self._client.send(request("POST", CHAT, [JSON], question(tokens)))
        self.response = self._client.read_head()
        assert self.response.status == 200
        self._client.read_body(self.response, at_least=1)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        self._client.read_body(self.response)
        self._client.close()

    def running(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> Response:
        self._thread.join(60)
        assert not self.running()
        return self.response


def ask(port: int, tokens: int = 4) -> Response:
    headers = [JSON, ("Authorization", f"Bearer {KEY}")]
    return fetch(port, "POST", CHAT, headers, question(tokens, stream=False))


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# the end


@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_lets_a_stream_finish(engine: str, tmp_path: Path, workers: int) -> None:
    log = tmp_path / "requests.jsonl"
    options = ["--drain-delay", "1", "--request-log", str(log), "--workers", str(workers)]
    with serving(engine, *options) as proxy:
        stream = Stream(proxy.port, 160)
        proxy.signal(signal.SIGTERM)

        wait_until(lambda: not proxy.ready(), 5, "readyz says 503")
        reason = fetch(proxy.port, "GET", "/tokgauge/readyz").json()
        assert reason == {"status": "not ready", "reason": "shutting down"}
        assert status(proxy.port, "/tokgauge/healthz") == 200
        assert ask(proxy.port).status == 200, "still served until load balancers have noticed"

        wait_until(lambda: refuses(proxy.port), 5, "new connections are refused")
        assert stream.running(), "accepting ends before the stream does"
        response = stream.end()
        assert response.clean
        assert response.body.endswith(b"data: [DONE]\n\n")
        assert proxy.ended() == 0
    assert [line["outcome"] for line in lines_of(log)] == ["ok", "ok"]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_drain_limit_cuts_a_stream_uncleanly(engine: str, tmp_path: Path, workers: int) -> None:
    log = tmp_path / "requests.jsonl"
    options = ["--drain-delay", "0", "--drain-timeout", "1", "--request-log", str(log)]
    with serving(engine, *options, "--workers", str(workers)) as proxy:
        stream = Stream(proxy.port, 2000)
        began = time.monotonic()
        proxy.signal(signal.SIGTERM)
        response = stream.end()
        assert not response.clean
        assert proxy.ended() == 0
        assert 0.9 < time.monotonic() - began < 15
    (line,) = lines_of(log)
    assert line["outcome"] == "proxy_shutdown"
    assert line["token_events"] != 0


def test_ctrl_c_does_not_wait_for_load_balancers(engine: str) -> None:
    with serving(engine, "--drain-delay", "60") as proxy:
        began = time.monotonic()
        proxy.signal(signal.SIGINT)
        assert proxy.ended() == 0
        assert time.monotonic() - began < 10
        assert "Traceback" not in proxy.text


def test_ctrl_c_twice_does_not_wait_for_streams(engine: str) -> None:
    with serving(engine) as proxy:
        stream = Stream(proxy.port, 2000)
        proxy.signal(signal.SIGINT)
        wait_until(lambda: refuses(proxy.port), 5, "no longer accepting")
        assert stream.running()
        proxy.signal(signal.SIGINT)
        proxy.ended(10)
        assert not stream.end().clean
        assert "Traceback" not in proxy.text


# the second port


def test_the_admin_port_serves_only_the_own_pages(engine: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        admin = probe.getsockname()[1]
    with serving(engine, "--admin-port", str(admin)) as proxy:
        assert status(admin, "/tokgauge/healthz") == 200
        assert status(admin, "/tokgauge/readyz") == 200
        assert b"tokgauge_build_info" in fetch(admin, "GET", "/tokgauge/metrics").body
        for path in ("/v1/models", "/metrics", "/health", "/", "http://127.0.0.1/v1/models"):
            assert status(admin, path) == 404, path
        assert ask(admin).status == 404
        assert status(proxy.port, "/v1/models") == 200
        assert status(proxy.port, "/tokgauge/healthz") == 200


# several relays


def counted(proxy: Process) -> float:
    return scrape(proxy.port).total("requests_total", outcome="ok") or 0.0


def in_flight(proxy: Process) -> float:
    return scrape(proxy.port).total("requests_in_flight", model=MODEL) or 0.0


def processes(proxy: Process) -> set[str]:
    found = scrape(proxy.port).labels("process_cpu_seconds_total")
    return {labels["process"] for labels in found}


def test_relays_are_one_in_the_metrics_even_when_one_dies(engine: str) -> None:
    with serving(engine, "--workers", "2") as proxy:
        for _ in range(12):
            assert ask(proxy.port).status == 200
        assert counted(proxy) == 12, "without waiting"

        before = proxy.relays()
        assert len(before) == 2
        streams = [Stream(proxy.port, 20_000) for _ in range(4)]
        assert in_flight(proxy) == 4
        victim = before[0]
        victim.kill()
        wait_until(
            lambda: in_flight(proxy) == sum(stream.running() for stream in streams),
            30, "what the dead relay carried is no longer in flight",
        )  # fmt: skip
        assert counted(proxy) == 12
        wait_until(lambda: len(proxy.relays()) == 2, 30, "a new relay")
        for _ in range(6):
            assert ask(proxy.port).status == 200
        assert counted(proxy) == 18
        everybody = {"analyst", "relay-0", "relay-1"}
        wait_until(lambda: processes(proxy) == everybody, 30, "all are shown")
        now = scrape(proxy.port)
        assert now.total("build_info") == now.total("python_info") == 1
        proxy.signal(signal.SIGINT)
        wait_until(lambda: refuses(proxy.port), 10, "no longer accepting")
        proxy.signal(signal.SIGINT)
        for stream in streams:
            stream.end()
        assert proxy.ended() == 0


def test_a_second_run_starts_from_nothing(engine: str) -> None:
    for _ in range(2):
        with serving(engine, "--workers", "2") as proxy:
            assert ask(proxy.port).status == 200
            assert counted(proxy) == 1


# the request log


def test_the_request_log_has_one_line_for_each_request(engine: str, tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    log.write_text('{"earlier": true}\n')
    with serving(engine, "--request-log", str(log)) as proxy:
        ids = [ask(proxy.port, 20).header("x-tokgauge-id") for _ in range(3)]
        stream = Stream(proxy.port, 20).end()
        missing = fetch(proxy.port, "GET", f"/nothing?{PROMPT}")
        unknown = json.dumps({"model": PROMPT, "messages": []}).encode()
        invented = fetch(proxy.port, "POST", CHAT, [JSON], unknown)
        proxy.signal(signal.SIGINT)
        assert proxy.ended() == 0
    earlier, *lines = lines_of(log)
    assert earlier == {"earlier": True}, "appended, not replaced"
    others = [response.header("x-tokgauge-id") for response in (stream, missing, invented)]
    assert [line["id"] for line in lines] == [i.decode() for i in [*ids, *others] if i is not None]
    assert [line["status"] for line in lines] == [200, 200, 200, 200, 404, invented.status]
    assert [line["stream"] for line in lines] == [False, False, False, True, False, False]
    for line in lines[:4]:
        assert line["outcome"] == "ok"
        assert line["model"] == MODEL
        assert line["completion_tokens"] == 20
        assert line["finish_reasons"] == ["length"]
    assert lines[4]["outcome"] == "upstream_error"
    text = log.read_text()
    for secret in (PROMPT, KEY, "sk-", *words_of(stream)):
        assert secret not in text


def words_of(response: Response) -> set[str]:
    """The longer words of a streamed answer."""
    events = [line[6:] for line in response.body.splitlines() if line.startswith(b"data: {")]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    words = {word for word in text.split() if len(word) > 5}
    assert words
    return words


def test_the_request_log_on_standard_output(engine: str) -> None:
    with serving(engine, "--request-log", "-") as proxy:
        assert ask(proxy.port).status == 200
        proxy.signal(signal.SIGINT)
        assert proxy.ended() == 0
        assert proxy.popen.stdout is not None
        (line,) = proxy.popen.stdout.read().splitlines()
    assert json.loads(line)["outcome"] == "ok"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_request_log_that_cannot_be_written_is_an_error_at_the_start(
    engine: str, tmp_path: Path, workers: str
) -> None:
    path = tmp_path / "absent" / "requests.jsonl"
    ended = run(
        "serve", "--upstream", engine, "--port", "0", "--request-log", str(path),
        "--workers", workers, "--no-nvml",
    )  # fmt: skip
    assert ended.returncode == 3
    assert str(path) in ended.stderr
    assert "No such file or directory" in ended.stderr
    assert "Traceback" not in ended.stderr


# the start


def test_without_an_engine_it_starts_and_says_that_it_is_not_ready() -> None:
    with socket.socket() as taken:  # bound and not listening: nobody can be there
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with serving(url, ready=False) as proxy:

            def told() -> bool:
                answer = fetch(proxy.port, "GET", "/tokgauge/readyz")
                assert answer.status == 503
                assert answer.json()["status"] == "not ready"
                return bool(answer.json()["reason"] == "the engine cannot be reached")

            wait_until(told, 20, "the analyst has tried")
            assert ask(proxy.port).status == 502
