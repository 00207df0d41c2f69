"""scatter and its reductions against CPU PyTorch."""

from __future__ import annotations

import pytest
import torch

from .check import check

aten = torch.ops.aten
X = torch.randn(3, 4)
UNIQUE = torch.tensor([[2, 0], [1, 3]])
REPEATED = torch.tensor([[0, 2, 0, 1], [2, 2, 2, 0]])
SRC = torch.randn(3, 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_scatter_writes_a_smaller_index(dtype: torch.dtype) -> None:
    x, src = (X * 4).to(dtype), (SRC * 4).to(dtype)
    check(aten.scatter.src, x, -1, UNIQUE, src)
    check(aten.scatter_.src, x, 0, torch.tensor([[2, 0, 1]]), src)
    check(aten.scatter.value, x, 1, UNIQUE, 1)
    check(aten.scatter_add.default, x, 0, REPEATED, src)


def test_scatter_takes_scalars_and_empty_indices() -> None:
    zero = torch.tensor([0])
    check(aten.scatter.src, torch.tensor(1.0), 0, zero, torch.tensor([4.0]))
    check(aten.scatter.value, torch.tensor(1.0), 0, torch.tensor(0), 2.5)
    check(aten.scatter_add.default, X[0], 0, torch.tensor(1), torch.tensor(2.0))
    check(aten.scatter_add.default, X, 0, torch.zeros(0, dtype=torch.long), SRC)
    check(aten.scatter.src, X, 0, torch.zeros(0, 4, dtype=torch.long), SRC)


@pytest.mark.parametrize("reduce", ["add", "multiply"])
def test_scatter_with_the_old_reduce_argument(reduce: str) -> None:
    check(aten.scatter.reduce, X, 0, REPEATED, SRC, reduce=reduce)
    check(aten.scatter_.value_reduce, X, 0, REPEATED, 1.5, reduce=reduce)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_scatter_reduce_agrees(reduce: str, include_self: bool, dtype: torch.dtype) -> None:
    x, src = (X * 5).to(dtype), (SRC * 5).to(dtype)
    check(aten.scatter_reduce.two, x, 0, REPEATED, src, reduce, include_self=include_self)


def test_scatter_reduce_lets_nan_win() -> None:
    src = torch.tensor([float("nan"), 1.0])
    check(aten.scatter_reduce.two, torch.zeros(2), 0, torch.tensor([0, 0]), src, "amax")
    check(aten.scatter_reduce.two, torch.zeros(2), 0, torch.tensor([0, 0]), src, "amin")
