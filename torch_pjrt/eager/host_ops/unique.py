"""unique and its kin: a sort, then one number from the device, the count of distinct elements."""

from __future__ import annotations

import torch
from torch import Tensor

from .table import host_op

aten = torch.ops.aten
Unique = tuple[Tensor, Tensor, Tensor]


@host_op("aten::_unique2")
def unique2(self: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Unique:
    """(distinct values, ascending; which of them each element is; how often each occurs). NaNs are all distinct."""
    values, order = self.reshape(-1).sort(stable=True)
    starts, group = groups(differs(values))
    inverse = torch.empty_like(group).scatter_(0, order, group).reshape(self.shape) if return_inverse else _none(self)
    return values[starts], inverse, _counts(starts, self.numel()) if return_counts else _none(self)


@host_op("aten::_unique")
def unique(self: Tensor, sorted: bool = True, return_inverse: bool = False) -> tuple[Tensor, Tensor]:
    return unique2(self, sorted, return_inverse)[:2]


@host_op("aten::unique_consecutive")
def unique_consecutive(
    self: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Unique:
    if dim is not None and not (dim == 0 and self.dim() == 1):
        return unique_dim_consecutive(self, dim, return_inverse, return_counts)
    flat = self.reshape(-1)
    starts, group = groups(differs(flat))
    inverse = group.reshape(self.shape) if return_inverse else _none(self)
    return flat[starts], inverse, _counts(starts, flat.numel()) if return_counts else _none(self)


@host_op("aten::unique_dim")
def unique_dim(
    self: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Unique:
    """Distinct slices along `dim` in lexicographic order."""
    slices = _slices(self, dim)
    if slices is None:
        return self.clone(), _none(self), _none(self)
    ranks, order = _lexicographic_ranks(slices).sort(stable=True)
    starts, group = groups(differs(ranks))
    inverse = torch.empty_like(group).scatter_(0, order, group)
    return self.index_select(dim, order[starts]), inverse, _counts(starts, len(slices))


@host_op("aten::unique_dim_consecutive")
def unique_dim_consecutive(self: Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False) -> Unique:
    slices = _slices(self, dim)
    if slices is None:
        return self.clone(), _none(self), _none(self)
    starts, group = groups(differs(slices))
    return self.index_select(dim, starts), group, _counts(starts, len(slices))


def _slices(self: Tensor, dim: int) -> Tensor | None:
    """The slices along `dim` as rows; None if there are none."""
    zeros = sum(n == 0 for n in self.shape)
    if self.size(dim) == 0:  # which raises IndexError for a 0-d tensor
        if zeros > 1:
            raise RuntimeError("Number of zero sized dimensions is more than one, so unique cannot be applied ")
        return None
    if zeros:
        raise RuntimeError("There are 0 sized dimensions, and they aren't selected, so unique cannot be applied")
    return self.movedim(dim, 0).reshape(self.size(dim), -1)


def _lexicographic_ranks(rows: Tensor) -> Tensor:
    """One number per row that orders rows as their elements do, the first column weighing most.

    Each column is ranked, then pairs of columns become one until one is left: log2(columns) sorts of all columns at
    once, whatever their number.
    """
    ranks = _ranks(rows)
    while ranks.size(1) > 1:
        if ranks.size(1) % 2:
            ranks = torch.nn.functional.pad(ranks, (0, 1))
        ranks = _ranks(ranks[:, 0::2] * len(rows) + ranks[:, 1::2])
    return ranks[:, 0]


def _ranks(columns: Tensor) -> Tensor:
    """Within each column, how many distinct smaller values there are."""
    values, order = columns.sort(dim=0, stable=True)
    steps = torch.nn.functional.pad((values[1:] != values[:-1]).long(), (0, 0, 1, 0))
    return torch.empty_like(order).scatter_(0, order, steps.cumsum(0))


def differs(rows: Tensor) -> Tensor:
    """Whether each element (row) is another than the one before it; the first is."""
    differs = rows[1:] != rows[:-1]
    if rows.dim() > 1:
        differs = differs.any(1)
    first = rows[:1] if rows.dim() == 1 else rows[:1, 0]
    return torch.cat([torch.ones_like(first, dtype=torch.bool), differs])


def groups(first: Tensor) -> tuple[Tensor, Tensor]:
    """(where the groups begin, the group of each element), given which elements begin one."""
    group = first.cumsum(0) - 1
    count = int(group[-1].item()) + 1 if group.numel() else 0
    return aten.nonzero_static(first, size=count).squeeze(1), group


def _counts(starts: Tensor, total: int) -> Tensor:
    return torch.cat([starts[1:], starts.new_full((min(len(starts), 1),), total)]) - starts


def _none(like: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.int64, device=like.device)
