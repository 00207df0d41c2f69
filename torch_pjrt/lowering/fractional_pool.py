"""Fractional max pooling (Graham, 2014: Fractional Max-Pooling), windows placed by one random sample per dimension."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .pool import add_at
from .registry import lower
from .widen import widen


@lower("fractional_max_pool2d", "fractional_max_pool3d")
def fractional_max_pool(
    self: Array, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: Array
) -> tuple[Array, Array]:
    """(maxima, their flat positions in the input); random_samples (N, C, dims). The last NaN of a window wins."""
    dims = len(output_size)
    lead = self.shape[: self.ndim - dims]
    samples = random_samples.reshape(-1)[: math.prod(lead) * dims].reshape(*lead, dims)  # there may be more
    # The samples count from the last dimension in two dimensions and from the first in three, as PyTorch's do.
    order = list(reversed(range(dims))) if dims == 2 else list(range(dims))
    position = jnp.zeros((*lead, *[1] * (2 * dims)), np.int32)
    for d in range(dims):
        size, out, kernel = self.shape[len(lead) + d], output_size[d], kernel_size[d]
        window = _starts(samples[..., order[d]], size, out, kernel)[..., None] + lax.iota(np.int32, kernel)
        shape = [1] * (2 * dims)
        shape[d], shape[dims + d] = out, kernel
        position = position * size + window.reshape(*lead, *shape)
    position = position.reshape(*lead, *output_size, -1)
    flat = self.reshape(*lead, -1)
    values = jnp.take_along_axis(flat, position.reshape(*lead, -1), -1, mode="clip").reshape(position.shape)
    winner = jnp.argmax(values, -1, keepdims=True)
    missing = jnp.isnan(values)
    last = values.shape[-1] - 1 - jnp.argmax(missing[..., ::-1], -1, keepdims=True)
    winner = jnp.where(missing.any(-1, keepdims=True), last, winner)
    return (
        jnp.take_along_axis(values, winner, -1, mode="clip")[..., 0],
        jnp.take_along_axis(position, winner, -1, mode="clip")[..., 0],
    )


@lower("fractional_max_pool2d_backward", "fractional_max_pool3d_backward")
def fractional_max_pool_backward(
    grad_output: Array, self: Array, kernel_size: Sequence[int], output_size: Sequence[int], indices: Array
) -> Array:
    return add_at(widen(grad_output), indices, self.shape[self.ndim - len(output_size) :])


def _starts(sample: Array, size: int, out: int, kernel: int) -> Array:
    """Where the `out` windows of one dimension begin: int((i + u) a) - int(u a), the last one at the end."""
    sample = widen(sample)[..., None]
    if out == 1:
        return jnp.full((*sample.shape[:-1], 1), size - kernel, np.int32)
    step = jnp.asarray((size - kernel) / (out - 1), sample.dtype)
    i = lax.iota(np.int32, out - 1).astype(sample.dtype)
    starts = ((i + sample) * step).astype(np.int32) - (sample * step).astype(np.int32)
    return jnp.concatenate([starts, jnp.full((*sample.shape[:-1], 1), size - kernel, np.int32)], -1)
