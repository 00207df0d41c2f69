"""The parts that synchronized batch normalization is made of (torch.nn.SyncBatchNorm), statistics alone, and forms
that write running statistics as well as `out=`.

The schemas do not say that running statistics are written, so these are no nodes: they are made of PyTorch's own ops.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .table import host_op, put

aten = torch.ops.aten


@host_op("aten::batch_norm_stats")
def batch_norm_stats(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(mean, 1 / sqrt(variance + eps)) of each channel, in float32 for half inputs."""
    variance, mean = torch.var_mean(_wide(input), _but_channels(input), correction=0)
    return mean, (variance + eps).rsqrt()


@host_op("aten::batch_norm_update_stats")
def batch_norm_update_stats(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, momentum: float
) -> tuple[Tensor, Tensor]:
    """(mean, variance) of each channel; the running ones move towards them, the variance without bias."""
    variance, mean = torch.var_mean(_wide(input), _but_channels(input), correction=0)
    count = input.numel() / input.size(1)
    _move(running_mean, mean, momentum)
    unbiased = count / (count - 1) if count != 1 else float("nan")  # one element has no variance, as on the CPU
    _move(running_var, variance * unbiased, momentum)
    return mean, variance


@host_op("aten::batch_norm_elemt")
def batch_norm_elemt(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> Tensor:
    out = (_wide(input) - _per_channel(mean, input)) * _per_channel(invstd, input)
    if weight is not None:
        out = out * _per_channel(weight, input)
    if bias is not None:
        out = out + _per_channel(bias, input)
    return out.to(input.dtype)


@host_op("aten::batch_norm_gather_stats_with_counts")
def batch_norm_gather_stats_with_counts(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """(mean, 1 / sqrt(variance + eps)) over all processes, of which row r has seen `counts[r]` elements per channel."""
    weights = counts.to(mean.dtype).unsqueeze(1)
    total = weights.sum()
    overall = (mean * weights).sum(0) / total
    spread = invstd.square().reciprocal() - eps + (mean - overall).square()
    variance = (spread * weights).sum(0) / total
    _move(running_mean, overall, momentum)
    _move(running_var, variance * (total / (total - 1)), momentum)
    return overall, (variance + eps).rsqrt()


@host_op("aten::batch_norm_gather_stats")
def batch_norm_gather_stats(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    count: int,
) -> tuple[Tensor, Tensor]:
    counts = mean.new_full((mean.size(0),), count)
    return batch_norm_gather_stats_with_counts(input, mean, invstd, running_mean, running_var, momentum, eps, counts)


@host_op("aten::batch_norm_backward_reduce")
def batch_norm_backward_reduce(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """(sum of dy, sum of dy (x - mean), gradient of the weight, of the bias) per channel, each only if it is wanted."""
    dims, grad = _but_channels(input), _wide(grad_out)
    total = grad.sum(dims)
    product = (grad * (_wide(input) - _per_channel(mean, input))).sum(dims)
    dtype = total.dtype if weight is None else weight.dtype
    return (
        total if input_g else None,
        product if input_g else None,
        (product * invstd).to(dtype) if weight_g else None,
        total.to(dtype) if bias_g else None,
    )


@host_op("aten::batch_norm_backward_elemt")
def batch_norm_backward_elemt(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    """The input's gradient from sums over all processes and their counts."""
    total = count.sum().to(sum_dy.dtype)
    away = _wide(input) - _per_channel(mean, input)
    slope = _per_channel(invstd.square() * sum_dy_xmu / total, input)
    grad = _wide(grad_out) - _per_channel(sum_dy / total, input) - away * slope
    scale = invstd if weight is None else invstd * weight
    return (grad * _per_channel(scale, input)).to(input.dtype)


@host_op("aten::_native_batch_norm_legit.out")
def native_batch_norm_legit_out(*args: Any) -> tuple[Tensor, ...]:
    put(aten._native_batch_norm_legit(*args[:8]), args[8:])
    return args[8:]


@host_op("aten::_batch_norm_with_update.out")
def batch_norm_with_update_out(*args: Any) -> tuple[Tensor, ...]:
    put(aten._batch_norm_with_update(*args[:7]), args[7:])
    return args[7:]


def _but_channels(x: Tensor) -> list[int]:
    return [d for d in range(x.dim()) if d != 1]


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(1, -1, *[1] * (like.dim() - 2))


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _move(running: Tensor | None, to: Tensor, momentum: float) -> None:
    if running is not None:
        running.copy_(running * (1 - momentum) + to * momentum)
