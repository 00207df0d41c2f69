"""Views (as FX graphs record them), their copies, their backwards and their scatters.

A view is its logical result here; who shares whose storage is the recorder's business. Nothing in this file gathers
where a slice, a reshape, a pad or a transposition says the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
import torch
from jax import Array, lax

from .dtypes import opmath, to_numpy, to_torch
from .registry import lower
from .view_dtype import seen_as

# Up to this many windows are written as slices (or pads) side by side; beyond, one gather (or scatter) compiles faster.
_UNROLLED_WINDOWS = 16


@lower(
    "alias", "alias_copy", "detach", "detach_copy", "lift", "lift_fresh", "lift_fresh_copy", "resolve_conj",
    "resolve_neg",
)  # fmt: skip
def identity(self: Array) -> Array:
    return self


@lower("_conj", "_conj_copy", "_conj_physical")
def conjugate(self: Array) -> Array:
    return jnp.conj(self)


@lower("_neg_view", "_neg_view_copy")
def negative(self: Array) -> Array:
    return -self


@lower("view", "view_copy", "_unsafe_view", "_reshape_copy")
def view(self: Array, size: Sequence[int]) -> Array:
    if -1 in size and self.size == 0:
        known = math.prod(s for s in size if s != -1)
        size = [0 if s == -1 and known else s for s in size]
    return lax.reshape(self, tuple(size)) if -1 not in size else self.reshape(tuple(size))


@lower("reshape")
def reshape(self: Array, shape: Sequence[int]) -> Array:
    return view(self, shape)


@lower("_reshape_alias", "_reshape_alias_copy")
def reshape_alias(self: Array, size: Sequence[int], stride: Sequence[int]) -> Array:
    return view(self, size)


@lower("view.dtype", "view_copy.dtype")
def view_dtype(self: Array, dtype: torch.dtype) -> Array:
    """Reinterpret the bytes; the last dimension grows or shrinks with the ratio of the element sizes."""
    return seen_as(self, to_torch(self.dtype), dtype)


@lower("view_as_real", "view_as_real_copy")
def view_as_real(self: Array) -> Array:
    return jnp.stack([self.real, self.imag], axis=-1)


@lower("view_as_complex", "view_as_complex_copy")
def view_as_complex(self: Array) -> Array:
    pairs = self.astype(jnp.promote_types(self.dtype, jnp.float32))  # complex32 is computed in complex64
    return lax.complex(pairs[..., 0], pairs[..., 1])


@lower("permute", "permute_copy")
def permute(self: Array, dims: Sequence[int]) -> Array:
    return lax.transpose(self, [d % self.ndim for d in dims])


@lower("transpose.int", "transpose_copy.int")
def transpose(self: Array, dim0: int, dim1: int) -> Array:
    return jnp.swapaxes(self, dim0, dim1) if self.ndim else self


@lower("t", "t_copy")
def t(self: Array) -> Array:
    return self.T


@lower("expand", "expand_copy")
def expand(self: Array, size: Sequence[int], *, implicit: bool = False) -> Array:
    new = len(size) - self.ndim
    shape = [self.shape[i - new] if s == -1 else s for i, s in enumerate(size)]
    return jnp.broadcast_to(self, shape)


@lower("unsqueeze", "unsqueeze_copy")
def unsqueeze(self: Array, dim: int) -> Array:
    return lax.expand_dims(self, [dim % (self.ndim + 1)])


@lower("squeeze", "squeeze_copy")
def squeeze(self: Array) -> Array:
    return squeeze_dims(self, range(self.ndim))


@lower("squeeze.dim", "squeeze_copy.dim")
def squeeze_dim(self: Array, dim: int) -> Array:
    return squeeze_dims(self, [dim])


@lower("squeeze.dims", "squeeze_copy.dims")
def squeeze_dims(self: Array, dim: Sequence[int]) -> Array:
    if self.ndim == 0:
        return self
    return lax.squeeze(self, sorted({d % self.ndim for d in dim if self.shape[d] == 1}))


@lower("slice.Tensor", "slice_copy.Tensor")
def slice_tensor(self: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    first, last = _bounds(self.shape[dim], start, end)
    return lax.slice_in_dim(self, first, last, step, axis=dim)


@lower("narrow", "narrow_copy")
def narrow(self: Array, dim: int, start: int, length: int) -> Array:
    first = start + self.shape[dim] if start < 0 else start
    return lax.slice_in_dim(self, first, first + length, axis=dim)


@lower("select.int", "select_copy.int")
def select(self: Array, dim: int, index: int) -> Array:
    return lax.index_in_dim(self, index, dim, keepdims=False)


@lower("split.Tensor", "split_copy.Tensor")
def split(self: Array, split_size: int, dim: int = 0) -> list[Array]:
    n = self.shape[dim]
    if n == 0 or split_size == 0:
        return [self]
    return [lax.slice_in_dim(self, i, min(i + split_size, n), axis=dim) for i in range(0, n, split_size)]


@lower("split_with_sizes", "split_with_sizes_copy")
def split_with_sizes(self: Array, split_sizes: Sequence[int], dim: int = 0) -> list[Array]:
    return list(lax.split(self, tuple(split_sizes), axis=dim % self.ndim))


@lower("split.sizes")
def split_sizes(self: Array, split_size: Sequence[int], dim: int = 0) -> list[Array]:
    return split_with_sizes(self, split_size, dim)


@lower("chunk")
def chunk(self: Array, chunks: int, dim: int = 0) -> list[Array]:
    n = self.shape[dim]
    return split(self, -(-n // chunks), dim) if n else [self] * chunks


@lower("unbind.int", "unbind_copy.int")
def unbind(self: Array, dim: int = 0) -> list[Array]:
    return [select(self, dim, i) for i in range(self.shape[dim])]


@lower("diagonal", "diagonal_copy")
def diagonal(self: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    """The diagonal is every (columns + 1)-th element of the flattened matrix, from its first one on."""
    matrix = jnp.moveaxis(self, (dim1, dim2), (-2, -1))
    rows, columns = matrix.shape[-2:]
    length, first = _diagonal_span(rows, columns, offset)
    flat = matrix.reshape(*matrix.shape[:-2], rows * columns)
    if length == 0:
        return flat[..., :0]
    return lax.slice_in_dim(flat, first, first + (length - 1) * (columns + 1) + 1, columns + 1, axis=-1)


@lower("diagonal_backward")
def diagonal_backward(grad_output: Array, input_sizes: Sequence[int], offset: int, dim1: int, dim2: int) -> Array:
    rows, columns = input_sizes[dim1], input_sizes[dim2]
    return jnp.moveaxis(_on_diagonal(grad_output, rows, columns, offset), (-2, -1), (dim1, dim2))


@lower("diag_embed")
def diag_embed(self: Array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Array:
    n = self.shape[-1] + abs(offset)
    return jnp.moveaxis(_on_diagonal(self, n, n, offset), (-2, -1), (dim1, dim2))


@lower("diagonal_scatter")
def diagonal_scatter(self: Array, src: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    matrix = jnp.moveaxis(self, (dim1, dim2), (-2, -1))
    rows, columns = matrix.shape[-2:]
    at = lax.broadcasted_iota(jnp.int32, (rows, columns), 1) - lax.broadcasted_iota(jnp.int32, (rows, columns), 0)
    placed = _on_diagonal(src.astype(self.dtype), rows, columns, offset)
    return jnp.moveaxis(jnp.where(at == offset, placed, matrix), (-2, -1), (dim1, dim2))


@lower("trace")
def trace(self: Array) -> Array:
    values = diagonal(self)
    dtype = to_torch(self.dtype)
    integral = not (dtype.is_floating_point or dtype.is_complex)
    return jnp.sum(values, dtype=jnp.int64 if integral else to_numpy(opmath(dtype)))


@lower("select_scatter")
def select_scatter(self: Array, src: Array, dim: int, index: int) -> Array:
    first = index % self.shape[dim]
    update = lax.expand_dims(src.astype(self.dtype), [dim % self.ndim])
    return lax.dynamic_update_slice_in_dim(self, update, first, axis=dim)


@lower("select_backward")
def select_backward(grad_output: Array, input_sizes: Sequence[int], dim: int, index: int) -> Array:
    dim = dim % len(input_sizes)
    n = input_sizes[dim]
    return _pad_dim(lax.expand_dims(grad_output, [dim]), dim, index % n, n - index % n - 1)


@lower("slice_scatter")
def slice_scatter(
    self: Array, src: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    dim, n = dim % self.ndim, self.shape[dim]
    first, last = _bounds(n, start, end)
    shape = (*self.shape[:dim], max(0, -(-(last - first) // step)), *self.shape[dim + 1 :])
    src = jnp.broadcast_to(src.astype(self.dtype), shape)
    if step == 1 or shape[dim] <= 1:
        return lax.dynamic_update_slice_in_dim(self, src, first, axis=dim) if shape[dim] else self
    placed = slice_backward(src, self.shape, dim, first, last, step)
    at = lax.broadcasted_iota(jnp.int32, self.shape, dim) - first
    return jnp.where((at >= 0) & (at < last - first) & (at % step == 0), placed, self)


@lower("slice_backward")
def slice_backward(grad_output: Array, input_sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> Array:
    dim = dim % len(input_sizes)
    n, length = input_sizes[dim], grad_output.shape[dim]
    first, _ = _bounds(n, start, end)
    if length == 0:
        return jnp.zeros(tuple(input_sizes), grad_output.dtype)
    return _pad_dim(grad_output, dim, first, n - first - (length - 1) * step - 1, step - 1)


@lower("unfold", "unfold_copy")
def unfold(self: Array, dimension: int, size: int, step: int) -> Array:
    if self.ndim == 0:
        return jnp.broadcast_to(self, (size,))
    dim, n = dimension % self.ndim, self.shape[dimension]
    windows = (n - size) // step + 1
    reach = (windows - 1) * step + 1
    if size <= _UNROLLED_WINDOWS:
        if size == 0:
            return jnp.zeros((*self.shape[:dim], windows, *self.shape[dim + 1 :], 0), self.dtype)
        return jnp.stack([lax.slice_in_dim(self, k, k + reach, step, axis=dim) for k in range(size)], axis=-1)
    if windows <= _UNROLLED_WINDOWS:
        cut = [lax.slice_in_dim(self, w * step, w * step + size, axis=dim) for w in range(windows)]
        return jnp.moveaxis(jnp.stack(cut, axis=dim), dim + 1, -1)
    at = (slice(None),) * dim + (_window_indices(windows, size, step),)
    return jnp.moveaxis(self.at[at].get(mode="promise_in_bounds"), dim + 1, -1)


@lower("unfold_backward")
def unfold_backward(grad_in: Array, input_sizes: Sequence[int], dim: int, size: int, step: int) -> Array:
    if not input_sizes:
        return jnp.sum(grad_in)
    dim = dim % len(input_sizes)
    n, windows = input_sizes[dim], grad_in.shape[dim]
    grad = grad_in.astype(to_numpy(opmath(to_torch(grad_in.dtype))))
    if size <= _UNROLLED_WINDOWS:
        total = jnp.zeros(tuple(input_sizes), grad.dtype)
        for k in range(size):
            total += _pad_dim(grad[..., k], dim, k, n - k - (windows - 1) * step - 1, step - 1)
        return total
    at = (slice(None),) * dim + (_window_indices(windows, size, step),)
    return (
        jnp.zeros(tuple(input_sizes), grad.dtype).at[at].add(jnp.moveaxis(grad, -1, dim + 1), mode="promise_in_bounds")
    )


@lower("as_strided")
def as_strided(self: Array, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Array:
    """The view of a contiguous `self`: slices and reshapes if no two elements overlap, else a gather."""
    flat, offset = self.reshape(-1), storage_offset or 0
    if 0 in size:
        return jnp.zeros(tuple(size), self.dtype)
    kept = sorted((d for d in range(len(size)) if size[d] > 1 and stride[d] > 0), key=lambda d: -stride[d])
    nested = _nested_slices(flat, offset, [size[d] for d in kept], [stride[d] for d in kept])
    if nested is None:
        return flat.at[_strided_indices(size, stride, offset)].get(mode="promise_in_bounds")
    order = sorted(kept)
    return jnp.broadcast_to(
        lax.transpose(nested, [kept.index(d) for d in order]).reshape(
            [size[d] if d in kept else 1 for d in range(len(size))]
        ),
        tuple(size),
    )


@lower("as_strided_scatter")
def as_strided_scatter(
    self: Array, src: Array, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Array:
    at = _strided_indices(size, stride, storage_offset or 0)
    src = src.astype(self.dtype)
    return self.reshape(-1).at[at].set(src, mode="promise_in_bounds").reshape(self.shape)


def _bounds(n: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Python's slice rules on a dimension of length n: 0 <= first <= last <= n."""
    first = 0 if start is None else start
    last = n if end is None else end
    first = min(max(first + n if first < 0 else first, 0), n)
    last = min(max(last + n if last < 0 else last, first), n)
    return first, last


def _diagonal_span(rows: int, columns: int, offset: int) -> tuple[int, int]:
    """(length, position of the first element in the flattened matrix) of a diagonal."""
    length = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    return length, offset if offset >= 0 else -offset * columns


def _on_diagonal(values: Array, rows: int, columns: int, offset: int) -> Array:
    """A zero matrix [..., rows, columns] with `values` on a diagonal: `columns` zeros between neighbours, reshaped."""
    length, first = _diagonal_span(rows, columns, offset)
    if length == 0:
        return jnp.zeros((*values.shape[:-1], rows, columns), values.dtype)
    end = rows * columns - first - (length - 1) * (columns + 1) - 1
    flat = _pad_dim(values, values.ndim - 1, first, end, columns)
    return flat.reshape(*values.shape[:-1], rows, columns)


def _pad_dim(x: Array, dim: int, low: int, high: int, interior: int = 0) -> Array:
    config = [(0, 0, 0)] * x.ndim
    config[dim] = (low, high, interior)
    return lax.pad(x, jnp.zeros((), x.dtype), config)


def _window_indices(windows: int, size: int, step: int) -> Array:
    shape = (windows, size)
    return lax.broadcasted_iota(jnp.int32, shape, 0) * step + lax.broadcasted_iota(jnp.int32, shape, 1)


def _strided_indices(size: Sequence[int], stride: Sequence[int], offset: int) -> Array:
    index = jnp.full(tuple(size), offset, jnp.int64)
    for d, s in enumerate(stride):
        index += lax.broadcasted_iota(jnp.int64, tuple(size), d) * s
    return index


def _nested_slices(flat: Array, offset: int, size: Sequence[int], stride: Sequence[int]) -> Array | None:
    """Elements at offset + sum(i * stride), strides falling, as an array [*size]; None if dimensions overlap."""
    reach = 1
    for n, s in zip(reversed(size), reversed(stride), strict=True):
        if s < reach:
            return None
        reach += (n - 1) * s
    x = lax.slice_in_dim(flat, offset, offset + reach)
    for n, s in zip(size, stride, strict=True):
        if n * s > x.shape[-1]:
            x = _pad_dim(x, x.ndim - 1, 0, n * s - x.shape[-1])
        x = lax.slice_in_dim(x, 0, n * s, axis=-1).reshape(*x.shape[:-1], n, s)
    return x[..., 0]
