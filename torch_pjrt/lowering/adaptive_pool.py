"""Adaptive pooling: output position i of O pools the inputs floor(i*I/O) to ceil((i+1)*I/O)."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

from .conv import per_dim
from .pool import add_at, max_pool2d_with_indices, max_pool3d_with_indices, transpose
from .registry import lower
from .widen import widen


@lower("_adaptive_avg_pool2d")
def adaptive_avg_pool2d(self: Array, output_size: Sequence[int]) -> Array:
    return _average(widen(self), per_dim(output_size, 2))


@lower("_adaptive_avg_pool3d")
def adaptive_avg_pool3d(self: Array, output_size: Sequence[int]) -> Array:
    return _average(widen(self), per_dim(output_size, 3))


@lower("_adaptive_avg_pool2d_backward")
def adaptive_avg_pool2d_backward(grad_output: Array, self: Array) -> Array:
    return transpose(lambda x: _average(x, grad_output.shape[-2:]), self.shape, widen(grad_output))


@lower("_adaptive_avg_pool3d_backward")
def adaptive_avg_pool3d_backward(grad_output: Array, self: Array) -> Array:
    return transpose(lambda x: _average(x, grad_output.shape[-3:]), self.shape, widen(grad_output))


@lower("adaptive_max_pool2d")
def adaptive_max_pool2d(self: Array, output_size: Sequence[int]) -> tuple[Array, Array]:
    kernel = _even_kernel(self.shape[-2:], per_dim(output_size, 2))
    return max_pool2d_with_indices(self, kernel) if kernel else _maximum(self, per_dim(output_size, 2))


@lower("adaptive_max_pool3d")
def adaptive_max_pool3d(self: Array, output_size: Sequence[int]) -> tuple[Array, Array]:
    kernel = _even_kernel(self.shape[-3:], per_dim(output_size, 3))
    return max_pool3d_with_indices(self, kernel) if kernel else _maximum(self, per_dim(output_size, 3))


@lower("adaptive_max_pool2d_backward")
def adaptive_max_pool2d_backward(grad_output: Array, self: Array, indices: Array) -> Array:
    return add_at(widen(grad_output), indices, self.shape[-2:])


@lower("adaptive_max_pool3d_backward")
def adaptive_max_pool3d_backward(grad_output: Array, self: Array, indices: Array) -> Array:
    return add_at(widen(grad_output), indices, self.shape[-3:])


def _even_kernel(size: Sequence[int], out: Sequence[int]) -> list[int] | None:
    """The common window where every dimension divides evenly, else None."""
    if any(o == 0 or n % o for n, o in zip(size, out, strict=True)):
        return None
    return [n // o for n, o in zip(size, out, strict=True)]


def _windows(size: int, out: int) -> tuple[np.ndarray, np.ndarray]:
    """(out, longest window) positions of each window's elements, and which of them belong to it."""
    start = np.arange(out) * size // out
    stop = -(-(np.arange(out) + 1) * size // out)
    offsets = np.arange(int((stop - start).max(initial=0)))
    inside = start[:, None] + offsets < stop[:, None]
    return np.where(inside, start[:, None] + offsets, start[:, None]).astype(np.int32), inside


def _average(x: Array, out: Sequence[int]) -> Array:
    """The mean over windows, one dimension at a time: a reshape where the size divides, else a small gather."""
    for dim, target in enumerate(out):
        axis = x.ndim - len(out) + dim
        size = x.shape[axis]
        if target and size % target == 0:
            x = x.reshape(*x.shape[:axis], target, size // target, *x.shape[axis + 1 :]).sum(axis + 1) / (
                size // target
            )
            continue
        positions, inside = _windows(size, target)
        shape = [1] * (x.ndim + 1)
        shape[axis : axis + 2] = inside.shape
        window = jnp.where(inside.reshape(shape), x.take(positions, axis), 0)
        x = window.sum(axis + 1) / inside.sum(1).astype(x.dtype).reshape([-1] + [1] * (x.ndim - axis - 1))
    return x


def _maximum(x: Array, out: Sequence[int]) -> tuple[Array, Array]:
    """(maxima, flat positions) over windows of unequal size, one dimension at a time, innermost first."""
    index: Array | None = None
    lead = x.ndim - len(out)
    plane = 1
    for dim in reversed(range(len(out))):
        axis = lead + dim
        size = x.shape[axis]
        positions, _ = _windows(size, out[dim])
        # A window shorter than the longest repeats its first element at the end, where it can't win.
        values = x.take(positions, axis)
        best = _first_maximum(values, axis + 1)
        shape = [1] * values.ndim
        shape[axis : axis + 2] = positions.shape
        places = jnp.broadcast_to((positions * plane).reshape(shape), values.shape)
        if index is not None:
            places = places + index.take(positions, axis)
        x = jnp.take_along_axis(values, best, axis + 1).squeeze(axis + 1)
        index = jnp.take_along_axis(places, best, axis + 1).squeeze(axis + 1)
        plane *= size
    return x, index if index is not None else jnp.zeros(x.shape, np.int32)


def _first_maximum(x: Array, axis: int) -> Array:
    """Position of the first maximum along `axis`, or of the last NaN, as PyTorch's pooling picks it; keeps the axis."""
    first = jnp.argmax(x, axis, keepdims=True)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return first
    nan = jnp.isnan(x)
    last_nan = x.shape[axis] - 1 - jnp.argmax(jnp.flip(nan, axis), axis, keepdims=True)
    return jnp.where(nan.any(axis, keepdims=True), last_nan, first)
