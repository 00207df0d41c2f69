"""CSR, CSC, BSR and BSC tensors taken apart and put together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .coo import aten

BY_ROW = (torch.sparse_csr, torch.sparse_bsr)
BLOCKED = (torch.sparse_bsr, torch.sparse_bsc)


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


def compressed_tensor(
    compressed: Tensor,
    plain: Tensor,
    values: Tensor,
    size: Sequence[int],
    like: Tensor,
    layout: torch.layout | None = None,
) -> Tensor:
    """A tensor laid out as `like`, or in `layout`, unchecked, with indices of the dtype of those of `like`."""
    dtype = pointers(like)[1].dtype
    return aten._sparse_compressed_tensor_unsafe(
        compressed.to(dtype), plain.to(dtype), values, list(size), dtype=values.dtype, layout=layout or like.layout,
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
    return (
        made
        if plain.dtype == pointers(like)[1].dtype
        else compressed_tensor(compressed, plain, made.values(), made.shape, like)
    )
