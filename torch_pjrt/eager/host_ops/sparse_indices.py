"""The indices of compressed sparse tensors, checked: one number from the device says whether all is well."""

from __future__ import annotations

import torch
from torch import Tensor

from .table import host_op

aten = torch.ops.aten


@host_op("aten::_validate_compressed_sparse_indices")
def validate_compressed_sparse_indices(
    is_crow: bool, compressed_idx: Tensor, plain_idx: Tensor, cdim: int, dim: int, nnz: int
) -> None:
    """Raises what the CPU's kernel raises for such indices, in its words."""
    begins = compressed_idx.reshape(-1, cdim + 1)
    plain = plain_idx.reshape(len(begins), nnz)
    counts = begins.diff()
    fine = (begins[:, 0] == 0).all() & (begins[:, -1] == nnz).all() & ((counts >= 0) & (counts <= dim)).all()
    fine &= ((plain >= 0) & (plain < dim)).all()
    if nnz > 1:
        first = torch.zeros(len(begins), nnz + 1, dtype=torch.bool, device=plain.device)
        first = first.scatter_(1, begins.long().clamp(0, nnz), True)[:, 1:-1]
        fine &= (first | (plain.diff() > 0)).all()
    if not bool(fine.item()):
        aten._validate_compressed_sparse_indices(is_crow, compressed_idx.cpu(), plain_idx.cpu(), cdim, dim, nnz)
