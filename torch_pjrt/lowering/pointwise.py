"""Elementwise arithmetic."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from .registry import pointwise


@pointwise("add.Tensor", "add.Scalar")
def add(self: Array, other: Array, alpha: Array | None = None) -> Array:
    return self + other if alpha is None else self + other * alpha


@pointwise("sin", floating=True)
def sin(self: Array) -> Array:
    return jnp.sin(self)
