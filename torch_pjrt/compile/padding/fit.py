"""What a number depends on, told from its values at several sets of sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import sympy  # type: ignore[import-untyped]

Number = int | float
Sample = Mapping[sympy.Symbol, int]


class Fit:
    """Finds expressions of sizes that have given values at given samples.

    Args:
        samples: values of the symbols, one mapping a sample; all have the same symbols.
        candidates: expressions of them that the program is known to use. What is fitted is `a * e + b` or, for floats,
            also `a / e + b`, the same of square roots, and `a * e / (a * e - 1)`, of a candidate e and constants a, b.

    Two samples determine a and b, all others must confirm them.

    Example:
        >>> n = sympy.Symbol("n")
        >>> Fit([{n: 16}, {n: 9}, {n: 13}], [n]).find((31, 17, 25))
        2*n - 1
    """

    def __init__(self, samples: Sequence[Sample], candidates: Iterable[Any] = ()) -> None:
        if len(samples) < 3:
            raise ValueError(f"{len(samples)} samples cannot confirm an expression: it takes 3 and more")
        self.samples = list(samples)
        symbols = list(samples[0])
        products = [a * b for i, a in enumerate(symbols) for b in symbols[i:]]
        self.candidates: dict[tuple[int, ...], Any] = {}
        for candidate in [*symbols, *sorted(set(candidates), key=lambda e: (e.count_ops(), str(e))), *products]:
            if not candidate.free_symbols <= set(symbols):
                continue  # it has the size of something that the program does not compute with
            values = tuple(value_of(candidate, s) for s in samples)
            if len(set(values)) > 1 and all(isinstance(v, int) for v in values):
                self.candidates.setdefault(values, candidate)  # type: ignore[arg-type]
        self._known: dict[tuple[type, tuple[Number, ...]], Any] = {}

    def find(self, values: tuple[Number, ...]) -> Any | None:
        """An expression with these values at the samples; None if there is none."""
        key = (type(values[0]), values)  # 16 and 16.0 are equal, and not the same expression
        if key not in self._known:
            self._known[key] = self._find(values)
        return self._known[key]

    def _find(self, values: tuple[Number, ...]) -> Any | None:
        if not all(math.isfinite(v) for v in values):
            return None
        whole = all(isinstance(v, int) for v in values)
        for points, candidate in self.candidates.items():
            if whole:
                line = _line([Fraction(p) for p in points], [Fraction(v) for v in values])
                if line is not None:
                    return sympy.Rational(*line[0].as_integer_ratio()) * candidate + sympy.Rational(
                        *line[1].as_integer_ratio()
                    )
                continue
            corrected = _bessel(points, [float(v) for v in values])
            if corrected is not None:
                return corrected * candidate / (corrected * candidate - 1)
            for transform in (lambda e: e, lambda e: 1 / e, sympy.sqrt, lambda e: 1 / sympy.sqrt(e)):
                at = [float(transform(sympy.Integer(p))) for p in points]
                rough = _rough_line(at, [float(v) for v in values])
                if rough is not None:
                    return rough[0] * transform(candidate) + rough[1]
        return None


def value_of(expression: Any, sample: Sample) -> Number:
    """The expression's value for these sizes: an int if it is whole."""
    value = sympy.sympify(expression).xreplace({k: sympy.Integer(v) for k, v in sample.items()})
    return int(value) if value.is_Integer else float(value)


def _line(x: Sequence[Fraction], y: Sequence[Fraction]) -> tuple[Fraction, Fraction] | None:
    second = next(i for i, p in enumerate(x) if p != x[0])
    slope = (y[second] - y[0]) / (x[second] - x[0])
    offset = y[0] - slope * x[0]
    return (slope, offset) if all(slope * p + offset == v for p, v in zip(x, y, strict=True)) else None


def _rough_line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float] | None:
    """As `_line`, for numbers that float32 may have rounded. Constants that are whole but for that are made whole."""
    second = next(i for i, p in enumerate(x) if p != x[0])
    slope = (y[second] - y[0]) / (x[second] - x[0])
    offset = y[0] - slope * x[0]
    scale = max(map(abs, y))
    slope = _whole(slope) or (1 / _whole(1 / slope) if slope and _whole(1 / slope) else slope)
    offset = 0.0 if abs(offset) <= 1e-5 * scale else offset
    # 2**-22: two roundings to float32.
    close = all(abs(slope * p + offset - v) <= 2.0**-22 * scale for p, v in zip(x, y, strict=True))
    return (slope, offset) if close and slope != 0 else None


def _bessel(x: Sequence[int], y: Sequence[float]) -> int | None:
    """k such that y is kx / (kx - 1), the correction of a variance for kx elements."""
    if any(v <= 1 or v > 2 for v in y):
        return None
    k = round(y[0] / (y[0] - 1) / x[0])
    return k if k > 0 and all(abs(k * p / (k * p - 1) - v) <= 2.0**-22 * v for p, v in zip(x, y, strict=True)) else None


def _whole(x: float) -> float:
    """The whole number that x nearly is, or 0."""
    return float(round(x)) if abs(x - round(x)) <= 1e-5 * abs(x) else 0.0
