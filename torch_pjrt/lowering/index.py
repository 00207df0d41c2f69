"""Indexing by tensors: gather and index_* reads, index_put and its kin, masks.

Indices are checked on the side (`check.require_index`) and then taken for valid (`promise_in_bounds`: no clamping or
dropping code in the program); negative ones count from the end where PyTorch lets them. Positions travel as int32 where
the dimension allows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from .check import require, require_index
from .dtypes import opmath, to_numpy, to_torch
from .registry import lower

_IN_BOUNDS = "promise_in_bounds"
Index = Any  # what JAX accepts between [ ]: a tuple of slices and integer arrays


@lower("gather")
def gather(self: Array, dim: int, index: Array, *, sparse_grad: bool = False) -> Array:
    if index.ndim == 0:
        return gather(self, dim, index.reshape(1)).reshape(())
    self = self.reshape(1) if self.ndim == 0 else self
    dim = dim % self.ndim
    region = tuple(slice(None) if d == dim else slice(0, n) for d, n in enumerate(index.shape))
    at = position(index, self.shape[dim], dim=dim, wrap=False)
    return jnp.take_along_axis(self[region], at, dim, mode=_IN_BOUNDS)


@lower("index_select")
def index_select(self: Array, dim: int, index: Array) -> Array:
    if self.ndim == 0:
        require_index(index, 1, wrap=False)
        return self
    return read(self, _along(self, dim, index.reshape(-1), wrap=False))


@lower("take")
def take(self: Array, index: Array) -> Array:
    return read(self.reshape(-1), (position(index, self.size),))


@lower("index.Tensor", "_unsafe_index.Tensor")
def index_tensor(self: Array, indices: Sequence[Array | None]) -> Array:
    return read(self, advanced(self, indices))


@lower("index_put", "_unsafe_index_put")
def index_put(self: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False) -> Array:
    masks = [i for i in indices if i is not None and i.dtype in (jnp.bool_, jnp.uint8)]
    if masks:
        if len([i for i in indices if i is not None]) > 1:
            raise NotImplementedError("index_put with a mask beside another index: its shape depends on data")
        return _masked_put(self, indices, values, accumulate)
    at = advanced(self, indices)
    return add_at(self, at, values) if accumulate else write(self, at, values)


@lower("_index_put_impl_")
def index_put_impl(
    self: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False, unsafe: bool = False
) -> Array:
    return index_put(self, indices, values, accumulate)


@lower("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(self: Array, dim: int, index: Array, value: Array | complex) -> Array:
    if self.ndim == 0:
        require_index(index, 1, wrap=True)
        return jnp.asarray(value).astype(self.dtype) if index.size else self
    return write(self, _along(self, dim, index.reshape(-1)), jnp.asarray(value))


@lower("index_copy")
def index_copy(self: Array, dim: int, index: Array, source: Array) -> Array:
    if self.ndim == 0:
        require_index(index, 1, wrap=False)
        return source.reshape(()) if index.size else self
    return write(self, _along(self, dim, index.reshape(-1), wrap=False), source)


@lower("index_add")
def index_add(self: Array, dim: int, index: Array, source: Array, *, alpha: Array | complex = 1) -> Array:
    if not isinstance(alpha, (int, float)) or alpha != 1:
        source = source * jnp.asarray(alpha).astype(source.dtype)
    if self.ndim == 0:
        return add_at(self.reshape(1), (position(index.reshape(-1), 1),), source.reshape(-1)).reshape(())
    return add_at(self, _along(self, dim, index.reshape(-1), wrap=False), source)


@lower("index_reduce")
def index_reduce(
    self: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True
) -> Array:
    if self.ndim == 0:
        return reduce_at(self.reshape(1), (index.reshape(-1),), source.reshape(-1), reduce, include_self).reshape(())
    at = _along(self, dim, index.reshape(-1), wrap=False)
    return reduce_at(self, at, source, reduce, include_self)


@lower("put")
def put(self: Array, index: Array, source: Array, accumulate: bool = False) -> Array:
    at = (position(index.reshape(-1), self.size),)
    update = add_at if accumulate else write
    return update(self.reshape(-1), at, source.reshape(-1)).reshape(self.shape)


@lower("masked_scatter")
def masked_scatter(self: Array, mask: Array, source: Array) -> Array:
    """The i-th True of the mask takes the i-th element of `source`."""
    require(mask.sum() <= source.size, "masked_scatter: the source has fewer elements than the mask has True")
    shape = jnp.broadcast_shapes(self.shape, mask.shape)
    self, mask = jnp.broadcast_to(self, shape), jnp.broadcast_to(mask, shape)
    if not source.size or not self.size:
        return self
    taken = read(source.reshape(-1), (_rank_of_true(mask, source.size),))
    return jnp.where(mask, taken.astype(self.dtype), self)


@lower("masked_scatter_backward")
def masked_scatter_backward(grad_output: Array, mask: Array, sizes: Sequence[int]) -> Array:
    """The gradients under the mask, packed to the front of a zero tensor of `sizes`."""
    mask = jnp.broadcast_to(mask, grad_output.shape).reshape(-1)
    n = math.prod(sizes)
    to = jnp.where(mask, jnp.cumsum(mask, dtype=jnp.int64) - 1, n)
    flat = jnp.zeros((n,), grad_output.dtype).at[to].set(grad_output.reshape(-1), mode="drop")
    return flat.reshape(tuple(sizes))


@lower("nonzero_static")
def nonzero_static(self: Array, *, size: int, fill_value: int = -1) -> Array:
    if self.ndim == 0:
        return jnp.zeros((size, 0), jnp.int64)
    if self.size == 0:  # jnp.nonzero fills with 0 here
        return jnp.full((size, self.ndim), fill_value, jnp.int64)
    return jnp.stack(jnp.nonzero(self, size=size, fill_value=fill_value), axis=1)


def position(index: Array, n: int, *, wrap: bool = True, dim: int | None = None) -> Array:
    """An index tensor as positions in a dimension of length n: int32 if they fit, negative ones from the end."""
    require_index(index, n, wrap=wrap, dim=dim)
    index = index.astype(jnp.int32 if n < 2**31 else jnp.int64)
    return jnp.where(index < 0, index + n, index) if wrap else index


def advanced(x: Array, indices: Sequence[Array | None]) -> Index:
    """PyTorch's `Tensor?[]` of integer tensors as JAX's (that is, numpy's) tuple of indices."""
    return tuple(slice(None) if i is None else position(i, x.shape[d], dim=d) for d, i in enumerate(indices))


def read(x: Array, at: Index) -> Array:
    """The elements at `at`; zeros where an index into a dimension of none stands, which is found to be out of range."""
    if 0 in x.shape:
        places = at if isinstance(at, tuple) else (at,)
        none = {d for d, i in enumerate(places) if not isinstance(i, slice) and x.shape[d] == 0}
        x = jnp.pad(x, [(0, int(d in none)) for d in range(x.ndim)])
        at = tuple(jnp.zeros_like(i) if d in none else i for d, i in enumerate(places))
    return x.at[at].get(mode=_IN_BOUNDS, wrap_negative_indices=False)


def write(x: Array, at: Index, values: Array) -> Array:
    return x.at[at].set(values.astype(x.dtype), mode=_IN_BOUNDS, wrap_negative_indices=False)


def add_at(x: Array, at: Index, values: Array) -> Array:
    """`x` with `values` added at positions that may repeat; half types add up in float32, bool by or."""
    if x.dtype == jnp.bool_:
        return x.at[at].max(values.astype(x.dtype), mode=_IN_BOUNDS, wrap_negative_indices=False)
    dtype = to_numpy(opmath(to_torch(x.dtype)))
    total = x.astype(dtype).at[at].add(values.astype(dtype), mode=_IN_BOUNDS, wrap_negative_indices=False)
    return total.astype(x.dtype)


def reduce_at(x: Array, at: Index, values: Array, reduce: str, include_self: bool) -> Array:
    """`x` reduced with `values` at positions that may repeat: "sum", "prod", "mean", "amax" or "amin".

    Without `include_self` a position that gets any value forgets its old one; the others keep theirs.
    """
    dtype = to_numpy(opmath(to_torch(x.dtype))) if x.dtype != jnp.bool_ else jnp.int32
    options: dict[str, Any] = {"mode": _IN_BOUNDS, "wrap_negative_indices": False}
    start = x.astype(dtype)
    if not include_self:
        touched = jnp.zeros(x.shape, jnp.bool_).at[at].set(True, **options)
        start = jnp.where(touched, jnp.asarray(_identity(reduce, start.dtype), dtype), start)
    updates: dict[str, Callable[..., Array]] = {
        "sum": start.at[at].add,
        "mean": start.at[at].add,
        "prod": start.at[at].multiply,
        "amax": start.at[at].max,
        "amin": start.at[at].min,
    }
    total = updates[reduce](values.astype(dtype), **options)
    if reduce != "mean":
        return total.astype(x.dtype)
    count = jnp.full(x.shape, int(include_self), jnp.int32).at[at].add(1, **options)
    count = jnp.maximum(count, 1).astype(dtype)
    return (total // count if jnp.issubdtype(dtype, jnp.integer) else total / count).astype(x.dtype)


def _identity(reduce: str, dtype: Any) -> complex:
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    if jnp.issubdtype(dtype, jnp.floating):
        return -math.inf if reduce == "amax" else math.inf
    limits = jnp.iinfo(dtype)
    return int(limits.min if reduce == "amax" else limits.max)


def _along(x: Array, dim: int, index: Array, *, wrap: bool = True) -> Index:
    dim = dim % x.ndim
    return (slice(None),) * dim + (position(index, x.shape[dim], dim=dim, wrap=wrap),)


def _rank_of_true(mask: Array, n: int) -> Array:
    """For each element of the mask, how many True come before it (kept below n)."""
    rank = jnp.cumsum(mask.reshape(-1), dtype=jnp.int32 if mask.size < 2**31 else jnp.int64) - 1
    return jnp.clip(rank, 0, n - 1).reshape(mask.shape)


def _masked_put(self: Array, indices: Sequence[Array | None], values: Array, accumulate: bool) -> Array:
    """`self[:, mask] = values` by selection: nothing moves, so no shape depends on the mask's content."""
    before, mask = next((d, i) for d, i in enumerate(indices) if i is not None)
    mask = mask.astype(jnp.bool_)
    if self.size == 0 or values.size == 0:
        return self
    after = self.ndim - before - mask.ndim
    values = values.astype(self.dtype)
    values = values.reshape((1,) * (before + 1 + after - values.ndim) + values.shape)
    if values.shape[before] > 1:  # one value per True, in order
        values = read(values, (slice(None),) * before + (_rank_of_true(mask, values.shape[before]),))
    else:
        values = values.reshape(values.shape[:before] + (1,) * mask.ndim + values.shape[before + 1 :])
    selected = lax.expand_dims(mask, range(mask.ndim, mask.ndim + after))
    if accumulate:
        values = self | values if self.dtype == jnp.bool_ else self + values
    return jnp.where(selected, values, self)
