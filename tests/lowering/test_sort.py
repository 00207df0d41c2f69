"""Sorting and order statistics agree with CPU PyTorch: nan is largest, equals keep their order."""

from __future__ import annotations

import math

import pytest
import torch

from ..conftest import DEVICE
from .check import check, lowered

aten = torch.ops.aten
NAN = math.nan
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8]


def table(dtype: torch.dtype) -> torch.Tensor:
    x = torch.tensor([[3.0, 1.0, NAN, 1.0, 0.0, -0.0], [2.0, math.inf, 5.0, 5.0, -math.inf, 2.0]])
    return (x if dtype.is_floating_point else x.nan_to_num(7, 9, 0)).to(dtype)


def distinct(dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.stack([torch.randperm(11) for _ in range(3)]).to(dtype)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool])
@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_stable_in_both_directions(descending: bool, dtype: torch.dtype) -> None:
    for dim in (0, -1):
        check(aten.sort.stable, table(dtype), stable=True, dim=dim, descending=descending)
    check(aten.sort.default, distinct(dtype) if dtype != torch.bool else torch.tensor([True, False]), -1, descending)
    check(aten.sort.default, torch.tensor(1).to(dtype))
    check(aten.sort.default, torch.ones(2, 0).to(dtype), 1)


def test_sort_writes_to_out() -> None:
    x = distinct(torch.float32)
    check(aten.sort.values, x, 1, values=torch.empty_like(x), indices=torch.empty(x.shape, dtype=torch.int64))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("largest", [True, False])
def test_topk_of_distinct_values_agrees_with_cpu(largest: bool, dtype: torch.dtype) -> None:
    for k, dim in ((1, 0), (3, -1), (11, 1), (0, 1)):
        check(aten.topk.default, distinct(dtype), k, dim, largest)
    check(aten.topk.default, torch.tensor(1).to(dtype), 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("largest", [True, False])
def test_topk_takes_nan_for_the_largest_value_whatever_its_sign(largest: bool, dtype: torch.dtype) -> None:
    negative_nan = torch.tensor([-4194304], dtype=torch.int32).view(torch.float32)
    x = torch.cat([torch.tensor([1.0, math.inf, NAN, -math.inf, 5.0]), negative_nan]).to(dtype)
    got, want = lowered(aten.topk.default, x, 4, 0, largest)
    torch.testing.assert_close(got[0], want[0], equal_nan=True)
    torch.testing.assert_close(x[got[1]], want[0], equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keepdim", [False, True])
def test_order_statistics_agree_with_cpu(keepdim: bool, dtype: torch.dtype) -> None:
    x = distinct(dtype)
    check(aten.kthvalue.default, x, 4, 1, keepdim)
    check(aten.median.dim, x, -1, keepdim)
    check(aten.nanmedian.dim, x, 1, keepdim)
    check(aten.median.default, x)
    check(aten.kthvalue.default, torch.tensor(2).to(dtype), 1)


def test_median_is_nan_where_there_is_one_and_nanmedian_leaves_it_out() -> None:
    x = torch.tensor([[3.0, NAN, 1.0, 2.0], [4.0, 2.0, 1.0, 3.0], [NAN, NAN, 5.0, NAN]])
    for op in (aten.median, aten.nanmedian):
        check(op.default, x)
        check(op.dim, x, 1)
    check(aten.nanmedian.dim, x, 0)
    check(aten.nanmedian.default, torch.tensor([NAN, NAN]))
    check(aten.median.default, torch.ones(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_mode_is_the_smallest_of_the_most_frequent_values(dtype: torch.dtype) -> None:
    x = torch.tensor([[2, 1, 2, 1, 3], [5, 4, 3, 2, 1], [7, 7, 7, 0, 0]]).to(dtype)
    got, want = lowered(aten.mode.default, x, 1, True)
    assert torch.equal(got[0], want[0])
    assert torch.equal(x.gather(1, got[1]), want[0])
    check(aten.mode.default, torch.tensor(3).to(dtype))


@pytest.mark.parametrize("right", [False, True])
def test_searchsorted_agrees_with_cpu(right: bool) -> None:
    rows = torch.tensor([[1.0, 3.0, 5.0, 5.0], [2.0, 2.0, 4.0, 9.0]])
    values = torch.tensor([[0.0, 3.0, 5.0, 9.5, NAN], [2.0, 4.0, 9.0, 1.0, 3.0]])
    check(aten.searchsorted.Tensor, rows, values, right=right)
    check(aten.searchsorted.Tensor, rows[0], values, right=right, out_int32=True)
    check(aten.searchsorted.Scalar, rows[0], 5.0, right=right)
    check(aten.searchsorted.Tensor, rows[0].flip(0), values, sorter=torch.tensor([3, 2, 1, 0]))
    check(aten.searchsorted.Tensor, rows[0], values, side="right")
    check(aten.bucketize.Tensor, values, rows[0], right=right, out_int32=True)
    check(aten.bucketize.Scalar, 4, torch.tensor([1, 4, 6]), right=right)
    check(aten.bucketize.Tensor, torch.ones(0), rows[0])
    check(aten.searchsorted.Tensor, torch.ones(0, 3), torch.ones(0, 2), right=right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_histc_agrees_with_cpu(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, 1.0, 2.0, 2.5, 3.0, -1.0, 0.75], dtype=dtype)
    check(aten.histc.default, x, 4, 0, 3)
    check(aten.histc.default, x, 4)
    check(aten.histc.default, x.reshape(1, 7), 3, 1.0, 1.0)
    check(aten.histc.default, torch.ones(3, dtype=dtype), 4)
    check(aten.histc.default, torch.ones(0, dtype=dtype), 4)


def test_histc_counts_integers_which_cpu_pytorch_does_not() -> None:
    want = torch.histc(torch.tensor([0.0, 2.0, 2.0, 3.0]), 4, 0, 3)
    got = torch.histc(torch.tensor([0, 2, 2, 3], dtype=torch.int32, device=DEVICE), 4, 0, 3)
    assert got.dtype == torch.int32
    assert got.tolist() == want.tolist()
