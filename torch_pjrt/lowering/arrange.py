"""Ops that put elements in other places without arithmetic: concatenation, repetition, reversal, rolls, padding."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax

from .dtypes import promote, to_numpy
from .registry import lower


@lower("cat", "concat")
def cat(tensors: Sequence[Array], dim: int = 0) -> Array:
    dtype = to_numpy(promote(tensors))
    # PyTorch's old empty tensors, of shape (0,), go with any shape.
    parts = [t.astype(dtype) for t in tensors if t.shape != (0,)]
    if not parts:
        return jnp.zeros((0,), dtype)
    return lax.concatenate(parts, dim % parts[0].ndim) if len(parts) > 1 else parts[0]


@lower("stack", "_stack")
def stack(tensors: Sequence[Array], dim: int = 0) -> Array:
    dtype = to_numpy(promote(tensors))
    dim = dim % (tensors[0].ndim + 1)
    return lax.concatenate([lax.expand_dims(t.astype(dtype), [dim]) for t in tensors], dim)


@lower("block_diag")
def block_diag(tensors: Sequence[Array]) -> Array:
    dtype = to_numpy(promote(tensors))
    blocks = [jnp.atleast_2d(t.astype(dtype)) for t in tensors]
    columns, left, rows = sum(b.shape[1] for b in blocks), 0, []
    for b in blocks:
        rows.append(lax.pad(b, jnp.zeros((), dtype), [(0, 0, 0), (left, columns - left - b.shape[1], 0)]))
        left += b.shape[1]
    return lax.concatenate(rows, 0)


@lower("repeat")
def repeat(self: Array, repeats: Sequence[int]) -> Array:
    return jnp.tile(self, tuple(repeats))


@lower("repeat_interleave.self_int")
def repeat_interleave_int(
    self: Array, repeats: int, dim: int | None = None, *, output_size: int | None = None
) -> Array:
    x, axis = (self.reshape(-1), 0) if dim is None else (self, dim % self.ndim)
    wide = jnp.broadcast_to(lax.expand_dims(x, [axis + 1]), (*x.shape[: axis + 1], repeats, *x.shape[axis + 1 :]))
    return wide.reshape(*x.shape[:axis], x.shape[axis] * repeats, *x.shape[axis + 1 :])


@lower("repeat_interleave.Tensor")
def repeat_interleave(repeats: Array, *, output_size: int | None = None) -> Array:
    """Index i, repeats[i] times; `output_size` must be known, for XLA's shapes are static."""
    if output_size is None:
        raise NotImplementedError("repeat_interleave.Tensor needs output_size=: its result's length depends on data")
    ends = jnp.cumsum(repeats, dtype=jnp.int64)
    return jnp.searchsorted(ends, jnp.arange(output_size, dtype=jnp.int64), side="right")


@lower("flip")
def flip(self: Array, dims: Sequence[int]) -> Array:
    return lax.rev(self, sorted({d % self.ndim for d in dims})) if self.ndim else self


@lower("roll")
def roll(self: Array, shifts: int | Sequence[int], dims: int | Sequence[int] = ()) -> Array:
    shift_list = [shifts] if isinstance(shifts, int) else list(shifts)
    dim_list = [dims] if isinstance(dims, int) else list(dims)
    if self.size == 0:
        return self
    if not dim_list:
        return roll(self.reshape(-1), shift_list, [0]).reshape(self.shape)
    for shift, dim in zip(shift_list, dim_list, strict=True):
        n = self.shape[dim]
        if cut := -shift % n:
            tail, head = lax.slice_in_dim(self, cut, n, axis=dim), lax.slice_in_dim(self, 0, cut, axis=dim)
            self = lax.concatenate([tail, head], dim % self.ndim)
    return self


@lower("rot90")
def rot90(self: Array, k: int = 1, dims: Sequence[int] = (0, 1)) -> Array:
    first, second = (d % self.ndim for d in dims)
    match k % 4:
        case 0:
            return self
        case 1:
            return jnp.swapaxes(lax.rev(self, [second]), first, second)
        case 2:
            return lax.rev(self, [first, second])
        case _:
            return lax.rev(jnp.swapaxes(self, first, second), [second])


@lower("constant_pad_nd")
def constant_pad_nd(self: Array, pad: Sequence[int], value: Array | complex = 0) -> Array:
    """`pad` has (low, high) of the last dimension first; a negative width crops."""
    config = [(0, 0, 0)] * self.ndim
    for i in range(len(pad) // 2):
        config[self.ndim - 1 - i] = (pad[2 * i], pad[2 * i + 1], 0)
    return lax.pad(self, jnp.asarray(value).astype(self.dtype), config)


@lower("tril")
def tril(self: Array, diagonal: int = 0) -> Array:
    return jnp.where(_column_minus_row(self) <= diagonal, self, jnp.zeros((), self.dtype))


@lower("triu")
def triu(self: Array, diagonal: int = 0) -> Array:
    return jnp.where(_column_minus_row(self) >= diagonal, self, jnp.zeros((), self.dtype))


def _column_minus_row(x: Array) -> Array:
    shape = x.shape[-2:]
    return lax.broadcasted_iota(jnp.int32, shape, 1) - lax.broadcasted_iota(jnp.int32, shape, 0)
