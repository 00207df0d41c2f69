"""Comparisons, logic, choice between operands (maximum, clamp, where, masked_fill)."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from .check import require
from .registry import lower, pointwise


@pointwise("eq.Tensor", "eq.Scalar", rounded=True)
def eq(self: Array, other: Array) -> Array:
    return self == other


@pointwise("ne.Tensor", "ne.Scalar", rounded=True)
def ne(self: Array, other: Array) -> Array:
    return self != other


@pointwise("lt.Tensor", "lt.Scalar", rounded=True)
def lt(self: Array, other: Array) -> Array:
    return self < other


@pointwise("le.Tensor", "le.Scalar", rounded=True)
def le(self: Array, other: Array) -> Array:
    return self <= other


@pointwise("gt.Tensor", "gt.Scalar", rounded=True)
def gt(self: Array, other: Array) -> Array:
    return self > other


@pointwise("ge.Tensor", "ge.Scalar", rounded=True)
def ge(self: Array, other: Array) -> Array:
    return self >= other


@lower("logical_and")
def logical_and(self: Array, other: Array) -> Array:
    return (self != 0) & (other != 0)


@lower("logical_or")
def logical_or(self: Array, other: Array) -> Array:
    return (self != 0) | (other != 0)


@lower("logical_xor")
def logical_xor(self: Array, other: Array) -> Array:
    return (self != 0) ^ (other != 0)


@pointwise("maximum", "max.other")
def maximum(self: Array, other: Array) -> Array:
    return jnp.maximum(self, other)


@pointwise("minimum", "min.other")
def minimum(self: Array, other: Array) -> Array:
    return jnp.minimum(self, other)


@pointwise("fmax")
def fmax(self: Array, other: Array) -> Array:
    return jnp.fmax(self, other)


@pointwise("fmin")
def fmin(self: Array, other: Array) -> Array:
    return jnp.fmin(self, other)


@pointwise("clamp", "clamp.Tensor", "clip", "clip.Tensor")
def clamp(self: Array, min: Array | None = None, max: Array | None = None) -> Array:
    if min is not None:
        self = jnp.maximum(self, min)
    return self if max is None else jnp.minimum(self, max)


@pointwise("clamp_min", "clamp_min.Tensor")
def clamp_min(self: Array, min: Array) -> Array:
    return jnp.maximum(self, min)


@pointwise("clamp_max", "clamp_max.Tensor")
def clamp_max(self: Array, max: Array) -> Array:
    return jnp.minimum(self, max)


@pointwise("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar", aside=["condition"])
def where(condition: Array, self: Array, other: Array) -> Array:
    return jnp.where(condition != 0, self, other)


@lower("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(self: Array, mask: Array, value: Array | bool | int | float | complex) -> Array:
    value = jnp.asarray(value)
    if jnp.iscomplexobj(value) and not jnp.iscomplexobj(self):
        require(value.imag == 0, "value cannot be converted to a real type without overflow")
    return jnp.where(mask != 0, value.astype(self.dtype), self)


@lower("isin.Tensor_Tensor")
def isin(elements: Array, test_elements: Array, *, assume_unique: bool = False, invert: bool = False) -> Array:
    return jnp.isin(elements, test_elements, invert=invert)


@lower("isin.Tensor_Scalar")
def isin_scalar(
    elements: Array, test_element: Array | int | float, *, assume_unique: bool = False, invert: bool = False
) -> Array:
    return ne(elements, test_element) if invert else eq(elements, test_element)
