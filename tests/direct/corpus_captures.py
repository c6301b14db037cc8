"""Exchanges with real engines' bytes: every file of `tests/captures`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.direct.harness import Answers, Exchange
from tests.direct.replies import Apart, Extra, Joined, Reply, Request
from tests.support.engine import parse_headers

CAPTURES = Path(__file__).parent.parent / "captures"
EXPECTED: dict[str, dict[str, Any]] = json.loads((CAPTURES / "expected.json").read_text())

_HEADERS = {
    "conn_close": (("Connection", "close"),),
    "expect100": (("Expect", "100-continue"),),
    "gzip_accept": (("Accept-Encoding", "gzip, deflate, br"),),
    "xreqid": (("X-Request-Id", "a-b-c"), ("Authorization", "Bearer x")),
    "text_plain": (("Content-Type", "text/plain"),),
}


def captured_request(name: str, body: Any = ...) -> Request:
    """The request that led to a capture, as far as its name and expectation tell."""
    expected = EXPECTED[name]
    body = expected["body"] if body is ... else body
    headers = [header for part, more in _HEADERS.items() if part in name for header in more]
    if body is not None and not any(n == "Content-Type" for n, _ in headers):
        headers.append(("Content-Type", "application/json"))
    document = b"" if body is None else json.dumps(body).encode()
    chunked = "chunked_req" in name
    parts = (document[:10], document[10:]) if chunked else (document,) if document else ()
    return Request(
        expected["method"], expected["path"], tuple(headers), parts,
        "chunked" if chunked else "length" if parts else "none",
        "HTTP/1.0" if "http10" in name else "HTTP/1.1",
    )  # fmt: skip


def captured_reply(name: str) -> Reply:
    raw = (CAPTURES / f"{name}.http").read_bytes()
    head, _, body = raw.partition(b"\r\n\r\n")
    while head.startswith(b"HTTP/1.1 100 "):  # the proxy's own to answer
        head, _, body = body.partition(b"\r\n\r\n")
    head += b"\r\n\r\n"
    names = {key.lower(): value for key, value in parse_headers(head)}
    end = EXPECTED[name]["end"]
    pieces: list[bytes] = []
    if b"chunked" in names.get(b"transfer-encoding", b""):
        framing = "chunked"
        while body and not body.startswith(b"0\r\n"):
            line = body.index(b"\r\n") + 2
            size = int(body[:line], 16)
            pieces.append(body[line : line + size])
            body = body[line + size + 2 :]
    else:
        framing = "length" if b"content-length" in names else "close"
        pieces += [body] if body else []
    return Reply(
        tuple(pieces), raw=head, framing=framing,
        cut=len(pieces) if end == "cut" else None,
        end="keep" if end == "complete" and "http10" not in name else "close",
        to_head=EXPECTED[name]["method"] == "HEAD",
    )  # fmt: skip


def _always(reply: Reply) -> Answers:
    return lambda body: reply


def _as_captured() -> Iterator[Exchange]:
    for name in EXPECTED:
        reply, request = captured_reply(name), captured_request(name)
        if not request.keeps and reply.end == "keep":
            reply = replace(reply, end="close")
        yield Exchange(f"capture {name}", request, _always(reply))
        if len(reply.pieces) > 1:
            yield Exchange(
                f"capture {name} at once", request, _always(replace(reply, writes="once"))
            )


def unasked(pieces: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The stream that vLLM sends without the wish: no usage event, the fingerprint on the finish.

    Seen on vLLM 0.32: `system_fingerprint` rides on the last data event.
    """
    usage = next(i for i, p in enumerate(pieces) if b'"choices":[],"usage":' in p)
    fingerprint = re.search(rb',"system_fingerprint":"[^"]*"', pieces[usage])
    finish = pieces[usage - 1]
    assert fingerprint is not None
    assert finish.endswith(b"}\n\n")
    moved = finish[:-3] + fingerprint.group() + b"}\n\n"
    return (*pieces[: usage - 1], moved, *pieces[usage + 1 :])


def honours(
    plain: tuple[bytes, ...], wished: tuple[bytes, ...], finish: type[bytes], reply: Reply
) -> Answers:
    """An engine that sends `wished` to a request with the wish, its usage event extra.

    finish: how the event before that one leaves.
    """
    usage = next(i for i, p in enumerate(wished) if b'"choices":[],"usage":' in p)
    pieces = list(wished)
    pieces[usage] = Extra(pieces[usage])
    pieces[usage - 1] = finish(pieces[usage - 1])

    def answer(body: bytes) -> Reply:
        wish = json.loads(body).get("stream_options") or {}
        if wish.get("include_usage"):
            return replace(reply, pieces=tuple(pieces))
        return replace(reply, pieces=plain)

    return answer


def _with_hidden_usage() -> Iterator[Exchange]:
    """Captures with a usage event, from an engine that makes it only when asked."""
    for name, expected in EXPECTED.items():
        if not expected.get("hide"):
            continue
        reply = captured_reply(name)
        for wish in (None, {"include_usage": False}):
            body = {**expected["body"], "stream_options": wish}
            if wish is None:
                del body["stream_options"]
            for finish in (Joined, Apart):
                yield Exchange(
                    f"capture {name} {'unasked' if wish is None else 'false'} {finish.__name__}",
                    captured_request(name, body),
                    honours(unasked(reply.pieces), reply.pieces, finish, reply),
                    rounds=3,
                )  # fmt: skip


CAPTURED = [*_as_captured(), *_with_hidden_usage()]
