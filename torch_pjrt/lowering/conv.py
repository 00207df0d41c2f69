"""Convolutions in one to three dimensions, plain and transposed, with their gradients; im2col and col2im.

PyTorch's transposed convolution is the gradient of a plain one with respect to its input, and the gradient of either
is again a plain or transposed convolution; so one forward formula and JAX's transposes of it cover them all, in the
forms XLA has fast paths for.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .matmul import precision
from .registry import lower
from .widen import asked, widen


@lower("convolution", "convolution_overrideable")
def convolution(
    input: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Array:
    """input (N, C_in, *spatial), weight (C_out, C_in/groups, *kernel) or, transposed, (C_in, C_out/groups, *kernel)."""
    window = _window(input.ndim - 2, stride, padding, dilation, groups, output_padding if transposed else 0)
    if transposed:
        out = _input_gradient(window, input, weight, _transposed_shape(window, input, weight))
    else:
        out = _correlate(window, input, weight, wide=True)
    return out if bias is None else widen(out) + widen(bias).reshape(1, -1, *[1] * (input.ndim - 2))


@lower("convolution_backward")
def convolution_backward(
    grad_output: Array,
    input: Array,
    weight: Array,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> list[Array]:
    """The gradients of input, weight and bias that `output_mask` asks for."""
    window = _window(input.ndim - 2, stride, padding, dilation, groups, output_padding if transposed else 0)
    grads: list[Array | None] = [None, None, None]
    if output_mask[0] and transposed:
        grads[0] = _correlate(window, grad_output, weight, wide=True)
    elif output_mask[0]:
        grads[0] = _input_gradient(window, grad_output, weight, input.shape)
    if output_mask[1]:
        wide, narrow = (grad_output, input) if transposed else (input, grad_output)
        grads[1] = _weight_gradient(window, wide, narrow, weight.shape)
    if output_mask[2]:
        grads[2] = widen(grad_output).sum((0, *range(2, input.ndim)))
    return asked(grads, output_mask)


@lower("convolution_backward_overrideable")
def convolution_backward_overrideable(
    grad_output: Array,
    input: Array,
    weight: Array,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> list[Array]:
    return convolution_backward(
        grad_output, input, weight, None, stride, padding, dilation, transposed, output_padding, groups, output_mask
    )


@dataclass(frozen=True, slots=True)
class _Window:
    """How the kernel moves, one entry per spatial dimension; the padding before and after."""

    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int


def _window(
    dims: int,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    output_padding: int | Sequence[int],
) -> _Window:
    """A transposed convolution's output padding is padding that the plain one, from there to here, does without."""
    pads = zip(per_dim(padding, dims), per_dim(output_padding, dims), strict=True)
    return _Window(per_dim(stride, dims), tuple((p, p - extra) for p, extra in pads), per_dim(dilation, dims), groups)


def per_dim(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    """One entry per spatial dimension; PyTorch lets a single one stand for all."""
    entries = (value,) if isinstance(value, int) else tuple(value)
    return entries * dims if len(entries) == 1 else entries


def _correlate(window: _Window, x: Array, weight: Array, *, wide: bool = False) -> Array:
    """The plain convolution. With `wide`, half operands give a float32 result.

    Without, the result is the operands' dtype, as JAX's transpose rules need it; XLA accumulates in float32 anyway.
    """
    spatial = "DHW"[3 - (x.ndim - 2) :]
    half = _is_half(x)
    return lax.conv_general_dilated(
        x,
        weight,
        window.stride,
        window.padding,
        rhs_dilation=window.dilation,
        dimension_numbers=("NC" + spatial, "OI" + spatial, "NC" + spatial),
        feature_group_count=window.groups,
        precision=None if half else precision(),
        preferred_element_type=np.float32 if half and wide else None,
    )


def _is_half(x: Array) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.floating)) and x.dtype.itemsize < 4


def _input_gradient(window: _Window, grad: Array, weight: Array, shape: Sequence[int]) -> Array:
    if not jnp.issubdtype(grad.dtype, jnp.inexact):
        return _integer_input_gradient(window, grad, weight, shape)
    primal = jax.ShapeDtypeStruct(tuple(shape), grad.dtype)
    return jax.linear_transpose(lambda x: _correlate(window, x, weight), primal)(grad)[0]


def _integer_input_gradient(window: _Window, grad: Array, weight: Array, shape: Sequence[int]) -> Array:
    """The same where JAX differentiates nothing: a convolution of the spread-out gradient with the flipped kernel."""
    spatial = "DHW"[3 - (grad.ndim - 2) :]
    kernel = weight.reshape(window.groups, weight.shape[0] // window.groups, *weight.shape[1:])
    kernel = jnp.swapaxes(kernel, 1, 2).reshape(-1, kernel.shape[1], *weight.shape[2:])
    reach = [d * (k - 1) for d, k in zip(window.dilation, weight.shape[2:], strict=True)]
    spread = [(n - 1) * s + 1 for n, s in zip(grad.shape[2:], window.stride, strict=True)]
    pads = [
        (r - low, n - (g + r - low - r))
        for r, (low, _), n, g in zip(reach, window.padding, shape[2:], spread, strict=True)
    ]
    return lax.conv_general_dilated(
        grad,
        jnp.flip(kernel, range(2, kernel.ndim)),
        [1] * len(reach),
        pads,
        lhs_dilation=window.stride,
        rhs_dilation=window.dilation,
        dimension_numbers=("NC" + spatial, "OI" + spatial, "NC" + spatial),
        feature_group_count=window.groups,
    )


def _weight_gradient(window: _Window, x: Array, grad: Array, shape: Sequence[int]) -> Array:
    def transposed(x: Array, grad: Array) -> Array:
        primal = jax.ShapeDtypeStruct(tuple(shape), grad.dtype)
        return jax.linear_transpose(lambda w: _correlate(window, x, w), primal)(grad)[0]

    if window.groups > 1 or any(s > 1 for s in window.stride) or x.shape[1] < _WIDE:
        return transposed(x, grad)
    return lax.platform_dependent(
        x, grad, cpu=lambda x, grad: _exchanged_weight_gradient(window, x, grad, shape), default=transposed
    )


# Input channels from which on `_exchanged_weight_gradient` was never slower; with few, XLA's inner loop would be short.
_WIDE = 32


def _exchanged_weight_gradient(window: _Window, x: Array, grad: Array, shape: Sequence[int]) -> Array:
    """The weight gradient without strides, where the kernel slides over `grad`; it comes out backwards.

    XLA:CPU computes channels-last, and what reads the gradient reads it in that order: (C_in, *kernel, C_out) in JAX's
    form, far from PyTorch's (C_out, C_in, *kernel), and (C_out, *kernel, C_in) in this one. With Adam's three passes
    512 x 512 x 3 x 3 took 184 ms in the first and 110 ms in this (images 32 x 512 x 4 x 4, 2 busy cores).
    """
    reach = [d * (k - 1) for d, k in zip(window.dilation, shape[2:], strict=True)]
    before = [r - low for r, (low, _) in zip(reach, window.padding, strict=True)]
    after = [n - g - b + r for n, g, b, r in zip(x.shape[2:], grad.shape[2:], before, reach, strict=True)]
    spatial = range(2, x.ndim)
    by_image = (1, 0, *spatial)  # the sum is over the images: they are the channels here
    backwards = lax.conv_general_dilated(
        grad,
        x,
        window.dilation,
        list(zip(before, after, strict=True)),
        dimension_numbers=lax.ConvDimensionNumbers(by_image, by_image, tuple(range(x.ndim))),
        precision=None if _is_half(x) else precision(),
    )
    return jnp.flip(backwards, tuple(spatial))


def _transposed_shape(window: _Window, x: Array, weight: Array) -> tuple[int, ...]:
    spatial = zip(x.shape[2:], weight.shape[2:], window.stride, window.padding, window.dilation, strict=True)
    sizes = [(n - 1) * s - sum(p) + d * (k - 1) + 1 for n, k, s, p, d in spatial]
    return (x.shape[0], weight.shape[1] * window.groups, *sizes)


@lower("im2col")
def im2col(
    self: Array, kernel_size: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> Array:
    """([N,] C, H, W) to ([N,] C * kernel elements, window positions): `torch.nn.functional.unfold`."""
    kernel, step, gap, pad = (per_dim(v, 2) for v in (kernel_size, stride, dilation, padding))
    lead = self.shape[:-2]
    padded = jnp.pad(self, [(0, 0)] * len(lead) + [(p, p) for p in pad])
    counts = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, d, p in zip(self.shape[-2:], kernel, step, gap, pad, strict=True)
    ]

    def shifted(offset: Sequence[int]) -> Array:
        start = [o * d for o, d in zip(offset, gap, strict=True)]
        stop = [b + (c - 1) * s + 1 for b, c, s in zip(start, counts, step, strict=True)]
        return lax.slice(padded, [0] * len(lead) + start, [*lead, *stop], [1] * len(lead) + list(step))

    columns = jnp.stack([shifted(o) for o in itertools.product(*map(range, kernel))], axis=len(lead))
    return columns.reshape(*lead[:-1], lead[-1] * kernel[0] * kernel[1], counts[0] * counts[1])


@lower("col2im")
def col2im(
    self: Array,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Array:
    """The transpose of im2col: overlapping windows add up (`torch.nn.functional.fold`)."""
    kernel = per_dim(kernel_size, 2)
    channels = self.shape[-2] // (kernel[0] * kernel[1])
    columns = widen(self)
    image = jax.ShapeDtypeStruct((*self.shape[:-2], channels, *per_dim(output_size, 2)), columns.dtype)
    return jax.linear_transpose(lambda x: im2col(x, kernel, dilation, padding, stride), image)(columns)[0]
