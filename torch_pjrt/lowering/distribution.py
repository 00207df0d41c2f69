"""Draws from parametrized distributions: multinomial, gamma, Dirichlet, Poisson, binomial."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .check import require
from .registry import lower
from .rng import open_unit, unit
from .widen import widen

Ignored = object


@lower("multinomial", random=True)
def multinomial(
    self: Array, num_samples: int, replacement: bool = False, *, generator: Ignored = None, key: Array
) -> Array:
    """Indices drawn with probability proportional to the weights in the last dimension.

    Without replacement: the largest w / e with e exponential (Efraimidis and Spirakis, 2006, weighted random sampling
    with a reservoir). With: where a uniform number falls in the cumulated weights.
    """
    weights = widen(self)
    require(jnp.isfinite(weights) & (weights >= 0), "probability tensor contains either `inf`, `nan` or element < 0")
    require(weights.sum(-1) > 0, "invalid multinomial distribution (sum of probabilities <= 0)")
    if not replacement or num_samples == 1:
        race = weights / -jnp.log(open_unit(key, weights.shape, weights.dtype))
        if num_samples == 1:
            return lax.expand_dims(lax.argmax(race, race.ndim - 1, np.int32), (race.ndim - 1,))
        return lax.top_k(race, num_samples)[1]
    cumulated = lax.cumsum(weights, weights.ndim - 1)
    total = cumulated[..., -1:]
    at = unit(key, (*weights.shape[:-1], num_samples), weights.dtype) * total

    def place(row: Array, points: Array, end: Array) -> Array:
        # A point that rounded up to the total belongs to the last weight that is not zero.
        return jnp.minimum(jnp.searchsorted(row, points, side="right"), jnp.searchsorted(row, end, side="left"))

    return jnp.vectorize(place, signature="(n),(m),(o)->(m)")(cumulated, at, total)


@lower("_standard_gamma", random=True)
def standard_gamma(self: Array, generator: Ignored = None, *, key: Array) -> Array:
    x = widen(self)
    return jax.random.gamma(_counter_key(key), x, dtype=x.dtype)


@lower("_standard_gamma_grad")
def standard_gamma_grad(self: Array, output: Array) -> Array:
    return lax.random_gamma_grad(widen(self), widen(output))


@lower("_sample_dirichlet", random=True)
def sample_dirichlet(self: Array, generator: Ignored = None, *, key: Array) -> Array:
    """Gamma draws divided by their sum; in logarithms, as small concentrations underflow."""
    x = widen(self)
    log = jax.random.loggamma(_counter_key(key), x, dtype=x.dtype)
    return jax.nn.softmax(log, axis=-1)


@lower("poisson", random=True)
def poisson(self: Array, generator: Ignored = None, *, key: Array) -> Array:
    require(self >= 0, "invalid Poisson rate, expected rate to be non-negative")
    return jax.random.poisson(_counter_key(key), widen(self), dtype=np.int32)


@lower("binomial", random=True)
def binomial(count: Array, prob: Array, generator: Ignored = None, *, key: Array) -> Array:
    return jax.random.binomial(_counter_key(key), widen(count), widen(prob))


def _counter_key(key: Array) -> Array:
    """A key for jax.random's own samplers, which want Threefry's 64 bits: all 128 go in."""
    return jax.random.wrap_key_data(key[:2] ^ (key[2:] * np.uint32(0x9E3779B9)), impl="threefry2x32")
