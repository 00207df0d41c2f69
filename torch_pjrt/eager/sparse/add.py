"""Sums: sparse + sparse stays sparse, dense + sparse is dense."""

from __future__ import annotations

import torch
from torch import Tensor

from .coo import assign, coo, coordinates, dense_rows
from .table import sparse_op


@sparse_op("add.out")
def add_out(self: Tensor, other: Tensor, *, alpha: complex = 1, out: Tensor) -> Tensor:
    dtype = torch.result_type(self, other)
    if self.layout == torch.strided:
        return assign(out, added_to_dense(self.to(dtype), other.to(dtype), alpha))
    return assign(out, sparse_sum(self.to(dtype), other.to(dtype), alpha))


def sparse_sum(self: Tensor, other: Tensor, alpha: complex = 1) -> Tensor:
    """self + alpha * other. Entries are appended; the result is coalesced if both are, or if it had too many."""
    if not other._nnz():
        return self
    values = scaled(other._values(), alpha)
    if not self._nnz():
        return coo(other._indices(), values, other.shape, other.is_coalesced())
    indices = torch.cat([self._indices(), other._indices()], 1)
    total = coo(indices, torch.cat([self._values(), values]), self.shape)
    both = self.is_coalesced() and other.is_coalesced()
    return total.coalesce() if both or total._nnz() > total.numel() else total


def added_to_dense(self: Tensor, other: Tensor, alpha: complex = 1) -> Tensor:
    """self + alpha * other, dense; both of one dtype. `self` broadcasts."""
    rows = dense_rows(self.expand(other.shape).clone(memory_format=torch.contiguous_format), other.sparse_dim())
    values, places = scaled(other._values(), alpha), coordinates(other)
    if self.dtype == torch.bool:
        hit = rows.to(torch.int64).index_add_(0, places, values.to(torch.int64))
        return hit.ne(0).reshape(other.shape)
    return rows.index_add_(0, places, values).reshape(other.shape)


def scaled(values: Tensor, alpha: complex) -> Tensor:
    return values if alpha == 1 else values * alpha if values.dtype != torch.bool else values & bool(alpha)
