"""Sums, reductions and samples of compressed matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..host_ops.unique import differs, groups
from .add import added_to_dense, sparse_sum
from .compressed import compressed_tensor, entries, to_coo, to_layout, with_values
from .coo import assign, summed, widened
from .matmul import combined
from .table import COMPRESSED, sparse_op

Reduction = Callable[[Tensor, Tensor, int], Tensor]


@sparse_op("add.out", key=COMPRESSED)
def add_out(self: Tensor, other: Tensor, *, alpha: complex = 1, out: Tensor) -> Tensor:
    dtype = torch.result_type(self, other)
    if self.layout == torch.strided:
        return assign(out, added_to_dense(self.to(dtype), to_coo(other).to(dtype), alpha))
    if other.layout == torch.strided:
        scaled = other.to(dtype) * alpha if alpha != 1 else other.to(dtype)
        return assign(out, added_to_dense(scaled, to_coo(self).to(dtype)))
    total = sparse_sum(to_coo(self).to(dtype).coalesce(), to_coo(other).to(dtype).coalesce(), alpha)
    return assign(out, to_layout(total, self))


@sparse_op("_sparse_csr_sum.dim_dtype", key=COMPRESSED)
def csr_sum(self: Tensor, dim: Sequence[int], keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    return _reduced(self, dim, dtype, summed)


@sparse_op("_sparse_csr_prod.dim_dtype", key=COMPRESSED)
def csr_prod(self: Tensor, dim: Sequence[int], keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    return _reduced(
        self,
        dim,
        dtype,
        # As a column: CPU PyTorch's index_reduce_, which is asked about dtypes, takes complex rows but no numbers.
        lambda values, group, count: values.new_ones(count, 1).index_reduce_(0, group, values[:, None], "prod")[:, 0],
    )


def _reduced(self: Tensor, dim: Sequence[int], dtype: torch.dtype | None, reduce: Reduction) -> Tensor:
    """A matrix reduced along `dim`, kept as a dimension of 1; of its entries only, so zeros do not count."""
    over = {d % 2 for d in dim}
    rows, columns, values = entries(self)
    if dtype is None and not (values.is_floating_point() or values.is_complex()):
        dtype = torch.int64
    values = values.to(dtype) if dtype is not None else values
    size = tuple(1 if d in over else n for d, n in enumerate(self.shape))
    nnz = len(values)
    if over == {0, 1}:
        group = torch.zeros_like(rows)
        crow, column, count = [0, min(nnz, 1)], group[: min(nnz, 1)], min(nnz, 1)
        compressed = torch.tensor(crow, device=rows.device)
    elif over == {1}:
        starts, group = groups(differs(rows))
        kept = rows.index_select(0, starts)
        column, count = torch.zeros_like(kept), len(kept)
        compressed = torch.searchsorted(kept, torch.arange(size[0] + 1, device=kept.device))
    else:
        ordered, order = columns.sort(stable=True)
        starts, ranks = groups(differs(ordered))
        group = torch.empty_like(order).scatter_(0, order, ranks)
        column, count = ordered.index_select(0, starts), len(starts)
        compressed = torch.tensor([0, count], device=rows.device)
    return compressed_tensor(compressed, column, reduce(values, group, count), size, self)


@sparse_op("sparse_sampled_addmm", key=COMPRESSED)
def sampled_addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: complex = 1, alpha: complex = 1) -> Tensor:
    """beta * self + alpha * (mat1 @ mat2) at the entries of `self`, and nothing else of the product."""
    if self.dim() != 2:
        return NotImplemented
    rows, columns, values = entries(self)
    product = (widened(mat1).index_select(0, rows) * widened(mat2).mT.index_select(0, columns)).sum(-1).to(values.dtype)
    return with_values(self, combined(values, product, beta, alpha))


@sparse_op("sparse_sampled_addmm.out", key=COMPRESSED)
def sampled_addmm_out(
    self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: complex = 1, alpha: complex = 1, out: Tensor
) -> Tensor:
    return assign(out, sampled_addmm(self, mat1, mat2, beta=beta, alpha=alpha))
