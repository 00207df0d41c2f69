"""The gradient of embedding bags, dense or sparse."""

from __future__ import annotations

import torch
from torch import Tensor

from .table import host_op

aten = torch.ops.aten


@host_op("aten::_embedding_bag_backward")
def embedding_bag_backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    """Our forward always knows the bag of each index, so what the CPU kernel does more is not needed."""
    if sparse:
        return aten._embedding_bag_sparse_backward(
            grad, indices, offsets, offset2bag, bag_size, num_weights, scale_grad_by_freq, mode, per_sample_weights,
            padding_idx,
        )  # fmt: skip
    return aten._embedding_bag_dense_backward(
        grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, per_sample_weights,
        padding_idx,
    )  # fmt: skip
