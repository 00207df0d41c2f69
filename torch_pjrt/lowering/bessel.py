"""Bessel functions of the second kind, modified ones, and Airy's function, which JAX has not.

Each is split into ranges where what is left after its known leading behaviour (https://dlmf.nist.gov, 9 and 10) is
smooth, and that is a Chebyshev series. The coefficients are interpolated from SciPy's double-precision values when a
function is first lowered, so that one degree serves float64 and float32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import scipy  # it imports scipy.special, 0.4 s, when that is first asked for
from jax import Array
from jax.scipy import special as jax_special

from .registry import pointwise

Real = np.ndarray
_EULER = 0.57721566490153286


@pointwise("special_bessel_y0", floating=True)
def bessel_y0(self: Array) -> Array:
    return _second_kind(0, self)


@pointwise("special_bessel_y1", floating=True)
def bessel_y1(self: Array) -> Array:
    return _second_kind(1, self)


@pointwise("special_modified_bessel_k0", floating=True)
def modified_bessel_k0(self: Array) -> Array:
    return _modified_second_kind(0, self, scaled=False)


@pointwise("special_modified_bessel_k1", floating=True)
def modified_bessel_k1(self: Array) -> Array:
    return _modified_second_kind(1, self, scaled=False)


@pointwise("special_scaled_modified_bessel_k0", floating=True)
def scaled_modified_bessel_k0(x: Array) -> Array:
    return _modified_second_kind(0, x, scaled=True)


@pointwise("special_scaled_modified_bessel_k1", floating=True)
def scaled_modified_bessel_k1(x: Array) -> Array:
    return _modified_second_kind(1, x, scaled=True)


@pointwise("special_spherical_bessel_j0", floating=True)
def spherical_bessel_j0(self: Array) -> Array:
    """sin(x) / x (https://dlmf.nist.gov/10.49#E3): 1 at zero, 0 at infinity."""
    ratio = jnp.sin(self) / jnp.where(self == 0, 1, self)
    return jnp.where(self == 0, 1, jnp.where(jnp.isinf(self), 0, ratio))


@pointwise("special_bessel_j0", floating=True)
def bessel_j0(self: Array) -> Array:
    """Even; a series in x^2 up to 8, a modulated cosine beyond."""
    x = jnp.abs(self)
    inner = _series(lambda u: scipy.special.j0(8 * np.sqrt(u)), "j0", 0, 1, 24)((jnp.minimum(x, 8) / 8) ** 2)
    return jnp.where(x <= 8, inner, _oscillating(0, x)[0])


@pointwise("special_bessel_j1", floating=True)
def bessel_j1(self: Array) -> Array:
    """Odd; as j0."""
    x = jnp.abs(self)
    small = jnp.minimum(x, 8)
    inner = small * _series(_j1_over_x, "j1", 0, 1, 24)((small / 8) ** 2)
    return jnp.sign(self) * jnp.where(x <= 8, inner, _oscillating(1, x)[0])


def _j1_over_x(u: Real) -> Real:
    x = 8 * np.sqrt(u)
    return np.where(x == 0, 0.5, scipy.special.j1(x) / np.where(x == 0, 1, x))


@pointwise("special_airy_ai", floating=True)
def airy_ai(x: Array) -> Array:
    """A series within [-2, 2]; exp(-z) / x^(1/4) times a series in 1 / z beyond, with z = 2/3 x^(3/2); on the left,
    where Ai oscillates with phase z + pi/4, the amplitudes of sine and cosine are series in 1 / z.
    """
    inner = _series(lambda t: scipy.special.airy(t)[0], "ai", -2, 2, 30)(jnp.clip(x, -2, 2))
    size = jnp.maximum(jnp.abs(x), 2)
    z = 2 / 3 * size * jnp.sqrt(size)
    root = jnp.sqrt(jnp.sqrt(size))
    ratio = _AIRY_EDGE / z  # 1 at |x| = 2, 0 at infinity
    right = jnp.exp(-z) / root * _series(_airy_right, "ai right", 0, 1, 30)(ratio)
    sine, cosine = (_series(f, n, 0, 1, 34)(ratio) for f, n in ((_airy_sine, "ai sin"), (_airy_cosine, "ai cos")))
    left = (sine * jnp.sin(z + math.pi / 4) - cosine * jnp.cos(z + math.pi / 4)) / root
    infinite = jnp.where(jnp.isinf(x), jnp.where(x > 0, 0.0, jnp.nan), jnp.where(x > 2, right, left))
    return jnp.where(jnp.isnan(x), x, jnp.where(jnp.abs(x) <= 2, inner, infinite))


_AIRY_EDGE = 2 / 3 * 2**1.5


def _airy_size(ratio: Real) -> Real:
    return np.power(1.5 * _AIRY_EDGE / np.maximum(ratio, 1e-8), 2 / 3)


def _airy_right(ratio: Real) -> Real:
    x = _airy_size(ratio)
    return scipy.special.airye(x)[0] * x**0.25


def _airy_sine(ratio: Real) -> Real:
    return _airy_amplitudes(ratio)[0]


def _airy_cosine(ratio: Real) -> Real:
    return _airy_amplitudes(ratio)[1]


def _airy_amplitudes(ratio: Real) -> tuple[Real, Real]:
    """From Ai = (s sin p - c cos p) / x^(1/4) and Bi = (s cos p + c sin p) / x^(1/4), p = z + pi/4."""
    x = _airy_size(ratio)
    phase = 2 / 3 * x**1.5 + np.pi / 4
    ai, _, bi, _ = scipy.special.airy(-x)
    sine = (ai * np.sin(phase) + bi * np.cos(phase)) * x**0.25
    cosine = (bi * np.sin(phase) - ai * np.cos(phase)) * x**0.25
    return sine, cosine


def _second_kind(order: int, x: Array) -> Array:
    """Y of order 0 or 1: -inf at 0, NaN below."""
    small = jnp.clip(x, jnp.finfo(x.dtype).tiny, 8)
    u = (small / 8) ** 2
    first = bessel_j0(small) if order == 0 else bessel_j1(small)
    smooth = _series(functools.partial(_smooth_part, order), f"y{order}", 0, 1, 24)(u)
    inner = 2 / math.pi * jnp.log(small) * first + (smooth if order == 0 else small * smooth - 2 / math.pi / small)
    value = jnp.where(x <= 8, inner, _oscillating(order, x)[1])
    return jnp.where(x == 0, -jnp.inf, jnp.where(x < 0, jnp.nan, value))


def _smooth_part(order: int, u: Real) -> Real:
    """Y0 - 2/pi log(x) J0, or (Y1 - 2/pi (log(x) J1 - 1/x)) / x: even and entire."""
    x = 8 * np.sqrt(np.maximum(u, 1e-12))
    if order == 0:
        return scipy.special.y0(x) - 2 / np.pi * np.log(x) * scipy.special.j0(x)
    return (scipy.special.y1(x) - 2 / np.pi * (np.log(x) * scipy.special.j1(x) - 1 / x)) / x


def _oscillating(order: int, x: Array) -> tuple[Array, Array]:
    """(J, Y) for x >= 8: sqrt(2 / (pi x)) times P cos - Q sin and P sin + Q cos of x - (2 order + 1) pi / 4."""
    x = jnp.maximum(x, 8)
    u = (8 / x) ** 2
    p = _series(lambda t: _amplitudes(order, t)[0], f"p{order}", 0, 1, 20)(u)
    q = _series(lambda t: _amplitudes(order, t)[1], f"q{order}", 0, 1, 20)(u) / x
    sine, cosine = jnp.sin(x), jnp.cos(x)
    # sin and cos of the shifted phase without subtracting from x, which would lose digits of it.
    s, c = (sine - cosine, sine + cosine) if order == 0 else (-sine - cosine, sine - cosine)
    scale = jnp.sqrt(1 / (math.pi * x))
    return scale * (p * c - q * s), scale * (p * s + q * c)


def _amplitudes(order: int, u: Real) -> tuple[Real, Real]:
    x = 8 / np.sqrt(np.maximum(u, 1e-7))
    first, second = scipy.special.jv(order, x), scipy.special.yv(order, x)
    phase = x - (2 * order + 1) * np.pi / 4
    scale = np.sqrt(np.pi * x / 2)
    p = (first * np.cos(phase) + second * np.sin(phase)) * scale
    q = (second * np.cos(phase) - first * np.sin(phase)) * scale * x
    return p, q


def _modified_second_kind(order: int, x: Array, *, scaled: bool) -> Array:
    """K of order 0 or 1, times exp(x) if scaled: inf at 0, NaN below. https://dlmf.nist.gov/10.31 up to 2."""
    small = jnp.clip(x, jnp.finfo(x.dtype).tiny, 2)
    log = jnp.log(small / 2)
    u = (small / 2) ** 2
    if order == 0:
        inner = _power_series(0, u) - log * jax_special.i0(small)
    else:
        inner = 1 / small + log * jax_special.i1(small) - small / 2 * _power_series(1, u)
    large = jnp.maximum(x, 2)
    name = scipy.special.k0e if order == 0 else scipy.special.k1e
    tail = _series(lambda t: _tail(name, t), f"k{order}", 0, 1, 26)(2 / large) / jnp.sqrt(large)
    value = jnp.where(x <= 2, inner * jnp.exp(small) if scaled else inner, tail if scaled else tail * jnp.exp(-large))
    value = jnp.where(jnp.isposinf(x), 0, value)
    return jnp.where(x == 0, jnp.inf, jnp.where(x < 0, jnp.nan, value))


def _tail(function: Callable[[Real], Real], t: Real) -> Real:
    x = 2 / np.maximum(t, 1e-10)
    return function(x) * np.sqrt(x)


def _power_series(order: int, u: Array) -> Array:
    """Sum of psi(k + 1) u^k / k!^2, or of (psi(k + 1) + psi(k + 2)) / 2 u^k / (k! (k + 1)!)."""
    total, harmonic = jnp.zeros_like(u), 0.0
    terms = []
    for k in range(16):
        psi = harmonic - _EULER
        harmonic += 1 / (k + 1)
        weight = math.factorial(k) ** 2 if order == 0 else math.factorial(k) * math.factorial(k + 1)
        terms.append((psi if order == 0 else (psi + harmonic - _EULER) / 2) / weight)
    for term in reversed(terms):
        total = total * u + term
    return total


def _series(
    function: Callable[[Real], Real], name: str, low: float, high: float, degree: int
) -> Callable[[Array], Array]:
    """`function` on [low, high] as its Chebyshev interpolant, summed by Clenshaw's recurrence."""
    if name not in _COEFFICIENTS:
        middle, half = (high + low) / 2, (high - low) / 2
        _COEFFICIENTS[name] = np.polynomial.chebyshev.chebinterpolate(lambda t: function(middle + half * t), degree)
    coefficients = _COEFFICIENTS[name]

    def evaluate(x: Array) -> Array:
        t = (2 * x - (high + low)) / (high - low)
        ahead, ahead2 = jnp.zeros_like(t), jnp.zeros_like(t)
        for c in coefficients[:0:-1]:
            ahead, ahead2 = 2 * t * ahead - ahead2 + c, ahead
        return t * ahead - ahead2 + coefficients[0]

    return evaluate


_COEFFICIENTS: dict[str, np.ndarray] = {}
