"""scatter, scatter_add, scatter_reduce: `self` updated along one dimension at the positions in an index tensor."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from .index import Index, add_at, position, reduce_at, write
from .registry import lower


@lower("scatter.src")
def scatter(self: Array, dim: int, index: Array, src: Array) -> Array:
    self_, at, src = _located(self, dim, index, src)
    return write(self_, at, src).reshape(self.shape)


@lower("scatter.value")
def scatter_value(self: Array, dim: int, index: Array, value: Array | complex) -> Array:
    return scatter(self, dim, index, jnp.broadcast_to(jnp.asarray(value).astype(self.dtype), index.shape))


@lower("scatter_add")
def scatter_add(self: Array, dim: int, index: Array, src: Array) -> Array:
    self_, at, src = _located(self, dim, index, src)
    return add_at(self_, at, src).reshape(self.shape)


@lower("scatter_reduce.two")
def scatter_reduce(self: Array, dim: int, index: Array, src: Array, reduce: str, *, include_self: bool = True) -> Array:
    self_, at, src = _located(self, dim, index, src)
    if reduce == "sum" and include_self:
        return add_at(self_, at, src).reshape(self.shape)
    return reduce_at(self_, at, src, reduce, include_self).reshape(self.shape)


@lower("scatter.reduce")
def scatter_reduce_legacy(self: Array, dim: int, index: Array, src: Array, *, reduce: str) -> Array:
    return scatter_reduce(self, dim, index, src, {"add": "sum", "multiply": "prod"}[reduce])


@lower("scatter.value_reduce")
def scatter_value_reduce(self: Array, dim: int, index: Array, value: Array | complex, *, reduce: str) -> Array:
    src = jnp.broadcast_to(jnp.asarray(value).astype(self.dtype), index.shape)
    return scatter_reduce_legacy(self, dim, index, src, reduce=reduce)


def _located(self: Array, dim: int, index: Array, src: Array) -> tuple[Array, Index, Array]:
    """(self, where each element of `index` points in it, the part of `src` that goes there), none of them 0-d."""
    self, index, src = (x.reshape(1) if x.ndim == 0 else x for x in (self, index, src))
    dim = dim % self.ndim
    if index.size == 0:
        index = index.reshape((0,) * self.ndim)
    at = tuple(
        position(index, n, wrap=False, dim=dim) if d == dim else lax.broadcasted_iota(jnp.int32, index.shape, d)
        for d, n in enumerate(self.shape)
    )
    return self, at, src[tuple(slice(0, n) for n in index.shape)]
