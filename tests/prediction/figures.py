"""How good many predictions are, in a table."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from tests.prediction.campaign import Prediction


@dataclass(frozen=True, slots=True)
class Figures:
    """told: share of windows for which there is an expected time; of these the median of the errors
    and of the widths, and the share whose time lies within.
    """

    windows: int
    told: float
    error: float
    covered: float
    width: float


def figures(predictions: Sequence[Prediction]) -> Figures:
    """Of predictions some of which are told."""
    told = [p for p in predictions if p.told]
    return Figures(
        windows=len(predictions),
        told=len(told) / len(predictions),
        error=median(abs(p.error) for p in told),
        covered=sum(p.covered for p in told) / len(told),
        width=median(p.width for p in told),
    )


def table(predictions: Sequence[Prediction]) -> Iterator[str]:
    """In Markdown: all, then by kind of engine, then by load."""
    yield "| | windows | told | median error | covered | upper ÷ lower end |"
    yield "| --- | --- | --- | --- | --- | --- |"
    yield _row("all", predictions)
    for kind in _unique(p.kind for p in predictions):
        yield _row(kind, [p for p in predictions if p.kind == kind])
    for load in _unique(p.load for p in predictions):
        yield _row(load, [p for p in predictions if p.load == load])


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _row(name: str, predictions: Sequence[Prediction]) -> str:
    if not any(p.told for p in predictions):
        return f"| {name} | {len(predictions)} | 0 % | | | |"
    f = figures(predictions)
    return (
        f"| {name} | {f.windows} | {f.told:.0%} | {f.error:.1%} | {f.covered:.0%} | {f.width:.2f} |"
    ).replace("%", " %")
