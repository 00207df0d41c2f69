"""Products of COO matrices: a gather of the dense operand's rows, a multiplication, a sum by row."""

from __future__ import annotations

import torch
from torch import Tensor

from ..host_ops.unique import differs, groups
from .coo import assign, beside, coo, summed, widened
from .table import sparse_op


def entries_times_dense(rows: Tensor, columns: Tensor, values: Tensor, dense: Tensor, count: int) -> Tensor:
    """The dense product [count, k] of a matrix given by its entries (each [nnz]) and `dense` [m, k]."""
    terms = beside(widened(values), dense) * widened(dense).index_select(0, columns)
    return summed(terms, rows, count).to(values.dtype)


def combined(self: Tensor, product: Tensor, beta: complex, alpha: complex) -> Tensor:
    """beta * self + alpha * product; a `self` that counts for nothing is not read."""
    alpha, beta = as_number(alpha, product.dtype), as_number(beta, product.dtype)
    product = product if alpha == 1 else product * alpha
    return product.clone() if beta == 0 else product + (self if beta == 1 else self * beta)


def as_number(number: complex, dtype: torch.dtype) -> complex:
    """A factor as PyTorch's kernels take it, in the dtype: 2.5 is 2 for integers."""
    inexact = dtype.is_floating_point or dtype.is_complex
    return number if inexact or isinstance(number, complex) else int(number)


@sparse_op("addmm")
def addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: complex = 1, alpha: complex = 1) -> Tensor:
    rows, columns = mat1._indices()
    product = entries_times_dense(rows, columns, mat1._values(), mat2, mat1.shape[0])
    return combined(self, product, beta, alpha)


@sparse_op("addmm.out")
def addmm_out(
    self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: complex = 1, alpha: complex = 1, out: Tensor
) -> Tensor:
    return assign(out, addmm(self, mat1, mat2, beta=beta, alpha=alpha))


@sparse_op("addmm_")
def addmm_(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: complex = 1, alpha: complex = 1) -> Tensor:
    return self.copy_(addmm(self, mat1, mat2, beta=beta, alpha=alpha))


@sparse_op("bmm")
def bmm(self: Tensor, mat2: Tensor) -> Tensor:
    batches, n, m = self.shape
    batch, row, column = self._indices()
    product = entries_times_dense(
        batch * n + row, batch * m + column, self._values(), mat2.reshape(batches * m, mat2.shape[2]), batches * n
    )
    return product.reshape(batches, n, mat2.shape[2])


@sparse_op("bmm.out")
def bmm_out(self: Tensor, mat2: Tensor, *, out: Tensor) -> Tensor:
    return assign(out, bmm(self, mat2))


@sparse_op("hspmm")
def hspmm(mat1: Tensor, mat2: Tensor) -> Tensor:
    """The product with those rows only that have entries: a sparse row index, dense values."""
    ordered = mat1.coalesce()
    rows, columns = ordered._indices()
    starts, group = groups(differs(rows))
    values = entries_times_dense(group, columns, ordered._values(), mat2, len(starts))
    return coo(rows.index_select(0, starts)[None], values, (mat1.shape[0], mat2.shape[1]), coalesced=True)


@sparse_op("hspmm.out")
def hspmm_out(mat1: Tensor, mat2: Tensor, *, out: Tensor) -> Tensor:
    return assign(out, hspmm(mat1, mat2))


@sparse_op("_sparse_sparse_matmul")
def sparse_sparse_matmul(self: Tensor, other: Tensor) -> Tensor:
    """Each entry (i, k) of `self` meets all entries of row k of `other`; the products are summed by place."""
    left, right = self.coalesce(), other.coalesce()
    size = (self.shape[0], other.shape[1])
    rows, inner = left._indices()
    its_rows, columns = right._indices()
    begins = torch.searchsorted(its_rows, inner)
    meets = torch.searchsorted(its_rows, inner, right=True) - begins
    mine = torch.repeat_interleave(meets)
    theirs = torch.arange(len(mine), device=mine.device) - (meets.cumsum(0) - meets - begins).index_select(0, mine)
    values = left._values().index_select(0, mine) * right._values().index_select(0, theirs)
    indices = torch.stack([rows.index_select(0, mine), columns.index_select(0, theirs)])
    return coo(indices, values, size).coalesce()
