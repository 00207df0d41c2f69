"""Layer, RMS, group and weight normalization with their gradients, and renorm. Batch norm: batch_norm.py.

Statistics are float32 for half inputs. Gradients follow from y = (x - mean) * rstd * weight + bias: with
h = grad * weight and xhat = (x - mean) * rstd, the gradient of x is rstd * (h - mean(h) - xhat * mean(h * xhat)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax

from .registry import lower
from .widen import asked, widen


@lower("native_layer_norm")
def native_layer_norm(
    input: Array, normalized_shape: Sequence[int], weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    """(output, mean, reciprocal standard deviation) over the last len(normalized_shape) dimensions."""
    x = widen(input)
    axes = _last(x, normalized_shape)
    mean, rstd = moments(x, axes, eps)
    return affine((x - mean) * rstd, weight, bias), mean, rstd


@lower("native_layer_norm_backward")
def native_layer_norm_backward(
    grad_out: Array,
    input: Array,
    normalized_shape: Sequence[int],
    mean: Array,
    rstd: Array,
    weight: Array | None,
    bias: Array | None,
    output_mask: Sequence[bool],
) -> list[Array]:
    x, grad = widen(input), widen(grad_out)
    axes = _last(x, normalized_shape)
    outer = tuple(range(x.ndim - len(axes)))
    rstd = rstd.astype(x.dtype)
    xhat = (x - mean.astype(x.dtype)) * rstd
    hidden = grad if weight is None else grad * widen(weight)
    grad_input = centred_gradient(hidden, xhat, rstd, axes)
    return asked([grad_input, (grad * xhat).sum(outer), grad.sum(outer)], output_mask)


@lower("_fused_rms_norm")
def fused_rms_norm(
    input: Array, normalized_shape: Sequence[int], weight: Array | None, eps: float | None
) -> tuple[Array, Array]:
    """(output, reciprocal root of the mean square)."""
    x = widen(input)
    floor = float(jnp.finfo(x.dtype).eps) if eps is None else eps
    rstd = lax.rsqrt(jnp.mean(x * x, _last(x, normalized_shape), keepdims=True) + floor)
    return affine(x * rstd, weight, None), rstd


@lower("rms_norm")
def rms_norm(
    input: Array, normalized_shape: Sequence[int], weight: Array | None = None, eps: float | None = None
) -> Array:
    return fused_rms_norm(input, normalized_shape, weight, eps)[0]


@lower("_fused_rms_norm_backward")
def fused_rms_norm_backward(
    grad_out: Array,
    input: Array,
    normalized_shape: Sequence[int],
    rstd: Array,
    weight: Array | None,
    output_mask: Sequence[bool],
) -> list[Array]:
    x, grad = widen(input), widen(grad_out)
    axes = _last(x, normalized_shape)
    scale = rstd.astype(x.dtype).reshape(*x.shape[: x.ndim - len(axes)], *[1] * len(axes))
    xhat = x * scale
    hidden = grad if weight is None else grad * widen(weight)
    grad_input = scale * (hidden - xhat * jnp.mean(hidden * xhat, axes, keepdims=True))
    grad_weight = None if weight is None else (grad * xhat).sum(tuple(range(x.ndim - len(axes))))
    return asked([grad_input, grad_weight], output_mask)


@lower("native_group_norm")
def native_group_norm(
    input: Array, weight: Array | None, bias: Array | None, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[Array, Array, Array]:
    """(output, mean (N, group), reciprocal standard deviation (N, group))."""
    x = widen(input).reshape(N, group, C // group, HxW)
    mean, rstd = moments(x, (2, 3), eps)
    out = (x - mean) * rstd
    if weight is not None:
        out = out * widen(weight).reshape(1, group, -1, 1)
    if bias is not None:
        out = out + widen(bias).reshape(1, group, -1, 1)
    return out.reshape(input.shape), mean.reshape(N, group), rstd.reshape(N, group)


@lower("native_group_norm_backward")
def native_group_norm_backward(
    grad_out: Array,
    input: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> list[Array]:
    shape = (N, group, C // group, HxW)
    x, grad = widen(input).reshape(shape), widen(grad_out).reshape(shape)
    scale = rstd.astype(x.dtype).reshape(N, group, 1, 1)
    xhat = (x - mean.astype(x.dtype).reshape(N, group, 1, 1)) * scale
    hidden = grad if weight is None else grad * widen(weight).reshape(1, group, -1, 1)
    grad_input = centred_gradient(hidden, xhat, scale, (2, 3)).reshape(input.shape)
    return asked([grad_input, (grad * xhat).sum((0, 3)).reshape(C), grad.sum((0, 3)).reshape(C)], output_mask)


@lower("_weight_norm_interface")
def weight_norm_interface(v: Array, g: Array, dim: int = 0) -> tuple[Array, Array]:
    """(v * g / norm, norm), the Euclidean norm over all dimensions but `dim`."""
    x = widen(v)
    norms = jnp.sqrt((x * x).sum(_all_but(x, dim), keepdims=True))
    return x * (widen(g) / norms), norms


@lower("_weight_norm_interface_backward")
def weight_norm_interface_backward(
    grad_w: Array, saved_v: Array, saved_g: Array, saved_norms: Array, dim: int
) -> tuple[Array, Array]:
    v, g, norms, grad = (widen(a) for a in (saved_v, saved_g, saved_norms, grad_w))
    along = (grad * v).sum(_all_but(v, dim), keepdims=True)
    return (g / norms) * (grad - v * (along / (norms * norms))), along / norms


@lower("renorm", static=("p",))
def renorm(self: Array, p: float, dim: int, maxnorm: Array | float) -> Array:
    """Shrink each slice along `dim` whose p-norm is more than `maxnorm`; the 1e-7 is PyTorch's guard against 0 / 0."""
    x = widen(self)
    axes = _all_but(x, dim)
    if math.isinf(p):
        norms = jnp.abs(x).max(axes, keepdims=True)
    else:
        norms = (jnp.abs(x) ** p).sum(axes, keepdims=True) ** (1 / p)
    return x * jnp.where(norms > maxnorm, maxnorm / (norms + 1e-7), jnp.ones_like(norms))


def moments(x: Array, axes: Sequence[int], eps: float) -> tuple[Array, Array]:
    """(mean, 1 / sqrt(variance + eps)) over `axes`, which stay as size 1."""
    mean, variance = mean_variance(x, axes)
    return mean, lax.rsqrt(variance + eps)


def mean_variance(x: Array, axes: Sequence[int]) -> tuple[Array, Array]:
    """(mean, biased variance) over `axes`, which stay as size 1; two passes, as x**2 - mean**2 would cancel."""
    mean = jnp.mean(x, tuple(axes), keepdims=True)
    return mean, jnp.mean(jnp.square(x - mean), tuple(axes), keepdims=True)


def affine(x: Array, weight: Array | None, bias: Array | None) -> Array:
    """x * weight + bias, each of which may be missing and broadcasts from the right."""
    if weight is not None:
        x = x * widen(weight)
    return x if bias is None else x + widen(bias)


def centred_gradient(hidden: Array, xhat: Array, rstd: Array, axes: Sequence[int]) -> Array:
    """The gradient through (x - mean(x)) * rstd(x) over `axes` (the formula in this file's first lines)."""
    axes = tuple(axes)
    mean = jnp.mean(hidden, axes, keepdims=True)
    along = jnp.mean(hidden * xhat, axes, keepdims=True)
    return rstd * (hidden - mean - xhat * along)


def _last(x: Array, normalized_shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(range(x.ndim - len(normalized_shape), x.ndim))


def _all_but(x: Array, dim: int) -> tuple[int, ...]:
    return tuple(d for d in range(x.ndim) if d != dim % x.ndim)
