"""A weighted least-squares fit with few columns, coefficients not below a bound, and its errors.

Small on purpose and without numpy, which would take more memory than the analyst has in all: a
system of at most four equations. Errors are relative: a row counts by the share that is off, and
one that is far off (a hiccup) counts little.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

_ROUNDS = 12
_FAR = 2.5
"""Times the usual scatter at which a row counts half of what it would."""

_LEAST_SCATTER = 0.01
_MOST, _Z_OF_MOST = 0.9, 1.644854
"""Share of rows that lie within so many standard errors; hiccups are fewer than the others."""

_Z = 1.959964  # 95 % of a normal distribution lie within

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Solution:
    """coefficients of the columns; covariance: of their errors; scatter: of a new row around what
    is predicted, as a share of it; quantile: of standard errors that 95 % lie within.
    """

    coefficients: tuple[float, ...]
    covariance: Matrix
    scatter: float
    quantile: float


def solve(
    rows: Sequence[Sequence[float]],
    results: Sequence[float],
    weights: Sequence[float],
    least: Sequence[float],
) -> Solution | None:
    """Coefficients c with rows · c ≈ results, each at least `least`; None with too few rows.

    Results are above 0, rows and coefficients not below. Each column has a row above 0. What the
    rows cannot tell apart comes with errors as large as what is not told.
    """
    # No coefficient can be larger than what explains the shortest result alone: in that unit all
    # of them lie between 0 and 1, and this is what is known of one that the rows do not tell.
    units = [
        min(y / row[j] for row, y in zip(rows, results, strict=True) if row[j] > 0)
        for j in range(len(least))
    ]
    scaled = [
        [x * unit / y for x, unit in zip(row, units, strict=True)]
        for row, y in zip(rows, results, strict=True)
    ]
    floor = [min(1.0, bound / unit) for bound, unit in zip(least, units, strict=True)]
    counts = list(weights)
    found: list[float] = floor
    for _ in range(_ROUNDS):
        found = _bounded(scaled, counts, floor)
        off = [1 - _dot(row, found) for row in scaled]
        usual = _FAR * max(_LEAST_SCATTER, 1.4826 * _quantile(0.5, [abs(r) for r in off], weights))
        counts = [w / (1 + (r / usual) ** 2) for w, r in zip(weights, off, strict=True)]
    free = sum(counts) / max(counts) - len(least)
    if free < _LEAST_FREE:
        return None
    return _with_errors(scaled, weights, counts, found, units, free)


_LEAST_FREE = 2.0
"""Rows beyond the number of columns, those that count less in parts."""


def _with_errors(
    scaled: list[list[float]],
    weights: Sequence[float],
    counts: list[float],
    found: list[float],
    units: list[float],
    free: float,
) -> Solution:
    size = range(len(units))
    products = _products(scaled, counts)
    # A row's error when it is left out of the fit: that is how far off a new one will be.
    inverse = _inverse(_plus_diagonal(products, 1e-6))
    left_out = [
        (1 - _dot(row, found)) / max(0.1, 1 - count * _quadratic(inverse, row))
        for row, count in zip(scaled, counts, strict=True)
    ]
    mean = sum(c * r * r for c, r in zip(counts, left_out, strict=True)) / sum(counts)
    # Rows that are off because the truth is not straight, counted little; new
    # ones will be as far off.
    most = _quantile(_MOST, [abs(r) for r in left_out], weights)
    scatter = max(_LEAST_SCATTER, math.sqrt(mean), most / _Z_OF_MOST)
    per_row = [[products[i][j] / scatter**2 for j in size] for i in size]
    covariance = _inverse(_plus_diagonal(per_row, 1.0))
    return Solution(
        tuple(value * unit for value, unit in zip(found, units, strict=True)),
        tuple(tuple(covariance[i][j] * units[i] * units[j] for j in size) for i in size),
        scatter,
        _Z + (_Z**3 + _Z) / (4 * free) + (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / (96 * free**2),
    )


def _bounded(scaled: list[list[float]], counts: list[float], floor: list[float]) -> list[float]:
    """The best coefficients not below the floor: of all choices of which of them lie on it."""
    products = _products(scaled, counts)
    size = len(floor)
    sums = [sum(c * row[j] for row, c in zip(scaled, counts, strict=True)) for j in range(size)]

    def misfit(c: Sequence[float]) -> float:
        return sum(
            c[i] * c[j] * products[i][j] for i in range(size) for j in range(size)
        ) - 2 * _dot(sums, c)

    best, least = list(floor), misfit(floor)
    for above in itertools.product((False, True), repeat=size):
        chosen = [j for j in range(size) if above[j]]
        resting = [0.0 if above[j] else floor[j] for j in range(size)]
        right = [sums[i] - _dot(products[i], resting) for i in chosen]
        part = _plus_diagonal([[products[i][j] for j in chosen] for i in chosen], 1e-9)
        values = [_dot(row, right) for row in _inverse(part)]
        if any(value < floor[j] for value, j in zip(values, chosen, strict=True)):
            continue
        whole = resting
        for value, j in zip(values, chosen, strict=True):
            whole[j] = value
        if (off := misfit(whole)) < least:
            best, least = whole, off
    return best


def _products(scaled: list[list[float]], counts: list[float]) -> list[list[float]]:
    size = range(len(scaled[0]))
    return [
        [sum(c * row[i] * row[j] for row, c in zip(scaled, counts, strict=True)) for j in size]
        for i in size
    ]


def _plus_diagonal(matrix: list[list[float]], amount: float) -> list[list[float]]:
    return [
        [value + amount * (i == j) for j, value in enumerate(row)] for i, row in enumerate(matrix)
    ]


def _inverse(matrix: list[list[float]]) -> list[list[float]]:
    """Of a symmetric matrix that is positive definite: Gauss and Jordan, no pivoting needed."""
    size = len(matrix)
    work = [[*row, *(float(i == j) for j in range(size))] for i, row in enumerate(matrix)]
    for i in range(size):
        pivot = work[i][i]
        work[i] = [value / pivot for value in work[i]]
        for k in range(size):
            if k != i and work[k][i]:
                factor = work[k][i]
                work[k] = [a - factor * b for a, b in zip(work[k], work[i], strict=True)]
    return [row[size:] for row in work]


def _quadratic(matrix: Sequence[Sequence[float]], vector: Sequence[float]) -> float:
    return sum(v * _dot(row, vector) for v, row in zip(vector, matrix, strict=True))


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def _quantile(share: float, values: Sequence[float], weights: Sequence[float]) -> float:
    """Weighted: the smallest value that such a share of them does not exceed."""
    wanted, passed = share * sum(weights), 0.0
    for value, weight in sorted(zip(values, weights, strict=True)):
        passed += weight
        if passed >= wanted:
            return value
    return 0.0
