"""The request that a scope of ASGI describes."""

from typing import Any

import pytest
from tokgauge.http.asgi_request import request_of

pytestmark = pytest.mark.socketless


def scope(**parts: Any) -> dict[str, Any]:
    return {
        "http_version": "1.1", "method": "GET", "path": "/", "query_string": b"",
        "headers": [(b"host", b"a")], **parts,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "target"),
    [
        ({"raw_path": b"/v1/a%2Fb"}, b"/v1/a%2Fb"),
        ({"raw_path": b"/v1", "query_string": b"x=%20&&"}, b"/v1?x=%20&&"),
        ({"raw_path": b"/llm/v1/a%2Fb", "root_path": "/llm"}, b"/v1/a%2Fb"),
        ({"raw_path": b"/llm", "root_path": "/llm"}, b"/"),
        ({"raw_path": b"/llmx/v1", "root_path": "/llm"}, b"/llmx/v1"),
        ({"raw_path": b"/v1", "root_path": "/taken/off/already"}, b"/v1"),
        ({"raw_path": b"/a/llm/v1", "root_path": "/a/llm/"}, b"/v1"),
        ({"raw_path": b"/caf%C3%A9/v1/%C3%A9", "root_path": "/caf\xe9"}, b"/v1/%C3%A9"),
        ({"raw_path": b"/a%2Fb/v1", "root_path": "/a/b"}, b"/v1"),
        ({"raw_path": b"http://elsewhere.test/v1"}, b"/v1"),
        ({"path": "/v1/caf\xe9 100%"}, b"/v1/caf%C3%A9%20100%25"),
        ({"path": "/llm/v1", "raw_path": None, "root_path": "/llm"}, b"/v1"),
    ],
)
def test_targets(parts: dict[str, Any], target: bytes) -> None:
    assert request_of(scope(**parts), unsaid_body=False).target == target


def test_what_can_be_read_in_two_ways_is_refused() -> None:
    headers = [(b"host", b"a"), (b"content-length", b"3"), (b"transfer-encoding", b"chunked")]
    assert request_of(scope(headers=headers), unsaid_body=False).refusal is not None
