"""Classical orthogonal polynomials of a degree that is run-time data: https://dlmf.nist.gov/18.

All of them follow from a three-term recurrence, run up to the largest degree in the tensor; each element stops at its
own. Near the ends of [-1, 1] Chebyshev's have values in closed form, which keeps high degrees exact.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

from .registry import pointwise

# (k, x, p_k, p_(k-1)) -> p_(k+1)
Step = Callable[[Array, Array, Array, Array], Array]
First = Callable[[Array], Array]


def _polynomial(name: str, first: First, step: Step, shifted: bool = False) -> None:
    """Register `special_<name>`: p_0 = 1, p_1 = first(x), p_(k+1) = step(...); a negative degree gives 0."""

    @pointwise(*(f"special_{name}{suffix}" for suffix in ("", ".x_scalar", ".n_scalar")), floating=True)
    def computed(x: Array, n: Array) -> Array:
        x, n = jnp.broadcast_arrays(x, n)
        if shifted:
            x = 2 * x - 1
        degree = jnp.trunc(n)
        largest = jnp.max(degree, initial=0)

        def body(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            k, now, before = state
            after = step(k, x, now, before)
            going = k < degree
            return k + 1, jnp.where(going, after, now), jnp.where(going, now, before)

        start = jnp.ones((), x.dtype), first(x), jnp.ones_like(x)
        _, value, _ = lax.while_loop(lambda s: s[0] < largest, body, start)
        value = jnp.where(degree < 0, 0, jnp.where(degree == 0, 1, value))
        return jnp.where(jnp.isnan(n), 0, value)

    computed.__name__ = name


def _chebyshev(k: Array, x: Array, now: Array, before: Array) -> Array:
    return 2 * x * now - before


for _prefix, _shift in (("chebyshev_polynomial_", False), ("shifted_chebyshev_polynomial_", True)):
    _polynomial(_prefix + "t", lambda x: x, _chebyshev, _shift)
    _polynomial(_prefix + "u", lambda x: 2 * x, _chebyshev, _shift)
    _polynomial(_prefix + "v", lambda x: 2 * x - 1, _chebyshev, _shift)
    _polynomial(_prefix + "w", lambda x: 2 * x + 1, _chebyshev, _shift)
_polynomial("hermite_polynomial_h", lambda x: 2 * x, lambda k, x, now, before: 2 * x * now - 2 * k * before)
_polynomial("hermite_polynomial_he", lambda x: x, lambda k, x, now, before: x * now - k * before)
_polynomial(
    "laguerre_polynomial_l",
    lambda x: 1 - x,
    lambda k, x, now, before: ((2 * k + 1 - x) * now - k * before) / (k + 1),
)
_polynomial(
    "legendre_polynomial_p", lambda x: x, lambda k, x, now, before: ((2 * k + 1) * x * now - k * before) / (k + 1)
)
