"""Elementwise functions of one tensor: sign, rounding, powers, exponentials, trigonometry, tests for nan and inf.

Special functions (gamma, erf, Bessel) are in `special`, activations in `activation`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .registry import lower, pointwise
from .widen import widen


def _is_float(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def _is_complex(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.complexfloating)


@lower("abs")
def absolute(self: Array) -> Array:
    return self if self.dtype == np.bool_ else jnp.abs(self)


@lower("neg")
def neg(self: Array) -> Array:
    return -self


@lower("positive")
def positive(self: Array) -> Array:
    return self


@lower("conj_physical")
def conj_physical(self: Array) -> Array:
    return jnp.conj(self)


@lower("sgn", "sign")
def sign(self: Array) -> Array:
    """-1, 0 or 1, and 0 for nan; a complex number's direction."""
    if self.dtype == np.bool_:
        return self
    if _is_complex(self):
        size = jnp.abs(self)
        return jnp.where(size == 0, 0, self / jnp.where(size == 0, 1, size))
    return (self > 0).astype(self.dtype) - (self < 0).astype(self.dtype)


@lower("signbit")
def signbit(self: Array) -> Array:
    if _is_float(self):
        return jnp.signbit(self)
    return jnp.zeros(self.shape, np.bool_) if self.dtype == np.bool_ else self < 0


@lower("angle")
def angle(self: Array) -> Array:
    if _is_complex(self):
        return jnp.angle(self)
    x = widen(self) if _is_float(self) else self.astype(np.float32)
    return jnp.where(jnp.isnan(x), x, jnp.where(x < 0, jnp.asarray(math.pi, x.dtype), 0))


def _rounding(name: str, function: Callable[[Array], Array]) -> None:
    """Register a function to whole numbers, which leaves integers as they are."""

    @lower(name)
    def rounded(self: Array) -> Array:
        return function(self) if _is_float(self) else self


_rounding("floor", jnp.floor)
_rounding("ceil", jnp.ceil)
_rounding("trunc", jnp.trunc)
_rounding("round", lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN))


@lower("round.decimals")
def round_decimals(self: Array, *, decimals: int) -> Array:
    if not _is_float(self):
        return self
    x, scale = widen(self), 10.0 ** abs(decimals)
    if decimals < 0:
        return lax.round(x / scale, lax.RoundingMethod.TO_NEAREST_EVEN) * scale
    return lax.round(x * scale, lax.RoundingMethod.TO_NEAREST_EVEN) / scale


@lower("frac")
def frac(self: Array) -> Array:
    return self - jnp.trunc(self)


@lower("nan_to_num")
def nan_to_num(
    self: Array, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Array:
    if not jnp.issubdtype(self.dtype, jnp.inexact):
        return self
    if _is_complex(self):
        return lax.complex(nan_to_num(self.real, nan, posinf, neginf), nan_to_num(self.imag, nan, posinf, neginf))
    limits = jnp.finfo(self.dtype)
    x = jnp.where(jnp.isnan(self), jnp.asarray(0.0 if nan is None else nan, self.dtype), self)
    x = jnp.where(self == jnp.inf, jnp.asarray(limits.max if posinf is None else posinf, self.dtype), x)
    return jnp.where(self == -jnp.inf, jnp.asarray(limits.min if neginf is None else neginf, self.dtype), x)


@lower("bitwise_not")
def bitwise_not(self: Array) -> Array:
    return ~self


@lower("logical_not")
def logical_not(self: Array) -> Array:
    return self == 0


@lower("isnan")
def isnan(self: Array) -> Array:
    return self != self


@lower("isinf")
def isinf(self: Array) -> Array:
    return jnp.isinf(self)


@lower("isfinite")
def isfinite(self: Array) -> Array:
    return jnp.isfinite(self)


@lower("isposinf")
def isposinf(self: Array) -> Array:
    return self == jnp.inf if _is_float(self) else jnp.zeros(self.shape, np.bool_)


@lower("isneginf")
def isneginf(self: Array) -> Array:
    return self == -jnp.inf if _is_float(self) else jnp.zeros(self.shape, np.bool_)


@pointwise("square")
def square(self: Array) -> Array:
    return self * self


@pointwise("reciprocal", floating=True)
def reciprocal(self: Array) -> Array:
    return 1 / self


@pointwise("sqrt", floating=True)
def sqrt(self: Array) -> Array:
    return jnp.sqrt(self)


@pointwise("rsqrt", floating=True)
def rsqrt(self: Array) -> Array:
    return lax.rsqrt(self)


@pointwise("exp2", floating=True)
def exp2(self: Array) -> Array:
    return jnp.exp(self * math.log(2.0)) if _is_complex(self) else lax.exp2(self)


@pointwise("log10", floating=True)
def log10(self: Array) -> Array:
    return jnp.log(self) * (1 / math.log(10.0))


@pointwise("log2", floating=True)
def log2(self: Array) -> Array:
    return jnp.log(self) * (1 / math.log(2.0))


@pointwise("sigmoid", floating=True)
def sigmoid(self: Array) -> Array:
    return 1 / (1 + jnp.exp(-self)) if _is_complex(self) else lax.logistic(self)


@pointwise("deg2rad", floating=True)
def deg2rad(self: Array) -> Array:
    return self * (math.pi / 180)


@pointwise("rad2deg", floating=True)
def rad2deg(self: Array) -> Array:
    return self * (180 / math.pi)


@pointwise("sigmoid_backward")
def sigmoid_backward(grad_output: Array, output: Array) -> Array:
    return grad_output * jnp.conj((1 - output) * output)


@pointwise("tanh_backward")
def tanh_backward(grad_output: Array, output: Array) -> Array:
    return grad_output * jnp.conj(1 - output * output)


@lower("frexp.Tensor")
def frexp(self: Array) -> tuple[Array, Array]:
    mantissa, exponent = jnp.frexp(widen(self))
    return mantissa, exponent


def _floating(name: str, function: Callable[[Array], Array]) -> None:
    """Register a function of floats, computed in float32 for integers and half types."""

    @pointwise(name, floating=True)
    def computed(self: Array) -> Array:
        return function(self)


for _name, _function in {
    "exp": jnp.exp,
    "expm1": jnp.expm1,
    "log": jnp.log,
    "log1p": jnp.log1p,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "tan": jnp.tan,
    "asin": jnp.arcsin,
    "acos": jnp.arccos,
    "atan": jnp.arctan,
    "sinh": jnp.sinh,
    "cosh": jnp.cosh,
    "tanh": jnp.tanh,
    "asinh": jnp.arcsinh,
    "acosh": jnp.arccosh,
    "atanh": jnp.arctanh,
}.items():
    _floating(_name, _function)
