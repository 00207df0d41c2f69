"""The gradient of sums over a COO tensor; the sums themselves are PyTorch's, over the values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .coo import coo, flattened, values_at
from .table import sparse_op


@sparse_op("_sparse_sum_backward")
def sparse_sum_backward(grad: Tensor, self: Tensor, dim: Sequence[int]) -> Tensor:
    """Each entry's share of `grad`, which has the dimensions that were not summed, the sparse ones first."""
    if not self._nnz():
        return torch.zeros_like(self)
    self = self.coalesce()
    values = self._values()
    over = {d % self.dim() for d in dim}
    kept = [d for d in range(self.sparse_dim()) if d not in over]
    if not kept:
        share = (grad.to_dense() if grad.layout != torch.strided else grad)[None]
    else:
        places = flattened(self._indices()[kept], [self.shape[d] for d in kept])
        share = (
            values_at(grad, places)
            if grad.layout != torch.strided
            else grad.reshape(-1, *grad.shape[len(kept) :]).index_select(0, places)
        )
    for d in range(self.dense_dim()):
        if d + self.sparse_dim() in over:
            share = share.unsqueeze(d + 1)
    return coo(self._indices().clone(), share.expand_as(values).clone(), self.shape, coalesced=True)
