"""Ops whose result's shape depends on a mask or on counts, and comparisons that answer the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .table import INDEX_OPS, host_op

aten = torch.ops.aten


@host_op("aten::nonzero")
def nonzero(self: Tensor) -> Tensor:
    if self.dim() == 0:
        return self.new_empty((int(self.ne(0).item()), 0), dtype=torch.int64)
    count = int(self.ne(0).sum().item())
    return aten.nonzero_static(self, size=count)


@host_op("aten::masked_select")
def masked_select(self: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    values, where = torch.broadcast_tensors(self, mask)
    return aten.index_select(values.reshape(-1), 0, nonzero(where.reshape(-1)).squeeze(1))


@host_op("aten::repeat_interleave.Tensor")
def repeat_interleave(repeats: Tensor, output_size: int | None = None) -> Tensor:
    """Which entry each place of the result takes: the first whose running total of repeats lies beyond the place."""
    if repeats.dim() != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    ends = repeats.cumsum(0)
    if output_size is None:
        if repeats.numel() and int(repeats.min().item()) < 0:
            raise RuntimeError("repeats can not be negative")
        output_size = int(ends[-1].item()) if repeats.numel() else 0
    places = torch.arange(output_size, device=repeats.device, dtype=ends.dtype)
    return torch.searchsorted(ends, places, right=True).to(repeats.dtype)


@host_op("aten::equal")
def equal(self: Tensor, other: Tensor) -> bool:
    if self.shape != other.shape:
        return False
    return bool(self.eq(other).all().item())


@host_op("aten::index.Tensor", table=INDEX_OPS)
def index(self: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    return aten.index(self, expanded(self, indices))


@host_op("aten::index_put_", table=INDEX_OPS)
def index_put_(self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    given = [i for i in indices if i is not None]
    if len(given) == 1 and _is_mask(given[0]) and not accumulate and values.numel() == 1:
        # `a[mask] = number` needs no shape from the device: it is a where.
        return self.masked_fill_(_aligned(self, indices), values.reshape(()).to(self.device))
    return aten.index_put_(self, expanded(self, indices), values, accumulate)


@host_op("aten::_index_put_impl_", table=INDEX_OPS)
def _index_put_impl_(
    self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, unsafe: bool = False
) -> Tensor:
    return index_put_(self, indices, values, accumulate)


@host_op("aten::index_put", table=INDEX_OPS)
def index_put(self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    return index_put_(self.clone(), indices, values, accumulate)


def expanded(self: Tensor, indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Indices on the device, each mask replaced by the integer indices it selects (one for each of its dimensions)."""
    result: list[Tensor | None] = []
    for i in indices:
        if i is None:
            result.append(None)
        elif _is_mask(i):
            at = len(result)
            for d in range(i.dim()):
                if i.size(d) != self.size(at + d):
                    raise IndexError(
                        f"The shape of the mask {list(i.shape)} at index {d} does not match the shape of the indexed "
                        f"tensor {list(self.shape)} at index {at + d}"
                    )
            result += nonzero(i.to(self.device)).unbind(1)
        else:
            result.append(i.to(self.device))
    return result


def _is_mask(index: Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8)


def _aligned(self: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """The one mask among the indices, with size-1 dimensions so that it broadcasts against `self`."""
    at = next(k for k, i in enumerate(indices) if i is not None)
    mask = indices[at]
    assert mask is not None
    expanded_shape = [1] * at + list(mask.shape) + [1] * (self.dim() - at - mask.dim())
    for d, n in enumerate(mask.shape):
        if n != self.size(at + d):
            raise IndexError(
                f"The shape of the mask {list(mask.shape)} at index {d} does not match the shape of the indexed "
                f"tensor {list(self.shape)} at index {at + d}"
            )
    return mask.to(self.device).to(torch.bool).reshape(expanded_shape)
