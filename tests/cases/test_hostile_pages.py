"""Whatever the engine's own pages hold: the proxy starts, carries, goes on asking, and recovers."""

import json

import pytest
from tokgauge.engine import metrics_page as engine_metrics

from tests.conftest import MODELS, start_proxy
from tests.support.chat import CHAT
from tests.support.client import JSON, fetch
from tests.support.engine import ScriptedEngine, answer, json_answer, send
from tests.support.metrics import scrape, wait_until

VLLM = b'vllm:num_requests_running{model_name="m",engine="0"} %b\n'
GOOD_METRICS = VLLM % b"0.0" + b'vllm:iteration_tokens_total_count{model_name="m",engine="0"} 5.0\n'

CARDS: dict[str, object] = {
    "wrong types": [None, 1, "a", [], {"id": None}, {"id": 1.5}, {"id": {}}, {"id": ["m"]}],
    "odd members": [{"id": "m", "root": 7, "parent": [], "max_model_len": "x", "owned_by": {}}],
    "negative": [{"id": "m", "max_model_len": -1}],
    "huge": [{"id": "m", "max_model_len": 10**18}],
    "float": [{"id": "m", "max_model_len": 1e308}],
    "no name": [{"id": ""}],
    "long name": [{"id": "m" * 100_000}],
    "line ends": [{"id": "m\n# HELP evil\nevil 1\r\n\x00"}],
    "quotes": [{"id": 'm"} 1\n\\'}],
    "many": [{"id": f"m{number}"} for number in range(30_000)],
    "parents in a ring": [{"id": "a", "parent": "b"}, {"id": "b", "parent": "a"}],
    "many times the same": [{"id": "m"}] * 5000,
}

PAGES: dict[str, bytes] = {
    "deep list": b"[" * 100_000,
    "deep object": b'{"data":' * 50_000,
    "deep and closed": b'{"data":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "empty": b"",
    "not UTF-8": b'{"data":[{"id":"\xff\xfe"}]}',
    "lone surrogate": b'{"data":[{"id":"\\ud800"}]}',
    "html": b"<html>",
    "digits": b'{"data":[{"id":"m","max_model_len":%b}]}' % (b"9" * 100_000),
    "exponent": b'{"data":[{"id":"m","max_model_len":1e999}]}',
    "NaN": b'{"data":[{"id":"m","max_model_len":NaN}]}',
    "null": b"null",
    "string": b'"data"',
    "data is an object": b'{"data":{"id":"m"}}',
    "cut": b'{"data":[{"id":"m"',
    "5 MB": b'{"data":[' + b"1," * 2_500_000 + b"1]}",
    "5 MB of blanks": b" " * 5_000_000,
    **{name: json.dumps({"data": cards}).encode() for name, cards in CARDS.items()},
}

METRICS: dict[str, bytes] = {
    "empty": b"",
    "no line end": VLLM[:-1] % b"1",
    "not UTF-8": VLLM % b"1" + b"\xff\xfe\n",
    "NaN": VLLM % b"NaN",
    "infinite": VLLM % b"+Inf",
    "negative": VLLM % b"-1",
    "huge": VLLM % b"1e308",
    "huge sum": VLLM % b"1e308" + VLLM.replace(b'"0"', b'"1"') % b"1e308",
    "not a number": VLLM % b"abc",
    "digits": VLLM % (b"9" * 10_000),
    "no value": b'vllm:num_requests_running{model_name="m"}\n',
    "open labels": b'vllm:num_requests_running{model_name="m\n',
    "odd labels": b"vllm:num_requests_running{=,,}1\n",
    "nested": b"vllm:num_requests_running" + b"{" * 10_000 + b"\n",
    "long line": b"vllm:num_requests_running" + b" " * 100_000 + b"1\n",
    "many lines": (VLLM % b"1") * 60_000,
    "many empty lines": b"\n" * 3_000_000,
    "many engines": b"".join(
        VLLM.replace(b'"0"', b'"%d"' % number) % b"1" for number in range(3000)
    ),
    "two kinds": VLLM % b"1" + b"sglang:num_running_reqs 1\n",
    "config digits": VLLM % b"1"
    + b'vllm:cache_config_info{engine="0",num_gpu_blocks="%b",block_size="16"} 1\n' % (b"9" * 9000),
    "5 MB": b"# x\n" * 1_250_000,
    "html": b"<html>\n",
}


def carries(engine: ScriptedEngine, port: int) -> None:
    body = {"id": "x", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    engine.on(CHAT, send(json_answer(body)))
    response = fetch(port, "POST", CHAT, [JSON], b'{"model":"qwen","messages":[]}')
    assert response.status == 200
    assert response.json() == body


@pytest.mark.parametrize("page", PAGES)
def test_the_list_of_models(page: str) -> None:
    with ScriptedEngine() as engine:
        engine.on("/v1/models", send(answer(PAGES[page])))
        with start_proxy(upstream=engine.url, models=(), poll_interval=0.05) as proxy:
            carries(engine, proxy.port)
            assert fetch(proxy.port, "GET", "/tokgauge/live").status == 200
            assert "\nevil 1" not in scrape(proxy.port).text
            assert scrape(proxy.port).total("observer_errors_total") is None
            if page in CARDS:
                return  # who has told names is not asked again
            engine.on("/v1/models", send(answer(PAGES[page])))  # later, too
            before = len(engine.requests)
            engine.wait_requests(before + 3, timeout=20)
            carries(engine, proxy.port)
            assert fetch(proxy.port, "GET", "/tokgauge/live").status == 200
            assert "\nevil 1" not in scrape(proxy.port).text
            engine.on("/v1/models", send(json_answer({"data": [{"id": "qwen"}]})))

            def named() -> bool:
                carries(engine, proxy.port)
                return bool(scrape(proxy.port).total("requests_total", model="qwen"))

            wait_until(named, 10, "the names that came later are known")
            assert scrape(proxy.port).total("measurement_errors_total") is None


@pytest.mark.parametrize("page", METRICS)
def test_the_page_of_metrics(page: str) -> None:
    assert engine_metrics.read(METRICS[page], 0.0).at == 0.0
    with ScriptedEngine(MODELS) as engine:
        engine.on("/metrics", send(answer(METRICS[page], content_type="text/plain")))
        settings = {"engine_metrics_interval": 0.05, "rate_window": 1}
        with start_proxy(upstream=engine.url, **settings) as proxy:
            engine.wait_requests(3, timeout=20)
            carries(engine, proxy.port)
            assert fetch(proxy.port, "GET", "/tokgauge/live").status == 200
            engine.on("/metrics", send(answer(GOOD_METRICS, content_type="text/plain")))
            before = len(engine.requests)
            engine.wait_requests(before + 3, timeout=20)
            assert scrape(proxy.port).total("measurement_errors_total") is None
