"""The request that a scope of ASGI describes."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any
from urllib.parse import quote, unquote

from tokgauge.http.request import Request, origin_form

Message = MutableMapping[str, Any]


def tells_of_body(scope: Message) -> bool:
    """Whether it says that there is a body or none: HTTP/2 and later need no header for that."""
    return scope["http_version"] in ("1.0", "1.1") or any(
        name == b"content-length" for name, _ in scope["headers"]
    )


def request_of(scope: Message, *, unsaid_body: bool) -> Request:
    """unsaid_body: there is one, although no header tells of it."""
    headers = list(scope["headers"])
    if unsaid_body:
        headers.append((b"transfer-encoding", b"chunked"))
    return Request(scope["method"], _target(scope), scope["http_version"], headers, keep_alive=True)


def _target(scope: Message) -> bytes:
    """Path below the mount and query, percent-encodings as they came where the server tells."""
    path = scope.get("raw_path") or quote(scope["path"]).encode()
    path = _below(origin_form(path), scope.get("root_path", "").rstrip("/"))
    query = scope.get("query_string", b"")
    return b"%b?%b" % (path, query) if query else path


def _below(path: bytes, mount: str) -> bytes:
    """What stands below the mount; the whole path where a server has taken that off already."""
    end = 0
    for _ in range(mount.count("/") + 1):
        if unquote(path[:end]) == mount:
            return path[end:] or b"/"
        end = path.find(b"/", end + 1)
        end = len(path) if end < 0 else end
    return path
