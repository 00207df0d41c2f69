"""Reductions over dimensions: sums, means, extrema, any / all, variances, norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from .apply import cast
from .dtypes import opmath, to_numpy, to_torch
from .registry import lower
from .widen import widen

Dims = int | Sequence[int] | None


def axes(x: Array, dim: Dims) -> tuple[int, ...]:
    """The dimensions to reduce: none or an empty list means all of them; those of a 0-d tensor are none."""
    if dim is None:
        return tuple(range(x.ndim))
    dims = [dim] if isinstance(dim, int) else list(dim)
    if x.ndim == 0:
        return ()
    return tuple(sorted(d % x.ndim for d in dims)) or tuple(range(x.ndim))


def total_dtype(x: Array, dtype: torch.dtype | None) -> np.dtype:
    """What a sum or product adds up in: int64 for integers, float32 for half types."""
    kind = dtype or to_torch(x.dtype)
    if dtype is None and not (kind.is_floating_point or kind.is_complex):
        kind = torch.int64
    return to_numpy(opmath(kind))


def _in_dtype(x: Array, dtype: torch.dtype | None) -> Array:
    """A `dtype=` argument casts the input before anything is added up."""
    return x if dtype is None else cast(x, to_numpy(dtype))


@lower("sum")
def sum_all(self: Array, *, dtype: torch.dtype | None = None) -> Array:
    return sum_dim(self, None, dtype=dtype)


@lower("sum.dim_IntList")
def sum_dim(self: Array, dim: Dims, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Array:
    x = _in_dtype(self, dtype)
    return jnp.sum(x, axes(x, dim), dtype=total_dtype(x, dtype), keepdims=keepdim)


@lower("nansum")
def nansum(self: Array, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Array:
    return sum_dim(jnp.where(self == self, self, 0), dim, keepdim, dtype=dtype)


@lower("mean")
def mean_all(self: Array, *, dtype: torch.dtype | None = None) -> Array:
    return mean_dim(self, None, dtype=dtype)


@lower("mean.dim")
def mean_dim(self: Array, dim: Dims, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Array:
    return sum_dim(self, dim, keepdim, dtype=dtype) / _count(self, axes(self, dim))


@lower("prod")
def prod_all(self: Array, *, dtype: torch.dtype | None = None) -> Array:
    x = _in_dtype(self, dtype)
    return jnp.prod(x, dtype=total_dtype(x, dtype))


@lower("prod.dim_int")
def prod_dim(self: Array, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Array:
    x = _in_dtype(self, dtype)
    return jnp.prod(x, axes(x, dim), dtype=total_dtype(x, dtype), keepdims=keepdim)


@lower("amax")
def amax(self: Array, dim: Dims = (), keepdim: bool = False) -> Array:
    return jnp.max(self, axes(self, dim), keepdims=keepdim)


@lower("amin")
def amin(self: Array, dim: Dims = (), keepdim: bool = False) -> Array:
    return jnp.min(self, axes(self, dim), keepdims=keepdim)


@lower("hash_tensor")
def hash_tensor(self: Array, dim: Dims = (), keepdim: bool = False, mode: int = 0) -> Array:
    """The exclusive or of the elements' bits as float64 or int64 (mode 0, PyTorch's only one)."""
    wide = self.astype(np.float64 if jnp.issubdtype(self.dtype, jnp.floating) else np.int64)
    over = axes(self, dim)
    bits = lax.reduce(lax.bitcast_convert_type(wide, np.uint64), np.uint64(0), lax.bitwise_xor, over)
    return jnp.expand_dims(bits, over) if keepdim else bits


@lower("aminmax", "_aminmax", "_aminmax.dim")
def aminmax(self: Array, dim: int | None = None, keepdim: bool = False) -> tuple[Array, Array]:
    return amin(self, dim, keepdim), amax(self, dim, keepdim)


@lower("max")
def max_all(self: Array) -> Array:
    return jnp.max(self)


@lower("min")
def min_all(self: Array) -> Array:
    return jnp.min(self)


@lower("max.dim")
def max_dim(self: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    return amax(self, dim, keepdim), argmax(self, dim, keepdim)


@lower("min.dim")
def min_dim(self: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    return amin(self, dim, keepdim), argmin(self, dim, keepdim)


@lower("argmax")
def argmax(self: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    return _arg(lax.argmax, self, dim, keepdim)


@lower("argmin")
def argmin(self: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    return _arg(lax.argmin, self, dim, keepdim)


def _arg(function: Callable[..., Array], x: Array, dim: int | None, keepdim: bool) -> Array:
    """The first index of the extremum, or of the first nan. int32 while it fits: chips have no fast int64."""
    if x.ndim == 0:
        return jnp.zeros((), np.int32)
    if x.dtype == np.bool_:
        x = x.astype(np.uint8)
    flat = x.reshape(-1) if dim is None else x
    axis = 0 if dim is None else dim % x.ndim
    index = function(flat, axis, np.int32 if flat.shape[axis] < 2**31 else np.int64)
    if not keepdim:
        return index
    return index.reshape((1,) * x.ndim) if dim is None else lax.expand_dims(index, (axis,))


@lower("any", "any.dim", "any.dims")
def any_dim(self: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    return jnp.any(self != 0, _logical_axes(self, dim), keepdims=keepdim)


@lower("all", "all.dim", "all.dims")
def all_dim(self: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    return jnp.all(self != 0, _logical_axes(self, dim), keepdims=keepdim)


def _logical_axes(x: Array, dim: Dims) -> tuple[int, ...]:
    """As `axes`, but an empty list reduces nothing."""
    return () if isinstance(dim, Sequence) and not dim else axes(x, dim)


@lower("count_nonzero", "count_nonzero.dim_IntList")
def count_nonzero(self: Array, dim: Dims = None) -> Array:
    return jnp.sum(self != 0, axes(self, dim), dtype=np.int64)


@lower("logsumexp")
def logsumexp(self: Array, dim: Dims, keepdim: bool = False) -> Array:
    x = widen(self) if jnp.issubdtype(self.dtype, jnp.inexact) else self.astype(to_numpy(torch.get_default_dtype()))
    reduced = axes(x, dim)
    if math.prod(x.shape[d] for d in reduced) == 0:
        return jnp.full_like(jnp.sum(x, reduced, keepdims=keepdim), -jnp.inf)
    top = jnp.max(x.real, reduced, keepdims=True)
    top = jnp.where(jnp.isfinite(top), top, 0)
    total = jnp.log(jnp.sum(jnp.exp(x - top), reduced, keepdims=True)) + top
    return total if keepdim else lax.squeeze(total, reduced)


def _count(x: Array, reduced: Sequence[int]) -> int:
    return math.prod(x.shape[d] for d in reduced)


@lower("var.correction", static=["correction"])
def var(self: Array, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Array:
    return var_mean(self, dim, correction=correction, keepdim=keepdim)[0]


@lower("std.correction", static=["correction"])
def std(self: Array, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Array:
    return jnp.sqrt(var(self, dim, correction=correction, keepdim=keepdim))


@lower("var_mean.correction", static=["correction"])
def var_mean(
    self: Array, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Array, Array]:
    """In two passes (mean, then squared distances from it), which cancels nothing; a complex variance is real."""
    x = widen(self)
    reduced = axes(x, dim)
    count = _count(x, reduced)
    mean = jnp.sum(x, reduced, keepdims=True) / count
    centred = x - mean
    squares = centred.real**2 + centred.imag**2 if jnp.iscomplexobj(x) else centred * centred
    total = jnp.sum(squares, reduced, keepdims=True)
    # Of nothing it is nan, whatever the correction.
    variance = total / (max(0.0, count - (1.0 if correction is None else correction)) if count else 0.0)
    return (variance, mean) if keepdim else (lax.squeeze(variance, reduced), lax.squeeze(mean, reduced))


@lower("std_mean.correction", static=["correction"])
def std_mean(
    self: Array, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Array, Array]:
    variance, mean = var_mean(self, dim, correction=correction, keepdim=keepdim)
    return jnp.sqrt(variance), mean


@lower("linalg_vector_norm", static=["ord"])
def linalg_vector_norm(
    self: Array, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Array:
    x = widen(_in_dtype(self, dtype))
    reduced = axes(x, dim)
    size = jnp.abs(x)
    if ord == 0:
        return jnp.sum(x != 0, reduced, dtype=size.dtype, keepdims=keepdim)
    if math.isinf(ord):
        if _count(x, reduced) == 0:
            return jnp.sum(size, reduced, keepdims=keepdim)
        return (jnp.max if ord > 0 else jnp.min)(size, reduced, keepdims=keepdim)
    if ord == 1:
        return jnp.sum(size, reduced, keepdims=keepdim)
    if ord == 2:
        squares = x.real**2 + x.imag**2 if jnp.iscomplexobj(x) else x * x
        return jnp.sqrt(jnp.sum(squares, reduced, keepdims=keepdim))
    return jnp.sum(size**ord, reduced, keepdims=keepdim) ** (1.0 / ord)


@lower("norm.Scalar", static=["p"])
def norm(self: Array, p: float = 2) -> Array:
    return linalg_vector_norm(self, p)


@lower("norm.ScalarOpt_dtype", static=["p"])
def norm_dtype(self: Array, p: float | None, *, dtype: torch.dtype) -> Array:
    return linalg_vector_norm(self, 2 if p is None else p, dtype=dtype)


@lower("norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype", static=["p"])
def norm_dim(
    self: Array, p: float | None, dim: Dims, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Array:
    return linalg_vector_norm(self, 2 if p is None else p, dim, keepdim, dtype=dtype)


@lower("dist", static=["p"])
def dist(self: Array, other: Array, p: float = 2) -> Array:
    return linalg_vector_norm(widen(self) - widen(other), p)
