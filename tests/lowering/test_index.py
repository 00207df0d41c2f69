"""Reads and writes by index tensors and masks against CPU PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .check import check

aten = torch.ops.aten
X = torch.randn(3, 4, 5)
ROWS = torch.tensor([2, 0, 2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_gather_takes_a_smaller_index(dtype: torch.dtype) -> None:
    x = (X * 3).to(dtype)
    check(aten.gather.default, x, 1, torch.randint(4, (2, 6, 3)))
    check(aten.gather.default, x, -1, torch.randint(5, (3, 4, 1)))
    check(aten.gather.default, x, 0, torch.zeros(0, 4, 5, dtype=torch.long))
    check(aten.gather.default, x[0, 0, 0], 0, torch.tensor([0]))


def test_index_select_and_take_read_along_one_dimension() -> None:
    check(aten.index_select.default, X, -2, ROWS)
    check(aten.index_select.default, X, 0, torch.tensor(1, dtype=torch.int32))
    check(aten.index_select.default, torch.tensor(4.0), 0, torch.tensor([0]))
    check(aten.take.default, X, torch.tensor([[0, -1], [17, 59]]))


@pytest.mark.parametrize(
    "indices",
    [
        [ROWS],
        [None, ROWS],
        [ROWS, torch.tensor([-1, 1, -4])],
        [ROWS[:, None], None, torch.tensor([0, -5])],
        [None, torch.tensor([[1], [3]]), torch.tensor([4, 0])],
        [torch.tensor(-1), None, torch.tensor([1, 2], dtype=torch.int32)],
        [torch.zeros(0, dtype=torch.long)],
    ],
)
def test_index_and_index_put_follow_numpys_rules(indices: list[Any]) -> None:
    check(aten.index.Tensor, X, indices)
    check(aten._unsafe_index.Tensor, X, indices)
    values = torch.randn(aten.index.Tensor(X, indices).shape)
    check(aten.index_put.default, X, indices, values, True)
    check(aten.index_put_.default, X, indices, torch.tensor(2.0))
    check(aten._index_put_impl_.default, X, indices, torch.tensor(2.0), True)
    check(aten._unsafe_index_put.default, X, indices, values, True)


@pytest.mark.parametrize("accumulate", [False, True])
def test_index_put_through_a_mask_is_a_selection(accumulate: bool) -> None:
    mask, rows = X > 0, torch.tensor([True, False, True])
    columns = torch.tensor([False, True, True, False])
    check(aten.index_put.default, X, [mask], torch.tensor(7.0), accumulate)
    check(aten.index_put_.default, X, [mask], torch.randn(int(mask.sum())), accumulate)
    check(aten.index_put_.default, X, [rows], torch.randn(5), accumulate)
    check(aten.index_put_.default, X, [rows], torch.randn(2, 4, 5), accumulate)
    check(aten.index_put_.default, X, [rows], torch.randn(1, 4, 1), accumulate)
    check(aten.index_put_.default, X, [None, columns], torch.randn(3, 2, 5), accumulate)
    check(aten.index_put_.default, X, [None, columns], torch.randn(3, 1, 1), accumulate)
    check(aten.index_put_.default, X, [None, mask[0]], torch.randn(1), accumulate)
    check(aten.index_put_.default, X, [torch.zeros(3, dtype=torch.bool)], torch.tensor(1.0), accumulate)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool])
def test_index_put_accumulates_repeated_positions(dtype: torch.dtype) -> None:
    x = torch.zeros(3, 2).to(dtype)
    check(aten.index_put.default, x, [ROWS], torch.ones(3, 2).to(dtype), True)


def test_index_fill_copy_and_add_write_along_one_dimension() -> None:
    check(aten.index_fill.int_Scalar, X, 1, torch.tensor([-1, 0]), 2.5)
    check(aten.index_fill.int_Tensor, X, -1, torch.tensor([1]), torch.tensor(2))
    check(aten.index_fill_.int_Scalar, torch.tensor(1.0), 0, torch.tensor([0]), 3)
    check(aten.index_copy.default, X, -1, torch.tensor([3, 0]), torch.randn(3, 4, 2))
    check(aten.index_add.default, X, 0, ROWS, torch.randn(3, 4, 5))
    check(aten.index_add_.default, X, 0, ROWS, torch.randn(3, 4, 5), alpha=-0.5)
    check(aten.index_add.default, X.long(), 0, ROWS, torch.ones(3, 4, 5).long(), alpha=3)
    check(aten.index_add.default, X.to(torch.uint8), 0, ROWS, torch.ones(3, 4, 5).to(torch.uint8), alpha=-1)
    check(aten.index_add.default, torch.tensor(1.0), 0, torch.tensor([0]), torch.tensor(2.0))


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_index_reduce_agrees(reduce: str, include_self: bool, dtype: torch.dtype) -> None:
    x, source = (X * 5).to(dtype), (torch.randn(3, 4, 5) * 5).to(dtype)
    check(aten.index_reduce.default, x, 0, ROWS, source, reduce, include_self=include_self)


def test_put_writes_into_the_flattened_tensor() -> None:
    at = torch.tensor([[0, -1], [5, 5]])
    check(aten.put.default, X, at, torch.randn(2, 2), True)
    check(aten.put.default, X, at[0], torch.randn(2))


def test_masked_scatter_consumes_the_source_in_order() -> None:
    source = torch.randn(80)
    check(aten.masked_scatter.default, X, X > 0, source)
    check(aten.masked_scatter.default, X, torch.tensor([True, False, True, False, True]), source)
    check(aten.masked_scatter_backward.default, X, X > 0, [8, 10])


def test_nonzero_static_pads_and_cuts() -> None:
    x = torch.tensor([[0, 2], [3, 0]])
    check(aten.nonzero_static.default, x, size=3)
    check(aten.nonzero_static.default, x, size=1, fill_value=5)
    check(aten.nonzero_static.default, torch.zeros(2, 0), size=3)
