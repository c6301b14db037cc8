"""What a server says about its refusal, as it may be shown."""

from __future__ import annotations

import re
from typing import Any

import msgspec

_HTML = re.compile(rb"\s*(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL)
_TITLE = re.compile(rb"<title[^>]*>([^<]{1,500})</title>", re.IGNORECASE)


def error_text(body: bytes) -> str:
    """What a server says about its refusal, in any of the shapes that engines use."""
    try:
        document: Any = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        document = None
    if isinstance(document, dict):
        found = document.get("error", document.get("detail", document.get("message")))
        if isinstance(found, dict):
            found = found.get("message", found)
        if found is not None:
            return printable(str(found)[:500])
    if page := _HTML.match(body):
        title = _TITLE.search(body[page.end() :])
        named = " ".join(title[1].decode("utf-8", "replace").split()) if title else ""
        return f"a web page, titled {printable(named)[:100]!r}" if named else "a web page"
    return printable(body[:200].decode("utf-8", "replace")).strip() or "no explanation"


def printable(text: str) -> str:
    """The text without control characters: a server must not steer somebody's terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
