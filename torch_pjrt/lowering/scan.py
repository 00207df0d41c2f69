"""Cumulative sums, products, extrema and log-sum-exps along one dimension."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from .apply import cast
from .binary import logaddexp
from .dtypes import to_numpy
from .reduce import total_dtype
from .registry import lower
from .widen import widen


@lower("cumsum")
def cumsum(self: Array, dim: int, *, dtype: torch.dtype | None = None) -> Array:
    x = self if dtype is None else cast(self, to_numpy(dtype))
    x = x.astype(total_dtype(x, dtype))
    return lax.cumsum(x, dim % x.ndim) if x.ndim else x


@lower("cumprod")
def cumprod(self: Array, dim: int, *, dtype: torch.dtype | None = None) -> Array:
    x = self if dtype is None else cast(self, to_numpy(dtype))
    x = x.astype(total_dtype(x, dtype))
    return lax.cumprod(x, dim % x.ndim) if x.ndim else x


@lower("logcumsumexp", "_logcumsumexp")
def logcumsumexp(self: Array, dim: int) -> Array:
    x = widen(self)
    if x.ndim == 0:
        return x
    if jnp.iscomplexobj(x):
        # The CPU's sum begins with -inf + 0j: what is infinitely small says nothing of the phase.
        nowhere = jnp.where(jnp.isnan(x), complex(jnp.nan, jnp.nan), -jnp.inf)
        x = jnp.where(jnp.isnan(x) | jnp.isneginf(x.real), nowhere, x)
        return lax.associative_scan(lambda so_far, x: logaddexp(x, so_far), x, axis=dim % x.ndim)
    return lax.cumlogsumexp(x, dim % x.ndim)


@lower("cummax")
def cummax(self: Array, dim: int) -> tuple[Array, Array]:
    return _running(self, dim, largest=True)


@lower("cummin")
def cummin(self: Array, dim: int) -> tuple[Array, Array]:
    return _running(self, dim, largest=False)


@lower("_cummax_helper", write_only=["values", "indices"])
def cummax_helper(self: Array, values: Array, indices: Array, dim: int) -> tuple[Array, Array]:
    return cummax(self, dim)


@lower("_cummin_helper", write_only=["values", "indices"])
def cummin_helper(self: Array, values: Array, indices: Array, dim: int) -> tuple[Array, Array]:
    return cummin(self, dim)


def _running(x: Array, dim: int, *, largest: bool) -> tuple[Array, Array]:
    """(the extremum so far, its last index); from the first nan on, the last nan so far."""
    if x.ndim == 0 or x.size == 0:
        return x, jnp.zeros(x.shape, np.int32)
    dim = dim % x.ndim

    def later(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
        beats = b[0] >= a[0] if largest else b[0] <= a[0]
        chosen = (b[0] != b[0]) | ((a[0] == a[0]) & beats)
        return jnp.where(chosen, b[0], a[0]), jnp.where(chosen, b[1], a[1])

    values, indices = lax.associative_scan(later, (x, lax.broadcasted_iota(np.int32, x.shape, dim)), axis=dim)
    return values, indices
