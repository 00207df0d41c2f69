"""Comparisons and choices agree with CPU PyTorch, nan included."""

from __future__ import annotations

import math

import pytest
import torch

from .check import check

aten = torch.ops.aten
NAN, INF = math.nan, math.inf
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons_agree_with_cpu(name: str, dtype: torch.dtype) -> None:
    a, b = torch.tensor([0.0, 1.0, 2.0, NAN]), torch.tensor([[1.0], [NAN], [0.0]])
    if not dtype.is_floating_point:
        a, b = a.nan_to_num(), b.nan_to_num()
    check(getattr(aten, name).Tensor, a.to(dtype), b.to(dtype))
    check(getattr(aten, name).Tensor, a.to(dtype), b)
    check(getattr(aten, name).Scalar, a.to(dtype), 1)
    check(getattr(aten, name).Scalar, a.to(dtype), 0.5)


def test_in_place_comparison_writes_ones_and_zeros() -> None:
    check(aten.gt_.Scalar, torch.tensor([0.0, 2.0]), 1)


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
def test_logic_takes_any_dtype_as_truth(name: str) -> None:
    check(getattr(aten, name).default, torch.tensor([0.0, 0.5, NAN]), torch.tensor([[0], [3]]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["maximum", "minimum", "fmax", "fmin"])
def test_extrema_of_two_tensors_treat_nan_as_cpu_does(name: str, dtype: torch.dtype) -> None:
    a, b = torch.tensor([0.0, 1.0, NAN, INF]), torch.tensor([[1.0], [NAN], [-INF]])
    if not dtype.is_floating_point:
        a, b = a.nan_to_num(0, 3, 0), b.nan_to_num(0, 3, 0)
    check(getattr(aten, name).default, a.to(dtype), b.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize(("low", "high"), [(0, None), (None, 1), (0, 2), (2, 0), (0.5, 1.5)])
def test_clamp_agrees_with_cpu(low: float | None, high: float | None, dtype: torch.dtype) -> None:
    x = torch.tensor([-3.0, 0.25, 1.0, 5.0, NAN])
    x = x if dtype.is_floating_point else x.nan_to_num()
    x = x.to(dtype)
    check(aten.clamp.default, x, low, high)
    as_tensors = [None if v is None else torch.tensor([v] * 5) for v in (low, high)]
    check(aten.clamp.Tensor, x, *as_tensors)
    if low is not None and high is not None:
        check(aten.clamp_min.default, x, low)
        check(aten.clamp_max.Tensor, x, as_tensors[1])


def test_clamp_with_a_nan_bound_is_nan() -> None:
    check(aten.clamp.Tensor, torch.tensor([1.0, 2.0]), torch.tensor([NAN, 0.0]), None)


def test_where_chooses_and_promotes() -> None:
    mask = torch.tensor([[True], [False]])
    check(aten.where.self, mask, torch.tensor([1, 2]), torch.tensor([0.5, 0.25]))
    check(aten.where.self, mask, torch.tensor(1.0), torch.tensor([3, 4], dtype=torch.float16))
    check(aten.where.ScalarOther, mask, torch.tensor([1, 2]), 0.5)
    check(aten.where.ScalarSelf, mask, -math.inf, torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_masked_fill_keeps_the_dtype_of_self(dtype: torch.dtype) -> None:
    x, mask = torch.ones(2, 3).to(dtype), torch.tensor([True, False, True])
    check(aten.masked_fill.Scalar, x, mask, 0)
    check(aten.masked_fill.Tensor, x, mask, torch.tensor(0))
    check(aten.masked_fill_.Scalar, x, mask, 0)
    check(aten.masked_fill.Scalar, torch.ones(2, 3), mask, -math.inf)


def test_isin_finds_members() -> None:
    check(aten.isin.Tensor_Tensor, torch.tensor([[1, 2], [3, 4]]), torch.tensor([2, 3, 9]))
    check(aten.isin.Tensor_Tensor, torch.tensor([1, 2]), torch.tensor([2]), invert=True)
    check(aten.isin.Tensor_Scalar, torch.tensor([1, 2]), 2)


def test_isclose_and_isfinite_agree_with_cpu() -> None:
    check(aten.isfinite.default, torch.tensor([1.0, NAN, INF]))
