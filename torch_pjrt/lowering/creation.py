"""Tensors out of nothing: fills, ranges, the identity, index patterns.

Factories on the device run as `empty` followed by an `out=` overload (`arange.start_out`, `eye.m_out`), which the
functional overloads here serve too; `apply` casts to the dtype of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from .binary import quotient
from .dtypes import opmath, promote, to_numpy, to_torch
from .registry import lower

Number = Array | bool | int | float | complex
Layout = object


def _dtype(dtype: torch.dtype | None) -> np.dtype:
    return to_numpy(dtype or torch.get_default_dtype())


@lower("empty.memory_format", "zeros", "empty_permuted", "empty_strided")
def zeros(size: Sequence[int], *layout: Layout, dtype: torch.dtype | None = None, **factory: Layout) -> Array:
    return jnp.zeros(tuple(size), _dtype(dtype))


@lower("ones")
def ones(size: Sequence[int], *, dtype: torch.dtype | None = None, **factory: Layout) -> Array:
    return jnp.ones(tuple(size), _dtype(dtype))


@lower("full")
def full(size: Sequence[int], fill_value: Number, *, dtype: torch.dtype | None = None, **factory: Layout) -> Array:
    return jnp.full(tuple(size), fill_value, to_numpy(dtype or promote([fill_value])))


@lower("scalar_tensor")
def scalar_tensor(s: Number, *, dtype: torch.dtype | None = None, **factory: Layout) -> Array:
    return jnp.asarray(s).astype(_dtype(dtype))


@lower("zeros_like", "empty_like")
def zeros_like(self: Array, *, dtype: torch.dtype | None = None, **factory: Layout) -> Array:
    return jnp.zeros(self.shape, self.dtype if dtype is None else to_numpy(dtype))


@lower("ones_like")
def ones_like(self: Array, *, dtype: torch.dtype | None = None, **factory: Layout) -> Array:
    return jnp.ones(self.shape, self.dtype if dtype is None else to_numpy(dtype))


@lower("full_like")
def full_like(self: Array, fill_value: Number, *, dtype: torch.dtype | None = None, **factory: Layout) -> Array:
    return jnp.full(self.shape, fill_value, self.dtype if dtype is None else to_numpy(dtype))


@lower("new_zeros", "new_empty", "new_empty_strided")
def new_zeros(
    self: Array, size: Sequence[int], *layout: Layout, dtype: torch.dtype | None = None, **factory: Layout
) -> Array:
    return jnp.zeros(tuple(size), self.dtype if dtype is None else to_numpy(dtype))


@lower("new_ones")
def new_ones(self: Array, size: Sequence[int], *, dtype: torch.dtype | None = None, **factory: Layout) -> Array:
    return jnp.ones(tuple(size), self.dtype if dtype is None else to_numpy(dtype))


@lower("new_full")
def new_full(
    self: Array, size: Sequence[int], fill_value: Number, *, dtype: torch.dtype | None = None, **factory: Layout
) -> Array:
    return jnp.full(tuple(size), fill_value, self.dtype if dtype is None else to_numpy(dtype))


@lower("arange", static=["end"])
def arange(end: int | float, *, dtype: torch.dtype | None = None, **factory: Layout) -> Array:
    return arange_start(0, end, 1, dtype=dtype)


@lower("arange.start", "arange.start_step", static=["start", "end", "step"])
def arange_start(
    start: int | float, end: int | float, step: int | float = 1, *, dtype: torch.dtype | None = None, **factory: Layout
) -> Array:
    """start + i * step, rounded once. Integers stay integers; the length follows from float64, but for int64."""
    length = math.ceil((end - start) / step)
    if dtype is not None and not dtype.is_floating_point:
        start, end, step = int(start), int(end), int(step)
    if isinstance(start, int) and isinstance(end, int) and isinstance(step, int):
        if dtype in (None, torch.int64):
            length = -(-(end - start) // step)
        return lax.iota(np.int64, length) * step + start
    return lax.iota(np.int64, length).astype(np.float64) * step + start


@lower("arange.out", static=["end"], write_only=["out"])
def arange_out(end: int | float, *, out: jax.ShapeDtypeStruct) -> Array:
    return arange_start(0, end, 1, dtype=to_torch(out.dtype))


@lower("arange.start_out", static=["start", "end", "step"], write_only=["out"])
def arange_start_out(
    start: int | float, end: int | float, step: int | float = 1, *, out: jax.ShapeDtypeStruct
) -> Array:
    return arange_start(start, end, step, dtype=to_torch(out.dtype))


@lower("linspace", "linspace.Tensor_Tensor", "linspace.Tensor_Scalar", "linspace.Scalar_Tensor")
def linspace(start: Number, end: Number, steps: int, *, dtype: torch.dtype | None = None, **factory: Layout) -> Array:
    kind = dtype or promote([start, end, 0.0])
    values = _between(start, end, steps, kind)
    return values if kind.is_floating_point or kind.is_complex else jnp.trunc(values)


def _between(start: Number, end: Number, steps: int, kind: torch.dtype) -> Array:
    """The first half counts up from `start`, the second down from `end`, so that both ends are exact.

    An integer `kind` truncates the ends, but what lies between them is in float64.
    """
    whole = not (kind.is_floating_point or kind.is_complex)
    compute = to_numpy(torch.float64 if whole else opmath(kind))
    first, last = jnp.asarray(start).astype(compute), jnp.asarray(end).astype(compute)
    if whole:
        first, last = jnp.trunc(first), jnp.trunc(last)
    if steps == 1:
        return first.reshape(1)
    place = lax.iota(np.int32, steps)
    step = quotient(last - first, jnp.asarray(steps - 1, compute))
    up, down = first + step * place.astype(compute), last - step * (steps - 1 - place).astype(compute)
    return jnp.where(place < steps // 2, up, down)


@lower("linspace.out", write_only=["out"])
def linspace_out(start: Number, end: Number, steps: int, *, out: jax.ShapeDtypeStruct) -> Array:
    return linspace(start, end, steps, dtype=to_torch(out.dtype))


@lower("logspace", "logspace.Tensor_Tensor", "logspace.Tensor_Scalar", "logspace.Scalar_Tensor", dynamic=["base"])
def logspace(
    start: Number,
    end: Number,
    steps: int,
    base: float = 10.0,
    *,
    dtype: torch.dtype | None = None,
    **factory: Layout,
) -> Array:
    exponent = _between(start, end, steps, dtype or promote([start, end, 0.0]))
    return jnp.power(jnp.asarray(base).astype(exponent.dtype), exponent)


@lower("logspace.out", dynamic=["base"], write_only=["out"])
def logspace_out(start: Number, end: Number, steps: int, base: float = 10.0, *, out: jax.ShapeDtypeStruct) -> Array:
    return logspace(start, end, steps, base, dtype=to_torch(out.dtype))


@lower("eye", "eye.m")
def eye(n: int, m: int | None = None, *, dtype: torch.dtype | None = None, **factory: Layout) -> Array:
    return jnp.eye(n, m, dtype=_dtype(dtype))


@lower("tril_indices")
def tril_indices(row: int, col: int, offset: int = 0, **factory: Layout) -> Array:
    return _where_true(row, col, lambda r, c: c - r <= offset, _below(row, col, offset))


@lower("triu_indices")
def triu_indices(row: int, col: int, offset: int = 0, **factory: Layout) -> Array:
    return _where_true(row, col, lambda r, c: c - r >= offset, row * col - _below(row, col, offset - 1))


def _below(rows: int, columns: int, offset: int) -> int:
    """How many positions (r, c) of a matrix have c - r <= offset."""
    return sum(min(columns, max(0, r + offset + 1)) for r in range(rows))


def _where_true(rows: int, columns: int, holds: Callable[[Array, Array], Array], count: int) -> Array:
    row, column = (lax.broadcasted_iota(np.int32, (rows, columns), d) for d in (0, 1))
    return jnp.stack(jnp.nonzero(holds(row, column), size=count))
