"""Nested tensors, where a result's shape depends on their offsets."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..padded_nested import from_mask, left_aligned
from .table import host_op

host_op("aten::_nested_tensor_from_mask")(from_mask)
host_op("aten::_nested_tensor_from_mask_left_aligned")(left_aligned)


@host_op("aten::_padded_dense_to_jagged_forward")
def padded_dense_to_jagged(dense: Tensor, offsets: Sequence[Tensor], total_L: int | None = None) -> Tensor:
    """The sequences of `dense` (sequences, longest, ...), one after the other."""
    sequences, longest = dense.shape[:2]
    total = int(offsets[0][-1].item()) if total_L is None else total_L
    if not sequences or not longest:
        return dense.new_zeros(total, *dense.shape[2:])
    what = "_padded_dense_to_jagged_forward():"
    if total_L is not None:
        torch._assert_async(offsets[0][-1] == total_L, f"{what} final offset should match total_L value {total_L}")
    longer = "found batch item longer than max length specified by padded input, which is"
    torch._assert_async((offsets[0].diff() <= longest).all(), f"{what} {longer} {longest}")
    token = torch.arange(total, device=dense.device, dtype=offsets[0].dtype)
    sequence = torch.searchsorted(offsets[0][1:], token, right=True).clamp_max(sequences - 1)
    within = token - offsets[0][sequence]
    rows = dense.flatten(0, 1)[sequence * longest + within.clamp(0, longest - 1)]
    there = (within >= 0) & (within < longest)
    return torch.where(there.view(-1, *[1] * (dense.dim() - 2)), rows, rows.new_zeros(()))
