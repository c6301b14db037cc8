"""Reads a PromQL expression far enough to tell which series and labels it uses."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r'\s*(?:(?P<string>"(?:\\.|[^"\\])*")|(?P<variable>\$\w+)|(?P<number>\d[\w.]*)'
    r"|(?P<name>[a-zA-Z_][\w:]*)|(?P<operator>=~|!~|!=|==|>=|<=|[-+*/%^<>=(){}\[\],:@]))"
)
_LISTS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_WORDS = {"and", "or", "unless", "bool", "offset"}
_FUNCTIONS = {
    "sum", "max", "min", "avg", "rate", "increase", "histogram_quantile", "clamp_max",
    "avg_over_time", "max_over_time", "vector",
}  # fmt: skip
"""What the dashboards call; a name before a bracket that is not here is refused."""


@dataclass
class Use:
    """One series with the labels that are asked of it: by matchers, groupings, joins."""

    name: str
    labels: set[str] = field(default_factory=set)
    matched: set[str] = field(default_factory=set)


@dataclass
class Expression:
    """All series of an expression, and the dashboard variables in it."""

    uses: list[Use]
    variables: set[str]


def read(text: str) -> Expression:
    """Raises ValueError for what cannot be read."""
    tokens = list(_tokens(text))
    uses: dict[int, Use] = {}
    lists: list[tuple[str, set[str], int]] = []
    variables = set(re.findall(r"\$(\w+)", text))
    position = 0
    while position < len(tokens):
        kind, word = tokens[position]
        after = tokens[position + 1][1] if position + 1 < len(tokens) else ""
        if kind != "name" or word in _WORDS:
            position += 1
        elif word in _LISTS:
            close = _closing(tokens, position + 1)
            labels = {token for sort, token in tokens[position + 2 : close] if sort == "name"}
            lists.append((word, labels, close + 1))
            position = close + 1
        elif after == "(" or after in _LISTS:
            if word not in _FUNCTIONS:
                raise ValueError(f"unknown function {word}")
            position += 1
        else:
            use = uses[position] = Use(word)
            position += 1
            if after == "{":
                close = _closing(tokens, position)
                use.matched = {
                    tokens[at][1] for at in range(position + 1, close) if tokens[at][0] == "name"
                }
                use.labels |= use.matched
                position = close + 1
    for word, labels, start in lists:
        if word in ("on", "ignoring"):
            reached = range(len(tokens))
        else:
            reached = range(start, _closing(tokens, start))
        for at in reached:
            if at in uses:
                uses[at].labels |= labels
    return Expression(list(uses.values()), variables)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise ValueError(f"cannot read {text[position:]!r}")
        position = found.end()
        yield str(found.lastgroup), found[found.lastgroup or 0]


def _closing(tokens: list[tuple[str, str]], start: int) -> int:
    """Where the bracket that opens at `start` closes."""
    if start >= len(tokens) or tokens[start][1] not in "({":
        raise ValueError("a bracket is missing")
    depth = 0
    for position in range(start, len(tokens)):
        depth += {"(": 1, "{": 1, ")": -1, "}": -1}.get(tokens[position][1], 0)
        if depth == 0:
            return position
    raise ValueError("a bracket is not closed")
