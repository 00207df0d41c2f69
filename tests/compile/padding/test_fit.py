"""Numbers told from their values at several sizes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sympy

from torch_pjrt.compile.padding.buckets import bucket_of, previous_bucket
from torch_pjrt.compile.padding.fit import Fit, value_of

n, m = sympy.symbols("n m", integer=True, positive=True)
SAMPLES = [{n: 16, m: 40}, {n: 9, m: 37}, {n: 13, m: 33}, {n: 15, m: 39}]


@pytest.mark.parametrize(
    "expression", [n, m, 2 * n - 1, 64 * m, n * m, n * n, 3 * n * m + 2, n / 2, sympy.Integer(7) - n]
)
def test_whole_numbers_are_found_and_hold_at_other_sizes(expression: sympy.Expr) -> None:
    fit = Fit(SAMPLES)
    found = fit.find(tuple(value_of(expression, s) for s in SAMPLES))
    assert sympy.expand(found - expression) == 0


@pytest.mark.parametrize(
    "expression",
    [1.0 * n, 1 / n, 1 / (64 * n), 1 / sympy.sqrt(n), sympy.sqrt(m), 0.5 * n + 0.25, 1 - 1 / m, 64 * n / (64 * n - 1)],
)
def test_floats_are_found_from_what_float32_leaves_of_them(expression: sympy.Expr) -> None:
    fit = Fit(SAMPLES)
    found = fit.find(tuple(float(np.float32(float(value_of(expression, s)))) for s in SAMPLES))
    for other in ({n: 10, m: 35}, {n: 16, m: 40}):
        assert math.isclose(value_of(found, other), value_of(expression, other), rel_tol=3e-7)


@pytest.mark.parametrize("values", [(12, 9, 12, 12), (1, 0, 1, 1), (0.3, 0.1, 0.7, 0.2), (math.inf, 1.0, 2.0, 3.0)])
def test_what_no_expression_gives_is_not_found(values: tuple[float, ...]) -> None:
    assert Fit(SAMPLES).find(values) is None


def test_a_given_expression_is_a_candidate() -> None:
    halves = sympy.floor((n - 1) / 2) + 1
    values = tuple(value_of(halves, s) for s in SAMPLES)
    assert Fit(SAMPLES).find(values) is None
    assert Fit(SAMPLES, [halves]).find(values) == halves


def test_two_samples_confirm_nothing() -> None:
    with pytest.raises(ValueError, match="2 samples cannot confirm"):
        Fit(SAMPLES[:2])


@pytest.mark.parametrize("upper", [None, 3, 8, 100, 512, 1024, 5000])
def test_a_bucket_holds_its_sizes_and_is_its_own(upper: int | None) -> None:
    for size in range(1, (upper or 3000) + 1):
        bucket = bucket_of(size, upper)
        assert size <= bucket == bucket_of(bucket, upper)
        assert previous_bucket(bucket, upper) < size
        assert upper is None or bucket <= upper


def test_how_many_buckets_there_are() -> None:
    assert len({bucket_of(size, 512) for size in range(1, 513)}) == 7
    assert sorted({bucket_of(size) for size in range(1, 100)}) == [8, 12, 16, 24, 32, 48, 64, 96, 128]
