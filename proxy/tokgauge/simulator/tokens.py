"""The simulated tokenizer and the text that the simulated model writes.

The tokenizer's rule, greedy from left to right. A token is
- a special marker such as `<|im_start|>`; or
- up to 10 ASCII letters, up to 2 Hangul syllables, one digit, or one other character that is not
  white space, each together with one space before it; or
- one white-space character.

The model writes in such tokens, so tokenizing an answer gives its completion tokens (less the
end-of-text token, which has no text).
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterator

_TOKEN = re.compile(r"<\|[a-z_]+\|>| ?[A-Za-z]{1,10}| ?[가-힣]{1,2}| ?\d| ?[^\sA-Za-z\d가-힣]|\s")
_HANGUL = re.compile("[가-힣]")
_VOCABULARY = 151_643

_ENGLISH = (  # noqa: SIM905 - readable as text
    "the model reads every weight once for each token that it writes so memory sets the pace "
    "and a wider batch shares one pass while longer context adds cache to read and the clock "
    "of the card does not lie when we measure what a person waits for in front of a quiet screen"
).split()
_KOREAN = (  # noqa: SIM905 - readable as text
    "모델 토큰 하나 메모 대역 속도 그래 픽스 카드 가중 계산 측정 결과 시간 문장 단어 "
    "사용 요청 응답 엔진 서버 기계 오늘 우리 함께 천천 조금 매우 자주"
).split()
_KOREAN_PARTICLES = ("은", "을", "이", "에", "의", "도")


def pieces(text: str) -> list[str]:
    """The text cut into tokens; joined they give the text again."""
    return _TOKEN.findall(text)


def token_ids(text: str) -> list[int]:
    """One id per token, below the size of Qwen2.5's vocabulary."""
    return [zlib.crc32(piece.encode()) % _VOCABULARY for piece in pieces(text)]


def is_korean(text: str) -> bool:
    return _HANGUL.search(text) is not None


def prose(chance: random.Random, korean: bool) -> Iterator[str]:
    """Endless text, one token at a time."""
    words = _KOREAN if korean else _ENGLISH
    space = ""
    while True:
        for _ in range(chance.randint(5, 14)):
            yield space + chance.choice(words)
            space = " "
            if korean and chance.random() < 0.5:
                yield chance.choice(_KOREAN_PARTICLES)
        yield "."


def seed(text: str, salt: int) -> int:
    """The same for the same request in every process."""
    return zlib.crc32(text.encode(), salt & 0xFFFFFFFF)
