"""From one compressed layout to another: entries sorted the other way, or put into blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..host_ops.unique import differs, groups
from .borrowed import borrowed
from .compressed import BLOCKED, BY_ROW, compressed_tensor, entries, pointers
from .coo import aten
from .table import COMPRESSED, sparse_op


@sparse_op("_to_sparse", key=COMPRESSED)
def to_sparse(
    self: Tensor,
    *,
    layout: torch.layout | None = None,
    blocksize: Sequence[int] | None = None,
    dense_dim: int | None = None,
) -> Tensor:
    """By way of the layout's own op: PyTorch's kernel calls the CPU's functions, not ops."""
    if layout == torch.sparse_csr:
        return aten._to_sparse_csr(self, dense_dim)
    if layout == torch.sparse_csc:
        return aten._to_sparse_csc(self, dense_dim)
    if layout in BLOCKED and blocksize is not None:
        to_blocks = aten._to_sparse_bsr if layout == torch.sparse_bsr else aten._to_sparse_bsc
        return to_blocks(self, blocksize, dense_dim)
    return borrowed("aten::_to_sparse", COMPRESSED)(self, layout=layout, blocksize=blocksize, dense_dim=dense_dim)


@sparse_op("_to_sparse_csr", key=COMPRESSED)
def to_sparse_csr(self: Tensor, dense_dim: int | None = None) -> Tensor:
    if self.layout == torch.sparse_csc:
        return _flipped(self, torch.sparse_csr)
    return borrowed("aten::_to_sparse_csr", COMPRESSED)(self, dense_dim)


@sparse_op("_to_sparse_csc", key=COMPRESSED)
def to_sparse_csc(self: Tensor, dense_dim: int | None = None) -> Tensor:
    if self.layout == torch.sparse_csr:
        return _flipped(self, torch.sparse_csc)
    return borrowed("aten::_to_sparse_csc", COMPRESSED)(self, dense_dim)


@sparse_op("_to_sparse_bsr", key=COMPRESSED)
def to_sparse_bsr(self: Tensor, blocksize: Sequence[int], dense_dim: int | None = None) -> Tensor:
    if self.layout == torch.sparse_bsr:
        return borrowed("aten::_to_sparse_bsr", COMPRESSED)(self, blocksize, dense_dim)
    return _to_blocks(self, blocksize, torch.sparse_bsr)


@sparse_op("_to_sparse_bsc", key=COMPRESSED)
def to_sparse_bsc(self: Tensor, blocksize: Sequence[int], dense_dim: int | None = None) -> Tensor:
    if self.layout == torch.sparse_bsc:
        return borrowed("aten::_to_sparse_bsc", COMPRESSED)(self, blocksize, dense_dim)
    return _to_blocks(self, blocksize, torch.sparse_bsc)


def _to_blocks(self: Tensor, blocksize: Sequence[int], layout: torch.layout) -> Tensor:
    return _flipped(self, layout) if self.layout in BLOCKED else _blocked(self, blocksize, layout)


def _flipped(self: Tensor, layout: torch.layout) -> Tensor:
    """Compressed along the other dimension: a stable sort by what was the plain index."""
    if pointers(self)[0].dim() > 1:
        return NotImplemented
    rows, columns, values = entries(self)
    along, across = (rows, columns) if layout in BY_ROW else (columns, rows)
    length = self.shape[0 if layout in BY_ROW else 1]
    if layout in BLOCKED:
        length //= values.shape[1 if layout in BY_ROW else 2]
    along, order = along.sort(stable=True)
    begins = torch.searchsorted(along, torch.arange(length + 1, device=along.device))
    return compressed_tensor(
        begins, across.index_select(0, order), values.index_select(0, order), self.shape, self, layout
    )


def _blocked(self: Tensor, blocksize: Sequence[int], layout: torch.layout) -> Tensor:
    """Entries put into blocks: the blocks that have one, in the order of the layout."""
    if pointers(self)[0].dim() > 1:
        return NotImplemented
    rows, columns, values = entries(self)
    height, width = blocksize
    place, size = (rows // height, columns // width), (self.shape[0] // height, self.shape[1] // width)
    first, second = (0, 1) if layout in BY_ROW else (1, 0)
    inner = max(size[second], 1)
    places, order = (place[first] * inner + place[second]).sort(stable=True)
    starts, group = groups(differs(places))
    inside = ((rows % height) * width + columns % width).index_select(0, order)
    blocks = values.new_zeros((len(starts) * height * width, *values.shape[1:]))
    blocks = blocks.index_copy_(0, group * (height * width) + inside, values.index_select(0, order))
    there = places.index_select(0, starts)
    begins = torch.searchsorted(there, torch.arange(size[first] + 1, device=there.device) * inner)
    blocks = blocks.reshape(len(starts), height, width, *values.shape[1:])
    return compressed_tensor(begins, there % inner, blocks, self.shape, self, layout)
