"""Nested tensors of the device in the strided layout: PyTorch's own, over a dense buffer on the device.

Their sizes and offsets are CPU tensors, and PyTorch's kernels for nested CPU tensors call other ops on the buffer or on
each of the tensors in it. So those serve the device as they are, but for a few that read memory, which are composed
here. The jagged layout, which PyTorch recommends, is a Python class over dense tensors and needs none of this, but for
attention by PyTorch's formula; its other attention is in `jagged_attention.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from .. import _C
from ..runtime.unwatched import unwatched
from . import padded_nested

KEY, SOURCE = "NestedTensorPrivateUse1", "NestedTensorCPU"
_BORROWED = [
    "_fused_sdp_choice", "_native_multi_head_attention", "_nested_from_padded_and_nested_example",
    "_nested_select_backward", "_nested_tensor_size", "_nested_tensor_softmax_with_shape",
    "_nested_tensor_storage_offsets", "_nested_tensor_strides", "_safe_softmax", "_softmax", "_softmax_backward_data",
    "_to_copy", "abs", "abs_", "add.Tensor", "add_.Tensor", "alias", "all.dim", "bmm",
    "cat", "chunk", "clone", "copy_", "cos", "detach", "div.Scalar", "div.Tensor", "embedding", "empty_like",
    "eq.Scalar", "eq.Tensor", "fill_.Scalar", "fill_.Tensor", "ge.Scalar", "gelu", "gelu_", "gelu_backward",
    "gt.Scalar", "is_same_size", "isinf", "isnan", "isneginf", "isposinf", "linear", "linear_backward", "logical_not",
    "logical_not_", "masked_fill.Scalar", "matmul", "matmul.out", "matmul_backward", "mul.Scalar", "mul.Tensor",
    "mul_.Scalar", "mul_.Tensor", "narrow", "native_dropout", "native_dropout_backward", "neg", "neg_", "normal_",
    "ones_like", "relu", "relu_", "select.int", "sgn", "sgn_", "silu", "silu_", "silu_backward", "sin",
    "split_with_sizes", "sqrt", "squeeze", "squeeze.dim", "squeeze.dims", "sub.Tensor", "tanh", "tanh_",
    "threshold_backward", "transpose.int", "unbind.int", "unsqueeze",
    "value_selecting_reduction_backward", "values", "view", "where.self", "where.self_out", "zero_",
]  # fmt: skip


def native_layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(normalized, means, reciprocal deviations) over the last dimensions, which are the same in all tensors."""
    if weight is None or bias is None:
        raise ValueError("NestedTensor layer_norm requires weight and bias")
    input = padded_nested.packed(input)
    _require_contiguous("layer_norm", input)
    sizes, wanted = input._nested_tensor_size(), torch.tensor(list(normalized_shape))
    if len(normalized_shape) > sizes.shape[-1] or not (sizes[:, -len(normalized_shape) :] == wanted).all():
        raise RuntimeError(
            f"layer_norm: normalized_shape={list(normalized_shape)} must be the last dimensions of every tensor, the "
            f"sizes are {sizes.tolist()}"
        )
    rows = input.values().view(-1, *normalized_shape)
    out, mean, rstd = torch.native_layer_norm(rows, normalized_shape, weight, bias, eps)
    return _like(input, out), mean.view(-1), rstd.view(-1)


def native_layer_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of the input, the weight and the bias."""
    rows = [t.contiguous().values().view(-1, *normalized_shape) for t in (grad_out, input)]
    ones = [1] * len(normalized_shape)
    statistics = [t.view(-1, *ones) for t in (mean, rstd)]
    grad, *others = torch.ops.aten.native_layer_norm_backward(
        *rows, normalized_shape, *statistics, weight, bias, output_mask
    )
    return grad if grad is None else _like(input, grad), *others


def sum_dim(
    self: Tensor, dim: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """The sum over the last dimension, which is kept, as in PyTorch's kernel."""
    self = padded_nested.packed(self)
    _require_contiguous("sum", self)
    if dtype is not None or self.is_complex():
        raise RuntimeError("sum of a nested tensor of the strided layout takes no dtype and no complex numbers")
    if dim is None or len(dim) != 1 or dim[0] not in (-1, self.dim() - 1) or not keepdim:
        raise RuntimeError(
            f"sum of a nested tensor of the strided layout goes over its last dimension with keepdim=True, got "
            f"dim={dim}, keepdim={keepdim}"
        )
    return torch._nested_tensor_from_tensor_list([t.sum(-1, keepdim=True) for t in self.unbind()])


def nested_sum_backward(grad: Tensor, self: Tensor, dim: Sequence[int] | None, keepdim: bool = False) -> Tensor:
    """The gradient of `sum_dim`."""
    parts = [g.expand_as(t) for g, t in zip(grad.unbind(), self.unbind(), strict=True)]
    return torch._nested_tensor_from_tensor_list(parts)


def transform_bias_rescale_qkv(qkv: Tensor, qkv_bias: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value (B, heads, longest, D / heads), the query times sqrt(heads / D), of padded `qkv`."""
    return torch._transform_bias_rescale_qkv(qkv.to_padded_tensor(0.0), qkv_bias, num_heads)


def _require_contiguous(what: str, nested: Tensor) -> None:
    if not nested.is_contiguous():
        raise RuntimeError(f"{what} of a nested tensor of the strided layout: it must be contiguous")


def _like(nested: Tensor, values: Tensor) -> Tensor:
    """A nested tensor of these values with another's sizes."""
    nested = nested.contiguous()
    described = (nested._nested_tensor_size(), nested._nested_tensor_strides(), nested._nested_tensor_storage_offsets())
    return torch._nested_view_from_buffer(values.reshape(-1), *described)


_COMPOSED: dict[str, Callable[..., Any]] = {
    "native_layer_norm": native_layer_norm,
    "native_layer_norm_backward": native_layer_norm_backward,
    "sum.dim_IntList": sum_dim,
    "_nested_sum_backward": nested_sum_backward,
    "_transform_bias_rescale_qkv": transform_bias_rescale_qkv,
    **padded_nested.KERNELS,
}
_LIBRARIES: list[Library] = []


def take_in_nested_tensors() -> None:
    """Register the kernels."""
    for name in _BORROWED:
        base, _, overload = name.partition(".")
        _C.borrow_kernel(f"aten::{base}", overload, SOURCE, KEY)
    library = Library("aten", "IMPL")
    _LIBRARIES.append(library)
    for name, kernel in _COMPOSED.items():
        library.impl(f"aten::{name}", unwatched(kernel), KEY)
