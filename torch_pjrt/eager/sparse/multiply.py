"""Products of entries, and masks: what two sparse tensors have in common."""

from __future__ import annotations

import torch
from torch import Tensor

from .borrowed import borrowed
from .coo import assign, beside, coo, coordinates, looked_up, values_at
from .table import COO, sparse_op


@sparse_op("mul.out")
def mul_out(self: Tensor | complex, other: Tensor | complex, *, out: Tensor) -> Tensor:
    """A Python number arrives as one, not as a tensor."""
    if not isinstance(self, Tensor) or (isinstance(other, Tensor) and self.layout == torch.strided):
        self, other = other, self
    assert isinstance(self, Tensor)
    if not isinstance(other, Tensor) or (other.layout == torch.strided and not other.dim()):
        return assign(out, coo(self._indices(), self._values() * other, self.shape, self.is_coalesced()))
    if other.layout == torch.strided or not self.dim() or not other.dim():
        return borrowed("aten::mul.out", COO)(self, other, out=out)
    return assign(out, sparse_product(self, other))


def sparse_product(self: Tensor, other: Tensor) -> Tensor:
    """self * other, COO of one shape. The entries are those of both; of the one that is not coalesced, else.

    Where neither is coalesced, of the one with fewer.
    """
    dtype = torch.result_type(self, other)
    if not other.is_coalesced() and (self.is_coalesced() or other._nnz() <= self._nnz()):
        self, other = other, self
    if not self.is_coalesced():
        found = values_at(other, coordinates(self))
        return coo(self._indices(), self._values().to(dtype) * found, self.shape)
    if not self._nnz() or not other._nnz():
        return coo(self._indices()[:, :0], self._values()[:0].to(dtype), self.shape, coalesced=True)
    at, found = looked_up(coordinates(self), coordinates(other))
    common = found.nonzero().squeeze(1)
    values = self._values().index_select(0, common).to(dtype) * other._values().index_select(0, at[common])
    return coo(self._indices().index_select(1, common), values, self.shape, coalesced=True)


@sparse_op("sparse_mask")
def sparse_mask(self: Tensor, mask: Tensor) -> Tensor:
    """What `self` holds at the entries of `mask`, zero where it has none."""
    if self is mask:
        return self.clone()
    if self.layout != torch.sparse_coo:
        return borrowed("aten::sparse_mask", COO)(self, mask)
    return coo(mask._indices().clone(), values_at(self, coordinates(mask)), self.shape, mask.is_coalesced())


@sparse_op("_sparse_mask_projection")
def sparse_mask_projection(self: Tensor, mask: Tensor, accumulate_matches: bool = False) -> Tensor:
    """`self` with zero where `mask` has no entry; with `accumulate_matches`, times how many it has there."""
    ones = torch.ones(mask._nnz(), dtype=torch.int64, device=mask.device)
    hits = values_at(coo(mask._indices(), ones, mask.shape[: mask.sparse_dim()]), coordinates(self))
    hits = hits if accumulate_matches else hits.clamp(max=1)
    values = self._values()
    return coo(self._indices().clone(), values * beside(hits, values).to(values.dtype), self.shape, self.is_coalesced())
