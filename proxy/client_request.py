"""The head of a client's request, looked through once."""

from __future__ import annotations

import urllib.parse
from collections.abc import Sequence
from typing import Any

from proxy.headers import Header, Incoming

_ASGI = {"version": "3.0", "spec_version": "2.3"}

REQUEST = "tokgauge.request"
"""Scope extension: the `ClientRequest`."""


class ClientRequest:
    """What a request's head says; the same object whether ASGI carries the request or not.

    method: in upper case. target: in origin form, exactly as sent. path: the target's, raw.
    version: `1.0` or `1.1`. headers: names in lower case, else as sent. incoming: what they mean.
    too_large: the head is above the limit; the request must be refused.
    simple: nothing in the head needs a closer look before the request goes on.
    """

    __slots__ = (
        "_query", "headers", "incoming", "keep_alive", "method", "path", "simple", "target",
        "too_large", "version",
    )  # fmt: skip

    def __init__(
        self, method: str, target: bytes, version: str, headers: Sequence[Header], *,
        keep_alive: bool, too_large: bool,
    ) -> None:  # fmt: skip
        self.method = method
        self.target = target
        self.path, _, self._query = target.partition(b"?")
        self.version = version
        self.headers = headers
        self.keep_alive = keep_alive
        self.too_large = too_large
        self.incoming = incoming = Incoming(headers)
        self.simple = (
            incoming.hosts == 1
            and not incoming.codings
            and not too_large
            and method != "CONNECT"
            and version == "1.1"
        )

    def scope(self, **connection: Any) -> dict[str, Any]:
        """ASGI's connection scope. connection: what only the connection knows."""
        text = self.path.decode("latin-1")
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": self.version,
            "root_path": "",
            "method": self.method,
            "raw_path": self.path,
            "path": urllib.parse.unquote(text) if b"%" in self.path else text,
            "query_string": self._query,
            "headers": self.headers,
            **connection,
        }
