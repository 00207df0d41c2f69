"""COO tensors taken apart and put together: what the other rooms share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

aten = torch.ops.aten


def coo(indices: Tensor, values: Tensor, size: Sequence[int], coalesced: bool = False) -> Tensor:
    """The sparse tensor of `indices` [sparse_dim, nnz] and `values` [nnz, ...], unchecked."""
    return aten._sparse_coo_tensor_with_dims_and_tensors(
        len(indices), values.dim() - 1, list(size), indices, values,
        dtype=values.dtype, layout=torch.sparse_coo, device=values.device, is_coalesced=coalesced,
    )  # fmt: skip


def coordinates(self: Tensor) -> Tensor:
    """One number for each entry, which orders entries as their indices do: int64 [nnz]."""
    return flattened(self._indices(), self.shape[: self.sparse_dim()])


def flattened(indices: Tensor, sizes: Sequence[int]) -> Tensor:
    """The place in a dense tensor of `sizes` of each column of `indices` [len(sizes), nnz]: int64 [nnz]."""
    if not len(indices):
        return torch.zeros(indices.shape[1], dtype=torch.int64, device=indices.device)
    place = indices[0].long()
    for row, n in zip(indices[1:], sizes[1:], strict=True):
        place = place * n + row
    return place


def widened(t: Tensor) -> Tensor:
    """Half types as float32, in which their products are added; others as they are."""
    return t.to(torch.float32) if t.dtype in (torch.float16, torch.bfloat16) else t


def summed(values: Tensor, group: Tensor, count: int) -> Tensor:
    """The sum of the values [n, ...] of each of `count` groups; half types are added in float32, bool is "or"."""
    wide = values.to(torch.int64) if values.dtype == torch.bool else widened(values)
    totals = wide.new_zeros((count, *values.shape[1:])).index_add_(0, group, wide)
    return totals.ne(0) if values.dtype == torch.bool else totals.to(values.dtype)


def looked_up(places: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """(where each of `places` is in the ascending `known`, whether it is there); `known` is not empty."""
    at = torch.searchsorted(known, places).clamp(max=known.numel() - 1)
    return at, known.index_select(0, at) == places


def values_at(self: Tensor, places: Tensor) -> Tensor:
    """What the COO tensor holds at flat `places`: its values [len(places), ...], zero where it has no entry."""
    table = self.coalesce()
    values = table._values()
    if not len(values):
        return values.new_zeros((len(places), *values.shape[1:]))
    at, found = looked_up(places, coordinates(table))
    return torch.where(
        beside(found, values), values.index_select(0, at), torch.zeros((), dtype=values.dtype, device=values.device)
    )


def beside(each: Tensor, values: Tensor) -> Tensor:
    """`each` [n] as a tensor that broadcasts against `values` [n, ...]."""
    return each.reshape(-1, *[1] * (values.dim() - 1))


def dense_rows(self: Tensor, sparse_dim: int) -> Tensor:
    """A dense tensor with its first `sparse_dim` dimensions flattened to one."""
    return self.reshape(math.prod(self.shape[:sparse_dim]), *self.shape[sparse_dim:])


def assign(out: Tensor, result: Tensor) -> Tensor:
    """Make `out`, of any layout, hold `result`, dense or of that layout, in the dtype of `out`."""
    if out is result:
        return out
    if out.layout == torch.sparse_coo:
        aten.sparse_resize_and_clear_(out, result.shape, result.sparse_dim(), result.dense_dim())
        return aten.copy_sparse_to_sparse_(out, result)
    if out.layout != torch.strided:
        aten.resize_as_sparse_(out, result)
    elif out.shape != result.shape:
        out.resize_(result.shape)
    return out.copy_(result)
