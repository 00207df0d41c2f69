"""torch.sparse.mm(csr, dense, reduce): of each row's products the sum, the mean, the largest or the smallest."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .compressed import entries, with_values
from .coo import summed, widened
from .table import COMPRESSED, sparse_op


@sparse_op("_sparse_mm_reduce_impl", key=COMPRESSED)
def mm_reduce(self: Tensor, other: Tensor, reduce: str) -> tuple[Tensor, Tensor]:
    """(result [n, k], for amax and amin the entry that each number came from, nnz where the row is empty)."""
    rows, columns, values = entries(self)
    n, nnz = self.shape[0], len(values)
    terms = widened(values)[:, None] * widened(other).index_select(0, columns)
    if reduce in ("sum", "mean"):
        total = summed(terms, rows, n)
        total = total if reduce == "sum" else total / _counts(rows, n)
        return total.to(values.dtype), torch.empty(0, dtype=torch.int64, device=self.device)
    found = terms.new_zeros((n, terms.shape[1])).index_reduce_(0, rows, terms, reduce, include_self=False)
    holds = (terms == found.index_select(0, rows)) | (terms != terms)
    places = torch.where(holds, torch.arange(nnz, device=rows.device)[:, None], nnz)
    which = torch.full_like(found, nnz, dtype=torch.int64).index_reduce_(0, rows, places, "amin")
    return found.to(values.dtype), which


@sparse_op("_sparse_mm_reduce_impl_backward", key=COMPRESSED)
def mm_reduce_backward(
    self: Tensor, grad_out: Tensor, weight: Tensor, reduce: str, arg_out: Tensor, output_mask: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    rows, columns, values = entries(self)
    grad_out = widened(grad_out)
    if reduce == "mean":
        grad_out = grad_out / _counts(rows, self.shape[0])
    grad = grad_out.index_select(0, rows)
    if reduce in ("amax", "amin"):
        places = torch.arange(len(values), device=rows.device)[:, None]
        grad = torch.where(arg_out.index_select(0, rows) == places, grad, torch.zeros_like(grad))
    of_self = of_weight = None
    if output_mask[0]:
        of_self = with_values(self, (grad * widened(weight).index_select(0, columns)).sum(1).to(values.dtype))
    if output_mask[1]:
        of_weight = summed(widened(values)[:, None] * grad, columns, weight.shape[0]).to(weight.dtype)
    return of_self, of_weight


def _counts(rows: Tensor, n: int) -> Tensor:
    """How many entries each row has, at least 1: [n, 1]."""
    return (
        torch.zeros(n, dtype=torch.int64, device=rows.device)
        .index_add_(0, rows, torch.ones_like(rows))
        .clamp(min=1)[:, None]
    )
