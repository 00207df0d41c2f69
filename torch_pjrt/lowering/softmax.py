"""Softmax and log-softmax with their gradients."""

from __future__ import annotations

import jax.numpy as jnp
import torch
from jax import Array

from .registry import lower
from .widen import widen


@lower("_softmax")
def softmax(self: Array, dim: int, half_to_float: bool) -> Array:
    x = widen(self)
    powers = jnp.exp(x - _peak(x, dim))
    return powers / powers.sum(_axis(x, dim), keepdims=True)


@lower("_log_softmax")
def log_softmax(self: Array, dim: int, half_to_float: bool) -> Array:
    x = widen(self)
    shifted = x - _peak(x, dim)
    return shifted - jnp.log(jnp.exp(shifted).sum(_axis(x, dim), keepdims=True))


@lower("_safe_softmax")
def safe_softmax(self: Array, dim: int, dtype: torch.dtype | None = None) -> Array:
    """Softmax where a row of nothing but -inf gives zeros, not NaN: what attention wants of a fully masked row."""
    x = widen(self)
    masked = (x == -jnp.inf).all(_axis(x, dim), keepdims=True)
    return jnp.where(masked, 0, softmax(x, dim, False))


@lower("_softmax_backward_data")
def softmax_backward_data(grad_output: Array, output: Array, dim: int, input_dtype: torch.dtype) -> Array:
    grad, y = widen(grad_output), widen(output)
    weighted = grad * y
    return weighted - y * weighted.sum(_axis(y, dim), keepdims=True)


@lower("_log_softmax_backward_data")
def log_softmax_backward_data(grad_output: Array, output: Array, dim: int, input_dtype: torch.dtype) -> Array:
    grad, y = widen(grad_output), widen(output)
    return grad - jnp.exp(y) * grad.sum(_axis(y, dim), keepdims=True)


def _axis(x: Array, dim: int) -> tuple[int, ...]:
    return (dim % x.ndim,) if x.ndim else ()


def _peak(x: Array, dim: int) -> Array:
    # The maximum of no element is -inf instead of an error; the result is empty all the same.
    return x.max(_axis(x, dim), keepdims=True, initial=-jnp.inf)
