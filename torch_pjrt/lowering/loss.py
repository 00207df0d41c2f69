"""Losses over elements and classes, with their gradients. Margin losses: margin_loss.py."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .check import require, require_index
from .registry import lower
from .widen import wide_dtype, widen

MEAN, SUM = 1, 2  # at::Reduction


def reduced(loss: Array, reduction: int) -> Array:
    """`loss` per element, or its mean or sum."""
    if reduction == MEAN:
        return loss.mean()
    return loss.sum() if reduction == SUM else loss


def spread(grad_output: Array, count: int, reduction: int) -> Array:
    """The gradient that reaches each of `count` elements through `reduced`."""
    grad = widen(grad_output)
    return grad / count if reduction == MEAN else grad


def _met(self: Array, target: Array) -> tuple[Array, Array]:
    wide = wide_dtype(self, target)
    return self.astype(wide), target.astype(wide)


def _gradient(grad_output: Array, self: Array, target: Array, reduction: int, slope: Callable[[Array], Array]) -> Array:
    """The gradient of a loss of x - y whose derivative is `slope`."""
    x, y = _met(self, target)
    difference = x - y
    return slope(difference) * spread(grad_output, difference.size, reduction)


@lower("mse_loss")
def mse_loss(self: Array, target: Array, reduction: int = MEAN) -> Array:
    x, y = _met(self, target)
    return reduced(jnp.square(x - y), reduction)


@lower("mse_loss_backward")
def mse_loss_backward(grad_output: Array, self: Array, target: Array, reduction: int) -> Array:
    return _gradient(grad_output, self, target, reduction, lambda d: 2 * d)


@lower("smooth_l1_loss", dynamic=("beta",))
def smooth_l1_loss(self: Array, target: Array, reduction: int = MEAN, beta: Array | float = 1.0) -> Array:
    x, y = _met(self, target)
    distance = jnp.abs(x - y)
    return reduced(jnp.where(distance < beta, 0.5 * distance * distance / beta, distance - 0.5 * beta), reduction)


@lower("smooth_l1_loss_backward", dynamic=("beta",))
def smooth_l1_loss_backward(
    grad_output: Array, self: Array, target: Array, reduction: int, beta: Array | float
) -> Array:
    def slope(d: Array) -> Array:
        return jnp.where(jnp.abs(d) < beta, d / beta, jnp.sign(d))

    return _gradient(grad_output, self, target, reduction, slope)


@lower("huber_loss", dynamic=("delta",))
def huber_loss(self: Array, target: Array, reduction: int = MEAN, delta: Array | float = 1.0) -> Array:
    x, y = _met(self, target)
    distance = jnp.abs(x - y)
    return reduced(jnp.where(distance < delta, 0.5 * distance * distance, delta * (distance - 0.5 * delta)), reduction)


@lower("huber_loss_backward", dynamic=("delta",))
def huber_loss_backward(grad_output: Array, self: Array, target: Array, reduction: int, delta: Array | float) -> Array:
    return _gradient(grad_output, self, target, reduction, lambda d: jnp.clip(d, -delta, delta))


@lower("binary_cross_entropy")
def binary_cross_entropy(self: Array, target: Array, weight: Array | None = None, reduction: int = MEAN) -> Array:
    """Logarithms are held above -100, as PyTorch documents, so that the loss stays finite."""
    x, y = _met(self, target)
    require((x >= 0) & (x <= 1), "all elements of input should be between 0 and 1")
    loss = (y - 1) * jnp.maximum(jnp.log1p(-x), -100) - y * jnp.maximum(jnp.log(x), -100)
    return reduced(loss if weight is None else loss * widen(weight), reduction)


@lower("binary_cross_entropy_backward")
def binary_cross_entropy_backward(
    grad_output: Array, self: Array, target: Array, weight: Array | None = None, reduction: int = MEAN
) -> Array:
    x, y = _met(self, target)
    grad = spread(grad_output, x.size, reduction) * (x - y) / jnp.maximum((1 - x) * x, 1e-12)
    return grad if weight is None else grad * widen(weight)


@lower("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    self: Array,
    target: Array,
    weight: Array | None = None,
    pos_weight: Array | None = None,
    reduction: int = MEAN,
) -> Array:
    x, y = _met(self, target)
    softplus_minus = jnp.maximum(-x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))
    positive = 1 if pos_weight is None else 1 + (widen(pos_weight) - 1) * y
    loss = (1 - y) * x + positive * softplus_minus
    return reduced(loss if weight is None else loss * widen(weight), reduction)


@lower("soft_margin_loss")
def soft_margin_loss(self: Array, target: Array, reduction: int = MEAN) -> Array:
    x, y = _met(self, target)
    return reduced(jnp.log1p(jnp.exp(-x * y)), reduction)


@lower("soft_margin_loss_backward")
def soft_margin_loss_backward(grad_output: Array, self: Array, target: Array, reduction: int) -> Array:
    x, y = _met(self, target)
    power = jnp.exp(-x * y)
    return -y * power / (power + 1) * spread(grad_output, x.size, reduction)


@lower("nll_loss_forward", "nll_loss2d_forward")
def nll_loss_forward(
    self: Array, target: Array, weight: Array | None, reduction: int, ignore_index: int
) -> tuple[Array, Array]:
    """(loss, total weight of the targets that count). Classes lie along dimension 1, or 0 of a single sample."""
    x = widen(self)
    axis = min(1, x.ndim - 1)
    label = jnp.expand_dims(target.reshape(_without(x, axis)), axis)
    counts = label != ignore_index
    require_index(jnp.where(counts, label, 0), x.shape[axis], wrap=False, what="target")
    safe = jnp.where(counts, label, 0).astype(np.int32)
    chosen = jnp.take_along_axis(x, safe, axis, mode="promise_in_bounds")
    weights = _class_weights(weight, safe, counts, x)
    loss = jnp.where(counts, -chosen * weights, 0)
    total = weights.sum()
    if reduction not in (MEAN, SUM):
        # CPU PyTorch has a total weight only where it sums, which it does for a single sample.
        return loss.reshape(target.shape), total if x.ndim == 1 else jnp.zeros((), x.dtype)
    return loss.sum() / total if reduction == MEAN else loss.sum(), total


@lower("nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(
    grad_output: Array,
    self: Array,
    target: Array,
    weight: Array | None,
    reduction: int,
    ignore_index: int,
    total_weight: Array,
) -> Array:
    """One comparison per logit, which fuses into what follows, where a scatter would not."""
    x = widen(self)
    axis = min(1, x.ndim - 1)
    label = jnp.expand_dims(target.reshape(_without(x, axis)), axis)
    counts = label != ignore_index
    safe = jnp.where(counts, label, 0).astype(np.int32)
    grad = widen(grad_output)
    if reduction == MEAN:
        grad = grad / total_weight.astype(grad.dtype)
    elif reduction != SUM:
        grad = jnp.expand_dims(grad.reshape(_without(x, axis)), axis)
    step = -grad * _class_weights(weight, safe, counts, x)
    return jnp.where((lax.broadcasted_iota(np.int32, x.shape, axis) == safe) & counts, step, 0)


def _without(x: Array, axis: int) -> tuple[int, ...]:
    return (*x.shape[:axis], *x.shape[axis + 1 :])


def _class_weights(weight: Array | None, label: Array, counts: Array, x: Array) -> Array:
    each = jnp.ones((), x.dtype) if weight is None else weight.astype(x.dtype).take(label, mode="clip")
    return jnp.where(counts, each, 0)
