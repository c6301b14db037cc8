"""The kinds of request that every fault meets, and a look at what came of one."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from tests.support.chat import CHAT, body_of, whole_answer
from tests.support.client import JSON, RawClient, Response, UncleanEnd, request
from tests.support.engine import EVENT_STREAM, LAST_CHUNK, answer

UPLOAD = "/v1/audio/transcriptions"
_SIZE = 300_000
_FILE = ("Content-Type", "application/octet-stream")
_CHUNKED = ("Transfer-Encoding", "chunked")


def _chunks(body: bytes) -> bytes:
    pieces = [body[at : at + 50_000] for at in range(0, len(body), 50_000)]
    return b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in pieces) + b"0\r\n\r\n"


@dataclass(frozen=True)
class Kind:
    """One kind of request. path: without query. more: a second request in the same pipeline."""

    name: str
    path: str
    data: bytes
    more: bytes = b""
    streams: bool = False

    @property
    def has_body(self) -> bool:
        return not self.data.endswith(b"\r\n\r\n") or b"chunked" in self.data[:300]


SECOND = "/v1/second"
KINDS = (
    Kind("stream", CHAT, request("POST", CHAT, [JSON], body_of(asked=True)), streams=True),
    Kind("whole", CHAT, request("POST", CHAT, [JSON], body_of(stream=False))),
    Kind("upload", UPLOAD, request("POST", UPLOAD, [_FILE], b"f" * _SIZE)),
    Kind("chunked", UPLOAD, request("POST", UPLOAD, [_FILE, _CHUNKED], _chunks(b"f" * _SIZE))),
    Kind("other", "/v1/x", request("GET", "/v1/x")),
    Kind(
        "pipelined", "/v1/completions",
        request("POST", "/v1/completions", [JSON], body_of(stream=False)),
        request("GET", SECOND),
    ),
)  # fmt: skip
UPLOADS = {"upload", "chunked"}


class Fault(Protocol):
    """A row of a table. without: kinds of request to which it cannot happen, and why."""

    @property
    def name(self) -> str: ...

    @property
    def without(self) -> Mapping[str, str]: ...


def table(faults: Iterable[Fault]) -> list[Any]:
    """Every fault times every kind of request."""
    return [
        pytest.param(fault, kind, id=f"{fault.name} - {kind.name}")
        for fault in faults
        for kind in KINDS
        if kind.name not in fault.without
    ]


ANSWER = b'{"object":"chat.completion","choices":[],"pad":"%b"}' % (b"p" * 200)
EVENTS = b"".join(whole_answer("a", "b"))


def right_answer(kind: Kind) -> bytes:
    """What the engine sends when nothing is wrong, framed as its kind usually is."""
    if not kind.streams:
        return answer(ANSWER)
    events = whole_answer("a", "b")
    framed = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events)
    return EVENT_STREAM + framed + LAST_CHUNK


def right_body(kind: Kind) -> bytes:
    return EVENTS if kind.streams else ANSWER


@dataclass
class Seen:
    """What a client got: `response` is None when the connection ended before a head was whole."""

    response: Response | None

    @property
    def status(self) -> int | None:
        return None if self.response is None else self.response.status

    @property
    def manner(self) -> str:
        """`whole`, `cut`, or `nothing`."""
        if self.response is None:
            return "nothing"
        return "whole" if self.response.clean else "cut"


def look(client: RawClient) -> Seen:
    """Read a response, however it ends."""
    try:
        return Seen(client.read_response())
    except (UncleanEnd, ConnectionError):
        return Seen(None)


def works(client_of: Callable[[], RawClient]) -> bool:
    """Whether a good request on this connection gets its own answer."""
    client = client_of()
    try:
        client.request("GET", "/v1/next")
        response = client.read_response()
    except (UncleanEnd, ConnectionError):
        return False
    return response.clean and response.body == b"next"
