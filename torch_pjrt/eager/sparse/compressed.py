"""CSR, CSC, BSR and BSC tensors taken apart and put together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..host_ops.unique import differs, groups
from .borrowed import borrowed
from .coo import aten
from .table import COMPRESSED, sparse_op

BY_ROW = (torch.sparse_csr, torch.sparse_bsr)
BLOCKED = (torch.sparse_bsr, torch.sparse_bsc)


def is_compressed(t: Tensor) -> bool:
    return t.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def pointers(self: Tensor) -> tuple[Tensor, Tensor]:
    """(compressed indices, plain indices), whichever way the tensor is compressed."""
    if self.layout in BY_ROW:
        return self.crow_indices(), self.col_indices()
    return self.ccol_indices(), self.row_indices()


def entries(self: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(rows, columns, values) of a matrix, each [nnz] (values of blocks: [nnz, height, width], and block indices)."""
    compressed, plain = pointers(self)
    plain = plain.long()
    lines = lines_of(compressed, len(plain))
    return (lines, plain, self.values()) if self.layout in BY_ROW else (plain, lines, self.values())


def lines_of(compressed: Tensor, nnz: int) -> Tensor:
    """The row of each entry, given where each row begins: int64 [nnz]."""
    places = torch.arange(nnz, device=compressed.device, dtype=compressed.dtype)
    return torch.searchsorted(compressed, places, right=True).long() - 1


def compressed_tensor(compressed: Tensor, plain: Tensor, values: Tensor, size: Sequence[int], like: Tensor) -> Tensor:
    """A tensor laid out as `like`, unchecked, with indices of its dtype."""
    dtype = pointers(like)[1].dtype
    return aten._sparse_compressed_tensor_unsafe(
        compressed.to(dtype), plain.to(dtype), values, list(size), dtype=values.dtype, layout=like.layout,
        device=values.device,
    )  # fmt: skip


def with_values(self: Tensor, values: Tensor) -> Tensor:
    """The same entries with other values."""
    compressed, plain = pointers(self)
    return compressed_tensor(compressed.clone(), plain.clone(), values, self.shape, self)


def to_coo(t: Tensor) -> Tensor:
    return t if t.layout == torch.sparse_coo else t.to_sparse()


def to_layout(t: Tensor, like: Tensor) -> Tensor:
    """A COO matrix laid out as `like`: of the same blocks, with indices of the same dtype."""
    blocks = tuple(like.values().shape[1:3]) if like.layout in BLOCKED else None
    made = t.to_sparse(layout=like.layout, blocksize=blocks)
    compressed, plain = pointers(made)
    return made if plain.dtype == pointers(like)[1].dtype else compressed_tensor(
        compressed, plain, made.values(), made.shape, like
    )


def assign_compressed(out: Tensor, result: Tensor) -> Tensor:
    """Make `out`, dense or compressed, hold `result`."""
    if out.layout == torch.strided:
        if out.shape != result.shape:
            out.resize_(result.shape)
        return out.copy_(result)
    aten.resize_as_sparse_(out, result)
    return out.copy_(result)


@sparse_op("_to_sparse_bsr", key=COMPRESSED)
def to_sparse_bsr(self: Tensor, blocksize: Sequence[int], dense_dim: int | None = None) -> Tensor:
    if self.layout != torch.sparse_csr or self.dim() != 2 or dense_dim:
        return borrowed("aten::_to_sparse_bsr", COMPRESSED)(self, blocksize, dense_dim)
    rows, columns, values = entries(self)
    return _blocked(rows, columns, values, self.shape, blocksize, torch.sparse_bsr)


@sparse_op("_to_sparse_bsc", key=COMPRESSED)
def to_sparse_bsc(self: Tensor, blocksize: Sequence[int], dense_dim: int | None = None) -> Tensor:
    if self.layout != torch.sparse_csc or self.dim() != 2 or dense_dim:
        return borrowed("aten::_to_sparse_bsc", COMPRESSED)(self, blocksize, dense_dim)
    rows, columns, values = entries(self)
    return _blocked(rows, columns, values, self.shape, blocksize, torch.sparse_bsc)


def _blocked(
    rows: Tensor, columns: Tensor, values: Tensor, size: Sequence[int], blocksize: Sequence[int], layout: torch.layout
) -> Tensor:
    """Entries put into blocks: the blocks that have one, sorted by row of blocks (bsc: by column of blocks)."""
    height, width = blocksize
    down, across = rows // height, columns // width
    by_row = layout == torch.sparse_bsr
    line, along = (down, across) if by_row else (across, down)
    lines, alongs = (size[0] // height, size[1] // width) if by_row else (size[1] // width, size[0] // height)
    places, order = (line * max(alongs, 1) + along).sort(stable=True)
    starts, group = groups(differs(places))
    inside = (group * height + (rows % height).index_select(0, order)) * width + (columns % width).index_select(0, order)
    blocks = values.new_zeros(len(starts) * height * width).index_copy_(0, inside, values.index_select(0, order))
    first = places.index_select(0, starts)
    begins = torch.searchsorted(first, torch.arange(lines + 1, device=first.device) * max(alongs, 1))
    return aten._sparse_compressed_tensor_unsafe(
        begins, first % max(alongs, 1), blocks.reshape(len(starts), height, width), list(size), dtype=values.dtype,
        layout=layout, device=values.device,
    )  # fmt: skip
