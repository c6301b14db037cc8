"""The token events of one stream differ in one string only: recognise them without decoding JSON.

Once the dialect's reader has understood a token event, the bytes before and after its text are
kept. A later event with the same bytes around another text means the same: all that a text decides
by itself is whether it is empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tokgauge.dialects.answer import AnswerReader
from tokgauge.dialects.sse import EventReader

_TEXT_BEGINS = re.compile(rb'"(?:content|text|reasoning|reasoning_content)": ?"')

# The inside of a JSON string (RFC 8259 §7) in well-formed UTF-8 (RFC 3629 §4). Escaped surrogates
# are left out: whether they form a pair is for the JSON decoder to judge.
_TEXT = re.compile(
    rb"(?:[\x20!#-\[\]-\x7f]++"
    rb'|\\["\\/bfnrt]'
    rb"|\\u(?:[0-9a-cefA-CEF][0-9a-fA-F]|[dD][0-7])[0-9a-fA-F]{2}"
    rb"|[\xc2-\xdf][\x80-\xbf]"
    rb"|\xe0[\xa0-\xbf][\x80-\xbf]"
    rb"|[\xe1-\xec\xee\xef][\x80-\xbf]{2}"
    rb"|\xed[\x80-\x9f][\x80-\xbf]"
    rb"|\xf0[\x90-\xbf][\x80-\xbf]{2}"
    rb"|[\xf1-\xf3][\x80-\xbf]{3}"
    rb"|\xf4[\x80-\x8f][\x80-\xbf]{2})*+"
)
_is_text = _TEXT.fullmatch

# What nearly all tokens are made of; frequent bytes first, because `lstrip` searches in this order.
_PLAIN = bytes(dict.fromkeys(b" etaoinsrhldcumfpgwybvk,." + bytes(range(0x20, 0x7F)))).translate(
    None, b'"\\'
)

# Without escapes, an odd number of quotes means that the last one opens a string.
_BEFORE = re.compile(rb"data: [^\r\n\\]+")
_AFTER = re.compile(rb'"[^\r\n]*(?:\n\n|\r\n\r\n)')

_MOST_TIMES = 1024
"""Events after which they have to be counted although nobody has asked yet."""

_LARGEST = 4096
"""Bytes of an event beyond which it is not worth keeping what surrounds its text."""

_known_texts: set[bytes] = set()
"""Texts, not plain, that were found to be the inside of a JSON string: a vocabulary repeats itself.
They are few enough to stay in the processor's cache."""
_KNOWN_TEXT = 32
_MOST_KNOWN = 1024

RETRY_AFTER = 16
"""Most token events between two attempts to learn: a stream that varies costs little more."""


class Template:
    """The bytes around the text of a token event of choice 0 that says nothing else.

    It also keeps when such events came, so that what runs for each needs no other object.
    """

    __slots__ = ("_after", "_around", "_before", "_may_be_empty", "times")

    def __init__(self, before: bytes, after: bytes, *, may_be_empty: bool) -> None:
        """may_be_empty: an event without text carries a token, too (a part of a character)."""
        self._before = before
        self._after = after
        self._around = len(before) + len(after)
        self._may_be_empty = may_be_empty
        self.times: list[float] = []
        """When events came (seconds); whoever counts them empties it."""

    def token(self, at: float, chunk: bytes) -> bool:
        """Note an event at `at`, if `chunk`, which begins where one may begin, is exactly one.

        False: it is not, or the events so far have to be counted first. A chunk is not longer than
        `EVENT_LIMIT`.
        """
        # Cheaper than startswith, endswith and a slice.
        text = chunk.removeprefix(self._before).removesuffix(self._after)
        if len(text) + self._around != len(chunk):
            return False
        if (not text or text.lstrip(_PLAIN)) and not self._allows(text):
            return False
        times = self.times
        if len(times) >= _MOST_TIMES:
            return False
        times.append(at)
        return True

    def _allows(self, text: bytes) -> bool:
        """Whether a text that is not plain is one all the same."""
        if text in _known_texts:
            return True
        if not text:
            return self._may_be_empty
        if _is_text(text.lstrip(_PLAIN)) is None:
            return False
        if len(text) <= _KNOWN_TEXT:
            if len(_known_texts) >= _MOST_KNOWN:
                _known_texts.clear()
            _known_texts.add(text)
        return True


def learn(chunk: bytes, make_reader: Callable[[], AnswerReader]) -> Template | None:
    """A template from one read, which the stream's own reader has just understood.

    None unless the read is one event on one line that `make_reader`'s reader takes for one token of
    choice 0 and nothing else.
    """
    begins = _TEXT_BEGINS.search(chunk, 0, _LARGEST)
    if begins is None or len(chunk) > _LARGEST:
        return None
    text = _TEXT.match(chunk, begins.end())
    if text is None:
        return None
    before, after = chunk[: text.start()], chunk[text.end() :]
    if _BEFORE.fullmatch(before) is None or _AFTER.fullmatch(after) is None:
        return None
    if before.count(b'"') % 2 == 0:
        return None  # the last quote closes a string, or this is no JSON
    marks = _marks_of_plain_token(before + b"x" + after, make_reader)
    if not marks:
        return None
    # Only an event without text tells whether such a one may match, and is worth the look.
    empty = text.start() == text.end()
    if empty and _marks_of_plain_token(chunk, make_reader) != marks:
        return None
    return Template(before, after, may_be_empty=empty)


def _marks_of_plain_token(chunk: bytes, make_reader: Callable[[], AnswerReader]) -> int:
    reader = make_reader()
    marks = 0
    for name, data in EventReader().feed(chunk):
        marks |= reader.event(name, data)
    return marks if reader.saw_one_plain_token else 0
