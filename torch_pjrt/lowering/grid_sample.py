"""grid_sampler in two and three dimensions: values of an image at real-valued positions, and its gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .registry import lower
from .widen import asked, wide_dtype

BILINEAR, NEAREST, BICUBIC = 0, 1, 2  # at::native::detail::GridSamplerInterpolation
ZEROS, BORDER, REFLECTION = 0, 1, 2  # at::native::detail::GridSamplerPadding


@lower("grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(input: Array, grid: Array, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Array:
    """input (N, C, *in), grid (N, *out, dims) in [-1, 1] with the last dimension of the image first: (N, C, *out)."""
    wide = wide_dtype(input, grid)
    image, place = input.astype(wide), grid.astype(wide)
    sizes = image.shape[2:]
    source = [_unnormalized(place[..., len(sizes) - 1 - d], size, align_corners) for d, size in enumerate(sizes)]
    if interpolation_mode == BICUBIC:
        return _bicubic(image, source, padding_mode, align_corners)
    source = [_into(x, n, padding_mode, align_corners) for x, n in zip(source, sizes, strict=True)]
    if interpolation_mode == NEAREST:
        return _value(image, [lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN) for x in source])
    return _multilinear(image, source)


@lower("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def grid_sampler_backward(
    grad_output: Array,
    input: Array,
    grid: Array,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> list[Array]:
    """Gradients of the input, if asked for, and of the grid, which PyTorch computes whether asked or not."""
    wide = wide_dtype(input, grid)

    def forward(image: Array, place: Array) -> Array:
        return grid_sampler(image, place, interpolation_mode, padding_mode, align_corners)

    _, pull = jax.vjp(forward, input.astype(wide), grid.astype(wide))
    return asked(pull(grad_output.astype(wide)), [output_mask[0], True])


def _unnormalized(x: Array, size: int, align_corners: bool) -> Array:
    """From [-1, 1] to pixels: the ends are the outer pixels' centres if aligned, else their outer edges."""
    return (x + 1) / 2 * (size - 1) if align_corners else ((x + 1) * size - 1) / 2


def _into(x: Array, size: int, padding_mode: int, align_corners: bool) -> Array:
    if padding_mode == REFLECTION:
        x = _reflected(x, 0, size - 1) if align_corners else _reflected(x, -0.5, size - 0.5)
    return x if padding_mode == ZEROS else _clipped(x, size)


def _clipped(x: Array, size: int) -> Array:
    # Not jnp.clip: on the border itself PyTorch's gradient is 0.
    return jnp.where(x > 0, jnp.where(x < size - 1, x, size - 1), 0)


def _reflected(x: Array, low: float, high: float) -> Array:
    span = high - low
    if span == 0:
        return x * 0
    away = jnp.where(x < low, low - x, x - low)
    flips = lax.stop_gradient(jnp.floor(away / span))
    rest = away - flips * span
    return jnp.where(flips % 2 == 0, rest + low, span - rest + low)


def _value(image: Array, at: Sequence[Array]) -> Array:
    """image (N, C, *in) at whole-numbered positions (N, *where) per dimension: (N, C, *where), 0 outside of it."""
    inside = jnp.ones((), np.bool_)
    flat = jnp.zeros((), np.int32)
    for x, size in zip(at, image.shape[2:], strict=True):
        inside = inside & (x >= 0) & (x <= size - 1)
        flat = flat * size + jnp.clip(lax.stop_gradient(x), 0, size - 1).astype(np.int32)
    pixels = image.reshape(*image.shape[:2], -1)
    picked = jax.vmap(lambda plane, index: plane[:, index])(pixels, flat)
    return jnp.where(inside[:, None], picked, 0)


def _blend(image: Array, at: Sequence[list[Array]], weights: Sequence[list[Array]]) -> Array:
    """The sum over all combinations of one neighbour per dimension, in one gather: compiling sixteen takes seconds."""
    combinations = list(itertools.product(*(range(len(a)) for a in at)))
    places = [jnp.stack([a[c[d]] for c in combinations], 1) for d, a in enumerate(at)]
    weight = math.prod(jnp.stack([w[c[d]] for c in combinations], 1) for d, w in enumerate(weights))
    return (_value(image, places) * jnp.expand_dims(weight, 1)).sum(2)


def _multilinear(image: Array, source: Sequence[Array]) -> Array:
    low = [lax.stop_gradient(jnp.floor(x)) for x in source]
    weights = [[base + 1 - x, x - base] for x, base in zip(source, low, strict=True)]
    return _blend(image, [[base, base + 1] for base in low], weights)


def _bicubic(image: Array, source: Sequence[Array], padding_mode: int, align_corners: bool) -> Array:
    """Sixteen neighbours, each brought into the image by itself; cubic convolution with a = -0.75."""
    low = [lax.stop_gradient(jnp.floor(x)) for x in source]
    at = [
        [_into(base + offset, size, padding_mode, align_corners) for offset in range(-1, 3)]
        for base, size in zip(low, image.shape[2:], strict=True)
    ]
    return _blend(image, at, [_cubic_weights(x - base) for x, base in zip(source, low, strict=True)])


def _cubic_weights(t: Array, a: float = -0.75) -> list[Array]:
    def inner(x: Array) -> Array:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def outer(x: Array) -> Array:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [outer(t + 1), inner(t), inner(1 - t), outer(2 - t)]
