"""Which headers go on: hop-by-hop rules (RFC 9110 §7.6.1) and the proxy's own two additions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Header = tuple[bytes, bytes]

_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization",
     b"proxy-authenticate", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)  # fmt: skip


def _dropped(headers: Iterable[Header]) -> frozenset[bytes]:
    named = [
        token.strip().lower()
        for name, value in headers
        if name.lower() == b"connection"
        for token in value.split(b",")
    ]
    # A client must not be able to strip what carries the message itself.
    return _HOP_BY_HOP.union(named).difference((b"host", b"content-length", b"content-type"))


def to_engine(
    headers: Sequence[Header],
    *,
    host: bytes | None,
    chunked: bool,
    body_length: int | None,
    identity: bool,
) -> list[Header]:
    """Headers of a request on their way up: order, duplicates and values as they came.

    host: replaces the client's Host header; None keeps it.
    chunked: the body is framed in chunks.
    body_length: replaces Content-Length (the body was changed); None keeps it.
    identity: ask for an answer without Content-Encoding, because an event must be cut out of it.
    """
    dropped = _dropped(headers)
    out: list[Header] = []
    for name, value in headers:
        lowered = name.lower()
        if lowered in dropped or lowered == b"expect":
            continue  # the proxy has answered the client's `Expect: 100-continue` itself
        if lowered == b"host" and host is not None:
            continue
        if lowered == b"content-length" and body_length is not None:
            value = b"%d" % body_length
        elif lowered == b"accept-encoding" and identity:
            value = b"identity"
        out.append((name, value))
    if host is not None:
        out.insert(0, (b"host", host))
    if chunked:
        out.append((b"transfer-encoding", b"chunked"))
    return out


def to_client(
    headers: Sequence[Header], *, exchange_id: bytes, event_stream: bool, length_changes: bool
) -> list[Header]:
    """Headers of an answer on their way down, with `X-Tokgauge-Id`.

    Event streams get `X-Accel-Buffering: no` when the engine did not say, so that an nginx on the
    way does not hold events back. length_changes: Content-Length no longer fits and is dropped.
    """
    dropped = _dropped(headers)
    out: list[Header] = []
    buffering_said = False
    for name, value in headers:
        lowered = name.lower()
        if lowered in dropped or (length_changes and lowered == b"content-length"):
            continue
        buffering_said = buffering_said or lowered == b"x-accel-buffering"
        out.append((name, value))
    if event_stream and not buffering_said:
        out.append((b"x-accel-buffering", b"no"))
    out.append((b"x-tokgauge-id", exchange_id))
    return out


def first(headers: Iterable[Header], name: bytes) -> bytes | None:
    """The value of the first header called `name` (lower case), whatever its case on the wire."""
    return next((value for key, value in headers if key.lower() == name), None)
