"""What differs between two sights of one exchange, and what of that README tells of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.direct.harness import Exchange
from tests.direct.sight import Sight
from tests.support.engine import Received

Header = tuple[bytes, bytes]


@dataclass(frozen=True)
class Excepted:
    """A difference that is meant. row: how its row of README's table of changes begins."""

    row: str


WISH = Excepted("`stream_options.include_usage` is added")
ONCE_MORE = Excepted("an answer to such a request that is none")
OWN_ID = Excepted("`X-Tokgauge-Id` is added to")
NO_BUFFERING = Excepted("`X-Accel-Buffering: no` is added to event streams")
HOP_BY_HOP = Excepted("hop-by-hop headers")
EXPECT = Excepted("`Expect: 100-continue` is answered by the proxy")
PHRASES = Excepted("interim answers (1xx) are dropped, and the reason phrase")
OWN_ERRORS = Excepted("an engine that cannot be reached")
DIED_IDLE = Excepted("a `GET`, `HEAD` or `OPTIONS`, or a request to generate text, that dies")
NAMES = Excepted("names of request headers")
TARGET = Excepted("an absolute request target")
SURPLUS = Excepted("what comes after the end of a response")

EXCEPTIONS = [value for value in list(globals().values()) if isinstance(value, Excepted)]

_HOPS = {
    b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding",
    b"upgrade", b"proxy-authorization", b"proxy-authenticate",
}  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """`excepted` is None for what must not be."""

    what: str
    direct: object
    proxy: object
    excepted: Excepted | None = None


def faults(exchange: Exchange, direct: Sight, proxied: Sight) -> list[Difference]:
    """The differences that README does not tell of."""
    return [one for one in differences(exchange, direct, proxied) if one.excepted is None]


def differences(exchange: Exchange, direct: Sight, proxied: Sight) -> Iterator[Difference]:
    """What differs, the exceptions among it."""
    assert direct.late is None, f"even direct the client did not see {direct.late} bytes in time"
    assert direct.requests, "the engine never got the request"
    if direct.ending == "nothing":
        yield from _own_error(direct, proxied)
    elif exchange.leaves != -1:
        yield from _responses(direct, proxied)
    yield from _connection(exchange, direct, proxied)
    yield from _requests(exchange, direct, proxied)


def _own_error(direct: Sight, proxied: Sight) -> Iterator[Difference]:
    """The engine ends without an answer: the proxy says so in its own words."""
    error = json.loads(bytes(proxied.body) or b"{}").get("error", {})
    said = proxied.status == 502 and {"message", "type", "code", "param"} <= set(error)
    yield Difference("no answer", direct.ending, proxied.head, OWN_ERRORS if said else None)


def _responses(direct: Sight, proxied: Sight) -> Iterator[Difference]:
    if direct.interim != proxied.interim:
        excepted = PHRASES if not proxied.interim else None
        if all(head.startswith(b"HTTP/1.1 100 ") for head in proxied.interim):
            excepted = EXPECT
        yield Difference("interim", direct.interim, proxied.interim, excepted)
    if direct.status != proxied.status:
        yield Difference("status", direct.status, proxied.status)
    elif direct.reason != proxied.reason:
        yield Difference("reason", direct.reason, proxied.reason, PHRASES)
    hides = any(bytes(r.body) != bytes(direct.requests[0].body) for r in proxied.requests)
    yield from _headers(direct, proxied, hides=hides)
    if direct.body != proxied.body:
        yield Difference("body", *_around(bytes(direct.body), bytes(proxied.body)))
    if direct.trailers != proxied.trailers:
        excepted = HOP_BY_HOP if not proxied.trailers else None
        yield Difference("trailers", direct.trailers, proxied.trailers, excepted)
    if direct.ending != proxied.ending:
        yield Difference("ending", direct.ending, proxied.ending)
    if proxied.late is not None:
        yield Difference("in time", "each write", f"not {proxied.late} bytes")


def _headers(direct: Sight, proxied: Sight, *, hides: bool) -> Iterator[Difference]:
    named = _named(direct.headers)
    expected = [h for h in direct.headers if h[0].lower() not in _HOPS | named]
    seen = list(proxied.headers)
    own = [h for h in seen if h[0].lower() == b"x-tokgauge-id"]
    if len(own) != 1:
        yield Difference("own id", None, own)
    dropped = {b"x-tokgauge-id", b"transfer-encoding", b"connection"}
    seen = [h for h in seen if h[0].lower() not in dropped]
    yield Difference("own id", None, own, OWN_ID)
    buffering = (b"x-accel-buffering", b"no")
    is_stream = any(b"text/event-stream" in v.lower() for v in direct.values(b"content-type"))
    if buffering in seen and not direct.values(b"x-accel-buffering") and is_stream:
        seen.remove(buffering)
        yield Difference("buffering", None, buffering, NO_BUFFERING)
    if hides and not proxied.values(b"content-length"):  # not known before the event is taken out
        expected = [h for h in expected if h[0].lower() != b"content-length"]
        yield Difference("framing", direct.headers, proxied.headers, HOP_BY_HOP)
    if expected != seen:
        yield Difference("headers", expected, seen)


def _connection(exchange: Exchange, direct: Sight, proxied: Sight) -> Iterator[Difference]:
    if direct.surplus:
        yield Difference("surplus", direct.surplus, b"", SURPLUS)
    if proxied.surplus:
        yield Difference("surplus", direct.surplus, proxied.surplus)
    if exchange.leaves is not None and direct.gone != proxied.gone:
        yield Difference("the engine sees its client leave", direct.gone, proxied.gone)
    if direct.ending == "whole" and proxied.kept is not exchange.request.keeps:
        yield Difference("kept", direct.kept, proxied.kept)


def _requests(exchange: Exchange, direct: Sight, proxied: Sight) -> Iterator[Difference]:
    (expected,) = direct.requests
    if not proxied.requests:
        yield Difference("requests", 1, 0)
        return
    *earlier, last = proxied.requests
    changed = [bytes(one.body) != bytes(expected.body) for one in proxied.requests]
    # An engine that ends without a byte may have done so by chance: then it is asked afresh.
    died = any(exchange.engine(bytes(one.body)).dies for one in earlier)
    most = 1 + (earlier != [] and changed[0]) + died
    if len(proxied.requests) > most:
        yield Difference("requests", 1, len(proxied.requests))
    for one in earlier:
        excepted = DIED_IDLE if direct.ending == "nothing" else ONCE_MORE
        yield Difference("once more", None, one.request_line, excepted)
    for one in proxied.requests:
        yield from _request(exchange, expected, one)
    # What was answered is the client's own request wherever an engine did not take the other.
    if earlier and changed[-1] and direct.ending != "nothing":
        yield Difference("once more", bytes(expected.body), bytes(last.body))


def _request(exchange: Exchange, expected: Received, seen: Received) -> Iterator[Difference]:
    if expected.request_line != seen.request_line:
        excepted = None
        if "://" in exchange.request.target:
            excepted = TARGET if seen.request_line.split(" ")[1].startswith("/") else None
        elif exchange.request.version == "HTTP/1.0":
            same = seen.request_line == expected.request_line.replace("/1.0", "/1.1")
            excepted = HOP_BY_HOP if same else None
        yield Difference("request line", expected.request_line, seen.request_line, excepted)
    changed = False
    if expected.body != seen.body:
        changed = _only_the_wish(bytes(expected.body), bytes(seen.body))
        yield Difference(
            "request body", *_around(bytes(expected.body), bytes(seen.body)),
            WISH if changed else None,
        )  # fmt: skip
    if expected.trailers != seen.trailers:
        yield Difference(
            "request trailers", expected.trailers, seen.trailers,
            HOP_BY_HOP if not seen.trailers else None,
        )  # fmt: skip
    yield from _request_headers(exchange, expected, seen, changed=changed)


def _request_headers(
    exchange: Exchange, expected: Received, seen: Received, *, changed: bool
) -> Iterator[Difference]:
    named = _named(expected.headers) - {b"host", b"content-length", b"content-type"}
    framing = {b"content-length", b"transfer-encoding"}
    left_out = _HOPS | named | framing | {b"expect"}
    wanted = [(n.lower(), v) for n, v in expected.headers if n.lower() not in left_out]
    got = [(n.lower(), v) for n, v in seen.headers if n.lower() not in left_out - named]
    got = [h for h in got if h[0] not in framing]
    if wanted != got:
        yield Difference("request headers", wanted, got)
    if [n for n, _ in seen.headers if n != n.lower()] != [
        n for n, _ in expected.headers if n != n.lower()
    ]:
        yield Difference("names of request headers", expected.headers, seen.headers, NAMES)
    if not exchange.early and seen.values("content-length") not in ([], [b"%d" % len(seen.body)]):
        yield Difference("content-length", len(seen.body), seen.values("content-length"))


def _only_the_wish(was: bytes, now: bytes) -> bool:
    """Whether a body was changed in its `stream_options.include_usage` alone."""
    try:
        wished, document = json.loads(was), json.loads(now)
        options = document.pop("stream_options")
        before = wished.pop("stream_options", None) or {}
    except (ValueError, KeyError, AttributeError):
        return False
    return bool(document == wished and options == {**before, "include_usage": True})


def _named(headers: Iterable[Header]) -> set[bytes]:
    """The headers that `Connection` names."""
    said = b",".join(value for name, value in headers if name.lower() == b"connection")
    return {token.strip().lower() for token in said.split(b",")} - {b"", b"close", b"keep-alive"}


def _around(one: bytes, other: bytes) -> tuple[str, str]:
    """The place at which two bodies begin to differ."""
    at = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    start = max(0, at - 40)
    return tuple(f"{len(b)} bytes, at {at}: …{b[start : at + 120]!r}" for b in (one, other))  # type: ignore[return-value]
