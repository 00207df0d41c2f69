"""Fake quantization: round to the grid of a scale and a zero point and back, for quantization-aware training."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from .registry import lower
from .widen import widen


@lower("fake_quantize_per_tensor_affine_cachemask", dynamic=["scale"])
def per_tensor(
    self: Array, scale: Array | float, zero_point: int, quant_min: int, quant_max: int
) -> tuple[Array, Array]:
    """(the value on the grid, whether it lay inside the range, where gradients pass)."""
    return _quantized(self, scale, zero_point, quant_min, quant_max)


@lower("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def per_tensor_of_tensors(
    self: Array, scale: Array, zero_point: Array, fake_quant_enabled: Array, quant_min: int, quant_max: int
) -> tuple[Array, Array]:
    value, inside = _quantized(self, scale.reshape(()), zero_point.reshape(()), quant_min, quant_max)
    enabled = fake_quant_enabled.reshape(()) != 0
    return jnp.where(enabled, value, widen(self)), inside | ~enabled


@lower("fake_quantize_per_channel_affine_cachemask")
def per_channel(
    self: Array, scale: Array, zero_point: Array, axis: int, quant_min: int, quant_max: int
) -> tuple[Array, Array]:
    return _quantized(self, _along(scale, self, axis), _along(zero_point, self, axis), quant_min, quant_max)


@lower("_fake_quantize_learnable_per_tensor_affine", dynamic=["grad_factor"])
def learnable_per_tensor(
    self: Array, scale: Array, zero_point: Array, quant_min: int, quant_max: int, grad_factor: Array | float = 1.0
) -> Array:
    zero = jnp.clip(_rounded(zero_point.reshape(())), quant_min, quant_max)
    return _quantized(self, scale.reshape(()), zero, quant_min, quant_max)[0]


@lower("_fake_quantize_learnable_per_channel_affine", dynamic=["grad_factor"])
def learnable_per_channel(
    self: Array,
    scale: Array,
    zero_point: Array,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: Array | float = 1.0,
) -> Array:
    zero = jnp.clip(_rounded(zero_point), quant_min, quant_max)
    return _quantized(self, _along(scale, self, axis), _along(zero, self, axis), quant_min, quant_max)[0]


@lower("_fake_quantize_learnable_per_tensor_affine_backward", dynamic=["grad_factor"])
def learnable_per_tensor_backward(
    grad: Array,
    self: Array,
    scale: Array,
    zero_point: Array,
    quant_min: int,
    quant_max: int,
    grad_factor: Array | float = 1.0,
) -> tuple[Array, Array, Array]:
    """Gradients of the input, the scale and the zero point (Esser et al., 2020: Learned Step Size Quantization)."""
    zero = jnp.clip(_rounded(zero_point.reshape(())), quant_min, quant_max)
    dx, dscale, dzero = _gradients(grad, self, scale.reshape(()), zero, quant_min, quant_max, grad_factor)
    return dx, dscale.sum().reshape(scale.shape), dzero.sum().reshape(zero_point.shape)


@lower("_fake_quantize_learnable_per_channel_affine_backward", dynamic=["grad_factor"])
def learnable_per_channel_backward(
    grad: Array,
    self: Array,
    scale: Array,
    zero_point: Array,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: Array | float = 1.0,
) -> tuple[Array, Array, Array]:
    zero = jnp.clip(_rounded(zero_point), quant_min, quant_max)
    dx, dscale, dzero = _gradients(
        grad, self, _along(scale, self, axis), _along(zero, self, axis), quant_min, quant_max, grad_factor
    )
    others = tuple(d for d in range(self.ndim) if d != axis % self.ndim)
    return dx, dscale.sum(others), dzero.sum(others)


def _quantized(
    x: Array, scale: Array | float, zero_point: Array | int, quant_min: int, quant_max: int
) -> tuple[Array, Array]:
    x = widen(x)
    scale = jnp.asarray(scale).astype(x.dtype)
    zero = jnp.asarray(zero_point).astype(x.dtype)
    level = jnp.round(zero + x * (1 / scale))
    inside = (level >= quant_min) & (level <= quant_max)
    return (jnp.clip(level, quant_min, quant_max) - zero) * scale, inside


def _gradients(
    grad: Array,
    x: Array,
    scale: Array,
    zero: Array,
    quant_min: int,
    quant_max: int,
    grad_factor: Array | float,
) -> tuple[Array, Array, Array]:
    """Element by element: of the input, of the scale, of the zero point."""
    wide, given = widen(x), widen(grad)
    scale, zero = scale.astype(wide.dtype), zero.astype(wide.dtype)
    level = jnp.round(zero + wide * (1 / scale))
    inside = (level >= quant_min) & (level <= quant_max)
    bounded = jnp.clip(level, quant_min, quant_max)
    edge = jnp.where(level < quant_min, quant_min - zero, quant_max - zero)
    slope = jnp.where(inside, ((bounded - zero) * scale - wide) / scale, edge)
    dx = jnp.where(inside, given, 0)
    return dx, given * slope * grad_factor, jnp.where(inside, 0, given * -scale) * grad_factor


def _rounded(zero_point: Array) -> Array:
    return jnp.floor(widen(zero_point) + 0.5) if jnp.issubdtype(zero_point.dtype, jnp.floating) else zero_point


def _along(values: Array, like: Array, axis: int) -> Array:
    shape = [1] * like.ndim
    shape[axis] = values.shape[0]
    return values.reshape(shape)
