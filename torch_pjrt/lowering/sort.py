"""Sorting and what follows from it: topk, order statistics, mode, binary search.

PyTorch's order: nan is the largest value, equal elements keep their order.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .check import require_index
from .dtypes import promote, to_numpy
from .registry import lower

Number = Array | bool | int | float


@lower("sort")
def sort(self: Array, dim: int = -1, descending: bool = False) -> tuple[Array, Array]:
    return _sorted(self, dim, descending)


@lower("sort.stable")
def sort_stable(self: Array, *, stable: bool | None, dim: int = -1, descending: bool = False) -> tuple[Array, Array]:
    return _sorted(self, dim, descending)


@lower("argsort")
def argsort(self: Array, dim: int = -1, descending: bool = False) -> Array:
    return _sorted(self, dim, descending)[1]


@lower("argsort.stable")
def argsort_stable(self: Array, *, stable: bool, dim: int = -1, descending: bool = False) -> Array:
    return _sorted(self, dim, descending)[1]


@lower("msort")
def msort(self: Array) -> Array:
    return jnp.sort(self, axis=0) if self.ndim else self


def _sorted(x: Array, dim: int, descending: bool = False) -> tuple[Array, Array]:
    """(values, int32 indices). Descending is ascending from both ends reversed, which keeps equals in order."""
    if x.ndim == 0:
        return x, jnp.zeros((), np.int32)
    dim = dim % x.ndim
    index = lax.broadcasted_iota(np.int32, x.shape, dim)
    if descending:
        x, index = lax.rev(x, (dim,)), lax.rev(index, (dim,))
    values, index = lax.sort((x, index), dimension=dim, is_stable=True, num_keys=1)
    return (lax.rev(values, (dim,)), lax.rev(index, (dim,))) if descending else (values, index)


@lower("topk")
def topk(self: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Array, Array]:
    """The k first of the descending (or ascending) order; the result is sorted whether asked or not."""
    if self.ndim == 0:
        values, index = topk(self.reshape(1), k, 0, largest)
        return (values.reshape(()), index.reshape(())) if k else (values, index)
    dim = dim % self.ndim
    if k == 0 or self.size == 0:
        shape = (*self.shape[:dim], k, *self.shape[dim + 1 :])
        return jnp.zeros(shape, self.dtype), jnp.zeros(shape, np.int32)
    if self.dtype == np.float32 and largest:
        # XLA has a fast path for float32 here. Its order puts negative nans (x86's default nan) last: drop the sign.
        moved = jnp.moveaxis(jnp.where(self == self, self, jnp.nan), dim, -1)
        values, index = lax.top_k(moved, k)
        return jnp.moveaxis(values, -1, dim), jnp.moveaxis(index, -1, dim)
    values, index = _sorted(self, dim, largest)
    return lax.slice_in_dim(values, 0, k, axis=dim), lax.slice_in_dim(index, 0, k, axis=dim)


@lower("kthvalue")
def kthvalue(self: Array, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    if self.ndim == 0:
        return self, jnp.zeros((), np.int32)
    values, index = _sorted(self, dim)
    return _pick(values, k - 1, dim, keepdim), _pick(index, k - 1, dim, keepdim)


@lower("median.dim")
def median_dim(self: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    """The lower of the two middle values; nan, at its first place, if there is one."""
    if self.ndim == 0:
        return self, jnp.zeros((), np.int32)
    middle = jnp.int32((self.shape[dim] - 1) // 2)
    valid = jnp.sum(self == self, dim, dtype=np.int32, keepdims=True)
    return _at(_sorted(self, dim), jnp.where(valid < self.shape[dim], valid, middle), dim, keepdim)


@lower("nanmedian.dim")
def nanmedian_dim(self: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    if self.ndim == 0:
        return self, jnp.zeros((), np.int32)
    valid = jnp.sum(self == self, dim, dtype=np.int32, keepdims=True)
    return _at(_sorted(self, dim), jnp.maximum(valid - 1, 0) // 2, dim, keepdim)


@lower("median")
def median(self: Array) -> Array:
    return _middle(self, median_dim)


@lower("nanmedian")
def nanmedian(self: Array) -> Array:
    return _middle(self, nanmedian_dim)


def _middle(x: Array, function: Callable[[Array, int], tuple[Array, Array]]) -> Array:
    if x.size == 0:
        return jnp.asarray(jnp.nan if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.iinfo(x.dtype).min, x.dtype)
    return function(x.reshape(-1), 0)[0]


@lower("mode")
def mode(self: Array, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    """The smallest of the most frequent values, at its last place: the last of the longest run once sorted."""
    if self.ndim == 0:
        return self, jnp.zeros((), np.int32)
    dim = dim % self.ndim
    values, index = _sorted(self, dim)
    place = lax.broadcasted_iota(np.int32, self.shape, dim)
    starts = values != jnp.roll(values, 1, dim)
    first = lax.cummax(jnp.where(starts, place, 0), dim)
    longest = lax.argmax(place - first, dim, np.int32)
    return _at((values, index), lax.expand_dims(longest, (dim,)), dim, keepdim)


def _pick(x: Array, at: int, dim: int, keepdim: bool) -> Array:
    return lax.index_in_dim(x, at, dim, keepdims=keepdim)


def _at(sorted_: tuple[Array, Array], place: Array, dim: int, keepdim: bool) -> tuple[Array, Array]:
    """Values and indices at a place that differs from slice to slice."""
    values, index = (jnp.take_along_axis(x, place, dim) for x in sorted_)
    return (values, index) if keepdim else (jnp.squeeze(values, dim), jnp.squeeze(index, dim))


@lower("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    sorted_sequence: Array,
    self: Array | int | float,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Array | None = None,
) -> Array:
    if sorter is not None:
        require_index(sorter, sorted_sequence.shape[-1], wrap=False, what="torch.searchsorted(): sorter index")
        sorted_sequence = jnp.take_along_axis(sorted_sequence, sorter, -1)
    dtype = to_numpy(promote([sorted_sequence, self]))
    sequence, values = sorted_sequence.astype(dtype), jnp.asarray(self).astype(dtype)
    where = "right" if right or side == "right" else "left"
    if values.size == 0:
        return jnp.zeros(values.shape, np.int32)
    if sequence.ndim == 1:
        return jnp.searchsorted(sequence, values, side=where)
    rows, queries = sequence.reshape(-1, sequence.shape[-1]), values.reshape(-1, values.shape[-1])
    found = jnp.vectorize(lambda s, v: jnp.searchsorted(s, v, side=where), signature="(n),(m)->(m)")(rows, queries)
    return found.reshape(values.shape)


@lower("bucketize.Tensor", "bucketize.Scalar")
def bucketize(self: Array | int | float, boundaries: Array, *, out_int32: bool = False, right: bool = False) -> Array:
    return searchsorted(boundaries, self, right=right)


@lower("histc")
def histc(self: Array, bins: int = 100, min: Number = 0, max: Number = 0) -> Array:
    """How many values lie in each of `bins` equal parts of [min, max]; of the data's own range if min equals max.

    The last part includes `max`; values outside, and NaN, are not counted. A range of one value is made two wide.
    """
    dtype = self.dtype if jnp.issubdtype(self.dtype, jnp.floating) else np.dtype(np.float32)
    values = self.reshape(-1).astype(dtype)
    low, high = jnp.asarray(min).astype(dtype), jnp.asarray(max).astype(dtype)
    if values.size:
        whole = low == high
        low, high = jnp.where(whole, values.min(), low), jnp.where(whole, values.max(), high)
    single = low == high
    low, high = jnp.where(single, low - 1, low), jnp.where(single, high + 1, high)
    inside = (values >= low) & (values <= high)
    place = jnp.floor((values - low) / (high - low) * bins)
    place = jnp.where(inside, jnp.minimum(place, bins - 1), 0).astype(np.int32)
    return jnp.zeros(bins, np.int64).at[place].add(inside.astype(np.int64))
