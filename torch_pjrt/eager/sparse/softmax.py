"""softmax over the entries of a sparse tensor: what has no entry counts as minus infinity."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..host_ops.unique import differs
from .coo import coo, coordinates, flattened, summed, values_at
from .table import sparse_op


@sparse_op("_sparse_softmax")
def sparse_softmax(self: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return _normalized(self, dim, torch.softmax, _pooled_softmax)


@sparse_op("_sparse_log_softmax")
def sparse_log_softmax(self: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return _normalized(self, dim, torch.log_softmax, _pooled_log_softmax)


@sparse_op("_sparse_softmax_backward_data")
def sparse_softmax_backward(grad_output: Tensor, output: Tensor, dim: int, self: Tensor) -> Tensor:
    """y (g - Σ y g), sums over each pool."""
    y, g, total = _terms(grad_output, output, dim)
    return coo(output._indices(), y * (g - total(y * g)), output.shape, output.is_coalesced())


@sparse_op("_sparse_log_softmax_backward_data")
def sparse_log_softmax_backward(grad_output: Tensor, output: Tensor, dim: int, self: Tensor) -> Tensor:
    """g - exp(y) Σ g, sums over each pool."""
    y, g, total = _terms(grad_output, output, dim)
    return coo(output._indices(), g - y.exp() * total(g), output.shape, output.is_coalesced())


def _normalized(
    self: Tensor, dim: int, dense: Callable[[Tensor, int], Tensor], pooled: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    given = self.coalesce()
    dim, values = dim % self.dim(), given._values()
    if not values.numel():
        return given.clone()  # a result is never an argument: autograd would take the leaf for the result
    if dim >= given.sparse_dim():
        result = dense(values, dim - given.sparse_dim() + 1)
    else:
        result = pooled(values, _pools(given, dim))
    return coo(given._indices(), result, self.shape, coalesced=True)


def _pools(self: Tensor, dim: int) -> Tensor:
    """The number, below nnz, of the line along `dim` that each entry lies on."""
    others = [d for d in range(self.sparse_dim()) if d != dim]
    lines = flattened(self._indices()[others], [self.shape[d] for d in others])
    if not len(lines):
        return lines
    ordered, order = lines.sort(stable=True)
    return torch.empty_like(order).scatter_(0, order, differs(ordered).cumsum(0) - 1)


def _shifted(values: Tensor, pool: Tensor) -> tuple[Tensor, Tensor]:
    """(each value less the largest of its pool, the sum of the exponentials of those over its pool)."""
    largest = torch.full_like(values, -torch.inf).index_reduce_(0, pool, values, "amax").index_select(0, pool)
    shifted = values - largest
    return shifted, summed(shifted.exp(), pool, len(values)).index_select(0, pool)


def _pooled_softmax(values: Tensor, pool: Tensor) -> Tensor:
    shifted, total = _shifted(values, pool)
    return shifted.exp() / total


def _pooled_log_softmax(values: Tensor, pool: Tensor) -> Tensor:
    shifted, total = _shifted(values, pool)
    return shifted - total.log()


def _terms(grad_output: Tensor, output: Tensor, dim: int) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
    dim = dim % output.dim()
    g = values_at(grad_output, coordinates(output))
    if dim >= output.sparse_dim():
        return output._values(), g, lambda x: x.sum(dim - output.sparse_dim() + 1, keepdim=True)
    pool = _pools(output, dim)
    return output._values(), g, lambda x: summed(x, pool, len(x)).index_select(0, pool)
