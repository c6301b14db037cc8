"""A raw HTTP/1.1 client and a parser for recorded responses: bytes as they were on the wire."""

import json
import re
import socket
from dataclasses import dataclass, field
from io import BufferedReader, BytesIO
from typing import Any


@dataclass
class Raw:
    status: str
    headers: list[tuple[str, str]]
    chunks: list[bytes] = field(default_factory=list)
    complete: bool = True
    """False when the connection ended before the body did."""

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    def header(self, name: str) -> str | None:
        return dict(self.headers).get(name)


def read_response(stream: "BufferedReader | BytesIO", *, head: bool = False) -> Raw:
    """One response; the chunks of a chunked body are kept apart."""
    status = stream.readline().decode().strip()
    while status.split(" ")[1:2] == ["100"]:
        stream.readline()
        status = stream.readline().decode().strip()
    headers = []
    while line := stream.readline().strip():
        name, _, value = line.decode("latin-1").partition(": ")
        headers.append((name, value))
    raw = Raw(status, headers)
    if head:
        return raw
    if raw.header("transfer-encoding") == "chunked":
        while True:
            size = stream.readline().strip()
            if not size:
                raw.complete = False
                return raw
            data = stream.read(int(size, 16))
            stream.readline()
            if not data:
                return raw
            raw.chunks.append(data)
    length = int(raw.header("content-length") or 0)
    raw.chunks.append(stream.read(length))
    raw.complete = len(raw.body) == length
    return raw


def exchange(
    base: str,
    method: str,
    path: str,
    body: object = None,
    *,
    headers: dict[str, str] | None = None,
    timeout: float = 20.0,
) -> Raw:
    """Send one request on a connection of its own and read the response."""
    host, _, port = base.removeprefix("http://").partition(":")
    fields = {"host": f"{host}:{port}", **(headers or {})}
    data = b""
    if body is not None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        fields.setdefault("content-type", "application/json")
        fields["content-length"] = str(len(data))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    with socket.create_connection((host, int(port)), timeout=timeout) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + data)
        with connection.makefile("rb") as stream:
            return read_response(stream, head=method == "HEAD")


_MASKED_HEADERS = {"date", "content-length", "location"}


def shape_of(raw: Raw) -> dict[str, Any]:
    """What must be the same: status, headers in order, framing, events, keys, order, types."""
    headers = [(n, "*" if n in _MASKED_HEADERS else value) for n, value in raw.headers]
    streamed = raw.header("transfer-encoding") == "chunked"
    body: Any = [event_shape(chunk) for chunk in raw.chunks] if streamed else json_shape(raw.body)
    return {"status": raw.status, "headers": headers, "body": body, "complete": raw.complete}


def event_shape(chunk: bytes) -> Any:
    """One event: its lines in order, JSON masked. A chunk with more than one does not parse."""
    assert chunk.endswith(b"\n\n")
    assert chunk.count(b"\n\n") == 1
    assert b"\r" not in chunk
    lines = []
    for line in chunk.decode().strip("\n").split("\n"):
        name, _, value = line.partition(": ")
        spaced = bool(re.search(r'": ', value)) and value.startswith('{"')
        shape = json_shape(value.encode()) if value.startswith("{") else value
        lines.append((name, shape, "spaced" if spaced and name == "data" else "compact"))
    return lines


def json_shape(body: bytes) -> Any:
    try:
        return _shape(json.loads(body), "")
    except ValueError:
        return body.decode()


# Strings that differ from one run to the next; all other strings must be equal.
_TEXTS = {"content", "text", "delta", "id", "item_id"}


def _shape(value: Any, key: str) -> Any:
    match value:
        case dict():
            return [(name, _shape(inner, name)) for name, inner in value.items()]
        case list() if key in {"tokens", "token_ids", "prompt_token_ids"}:
            return "ids"
        case list():
            return [_shape(inner, key) for inner in value]
        case str():
            return re.sub(r"[0-9a-f]{16}", "*", value) if key == "id" else _text(value, key)
        case bool() | None:
            return value
        case int() if key in {
            "index",
            "sequence_number",
            "code",
            "output_index",
            "completion_tokens",
        }:
            return value
        case _:
            return type(value).__name__


def _text(value: str, key: str) -> str:
    return "text" if key in _TEXTS else value
