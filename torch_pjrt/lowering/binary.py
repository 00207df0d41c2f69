"""Arithmetic of two and three tensors: sums, products, quotients, remainders, powers, bits."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from .dtypes import promote, to_numpy
from .registry import lower, pointwise
from .widen import wide_dtype, widen


@pointwise("add.Tensor", "add.Scalar", rounded=True)
def add(self: Array, other: Array, alpha: Array | None = None) -> Array:
    return self + other if alpha is None else self + other * alpha


@pointwise("sub.Tensor", "sub.Scalar", rounded=True)
def sub(self: Array, other: Array, alpha: Array | None = None) -> Array:
    return self - other if alpha is None else self - other * alpha


@pointwise("rsub.Tensor", "rsub.Scalar", rounded=True)
def rsub(self: Array, other: Array, alpha: Array | None = None) -> Array:
    return other - self if alpha is None else other - self * alpha


@pointwise("mul.Tensor", "mul.Scalar", rounded=["self"])
def mul(self: Array, other: Array) -> Array:
    return self * other


@pointwise("div.Tensor", "div.Scalar", floating=True, rounded=["self"])
def div(self: Array, other: Array) -> Array:
    return self / other


@pointwise("div.Tensor_mode", "div.Scalar_mode", rounded=["self"], aside=["rounding_mode"], divisor="other")
def div_mode(self: Array, other: Array, *, rounding_mode: str | None) -> Array:
    if rounding_mode == "floor":
        return floor_divide(self, other)
    if jnp.issubdtype(self.dtype, jnp.inexact):
        return self / other if rounding_mode is None else jnp.trunc(quotient(self, other))
    if rounding_mode is None:
        default = to_numpy(torch.get_default_dtype())
        return self.astype(default) / other.astype(default)
    return lax.div(*jnp.broadcast_arrays(self, other))


def quotient(x: Array, by: Array) -> Array:
    """x / by, rounded once: XLA turns a division by one number into a product with its reciprocal, which is rounded
    twice, so that 49 / 49 is less than one. What goes on to a whole number must not.
    """
    return x / lax.optimization_barrier(jnp.broadcast_to(by, jnp.broadcast_shapes(x.shape, by.shape)))


@pointwise("floor_divide", "floor_divide.Scalar", rounded=["self"], divisor="other")
def floor_divide(self: Array, other: Array) -> Array:
    """Python's `//`; a float quotient by zero stays infinite or nan, as CPU PyTorch's kernel has it."""
    remainder = lax.rem(*jnp.broadcast_arrays(self, other))
    down = (remainder != 0) & ((remainder < 0) != (other < 0))
    if not jnp.issubdtype(self.dtype, jnp.floating):
        return lax.div(*jnp.broadcast_arrays(self, other)) - down.astype(self.dtype)
    nearly = (self - remainder) / other - down.astype(self.dtype)
    floor = jnp.floor(nearly)
    floor = jnp.where(nearly - floor > 0.5, floor + 1, floor)
    floor = jnp.where(nearly == 0, jnp.copysign(0, self / other), floor)
    return jnp.where(other == 0, self / other, floor)


@pointwise("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor", rounded=True, divisor="other")
def remainder(self: Array, other: Array) -> Array:
    """With the divisor's sign, as Python's `%`."""
    r = lax.rem(*jnp.broadcast_arrays(self, other))
    return jnp.where((r != 0) & ((r < 0) != (other < 0)), r + other, r)


@pointwise("fmod.Tensor", "fmod.Scalar", rounded=True, divisor="other")
def fmod(self: Array, other: Array) -> Array:
    return lax.rem(*jnp.broadcast_arrays(self, other))


@lower("pow.Tensor_Scalar", static=["exponent"])
def pow_scalar(self: Array, exponent: int | float | complex) -> Array:
    """A constant exponent, rounded to the result's dtype, becomes multiplications and roots where those are exact."""
    dtype = to_numpy(promote([self, exponent]))
    if dtype == np.bool_:
        return self | (not exponent)
    if not jnp.issubdtype(dtype, jnp.inexact):
        return lax.integer_pow(self.astype(dtype), int(exponent.real))
    x = self.astype(wide_dtype(self, jnp.zeros((), dtype)))
    if jnp.issubdtype(dtype, jnp.floating):
        exponent = float(np.asarray(exponent).astype(dtype))
    if exponent == 0.5:
        return jnp.sqrt(x)
    if exponent == -0.5:
        return lax.rsqrt(x)
    if exponent in range(-_UNROLLED_EXPONENT, _UNROLLED_EXPONENT + 1):
        return lax.integer_pow(x, int(exponent.real))
    return jnp.power(x, jnp.asarray(exponent, x.dtype))


# integer_pow multiplies log2(n) times; beyond this the rounding errors pass those of one pow.
_UNROLLED_EXPONENT = 4


@pointwise("pow.Tensor_Tensor", "pow.Scalar", rounded=True)
def pow_tensor(self: Array, exponent: Array) -> Array:
    if self.dtype == np.bool_:
        return self | ~exponent
    if jnp.issubdtype(self.dtype, jnp.inexact):
        return jnp.power(self, exponent)
    whole = _integer_power(self, jnp.maximum(exponent, 0))
    inverse = jnp.where(self == 1, 1, jnp.where(self == -1, 1 - 2 * (exponent & 1), 0))
    return jnp.where(exponent < 0, inverse, whole)


def _integer_power(base: Array, exponent: Array) -> Array:
    """By squaring, as many times as the largest exponent has bits (jnp.power looks at six of them); wraps around."""

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        result, square, left = state
        return jnp.where(left & 1 == 1, result * square, result), square * square, left >> 1

    square, left = jnp.broadcast_arrays(base, exponent)
    return lax.while_loop(lambda state: (state[2] > 0).any(), step, (jnp.ones_like(square), square, left))[0]


@pointwise("ldexp.Tensor", floating=True)
def ldexp(self: Array, other: Array) -> Array:
    """2^other alone may be infinite or zero where the result is not."""
    if jnp.iscomplexobj(other):
        return self * jnp.exp2(other)
    whole = jnp.floor(other)
    scaled = jnp.ldexp(self, jnp.clip(whole, -5000, 5000).astype(np.int32))
    return jnp.where(whole == other, scaled, scaled * jnp.exp2(other - whole))


@pointwise("atan2", floating=True, rounded=True)
def atan2(self: Array, other: Array) -> Array:
    return jnp.arctan2(self, other)


@pointwise("hypot", floating=True, rounded=True)
def hypot(self: Array, other: Array) -> Array:
    return jnp.hypot(self, other)


@pointwise("copysign.Tensor", "copysign.Scalar", floating=True)
def copysign(self: Array, other: Array) -> Array:
    return jnp.copysign(self, other)


@lower("nextafter")
def nextafter(self: Array, other: Array) -> Array:
    """The neighbour in the operands' own dtype, so half types are not widened here."""
    dtype = to_numpy(promote([self, other]))
    return jnp.nextafter(self.astype(dtype), other.astype(dtype))


@pointwise("logaddexp", floating=True, rounded=True)
def logaddexp(self: Array, other: Array) -> Array:
    if not jnp.iscomplexobj(self):
        return jnp.logaddexp(self, other)
    ordered = self.real >= other.real
    high, low = jnp.where(ordered, self, other), jnp.where(ordered, other, self)
    infinite = jnp.where(high.real < 0, other, _sum_of_infinite(high, low))
    both = jnp.isinf(high.real) & (high.real == low.real)
    share = low - high
    share = jnp.where(jnp.isneginf(share.real), 0, jnp.exp(share))  # whatever its phase
    result = jnp.where(both, infinite, high + jnp.log1p(share))
    return jnp.where(jnp.isnan(self) | jnp.isnan(other), complex(jnp.nan, jnp.nan), result)  # if a part is


def _sum_of_infinite(x: Array, y: Array) -> Array:
    """The logarithm of a sum of infinitely large numbers, by the rules of C for their real and imaginary parts."""
    angles = x.imag, y.imag
    real = sum(jnp.where(jnp.isinf(t), jnp.inf, jnp.inf * jnp.cos(t)) for t in angles)
    imag = sum(jnp.where(t == 0, t, jnp.inf * jnp.sin(t)) for t in angles)
    size = jnp.where(jnp.isinf(real) | jnp.isinf(imag), jnp.inf, jnp.full_like(real, jnp.nan))
    return lax.complex(size, jnp.arctan2(imag, real))


@pointwise("logaddexp2", floating=True, rounded=True)
def logaddexp2(self: Array, other: Array) -> Array:
    return jnp.logaddexp2(self, other)


@pointwise("heaviside")
def heaviside(self: Array, values: Array) -> Array:
    return jnp.where(self == 0, values, (self > 0).astype(self.dtype))


@pointwise("gcd")
def gcd(self: Array, other: Array) -> Array:
    # Of sizes without sign: the lowest number has none among its own, and jnp.gcd does not end for it.
    return lax.while_loop(
        lambda pair: (pair[1] != 0).any(),
        lambda pair: (jnp.where(pair[1] == 0, pair[0], pair[1]), jnp.where(pair[1] == 0, 0, _remainder(*pair))),
        tuple(jnp.broadcast_arrays(_size(self), _size(other))),
    )[0].astype(self.dtype)


def _size(x: Array) -> Array:
    """The absolute value, in the unsigned dtype as wide."""
    unsigned = jnp.dtype(f"uint{8 * x.dtype.itemsize}")
    return jnp.where(x < 0, -x.astype(unsigned), x.astype(unsigned))


def _remainder(x: Array, by: Array) -> Array:
    return lax.rem(x, jnp.where(by == 0, jnp.ones_like(by), by))


@pointwise("lcm")
def lcm(self: Array, other: Array) -> Array:
    divisor = gcd(self, other)
    of_divisor = self // jnp.where(divisor == 0, jnp.ones_like(divisor), divisor)
    wide = jnp.promote_types(self.dtype, jnp.int32)  # C++'s product of short integers is an int
    return jnp.abs(of_divisor.astype(wide) * other.astype(wide)).astype(self.dtype)


@pointwise("bitwise_and.Tensor", "bitwise_and.Scalar", "bitwise_and.Scalar_Tensor")
def bitwise_and(self: Array, other: Array) -> Array:
    return self & other


@pointwise("bitwise_or.Tensor", "bitwise_or.Scalar", "bitwise_or.Scalar_Tensor")
def bitwise_or(self: Array, other: Array) -> Array:
    return self | other


@pointwise("bitwise_xor.Tensor", "bitwise_xor.Scalar", "bitwise_xor.Scalar_Tensor")
def bitwise_xor(self: Array, other: Array) -> Array:
    return self ^ other


@pointwise(
    "bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar", "bitwise_left_shift.Scalar_Tensor",
    "__lshift__.Tensor", "__lshift__.Scalar", "__ilshift__.Tensor", "__ilshift__.Scalar",
)  # fmt: skip
def left_shift(self: Array, other: Array) -> Array:
    if jnp.issubdtype(self.dtype, jnp.floating):
        return self * jnp.exp2(other)
    return lax.shift_left(*jnp.broadcast_arrays(self, other))


@pointwise(
    "bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar", "bitwise_right_shift.Scalar_Tensor",
    "__rshift__.Tensor", "__rshift__.Scalar", "__irshift__.Tensor", "__irshift__.Scalar",
)  # fmt: skip
def right_shift(self: Array, other: Array) -> Array:
    if jnp.issubdtype(self.dtype, jnp.floating):
        return self / jnp.exp2(other)
    shift = lax.shift_right_logical if jnp.issubdtype(self.dtype, jnp.unsignedinteger) else lax.shift_right_arithmetic
    return shift(*jnp.broadcast_arrays(self, other))


@pointwise("prims::fma")
def fma(a: Array, b: Array, c: Array) -> Array:
    """What Dynamo makes of `addcmul_` and its like on any device. XLA decides whether the product is rounded."""
    return a * b + c


@pointwise("addcmul")
def addcmul(self: Array, tensor1: Array, tensor2: Array, *, value: Array | None = None) -> Array:
    return self + (tensor1 * tensor2 if value is None else value * tensor1 * tensor2)


@pointwise("addcdiv")
def addcdiv(self: Array, tensor1: Array, tensor2: Array, *, value: Array | None = None) -> Array:
    return self + (tensor1 / tensor2 if value is None else value * tensor1 / tensor2)


@pointwise("lerp.Scalar", "lerp.Tensor")
def lerp(self: Array, end: Array, weight: Array) -> Array:
    """From the nearer end, so that weight 1 gives exactly `end`."""
    step = end - self
    return jnp.where(jnp.abs(weight) < 0.5, self + weight * step, end - step * (1 - weight))


@lower("complex")
def make_complex(real: Array, imag: Array) -> Array:
    return lax.complex(*jnp.broadcast_arrays(widen(real), widen(imag)))


@lower("polar")
def polar(abs: Array, angle: Array) -> Array:
    size, turn = widen(abs), widen(angle)
    return lax.complex(*jnp.broadcast_arrays(size * jnp.cos(turn), size * jnp.sin(turn)))
