"""coalesce: a stable sort of the entries, then one number from the device, how many distinct ones there are."""

from __future__ import annotations

from torch import Tensor

from ..host_ops.unique import differs, groups
from .coo import coo, coordinates, summed
from .table import sparse_op


@sparse_op("_coalesce")
def coalesce(self: Tensor) -> Tensor:
    if self.is_coalesced():
        return self
    if self._nnz() < 2:
        return coo(self._indices().clone(), self._values().clone(), self.shape, coalesced=True)
    places, order = coordinates(self).sort(stable=True)
    starts, group = groups(differs(places))
    indices = self._indices().index_select(1, order.index_select(0, starts))
    values = summed(self._values().index_select(0, order), group, len(starts))
    return coo(indices, values, self.shape, coalesced=True)
