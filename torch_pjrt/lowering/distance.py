"""Pairwise p-norm distances, cdist and pdist, with their gradients."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .matmul import precision
from .registry import lower
from .widen import widen


@lower("_cdist_forward")
def cdist_forward(x1: Array, x2: Array, p: float, compute_mode: int | None) -> Array:
    """(..., R1, M) and (..., R2, M) to the distances (..., R1, R2).

    compute_mode: 0 or None: Euclidean distances of more than 25 rows go through a matrix product; 1: all do; 2: none.
    """
    a, b = widen(x1), widen(x2)
    large = a.shape[-2] > 25 or b.shape[-2] > 25
    if p == 2 and (compute_mode == 1 or (large and not compute_mode)):
        return _euclidean_by_product(a, b)
    return _norm(a[..., :, None, :] - b[..., None, :, :], p)


@lower("_cdist_backward")
def cdist_backward(grad: Array, x1: Array, x2: Array, p: float, cdist: Array) -> Array:
    """The gradient of x1, with the batch dimensions of both; without pairs PyTorch's own has x1's shape."""
    if grad.size == 0:
        return jnp.zeros_like(x1)
    difference = widen(x1)[..., :, None, :] - widen(x2)[..., None, :, :]
    return (_slope(difference, widen(cdist)[..., None], p) * widen(grad)[..., None]).sum(-2)


@lower("_pdist_forward")
def pdist_forward(self: Array, p: float = 2.0) -> Array:
    """The distances of all n * (n - 1) / 2 pairs of rows i < j, in row order."""
    x = widen(self)
    first, second = _pairs(x.shape[0])
    return _norm(x[first] - x[second], p)


@lower("_pdist_backward")
def pdist_backward(grad: Array, self: Array, p: float, pdist: Array) -> Array:
    x = widen(self)
    first, second = _pairs(x.shape[0])
    step = _slope(x[first] - x[second], widen(pdist)[:, None], p) * widen(grad)[:, None]
    return jnp.zeros_like(x).at[first].add(step).at[second].add(-step)


def _euclidean_by_product(a: Array, b: Array) -> Array:
    product = jnp.matmul(a, jnp.swapaxes(b, -1, -2), precision=precision())
    square = (a * a).sum(-1)[..., :, None] + (b * b).sum(-1)[..., None, :] - 2 * product
    return jnp.sqrt(jnp.maximum(square, 0))


def _norm(difference: Array, p: float) -> Array:
    size = jnp.abs(difference)
    if p == 0:
        return (size != 0).sum(-1).astype(size.dtype)
    if p == 1:
        return size.sum(-1)
    if p == 2:
        return jnp.sqrt((size * size).sum(-1))
    if math.isinf(p):
        return size.max(-1, initial=0)
    return (size**p).sum(-1) ** (1 / p)


def _slope(difference: Array, distance: Array, p: float) -> Array:
    """The derivative of the p-norm of `difference`; 0 where the distance is 0, as in PyTorch."""
    size, sign = jnp.abs(difference), jnp.sign(difference)
    if p == 0:
        return jnp.zeros_like(difference)
    if p == 1:
        return sign
    safe = jnp.where(distance == 0, 1, distance)
    if math.isinf(p):
        return jnp.where(size == distance, sign, 0)
    if p == 2:
        slope = difference / safe
    elif p < 2:
        slope = jnp.where(difference == 0, 0, sign * jnp.where(size == 0, 1, size) ** (p - 1) / safe ** (p - 1))
    else:
        slope = difference * size ** (p - 2) / safe ** (p - 1)
    return jnp.where(distance == 0, 0, slope)


def _pairs(n: int) -> tuple[Array, Array]:
    """Rows (i, j) of pair k = 0, 1, ..., computed on the device: a table would be a constant of n**2 integers."""
    k = lax.iota(np.int64, n * (n - 1) // 2)
    # Pairs counted from the end form triangles: the last row has one, the row before two, ...
    back = (n * (n - 1) // 2 - 1 - k).astype(np.float64)
    row = ((jnp.sqrt(8 * back + 1) - 1) / 2).astype(np.int64)
    i = n - 2 - row
    j = k + i + 1 - (n * (n - 1) // 2 - (n - i) * (n - i - 1) // 2)
    return i, j
