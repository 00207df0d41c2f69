"""Products of compressed matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from .add import sparse_sum
from .compressed import BLOCKED, entries, to_coo, to_layout
from .coo import assign, summed
from .matmul import as_number, combined, entries_times_dense, sparse_sparse_matmul
from .table import COMPRESSED, sparse_op


def product(left: Tensor, right: Tensor) -> Tensor:
    """The product of two matrices of which one at least is compressed: COO if both are sparse, else dense."""
    if left.layout == torch.strided:
        return sparse_times_dense(right.mT, left.mT).mT.contiguous()
    if right.layout == torch.strided:
        return sparse_times_dense(left, right)
    return sparse_sparse_matmul(to_coo(left), to_coo(right))


def sparse_times_dense(matrix: Tensor, dense: Tensor) -> Tensor:
    """The dense product [n, k] of a compressed matrix [n, m] and `dense` [m, k]."""
    rows, columns, values = entries(matrix)
    if matrix.layout not in BLOCKED:
        return entries_times_dense(rows, columns, values, dense, matrix.shape[0])
    height, width = values.shape[1:]
    n, m = matrix.shape
    blocks = dense.reshape(m // width, width, dense.shape[1]).index_select(0, columns)
    return summed(torch.bmm(values, blocks), rows, n // height).reshape(n, dense.shape[1])


@sparse_op("addmm", key=COMPRESSED)
def addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: complex = 1, alpha: complex = 1) -> Tensor:
    total = product(mat1, mat2)
    if self.layout == torch.strided:
        return combined(self, total.to_dense() if total.layout != torch.strided else total, beta, alpha)
    total = total if total.layout == torch.sparse_coo else total.to_sparse()
    alpha, beta = as_number(alpha, total.dtype), as_number(beta, total.dtype)
    total = total if alpha == 1 else total * alpha
    return to_layout(total if beta == 0 else sparse_sum(total, to_coo(self).coalesce(), beta), self)


@sparse_op("addmm.out", key=COMPRESSED)
def addmm_out(
    self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: complex = 1, alpha: complex = 1, out: Tensor
) -> Tensor:
    return assign(out, addmm(self, mat1, mat2, beta=beta, alpha=alpha))


@sparse_op("addmv.out", key=COMPRESSED)
def addmv_out(self: Tensor, mat: Tensor, vec: Tensor, *, beta: complex = 1, alpha: complex = 1, out: Tensor) -> Tensor:
    return assign(out, combined(self, sparse_times_dense(mat, vec[:, None])[:, 0], beta, alpha))
