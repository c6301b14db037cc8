"""Prompts that no prefix cache can know, of a wanted length in tokens."""

from __future__ import annotations

import random

_WORDS = (  # noqa: SIM905 - readable as text
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work government "
    "number night point home water room mother area money story fact month lot right study book"
).split()


class Prompts:
    """Makes prompts, and learns from the engine's counts how many tokens a word is."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()
        self._seen: list[tuple[int, int]] = []

    def made(self, tokens: int) -> tuple[str, int]:
        """A prompt of about so many tokens, and its number of words. Unique at its very start."""
        words = max(1, round((tokens - self._extra) / self._per_word))
        chosen = [self._random.choice(_WORDS) for _ in range(words)]
        return " ".join([f"{self._random.getrandbits(48):x}", *chosen]), words

    def counted(self, words: int, tokens: int) -> None:
        """The engine counted so many tokens for a prompt of so many words."""
        self._seen.append((words, tokens))

    @property
    def _per_word(self) -> float:
        """Tokens of a word: the longest prompt seen tells best; 1.3 is usual before that."""
        if not self._seen:
            return 1.3
        words, tokens = max(self._seen)
        return max(0.1, (tokens - self._extra) / words)

    @property
    def _extra(self) -> float:
        """Tokens beside the words, as the first two lengths that differ tell."""
        if len(self._seen) < 2:
            return 8.0
        (few, few_tokens), (many, many_tokens) = min(self._seen), max(self._seen)
        if many < 2 * few:
            return 8.0
        slope = (many_tokens - few_tokens) / (many - few)
        return max(0.0, few_tokens - few * slope)
