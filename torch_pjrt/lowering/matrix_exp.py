"""The exponential of square matrices."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .registry import lower
from .widen import widen


@lower("linalg_matrix_exp")
def matrix_exp(self: Array) -> Array:
    if self.size == 0:
        return self
    x = widen(self)
    if self.shape[-1] == 1:
        return jnp.exp(x)
    return _scaled_and_squared(x)


# The matrix's 1-norm up to which a Taylor polynomial of degree 18 has full precision: Bader, Blanes, Casas, "Computing
# the Matrix Exponential with an Optimized Taylor Polynomial Approximation" (2019), table 1.
_TAYLOR_REACH = {np.dtype(np.float32): 3.01, np.dtype(np.float64): 1.09}


def _scaled_and_squared(x: Array) -> Array:
    """exp(x) = exp(x / 2^s)^(2^s), s per matrix; without the linear solve of a Pade approximant, as PyTorch does it."""
    norm = jnp.abs(x).sum(-2).max(-1)[..., None, None]
    reach = _TAYLOR_REACH[norm.dtype]
    squarings = jnp.where(jnp.isfinite(norm), jnp.ceil(jnp.log2(jnp.maximum(norm / reach, 1))), 0).astype(np.int32)
    scaled = x * jnp.exp2(-squarings.astype(norm.dtype)).astype(x.dtype)
    identity = jnp.eye(x.shape[-1], dtype=x.dtype)
    result = _taylor(scaled, identity)

    def square(step: Array, y: Array) -> Array:
        return jnp.where(step < squarings, _product(y, y), y)

    return lax.fori_loop(0, squarings.max(), square, result)


def _taylor(x: Array, identity: Array) -> Array:
    """The sum of x^k / k! up to k = 18, by Paterson and Stockmeyer: blocks of powers below the third."""
    square = _product(x, x)
    cube = _product(square, x)
    weights = [1 / math.factorial(k) for k in range(19)]
    result = weights[18] * identity
    for k in range(15, -1, -3):
        block = weights[k] * identity + weights[k + 1] * x + weights[k + 2] * square
        result = _product(cube, result) + block
    return result


def _product(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)
