"""Cumulative ops agree with CPU PyTorch."""

from __future__ import annotations

import math

import pytest
import torch

from .check import check
from .test_binary import FAR

aten = torch.ops.aten


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.uint8, torch.bool, torch.complex64]
)
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_cumulative_sums_and_products_agree_with_cpu(name: str, dtype: torch.dtype) -> None:
    x = (torch.rand(3, 5) * 3).to(dtype)
    op = getattr(aten, name).default
    check(op, x, 0)
    check(op, x, -1)
    check(op, x, 1, dtype=torch.float64 if not dtype.is_complex else None)
    check(op, x[0, 0], 0)
    check(op, x[:, :0], 1)


def test_in_place_cumsum_keeps_the_dtype_of_self() -> None:
    check(aten.cumsum_.default, torch.tensor([1, 2, 3], dtype=torch.int32), 0)
    check(aten.cumsum.default, torch.tensor([1.7, 2.7]), 0, dtype=torch.int64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_running_extrema_have_the_last_index_of_equals_and_keep_nan(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, 2.0, 5.0], [0.0, math.nan, 7.0, math.nan, -1.0]])
    x = (x if dtype.is_floating_point else x.nan_to_num(3.0)).to(dtype)
    for dim in (0, -1):
        check(getattr(aten, name).default, x, dim)
        helper = getattr(aten, f"_{name}_helper").default
        check(helper, x, torch.empty_like(x), torch.empty(x.shape, dtype=torch.int64), dim % 2)  # it wraps no dim
    check(getattr(aten, name).default, x[0, 0], 0)
    check(getattr(aten, name).default, x[:, :0], 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_logcumsumexp_agrees_with_cpu(dtype: torch.dtype) -> None:
    x = torch.tensor([[1.0, -math.inf, 100.0], [-math.inf, 2.0, 3.0]]).to(dtype)
    check(aten.logcumsumexp.default, x, 1)
    check(aten.logcumsumexp.default, x, -2)
    check(aten.logcumsumexp.default, x[0, 0], 0)
    check(aten.logcumsumexp.default, torch.randn(30, 9, dtype=torch.complex64), 1)


def test_logcumsumexp_of_complex_numbers_as_far_out_as_they_get_agrees_with_cpu() -> None:
    check(aten.logcumsumexp.default, torch.cartesian_prod(FAR, FAR), 1)
