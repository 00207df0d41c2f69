"""Reflection and replication padding with their gradients; pixel and channel shuffles."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax

from .pool import transpose
from .registry import lower
from .widen import widen


@lower("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(self: Array, padding: Sequence[int]) -> Array:
    """`padding` is (low, high) per dimension, the last dimension first; negative entries crop."""
    return _pad(self, padding, "reflect")


@lower("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(self: Array, padding: Sequence[int]) -> Array:
    return _pad(self, padding, "edge")


@lower("reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward")
def reflection_pad_backward(grad_output: Array, self: Array, padding: Sequence[int]) -> Array:
    return transpose(lambda x: _pad(x, padding, "reflect"), self.shape, widen(grad_output))


@lower("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward")
def replication_pad_backward(grad_output: Array, self: Array, padding: Sequence[int]) -> Array:
    return transpose(lambda x: _pad(x, padding, "edge"), self.shape, widen(grad_output))


@lower("pixel_shuffle")
def pixel_shuffle(self: Array, upscale_factor: int) -> Array:
    """(..., C * r * r, H, W) to (..., C, H * r, W * r)."""
    *lead, channels, height, width = self.shape
    r = upscale_factor
    split = self.reshape(-1, channels // (r * r), r, r, height, width)
    return split.transpose(0, 1, 4, 2, 5, 3).reshape(*lead, channels // (r * r), height * r, width * r)


@lower("pixel_unshuffle")
def pixel_unshuffle(self: Array, downscale_factor: int) -> Array:
    """(..., C, H * r, W * r) to (..., C * r * r, H, W)."""
    *lead, channels, height, width = self.shape
    r = downscale_factor
    split = self.reshape(-1, channels, height // r, r, width // r, r)
    return split.transpose(0, 1, 3, 5, 2, 4).reshape(*lead, channels * r * r, height // r, width // r)


@lower("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(self: Array, groups: int) -> Array:
    """(N, C, ...): channel c of group g moves from g * C / groups + c to c * groups + g."""
    n, channels, *rest = self.shape
    return jnp.swapaxes(self.reshape(n, groups, channels // groups, *rest), 1, 2).reshape(self.shape)


def _pad(x: Array, padding: Sequence[int], mode: str) -> Array:
    dims = len(padding) // 2
    lead = x.ndim - dims
    pairs = [(padding[2 * (dims - 1 - d)], padding[2 * (dims - 1 - d) + 1]) for d in range(dims)]
    grown = jnp.pad(x, [(0, 0)] * lead + [(max(low, 0), max(high, 0)) for low, high in pairs], mode=mode)
    for d, (low, high) in enumerate(pairs):
        grown = lax.slice_in_dim(grown, max(-low, 0), grown.shape[lead + d] - max(-high, 0), 1, lead + d)
    return grown
