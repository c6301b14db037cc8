"""The members of a JSON object in its raw bytes: where they stand, and the spacing around them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from tokgauge.dialects.answer import UNREADABLE

_STRUCTURE = re.compile(rb'["{}\[\],]')
_VALUE_END = re.compile(rb"[\s,}\]]")
_SPACE = b" \t\r\n"

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def members_of(data: bytes) -> dict[str, bytes] | None:
    """Name → raw value of each member, in order; None when `data` is not a JSON object."""
    try:
        return {name: bytes(value) for name, value in _decode(data).items()}
    except UNREADABLE:
        return None


class Layout(NamedTuple):
    """How an object is written, its values aside.

    leads: for each of the `names`, the bytes between the value before (or the beginning) and its
    own value. tail: what follows the last value.
    """

    names: tuple[str, ...]
    leads: tuple[bytes, ...]
    tail: bytes

    def without(self, names: frozenset[str]) -> Layout | None:
        """The layout of the same object without these members; None when the first is one."""
        kept = [pair for pair in zip(self.names, self.leads, strict=True) if pair[0] not in names]
        if self.names[0] in names or not kept:
            return None
        return Layout(tuple(name for name, _ in kept), tuple(lead for _, lead in kept), self.tail)

    def written(self, values: Mapping[str, bytes]) -> bytes:
        """The object with these raw values, one for each name."""
        parts = [lead + values[name] for name, lead in zip(self.names, self.leads, strict=True)]
        return b"".join(parts) + self.tail


def layout_of(data: bytes) -> Layout | None:
    """The layout of the JSON object that `data` is; None when it has none, or it is in doubt."""
    members = members_of(data)
    spans = top_level_values(data) if members else None
    if members is None or spans is None or len(spans) != len(members):
        return None
    leads = []
    end = 0
    for places in spans.values():
        if len(places) != 1:
            return None
        start, after = places[0]
        leads.append(data[end:start])
        end = after
    return Layout(tuple(members), tuple(leads), data[end:])


def top_level_values(body: bytes) -> dict[bytes, list[tuple[int, int]]] | None:
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
