"""Usage injection on the way up: the wish for usage is added to a request.

Only the bytes that must change do: a streaming request without a wish for usage gets
`"stream_options":{"include_usage":true}` spliced into its body; every other byte stays.
`UsageEventFilter` takes the event that the engine then adds out of the response.
"""

from __future__ import annotations

from tokgauge.dialects.members import top_level_values
from tokgauge.dialects.request import ADDABLE, RequestParams

_WISH = b'{"include_usage":true}'
_WISH_FIRST = b'{"stream_options":' + _WISH + b","


def inject(body: bytes, asked: RequestParams) -> bytes | None:
    """The body with the wish for usage added; None when it must stay as it is.

    Stays: what does not stream, wishes already, or cannot be changed without doubt (a key twice,
    escaped key names, continuous usage statistics, which the wish would switch on).
    """
    if not asked.stream or asked.wish not in ADDABLE or asked.continuous_usage:
        return None
    if not _is_text(body):
        return None
    # `find`, because `in` costs twice as much with bytes.
    if body.find(b'"stream_options"') < 0 and body.count(b'"stream"') == 1:
        return body.replace(b"{", _WISH_FIRST, 1)
    spans = top_level_values(body)
    if spans is None or len(spans.get(b"stream", ())) != 1:
        return None
    options = spans.get(b"stream_options", [])
    if not options:
        return body.replace(b"{", _WISH_FIRST, 1)
    if len(options) != 1:
        return None
    start, end = options[0]
    return _with_wish(body, start, end)


def _is_text(body: bytes) -> bool:
    """Whether all of it is UTF-8; the decoder looks only at the strings that it keeps."""
    if body.isascii():
        return True
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _with_wish(body: bytes, start: int, end: int) -> bytes | None:
    """Turn the value of `stream_options` at `start:end` into one that asks for usage."""
    value = body[start:end]
    if value == b"null":
        return body[:start] + _WISH + body[end:]
    if not value.startswith(b"{"):
        return None
    inner = top_level_values(value)
    if inner is None:
        return None
    wishes = inner.get(b"include_usage", [])
    if not wishes:
        comma = b"," if inner else b""
        return body[: start + 1] + b'"include_usage":true' + comma + body[start + 1 :]
    if len(wishes) != 1:
        return None
    first, last = wishes[0]
    return body[: start + first] + b"true" + body[start + last :]


def refuses_injection(body: bytes) -> bool:
    """Whether an error response names `stream_options`."""
    return b"stream_options" in body
