"""index_select of COO tensors: a join of the wanted indices with the entries."""

from __future__ import annotations

import torch
from torch import Tensor

from .coo import coo
from .table import sparse_op


@sparse_op("index_select")
def index_select(self: Tensor, dim: int, index: Tensor) -> Tensor:
    """Entries come in the order of `index`, those of one index in their own order. Negative ones of a sparse
    dimension count from its end.

    Raises:
        IndexError: for an index out of range of a sparse dimension, at the call: the number of entries is read anyway.
    """
    dim, n = dim % self.dim(), self.shape[dim]
    size = [*self.shape[:dim], index.numel(), *self.shape[dim + 1 :]]
    index = index.reshape(-1)
    indices, values = self._indices(), self._values()
    if dim >= self.sparse_dim():
        return coo(indices.clone(), values.index_select(dim - self.sparse_dim() + 1, index), size)
    wrapped = torch.where(index < 0, index + n, index).long()
    _check(self, dim, index, wrapped)
    ordered, order = indices[dim].sort(stable=True)
    begins = torch.searchsorted(ordered, wrapped)
    each = torch.searchsorted(ordered, wrapped, right=True) - begins
    wanted = torch.repeat_interleave(each)
    within = torch.arange(len(wanted), device=wanted.device) - (each.cumsum(0) - each).index_select(0, wanted)
    taken = order.index_select(0, begins.index_select(0, wanted) + within)
    found = indices.index_select(1, taken)
    return coo(torch.cat([found[:dim], wanted[None], found[dim + 1 :]]), values.index_select(0, taken), size)


def _check(self: Tensor, dim: int, index: Tensor, wrapped: Tensor) -> None:
    n = self.shape[dim]
    if not index.numel():
        return
    bad = ((wrapped < 0) | (wrapped >= n)).to(torch.int64)
    any_bad, value = torch.stack([bad.max(), index.long()[bad.argmax()]]).tolist()
    if any_bad:
        raise IndexError(
            f"index_select(): index contains {value} that is out of range for tensor of size {list(self.shape)} at "
            f"dimension {dim}"
        )
