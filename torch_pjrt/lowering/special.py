"""Special functions: error functions, gamma functions, Bessel functions, logit, and their backward ops."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax
from jax.scipy import special as scipy_special

from .registry import pointwise


@pointwise("logit", floating=True, aside=["eps"])
def logit(self: Array, eps: float | None = None) -> Array:
    if eps is not None:
        self = jnp.minimum(jnp.maximum(self, eps), 1 - eps)
    return jnp.log(self / (1 - self))


@pointwise("logit_backward", aside=["eps"])
def logit_backward(grad_output: Array, self: Array, eps: float | None = None) -> Array:
    """Outside [eps, 1 - eps] (without eps: outside [0, 1], where logit is nan) nothing flows back."""
    grad = grad_output / (self * (1 - self))
    if eps is None:
        return jnp.where((self < 0) | (self > 1), jnp.nan, grad)
    return jnp.where((self < eps) | (self > 1 - eps), 0, grad)


@pointwise("sinc", floating=True)
def sinc(self: Array) -> Array:
    x = self * math.pi
    return jnp.where(x == 0, 1, jnp.sin(x) / jnp.where(x == 0, 1, x))


@pointwise("digamma", floating=True)
def digamma(self: Array) -> Array:
    """At zero, minus the infinity of zero's sign."""
    return jnp.where(self == 0, jnp.copysign(jnp.inf, -self), lax.digamma(self))


@pointwise("polygamma", floating=True, static=["n"])
def polygamma(n: int, self: Array) -> Array:
    """(-1)^(n+1) n! zeta(n + 1, x): https://dlmf.nist.gov/25.11.E12.

    The trigamma function, which digamma's gradient needs, reflects its negative half: https://dlmf.nist.gov/5.15.E6.
    """
    if n == 0:
        return digamma(self)
    order = jnp.full_like(self, n + 1)
    if n == 1:
        low = self < 0.5
        tail = _zeta(order, jnp.where(low, 1 - self, self))
        return jnp.where(low, (math.pi / jnp.sin(math.pi * self)) ** 2 - tail, tail)
    return (-1.0) ** (n + 1) * math.factorial(n) * _zeta(order, self)


@pointwise("mvlgamma", floating=True, aside=["p"])
def mvlgamma(self: Array, p: int) -> Array:
    """log of the multivariate gamma function, a sum of p lgammas: https://dlmf.nist.gov/35.3."""
    total = p * (p - 1) / 4 * math.log(math.pi)
    return sum((lax.lgamma(self - i / 2) for i in range(p)), jnp.full_like(self, total))


@pointwise("igamma", floating=True)
def igamma(self: Array, other: Array) -> Array:
    return lax.igamma(*jnp.broadcast_arrays(self, other))


@pointwise("igammac", floating=True)
def igammac(self: Array, other: Array) -> Array:
    return lax.igammac(*jnp.broadcast_arrays(self, other))


@pointwise("special_zeta", "special_zeta.self_scalar", "special_zeta.other_scalar", floating=True)
def zeta(self: Array, other: Array) -> Array:
    return _zeta(*jnp.broadcast_arrays(self, other))


def _zeta(x: Array, q: Array) -> Array:
    """The sum of (q + k)^-x over k = 0, 1, ..., with PyTorch's poles and gaps.

    Infinite at x = 1 and at q = 0, -1, -2, ...; nan where x < 1, and where q < 0 unless x is whole. There the terms
    below zero are (-1)^x times those of two positive sums; XLA's zeta takes no negative q.
    """
    pole = (x == 1) | ((x > 1) & (q <= 0) & (q == jnp.floor(q)))
    negative, part = q < 0, q - jnp.floor(q)
    sign = jnp.where(x % 2 == 0, 1, -1).astype(q.dtype)
    # In this order: the two largest sums may cancel exactly.
    found = lax.zeta(x, jnp.where(negative, part, q))
    reflected = found + sign * lax.zeta(x, 1 - part) - sign * lax.zeta(x, 1 - q)
    found = jnp.where(negative, reflected, found)
    found = jnp.where(negative & (x != jnp.floor(x)), jnp.nan, found)
    return jnp.where(pole, jnp.inf, jnp.where(x < 1, jnp.nan, found))


@pointwise("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other", floating=True, rounded=True)
def xlogy(self: Array, other: Array) -> Array:
    return _zero_times(self, other, jnp.log(other))


@pointwise(
    "special_xlog1py", "special_xlog1py.self_scalar", "special_xlog1py.other_scalar", floating=True, rounded=True
)
def xlog1py(self: Array, other: Array) -> Array:
    return _zero_times(self, other, jnp.log1p(other))


def _zero_times(x: Array, y: Array, log: Array) -> Array:
    """x * log, where 0 * log is 0 even if the logarithm is infinite; nan where y is."""
    return jnp.where(jnp.isnan(y), jnp.nan, jnp.where(x == 0, 0, x * log))


@pointwise("special_entr", floating=True)
def entr(self: Array) -> Array:
    inside = -self * jnp.log(jnp.where(self > 0, self, 1))
    return jnp.where(jnp.isnan(self), self, jnp.where(self < 0, -jnp.inf, inside))


def erf_inv(self: Array) -> Array:
    """XLA's; beyond 0.9, where it is up to 50 units in the last place off, with a step of Newton's method.

    The step solves erfc(y) = 1 - |x|: the right side is exact there, as erf(y) = |x| is not.
    """
    y = lax.erf_inv(self)
    size = jnp.abs(y)
    excess = lax.erfc(size) - (1 - jnp.abs(self))
    step = excess * jnp.exp(size * size) * (math.sqrt(math.pi) / 2)
    better = (jnp.abs(self) > 0.9) & (jnp.abs(self) < 1)
    return jnp.where(better, y + jnp.sign(self) * step, y)


def _special(names: list[str], function: Callable[[Array], Array]) -> None:
    @pointwise(*names, floating=True)
    def computed(self: Array) -> Array:
        return function(self)


for _names, _function in (
    (["erf"], lax.erf),
    (["erfc"], lax.erfc),
    (["erfinv"], erf_inv),
    (["special_erfcx"], scipy_special.erfcx),
    (["lgamma"], lax.lgamma),
    (["i0", "special_modified_bessel_i0"], scipy_special.i0),
    (["special_i0e"], scipy_special.i0e),
    (["special_i1", "special_modified_bessel_i1"], scipy_special.i1),
    (["special_i1e"], scipy_special.i1e),
    (["special_ndtri"], scipy_special.ndtri),
    (["special_log_ndtr"], scipy_special.log_ndtr),
):
    _special(_names, _function)
