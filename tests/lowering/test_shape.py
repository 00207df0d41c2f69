"""Views, their copies, their backwards and their scatters against CPU PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .check import check

aten = torch.ops.aten
X = torch.arange(24.0).reshape(2, 3, 4)
C = torch.randn(3, 4, dtype=torch.complex64)

VIEWS: list[tuple[Any, tuple[Any, ...]]] = [
    (aten.view.default, (X, [4, -1])),
    (aten.view.default, (torch.tensor(3.0), [1, 1])),
    (aten.view.default, (torch.zeros(0, 3), [3, 0])),
    (aten.view.default, (torch.zeros(0, 3), [-1, 3])),
    (aten._unsafe_view.default, (X, [6, 4])),
    (aten._reshape_alias.default, (X, [6, 4], [4, 1])),
    (aten.view_copy.default, (X, [24])),
    (aten.permute.default, (X, [2, 0, -2])),
    (aten.permute_copy.default, (X, [-1, 0, 1])),
    (aten.transpose.int, (X, 0, -1)),
    (aten.transpose.int, (torch.tensor(1), 0, -1)),
    (aten.t.default, (X[0],)),
    (aten.t.default, (X[0, 0],)),
    (aten.expand.default, (X[:, :1], [5, 2, 3, -1])),
    (aten.expand.default, (torch.tensor(2), [3])),
    (aten.expand_copy.default, (X[:1], [2, -1, 4])),
    (aten.slice.Tensor, (X, 1, 1, 9223372036854775807)),
    (aten.slice.Tensor, (X, -1, -3, -1)),
    (aten.slice.Tensor, (X, 2, 0, 4, 3)),
    (aten.slice.Tensor, (X, 2, 3, 1)),
    (aten.slice_copy.Tensor, (X, 2, None, None, 2)),
    (aten.select.int, (X, -2, -1)),
    (aten.select_copy.int, (X, 0, 1)),
    (aten.unsqueeze.default, (X, -1)),
    (aten.unsqueeze.default, (torch.tensor(True), 0)),
    (aten.squeeze.default, (torch.zeros(1, 2, 1),)),
    (aten.squeeze.dim, (torch.zeros(1, 2, 1), -1)),
    (aten.squeeze.dim, (torch.zeros(1, 2, 1), 1)),
    (aten.squeeze.dim, (torch.tensor(2.0), -1)),
    (aten.squeeze.dims, (torch.zeros(1, 2, 1), [0, -1, 1])),
    (aten.split.Tensor, (X, 3, -1)),
    (aten.split.Tensor, (torch.zeros(0, 2), 3)),
    (aten.split_with_sizes.default, (X, [1, 0, 3], -1)),
    (aten.split_with_sizes_copy.default, (X, [1, 2], 1)),
    (aten.unbind.int, (X, -1)),
    (aten.unbind_copy.int, (X, 1)),
    (aten.alias.default, (X,)),
    (aten.detach.default, (X,)),
    (aten.view_as_real.default, (C,)),
    (aten.view_as_complex.default, (torch.randn(3, 2),)),
    (aten._conj.default, (C,)),
    (aten._conj_physical.default, (C,)),
    (aten._neg_view.default, (X,)),
    (aten.narrow_copy.default, (X, 2, -3, 2)),
]


@pytest.mark.parametrize(("op", "args"), VIEWS, ids=lambda v: v.name() if hasattr(v, "name") else "")
def test_a_view_has_the_elements_of_pytorchs(op: Any, args: tuple[Any, ...]) -> None:
    check(op, *args)


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        (torch.randn(3, 4), torch.int32),
        (torch.randn(3, 4), torch.int16),
        (torch.randn(3, 4).bfloat16(), torch.float16),
        (torch.arange(8, dtype=torch.int16).reshape(2, 4), torch.int64),
        (torch.randn(3, 4), torch.complex64),
        (C, torch.float32),
        (C, torch.int64),
        (torch.tensor([True, False]), torch.uint8),
        (torch.tensor([0, 1], dtype=torch.uint8), torch.bool),
        (torch.tensor(1.5), torch.int32),
    ],
)
def test_view_dtype_reinterprets_the_bytes(x: torch.Tensor, dtype: torch.dtype) -> None:
    check(aten.view.dtype, x, dtype)


@pytest.mark.parametrize("offset", [-5, -2, 0, 1, 3, 7])
def test_diagonal_ops_agree_at_every_offset(offset: int) -> None:
    check(aten.diagonal.default, X, offset, 1, 2)
    check(aten.diagonal.default, X, offset, -1, 0)
    grad = torch.diagonal(X, offset, 0, 2)
    check(aten.diagonal_backward.default, grad, [2, 3, 4], offset, 0, 2)
    check(aten.diagonal_scatter.default, X, -grad - 1, offset, 0, 2)
    check(aten.diag_embed.default, X, offset)
    check(aten.diag_embed.default, X, offset, 0, -2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bfloat16, torch.complex64])
def test_trace_sums_the_diagonal(dtype: torch.dtype) -> None:
    if dtype != torch.bfloat16:  # CPU PyTorch has no bfloat16 trace
        check(aten.trace.default, torch.arange(12).reshape(3, 4).to(dtype))
    check(aten.diagonal_copy.default, torch.arange(12).reshape(3, 4).to(dtype))


@pytest.mark.parametrize(("start", "end", "step"), [(0, 4, 1), (1, 3, 1), (0, 4, 2), (1, 4, 2), (-3, 9, 3), (2, 2, 1)])
def test_slice_scatter_and_backward_agree(start: int, end: int, step: int) -> None:
    part = X[:, :, slice(start, end, step)]
    check(aten.slice_scatter.default, X, -part - 1, 2, start, end, step)
    first = start % 4 if start < 0 else start
    check(aten.slice_backward.default, part, [2, 3, 4], -1, first, min(end, 4), step)


@pytest.mark.parametrize(("dim", "index"), [(0, 1), (-1, -2), (1, 0)])
def test_select_scatter_and_backward_agree(dim: int, index: int) -> None:
    part = X.select(dim, index)
    check(aten.select_scatter.default, X, -part - 1, dim, index)
    check(aten.select_backward.default, part, [2, 3, 4], dim, index)


@pytest.mark.parametrize(("size", "step"), [(3, 1), (2, 3), (20, 1), (20, 7), (17, 2), (38, 2)])
def test_unfold_and_its_backward_agree(size: int, step: int) -> None:
    x = torch.randn(2, 40, 3)
    check(aten.unfold.default, x, 1, size, step)
    check(aten.unfold_backward.default, torch.randn_like(x.unfold(1, size, step)), [2, 40, 3], 1, size, step)


def test_unfold_of_a_scalar_is_one_window() -> None:
    check(aten.unfold.default, torch.tensor(3.0), 0, 1, 1)


@pytest.mark.parametrize(
    ("size", "stride", "offset"),
    [
        ([2, 3], [4, 1], 5),
        ([3, 2], [1, 8], 0),
        ([4, 3], [6, 2], 1),
        ([2, 5, 3], [12, 0, 4], 3),
        ([3, 3], [7, 1], 4),
        ([5, 4], [2, 1], 0),
        ([2, 2, 2], [1, 1, 1], 2),
        ([], [], 7),
        ([0, 3], [1, 1], 0),
        ([1, 3], [100, 5], 2),
    ],
)
def test_as_strided_reads_the_same_elements(size: list[int], stride: list[int], offset: int) -> None:
    check(aten.as_strided.default, X, size, stride, offset)


def test_as_strided_scatter_writes_the_same_elements() -> None:
    check(aten.as_strided_scatter.default, X, -torch.ones(3, 2), [3, 2], [6, 2], 1)
