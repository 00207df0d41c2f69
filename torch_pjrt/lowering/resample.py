"""Upsampling: nearest, linear, bicubic and antialiased, in one to three dimensions, with their gradients.

Every mode is separable: along each dimension an output is a weighted sum of a few inputs whose positions and weights
are known at compile time. The gradient is the transpose of that linear map.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

from .pool import transpose
from .registry import lower
from .widen import widen

Taps = tuple[np.ndarray, np.ndarray]  # positions (out, taps) in the input and their weights (out, taps)
Plan = Callable[[int, int, float | None, bool, np.dtype], Taps]


def _register(name: str, dims: int, plan: Plan, *, aligned: bool) -> None:
    """Register `name` and `name`_backward; `aligned` ops take an align_corners argument before their scales."""

    @lower(name)
    def forward(self: Array, output_size: Sequence[int], *args: object, **kwargs: object) -> Array:
        align, scales = _options(args, kwargs, dims, aligned)
        return _resize(self, output_size, plan, align, scales)

    @lower(f"{name}_backward")
    def backward(
        grad_output: Array, output_size: Sequence[int], input_size: Sequence[int], *args: object, **kwargs: object
    ) -> Array:
        align, scales = _options(args, kwargs, dims, aligned)
        return transpose(lambda x: _resize(x, output_size, plan, align, scales), input_size, widen(grad_output))


def _options(
    args: Sequence[object], kwargs: dict[str, object], dims: int, aligned: bool
) -> tuple[bool, list[float | None]]:
    """(align_corners, one scale or None per dimension) from an op's trailing arguments."""
    names = ["scales"] if dims == 1 else ["scales_d", "scales_h", "scales_w"][3 - dims :]
    given = dict(zip(["align_corners", *names] if aligned else names, args, strict=False)) | kwargs
    scales = [given.get(n) for n in names]
    return bool(given.get("align_corners", False)), [s if isinstance(s, float) else None for s in scales]


def _resize(x: Array, output_size: Sequence[int], plan: Plan, align: bool, scales: Sequence[float | None]) -> Array:
    dims = len(output_size)
    weighted = plan not in (_nearest, _nearest_exact)  # nearest moves values, integers too
    if weighted and x.dtype == np.uint8:
        return _resize_image(x, output_size, plan, align, scales)
    wide = widen(x) if weighted else x
    for dim in range(dims):
        axis = x.ndim - dims + dim
        positions, weights = plan(x.shape[axis], output_size[dim], scales[dim], align, _real(wide.dtype))
        wide = _along(wide, axis, positions, weights)
    return wide


def _resize_image(
    x: Array, output_size: Sequence[int], plan: Plan, align: bool, scales: Sequence[float | None]
) -> Array:
    """uint8 in fixed point, rounded after each dimension, the last one first, as CPU PyTorch and Pillow do it.

    The weights are integers: times the largest power of two with which twice the largest weight has 15 bits.
    """
    dims = len(output_size)
    for dim in reversed(range(dims)):
        axis = x.ndim - dims + dim
        if x.shape[axis] == output_size[dim]:
            continue
        positions, weights = plan(x.shape[axis], output_size[dim], scales[dim], align, np.dtype(np.float64))
        if positions.shape[1] == 1:
            x = _along(x, axis, positions, weights)
            continue
        for tap in range(1, weights.shape[1]):  # at an edge the taps beyond it are one with that at the edge
            again = positions[:, tap] == positions[:, tap - 1]
            weights[again, tap] += weights[again, tap - 1]
            weights[again, tap - 1] = 0
        largest = weights.max(initial=0.0)
        bits = next(n for n in range(23) if n == 22 or int(0.5 + largest * (1 << (n + 1))) >= 1 << 15)
        fixed = np.trunc(weights * (1 << bits) + np.copysign(0.5, weights)).astype(np.int32)
        total = _along(x.astype(np.int32), axis, positions, fixed) + (1 << bits >> 1)
        x = jnp.clip(total >> bits, 0, 255).astype(np.uint8)
    return x


def _real(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def _along(x: Array, axis: int, positions: np.ndarray, weights: np.ndarray) -> Array:
    out, taps = positions.shape
    size = x.shape[axis]
    if taps == 1:
        factor = out // size if size else 0
        if factor * size == out and (positions[:, 0] == np.arange(out) // max(factor, 1)).all():
            return jnp.repeat(x, factor, axis, total_repeat_length=out) if factor == 1 else _spread(x, axis, factor)
        return x.take(positions[:, 0], axis, mode="clip")
    shape = [1] * x.ndim
    shape[axis] = out
    terms = (
        x.take(positions[:, t], axis, mode="clip") * weights[:, t].astype(x.dtype).reshape(shape) for t in range(taps)
    )
    total = next(terms)
    for term in terms:
        total = total + term
    return total


def _spread(x: Array, axis: int, factor: int) -> Array:
    """Each element `factor` times: a broadcast, whose transpose is a sum instead of a scatter."""
    shape = (*x.shape[: axis + 1], factor, *x.shape[axis + 1 :])
    return jnp.broadcast_to(jnp.expand_dims(x, axis + 1), shape).reshape(
        *x.shape[:axis], x.shape[axis] * factor, *x.shape[axis + 1 :]
    )


def _step(size: int, out: int, scale: float | None, align: bool, real: np.dtype) -> np.floating:
    """Input positions per output position."""
    if align:
        return real.type((size - 1) / (out - 1)) if out > 1 else real.type(0)
    return real.type(1 / scale) if scale else real.type(size) / real.type(out)


def _nearest(size: int, out: int, scale: float | None, align: bool, real: np.dtype) -> Taps:
    f32 = np.dtype(np.float32)
    return _at(np.floor(np.arange(out, dtype=f32) * _step(size, out, scale, False, f32)), size)


def _nearest_exact(size: int, out: int, scale: float | None, align: bool, real: np.dtype) -> Taps:
    f32 = np.dtype(np.float32)
    return _at(np.floor((np.arange(out, dtype=f32) + f32.type(0.5)) * _step(size, out, scale, False, f32)), size)


def _at(source: np.ndarray, size: int) -> Taps:
    positions = np.minimum(source.astype(np.int32), size - 1)[:, None]
    return positions, np.ones(positions.shape)


def _source(size: int, out: int, scale: float | None, align: bool, real: np.dtype) -> np.ndarray:
    step = _step(size, out, scale, align, real)
    at = np.arange(out, dtype=real)
    half = real.type(0.5)
    return at * step if align else (at + half) * step - half


def _linear(size: int, out: int, scale: float | None, align: bool, real: np.dtype) -> Taps:
    source = np.maximum(_source(size, out, scale, align, real), real.type(0))
    low = np.minimum(source.astype(np.int32), size - 1)
    high = np.minimum(low + 1, size - 1)
    share = np.clip(source - low.astype(real), real.type(0), real.type(1))
    return np.stack([low, high], 1), np.stack([real.type(1) - share, share], 1)


def _cubic(size: int, out: int, scale: float | None, align: bool, real: np.dtype) -> Taps:
    """Keys' cubic convolution with a = -0.75 over four clamped neighbours."""
    source = _source(size, out, scale, align, real)
    low = np.floor(source)
    offsets = np.arange(-1, 3)
    weights = _keys((source - low)[:, None] - offsets.astype(real), -0.75)
    return np.clip(low.astype(np.int32)[:, None] + offsets, 0, size - 1).astype(np.int32), weights


def _keys(x: np.ndarray, a: float) -> np.ndarray:
    """Cubic convolution kernel (R. Keys, 1981)."""
    x = np.abs(x)
    inner = ((a + 2) * x - (a + 3)) * x * x + 1
    outer = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x < 1, inner, np.where(x < 2, outer, 0)).astype(x.dtype)


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(x), 0)


def _lanczos3(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0).astype(x.dtype)


def _antialiased(kernel: Callable[[np.ndarray], np.ndarray], width: int) -> Plan:
    """A kernel `width` inputs wide that is stretched when the image shrinks, as in Pillow."""

    def plan(size: int, out: int, scale: float | None, align: bool, real: np.dtype) -> Taps:
        step = _step(size, out, scale, align, real)
        stretch = max(step, real.type(1))
        support = real.type(width / 2) * stretch
        centre = (np.arange(out, dtype=real) + real.type(0.5)) * step
        start = np.maximum((centre - support + real.type(0.5)).astype(np.int64), 0)
        stop = np.minimum((centre + support + real.type(0.5)).astype(np.int64), size)
        taps = start[:, None] + np.arange(int((stop - start).max(initial=1)))
        weights = kernel((taps - centre[:, None] + real.type(0.5)) / stretch) * (taps < stop[:, None])
        total = weights.sum(1, keepdims=True)
        return np.minimum(taps, size - 1).astype(np.int32), weights / np.where(total == 0, 1, total)

    return plan


for _dims in (1, 2, 3):
    _register(f"upsample_nearest{_dims}d", _dims, _nearest, aligned=False)
    _register(f"_upsample_nearest_exact{_dims}d", _dims, _nearest_exact, aligned=False)
    _register(f"upsample_{('linear', 'bilinear', 'trilinear')[_dims - 1]}{_dims}d", _dims, _linear, aligned=True)
_register("upsample_bicubic2d", 2, _cubic, aligned=True)
_register("_upsample_bilinear2d_aa", 2, _antialiased(_triangle, 2), aligned=True)
_register("_upsample_bicubic2d_aa", 2, _antialiased(lambda x: _keys(x, -0.5), 4), aligned=True)
_register("_upsample_lanczos2d_aa", 2, _antialiased(_lanczos3, 6), aligned=True)
