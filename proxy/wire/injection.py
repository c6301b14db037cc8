"""Usage injection: ask for usage on the way up, hide the extra event on the way down.

Only the bytes that must change do: a streaming request without a wish for usage gets
`"stream_options":{"include_usage":true}` spliced into its body, and the event with `choices: []`
that the engine then adds is cut out of the answer. Everything else stays as it was.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from proxy.wire.answer import UNREADABLE
from proxy.wire.request import Asked

_WISH = b'{"include_usage":true}'
_WISH_FIRST = b'{"stream_options":' + _WISH + b","
_STRUCTURE = re.compile(rb'["{}\[\],]')
_VALUE_END = re.compile(rb"[\s,}\]]")
_SPACE = b" \t\r\n"


def inject(body: bytes, asked: Asked) -> bytes | None:
    """The body with the wish for usage added; None when it must stay as it is.

    Stays: what does not stream, wishes already, or cannot be changed without doubt (a key twice,
    escaped key names, continuous usage statistics, which the wish would switch on).
    """
    if not asked.stream or asked.usage_wished is not False or asked.continuous_usage:
        return None
    if not _is_text(body):
        return None
    # `find`, because `in` costs twice as much with bytes.
    if body.find(b'"stream_options"') < 0 and body.count(b'"stream"') == 1:
        return body.replace(b"{", _WISH_FIRST, 1)
    spans = _top_level_values(body)
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
    inner = _top_level_values(value)
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


def _top_level_values(body: bytes) -> dict[bytes, list[tuple[int, int]]] | None:
    """Where the values of the outermost object stand: raw key → spans, one for each time it occurs.

    `body` must be valid JSON (decoded before). None when a key is written with escapes, so that
    its raw bytes do not tell its name. Jumps from one structural byte to the next, so that a long
    string (an image in base64) costs one search.
    """
    spans: dict[bytes, list[tuple[int, int]]] = {}
    position = body.find(b"{") + 1
    while True:
        quote = body.find(b'"', position)
        if quote < 0:
            return spans
        key_end = _string_end(body, quote)
        key = body[quote + 1 : key_end - 1]
        if b"\\" in key:
            return None
        start = body.index(b":", key_end) + 1
        while body[start] in _SPACE:
            start += 1
        end = _value_end(body, start)
        spans.setdefault(key, []).append((start, end))
        following = _STRUCTURE.search(body, end)
        if following is None or following.group() == b"}":
            return spans
        position = following.end()


def _value_end(body: bytes, start: int) -> int:
    first = body[start : start + 1]
    if first == b'"':
        return _string_end(body, start)
    if first not in (b"{", b"["):
        match = _VALUE_END.search(body, start)
        return match.start() if match else len(body)
    depth = 0
    position = start
    while True:
        match = _STRUCTURE.search(body, position)
        if match is None:
            return len(body)
        found = match.group()
        position = match.end()
        if found == b'"':
            position = _string_end(body, match.start())
        elif found in (b"{", b"["):
            depth += 1
        elif found != b",":
            depth -= 1
            if depth == 0:
                return position


def _string_end(body: bytes, quote: int) -> int:
    """The index after the closing quote of the string that opens at `quote`."""
    position = quote + 1
    while True:
        end = body.index(b'"', position)
        backslashes = end - 1
        while body[backslashes] == 0x5C:
            backslashes -= 1
        if (end - 1 - backslashes) % 2 == 0:
            return end + 1
        position = end + 1


REFUSAL_STATUSES = (400, 422)
"""Statuses with which an engine refuses a request field that it does not know."""


def refuses_injection(body: bytes) -> bool:
    """Whether an error answer says that the engine does not know `stream_options`."""
    return b"stream_options" in body


class _UsageChunk(msgspec.Struct):
    choices: list[Any] | None = None
    usage: Any = None
    system_fingerprint: Any = None


_decode_chunk = msgspec.json.Decoder(_UsageChunk).decode

_BLANK_LINE = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")
_CHOICE_BEGINS = re.compile(rb'"choices"\s*:\s*\[\s*[^\]\s]')
_DATA_LINE = re.compile(rb"(?:^|[\r\n])data: ?([^\r\n]*)")

_HELD_LIMIT = 64 * 1024


class UsageEventFilter:
    """Cuts the injected usage event out of an event stream, byte for byte nothing else.

    `feed` returns what may leave now: all of it, except an unfinished event that may still turn out
    to be the usage event. vLLM moves `system_fingerprint` from the finish event to the usage event
    when usage is asked for; when both come in one read it is moved back, so that the client gets
    what it would have got.
    """

    __slots__ = ("_after_cr", "_sent_tail", "between", "held", "removed")

    def __init__(self) -> None:
        self.held = b""
        """An unfinished event that may be the usage event; it leaves when the stream ends."""
        self._sent_tail = b""  # the last bytes of an unfinished event that has partly left
        self._after_cr = ""  # "keep" or "drop": the last event ended in CR, an LF belongs to it
        self.removed = 0
        self.between = True
        """Whether the next byte begins an event: nothing of one is held or has partly left."""

    def feed(self, chunk: bytes) -> bytes:
        """Take the next bytes from the engine; return those that go to the client."""
        if self.between and chunk.endswith(b"\n\n") and chunk.find(b'"usage"') < 0:
            return chunk
        out = self._feed_slowly(chunk)
        self.between = not (self._sent_tail or self.held or self._after_cr)
        return out

    def _feed_slowly(self, chunk: bytes) -> bytes:
        out: list[bytes] = []
        if self._after_cr and chunk:
            if chunk.startswith(b"\n"):
                chunk = chunk[1:]
                if self._after_cr == "keep":
                    out.append(b"\n")
            self._after_cr = ""
        sent = len(self._sent_tail)
        raw = self._sent_tail + self.held + chunk
        self.held = self._sent_tail = b""
        position = 0
        while (match := _BLANK_LINE.search(raw, position)) is not None:
            event = raw[max(position, sent) : match.end()]
            whole = position >= sent
            position = match.end()
            ends_in_cr = event.endswith(b"\r") and position == len(raw)
            usage = _usage_event(event) if whole else None
            if usage is None:
                out.append(event)
                self._after_cr = "keep" if ends_in_cr else ""
                continue
            self.removed += 1
            self._after_cr = "drop" if ends_in_cr else ""
            if out and isinstance(usage.system_fingerprint, str):
                out[-1] = _with_fingerprint(out[-1], usage.system_fingerprint)
        rest = raw[position:]
        if position >= sent and _may_be_usage(rest):
            self.held = rest
        else:
            out.append(raw[max(position, sent) :])
            # Three bytes tell whether the next ones complete a blank line.
            self._sent_tail = rest[-3:] if rest.strip(b"\r\n") else b""
        return b"".join(out)


def _may_be_usage(rest: bytes) -> bool:
    """Whether an unfinished event can still turn out to be the usage event."""
    return (
        len(rest) <= _HELD_LIMIT
        and not rest.startswith((b":", b"\n", b"\r"))
        and _CHOICE_BEGINS.search(rest) is None
    )


def _usage_event(event: bytes) -> _UsageChunk | None:
    """The decoded event when it is the one that `include_usage` adds, else None."""
    if b'"usage"' not in event:
        return None
    data = b"\n".join(_DATA_LINE.findall(event))
    try:
        chunk = _decode_chunk(data)
    except UNREADABLE:
        return None
    counts = isinstance(chunk.usage, dict) and bool(chunk.usage)
    return chunk if chunk.choices == [] and counts else None


def _with_fingerprint(event: bytes, fingerprint: str) -> bytes:
    """Put the fingerprint where the engine would have put it: at the end of the finish event."""
    body = event.rstrip(b"\r\n")
    if not body.endswith(b"}") or b'"system_fingerprint"' in body:
        return event
    member = b',"system_fingerprint":' + msgspec.json.encode(fingerprint)
    return body[:-1] + member + event[len(body) - 1 :]
