"""Copies, dtype casts and fills."""

from __future__ import annotations

import jax.numpy as jnp
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
    return self if dtype is None else cast(self, to_numpy(dtype))


@lower("clone")
def clone(self: Array, memory_format: object = None) -> Array:
    return self


@lower("copy", "copy_", write_only=["self"])
def copy(self: Array, src: Array, non_blocking: bool = False) -> Array:
    return jnp.broadcast_to(cast(src, self.dtype), self.shape)


@lower("fill.Scalar", "fill.Tensor", "fill_.Scalar", "fill_.Tensor", write_only=["self"])
def fill(self: Array, value: Number) -> Array:
    return jnp.broadcast_to(cast(jnp.asarray(value), self.dtype), self.shape)


@lower("zero", "zero_", write_only=["self"])
def zero(self: Array) -> Array:
    return jnp.zeros(self.shape, self.dtype)
