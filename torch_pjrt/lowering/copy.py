"""Copies, dtype casts and fills."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array

from .apply import cast
from .dtypes import to_numpy
from .registry import lower

Number = Array | bool | int | float | complex


@lower("_to_copy")
def to_copy(
    self: Array,
    *,
    dtype: torch.dtype | None = None,
    layout: object = None,
    device: object = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: object = None,
) -> Array:
    return self if dtype is None else convert(self, to_numpy(dtype))


@lower("clone")
def clone(self: Array, memory_format: object = None) -> Array:
    return self


@lower("copy", "copy_", write_only=["self"])
def copy(self: Array, src: Array, non_blocking: bool = False) -> Array:
    return jnp.broadcast_to(convert(src, self.dtype), self.shape)


@lower("fill.Scalar", "fill.Tensor", "fill_.Scalar", "fill_.Tensor", write_only=["self"])
def fill(self: Array, value: Number) -> Array:
    return jnp.broadcast_to(convert(jnp.asarray(value), self.dtype), self.shape)


@lower("zero", "zero_", write_only=["self"])
def zero(self: Array) -> Array:
    return jnp.zeros(self.shape, self.dtype)


def convert(x: Array, dtype: np.dtype) -> Array:
    """`x` cast as CPU PyTorch casts: floats to the short integers wrap (-1.0 is 255), where XLA would saturate."""
    short = jnp.issubdtype(dtype, jnp.integer) and np.dtype(dtype).itemsize < 4
    if short and jnp.issubdtype(x.dtype, jnp.inexact):
        x = cast(x, np.dtype(np.int32))
    return cast(x, np.dtype(dtype))
