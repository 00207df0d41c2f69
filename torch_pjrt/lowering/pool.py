"""Max and average pooling over windows, their gradients, and max unpooling. Adaptive pooling: adaptive_pool.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .check import require_index
from .conv import per_dim
from .registry import lower
from .widen import widen


@lower("max_pool2d_with_indices")
def max_pool2d_with_indices(
    self: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Array, Array]:
    """(maxima, their flat positions in the input plane). The first maximum wins, the last NaN wins."""
    return _max_pool(self, _Window.of(self.shape[-2:], kernel_size, stride, padding, dilation, ceil_mode))


@lower("max_pool3d_with_indices")
def max_pool3d_with_indices(
    self: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Array, Array]:
    return _max_pool(self, _Window.of(self.shape[-3:], kernel_size, stride, padding, dilation, ceil_mode))


@lower("max_pool2d_with_indices_backward")
def max_pool2d_with_indices_backward(
    grad_output: Array,
    self: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Array,
) -> Array:
    window = _Window.of(self.shape[-2:], kernel_size, stride, padding, dilation, ceil_mode)
    return _max_pool_gradient(widen(grad_output), indices, window)


@lower("max_pool3d_with_indices_backward")
def max_pool3d_with_indices_backward(
    grad_output: Array,
    self: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Array,
) -> Array:
    window = _Window.of(self.shape[-3:], kernel_size, stride, padding, dilation, ceil_mode)
    return _max_pool_gradient(widen(grad_output), indices, window)


def _max_pool_gradient(gradient: Array, indices: Array, window: _Window) -> Array:
    """Each output's gradient goes to the position that `indices` names.

    XLA:CPU and XLA:GPU do it fastest as a scatter (32x64x32x32, 3x3 windows, 2 CPU cores: 1.2 ms against 10.5 ms);
    a TPU serializes scatters, so there it is a sum over window offsets of masked, shifted gradients.
    """
    if math.prod(window.kernel) > 64:
        return add_at(gradient, indices, window.size)
    return lax.platform_dependent(
        gradient,
        indices,
        tpu=lambda g, i: _sum_of_shifts(g, i, window),
        default=lambda g, i: add_at(g, i, window.size),
    )


@lower("avg_pool2d")
def avg_pool2d(
    self: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    window = _Window.of(self.shape[-2:], kernel_size, stride, padding, (1,), ceil_mode)
    return _avg_pool(window, count_include_pad, divisor_override)(widen(self))


@lower("avg_pool3d")
def avg_pool3d(
    self: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    window = _Window.of(self.shape[-3:], kernel_size, stride, padding, (1,), ceil_mode)
    return _avg_pool(window, count_include_pad, divisor_override)(widen(self))


@lower("avg_pool2d_backward")
def avg_pool2d_backward(
    grad_output: Array,
    self: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Array:
    window = _Window.of(self.shape[-2:], kernel_size, stride, padding, (1,), ceil_mode)
    return transpose(_avg_pool(window, count_include_pad, divisor_override), self.shape, widen(grad_output))


@lower("avg_pool3d_backward")
def avg_pool3d_backward(
    grad_output: Array,
    self: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Array:
    window = _Window.of(self.shape[-3:], kernel_size, stride, padding, (1,), ceil_mode)
    return transpose(_avg_pool(window, count_include_pad, divisor_override), self.shape, widen(grad_output))


@lower("max_unpool2d")
def max_unpool2d(self: Array, indices: Array, output_size: Sequence[int]) -> Array:
    return _put_at(self, indices, output_size)


@lower("max_unpool3d")
def max_unpool3d(
    self: Array, indices: Array, output_size: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Array:
    return _put_at(self, indices, output_size)


def transpose(linear: Callable[[Array], Array], shape: Sequence[int], gradient: Array) -> Array:
    """The gradient with respect to an input of `shape` of a function that is linear in it."""
    return jax.linear_transpose(linear, jax.ShapeDtypeStruct(tuple(shape), gradient.dtype))(gradient)[0]


def add_at(values: Array, indices: Array, plane: Sequence[int]) -> Array:
    """Add `values` (*lead, *window positions) at flat `indices` into zeros of (*lead, *plane)."""
    flat, rows, where, shape = _scatter_operands(values, indices, plane)
    return flat.at[rows, where].add(values.reshape(where.shape)).reshape(shape)


def _put_at(values: Array, indices: Array, plane: Sequence[int]) -> Array:
    require_index(indices, math.prod(plane), wrap=False)
    flat, rows, where, shape = _scatter_operands(values, indices, plane)
    return flat.at[rows, where].set(values.reshape(where.shape)).reshape(shape)


def _scatter_operands(
    values: Array, indices: Array, plane: Sequence[int]
) -> tuple[Array, Array, Array, tuple[int, ...]]:
    lead = values.shape[: values.ndim - len(plane)]
    count = math.prod(lead)
    where = indices.reshape(count, math.prod(values.shape[len(lead) :])).astype(np.int32)
    rows = lax.broadcasted_iota(np.int32, (count, 1), 0)
    return jnp.zeros((count, math.prod(plane)), values.dtype), rows, where, (*lead, *plane)


@dataclass(frozen=True, slots=True)
class _Window:
    """Where pooling windows lie in an input plane, one entry per spatial dimension."""

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    out: tuple[int, ...]

    @classmethod
    def of(
        cls,
        size: Sequence[int],
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
    ) -> _Window:
        dims = len(size)
        k, p, d = per_dim(kernel, dims), per_dim(padding, dims), per_dim(dilation, dims)
        s = per_dim(stride, dims) if stride else k
        out = tuple(_positions(*a, ceil_mode) for a in zip(size, k, s, p, d, strict=True))
        return cls(tuple(size), k, s, p, d, out)

    def pads(self) -> list[tuple[int, int]]:
        """(low, high) padding that makes exactly `out` windows fit; negative where input is left over."""
        return [
            (p, (o - 1) * s + d * (k - 1) + 1 - n - p)
            for n, k, s, p, d, o in zip(
                self.size, self.kernel, self.stride, self.padding, self.dilation, self.out, strict=True
            )
        ]


def _positions(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (room + (stride - 1 if ceil_mode else 0)) // stride + 1
    # A last window that starts in the right padding would see no input at all.
    return count - 1 if ceil_mode and (count - 1) * stride >= size + padding else count


def _max_pool(x: Array, window: _Window) -> tuple[Array, Array]:
    """Fold one dimension after the other, innermost first, carrying (value, flat position) along.

    That keeps PyTorch's tie-breaking (row-major first) and takes sum(kernel) instead of prod(kernel) comparisons.
    XLA fuses it: 4.6 ms against 20 ms for reduce_window over pairs (32x64x32x32, 3x3, stride 2, 2 CPU cores).
    """
    lead = x.ndim - len(window.size)
    lowest = _lowest(x.dtype)
    value = lax.pad(x, lowest, [(0, 0, 0)] * lead + [(low, high, 0) for low, high in window.pads()])
    index: Array | None = None
    for dim in reversed(range(len(window.size))):
        value, index = _fold(value, index, window, dim, lead + dim, lowest)
    return value, index if index is not None else jnp.zeros(value.shape, np.int32)


def _fold(
    value: Array, index: Array | None, window: _Window, dim: int, axis: int, lowest: Array
) -> tuple[Array, Array]:
    kernel, step, gap, pad, out = (getattr(window, f)[dim] for f in ("kernel", "stride", "dilation", "padding", "out"))
    plane = math.prod(window.size[dim + 1 :])
    shape = (*value.shape[:axis], out, *value.shape[axis + 1 :])
    start = lax.broadcasted_iota(np.int32, shape, axis) * step - pad
    # Where nothing beats the lowest value, PyTorch reports the window's first position inside the input.
    steps_in = lax.max(np.int32(0), -start + (gap - 1)) // gap
    first = steps_in * gap + start

    def cut(x: Array, offset: int) -> Array:
        return lax.slice_in_dim(x, offset * gap, offset * gap + (out - 1) * step + 1, step, axis)

    best = jnp.full(shape, lowest)
    where = first * plane
    if index is not None:
        where = first * plane + cut(index, 0)
        for offset in range(1, -(-pad // gap) + 1):
            where = jnp.where(steps_in == offset, first * plane + cut(index, offset), where)
    for offset in range(kernel):
        candidate = cut(value, offset)
        better = candidate > best
        if jnp.issubdtype(value.dtype, jnp.floating):
            better |= candidate != candidate
        place = (start + offset * gap) * plane
        where = jnp.where(better, place if index is None else place + cut(index, offset), where)
        best = jnp.where(better, candidate, best)
    return best, where


def _lowest(dtype: np.dtype) -> Array:
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.asarray(-np.inf, dtype)
    return jnp.asarray(jnp.iinfo(dtype).min, dtype)


def _sum_of_shifts(gradient: Array, indices: Array, window: _Window) -> Array:
    lead = gradient.ndim - len(window.size)
    total = jnp.zeros((*gradient.shape[:lead], *window.size), gradient.dtype)
    for offset in np.ndindex(*window.kernel):
        place = jnp.zeros((), np.int32)
        pads = [(0, 0, 0)] * lead
        for dim, at in enumerate(offset):
            n, o, s, d, p = (getattr(window, f)[dim] for f in ("size", "out", "stride", "dilation", "padding"))
            start = lax.broadcasted_iota(np.int32, gradient.shape, lead + dim) * s + (at * d - p)
            place = place * n + start
            low = at * d - p
            pads.append((low, n - low - ((o - 1) * s + 1), s - 1))
        chosen = jnp.where(indices.astype(np.int32) == place, gradient, 0)
        total += lax.pad(chosen, jnp.zeros((), gradient.dtype), pads)
    return total


def _avg_pool(window: _Window, count_include_pad: bool, divisor_override: int | None) -> Callable[[Array], Array]:
    """The window mean as a function that is linear in its input, so that it can be transposed."""

    def pool(x: Array) -> Array:
        lead = x.ndim - len(window.size)
        ones = (1,) * lead
        total = lax.reduce_window(
            x,
            np.zeros((), x.dtype),
            lax.add,
            ones + window.kernel,
            ones + window.stride,
            [(0, 0)] * lead + window.pads(),
        )
        if divisor_override is not None:
            return _over(total, jnp.asarray(divisor_override, x.dtype))
        for dim, count in enumerate(_counts(window, count_include_pad)):
            shape = [1] * x.ndim
            shape[lead + dim] = len(count)
            total = _over(total, jnp.asarray(count.astype(x.dtype)).reshape(shape))
        return total

    return pool


def _over(total: Array, count: Array) -> Array:
    return total / count if jnp.issubdtype(total.dtype, jnp.inexact) else lax.div(*jnp.broadcast_arrays(total, count))


def _counts(window: _Window, count_include_pad: bool) -> list[np.ndarray]:
    """Per dimension, how many elements each window averages; the right overhang of ceil_mode never counts."""
    counts = []
    for n, k, s, p, o in zip(window.size, window.kernel, window.stride, window.padding, window.out, strict=True):
        start = np.arange(o) * s - p
        stop = np.minimum(start + k, n + p)
        counts.append(stop - start if count_include_pad else np.minimum(stop, n) - np.maximum(start, 0))
    return counts
