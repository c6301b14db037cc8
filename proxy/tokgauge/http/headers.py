"""Which headers go on: hop-by-hop rules (RFC 9110 §7.6.1) and the proxy's own two additions."""

from __future__ import annotations

from collections.abc import Iterable

Header = tuple[bytes, bytes]

_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization",
     b"proxy-authenticate", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)  # fmt: skip


_NEVER_DROPPED = frozenset((b"host", b"content-length", b"content-type"))
"""A client must not be able to strip what carries the message itself."""

_NOTED = _HOP_BY_HOP.union((b"host", b"content-length", b"content-encoding", b"expect"))


class Incoming:
    """The headers of a request, looked through once. Names must be in lower case.

    hosts: how many Host headers there are. host: the last one's value, None without one.
    length: the first Content-Length, 0 without one. lengths: all of them, without blanks around
    them. encoding: the first Content-Encoding. codings: all values of Transfer-Encoding.
    expects: whether the client waits for `100 Continue`.
    """

    __slots__ = (
        "_onward", "codings", "encoding", "expects", "host", "hosts", "length", "lengths",
    )  # fmt: skip

    def __init__(self, headers: Iterable[Header]) -> None:
        self.hosts = 0
        self.host: bytes | None = None
        self.encoding: bytes | None = None
        self.codings: list[bytes] = []
        self.lengths: list[bytes] = []
        self.expects = False
        named: list[bytes] = []
        onward: list[Header] = []
        for header in headers:
            name = header[0]
            if name not in _NOTED:
                onward.append(header)
                continue
            value = header[1]
            if name == b"host":
                self.hosts += 1
                self.host = value
                onward.append(header)
            elif name == b"content-length":
                # Blanks around it are legal, and an engine that minds them would misread it.
                length = value.strip(b" \t")
                self.lengths.append(length)
                onward.append((name, length))
            elif name == b"content-encoding":
                self.encoding = value if self.encoding is None else self.encoding
                onward.append(header)
            elif name == b"transfer-encoding":
                self.codings.append(value)
            elif name == b"connection":
                named += _named_in(value)
            elif name == b"expect":  # the proxy answers `100-continue` itself
                self.expects = self.expects or value.strip(b" \t").lower() == b"100-continue"
            # Everything else that is noted is hop-by-hop.
        first = self.lengths[0] if self.lengths else b""
        self.length = int(first) if first.isdigit() else 0
        if named:
            dropped = frozenset(named).difference(_NEVER_DROPPED)
            onward = [header for header in onward if header[0] not in dropped]
        self._onward = onward

    def to_engine(self, *, host: bytes | None, body_length: int | None) -> list[Header]:
        """Headers of the request on their way up: order, duplicates and values as they came.

        host: replaces the client's Host header; None keeps it.
        body_length: replaces Content-Length (the body was changed); None keeps it.
        """
        out = self._onward
        if host is not None:
            out = [(b"host", host), *(header for header in out if header[0] != b"host")]
        if body_length is not None:
            out = _with_value(out, b"content-length", b"%d" % body_length)
        if self.codings:
            out = [*out, (b"transfer-encoding", b"chunked")]
        return out


def _named_in(connection: bytes) -> list[bytes]:
    return [token.strip().lower() for token in connection.split(b",")]


def _with_value(headers: list[Header], name: bytes, value: bytes) -> list[Header]:
    return [(name, value) if header[0] == name else header for header in headers]


_NOTED_DOWN = _HOP_BY_HOP.union(
    (b"content-type", b"content-encoding", b"content-length", b"x-accel-buffering")
)


class Returning:
    """The headers of a response, looked through once. Names may be in any case.

    media_type: of its last Content-Type, in lower case, without parameters; empty without one.
    content: Content-Type and Content-Encoding, the last of each, by name in lower case.
    """

    __slots__ = ("_buffering_said", "_onward", "content", "media_type")

    def __init__(self, headers: Iterable[Header]) -> None:
        self.media_type = ""
        self.content: dict[str, str] = {}
        self._buffering_said = False
        named: list[bytes] = []
        onward: list[Header] = []
        for header in headers:
            name = header[0].lower()
            if name in _NOTED_DOWN:
                if name == b"content-type":
                    self.content["content-type"] = value = header[1].decode("latin-1")
                    self.media_type = value.partition(";")[0].strip().lower()
                elif name == b"content-encoding":
                    self.content["content-encoding"] = header[1].decode("latin-1")
                elif name == b"x-accel-buffering":
                    self._buffering_said = True
                elif name == b"connection":
                    named += _named_in(header[1])
                if name in _HOP_BY_HOP:
                    continue
            onward.append(header)
        if named:
            dropped = frozenset(named).difference(_NEVER_DROPPED)
            onward = [header for header in onward if header[0].lower() not in dropped]
            self._buffering_said = self._buffering_said and b"x-accel-buffering" not in dropped
        self._onward = onward

    def to_client(self, *, exchange_id: bytes | None, length_changes: bool) -> list[Header]:
        """Headers of the response on their way down, with `X-Tokgauge-Id`. To be called once.

        Event streams get `X-Accel-Buffering: no` when the engine did not say, so that an nginx on
        the way does not hold events back. length_changes: Content-Length no longer fits and is
        dropped.
        """
        out = self._onward
        if length_changes:
            out = [header for header in out if header[0].lower() != b"content-length"]
        if self.media_type == "text/event-stream" and not self._buffering_said:
            out.append((b"x-accel-buffering", b"no"))
        if exchange_id is not None:
            out.append((b"x-tokgauge-id", exchange_id))
        return out
