"""Multi-class and multi-label margin losses, with their gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .check import require
from .loss import MEAN, reduced
from .registry import lower
from .widen import widen


@lower("multi_margin_loss", static=("p", "margin"))
def multi_margin_loss(
    self: Array,
    target: Array,
    p: int = 1,
    margin: float = 1,
    weight: Array | None = None,
    reduction: int = MEAN,
) -> Array:
    """mean over classes i != t of weight[t] * max(0, margin - x[t] + x[i])^p."""
    x = widen(self).reshape(-1, self.shape[-1] if self.ndim else 1)
    require((target >= 0) & (target < x.shape[1]), "target out of range")
    loss = _multi_margin(x, target.reshape(-1, 1), p, margin, weight)
    return reduced(loss.reshape(target.shape), reduction)


@lower("multi_margin_loss_backward", static=("p", "margin"))
def multi_margin_loss_backward(
    grad_output: Array,
    self: Array,
    target: Array,
    p: int,
    margin: float,
    weight: Array | None = None,
    reduction: int = MEAN,
) -> Array:
    _, pull = jax.vjp(lambda x: multi_margin_loss(x, target, p, margin, weight, reduction), widen(self))
    return pull(widen(grad_output).reshape(() if reduction else target.shape))[0]


def _multi_margin(x: Array, target: Array, p: int, margin: float, weight: Array | None) -> Array:
    label = target.astype(np.int32)
    own = jnp.take_along_axis(x, label, 1, mode="promise_in_bounds")
    gap = margin - own + x
    # A `where` rather than a maximum: at a gap of 0 PyTorch's gradient is 0, a maximum's would be half.
    excess = jnp.where(gap > 0, gap, 0) ** p
    if weight is not None:
        excess = excess * widen(weight).take(label, mode="clip")
    others = lax.broadcasted_iota(np.int32, x.shape, 1) != label
    return jnp.where(others, excess, 0).sum(1) / x.shape[1]


@lower("multilabel_margin_loss_forward")
def multilabel_margin_loss_forward(self: Array, target: Array, reduction: int) -> tuple[Array, Array]:
    """(loss, is_target). Each row of `target` lists class numbers up to the first -1."""
    x, listed, labels, is_target = _multilabel(self, target)
    loss = _multilabel_margin(x, listed, labels, is_target)
    loss = loss.reshape(()) if self.ndim < 2 else loss
    return reduced(loss, reduction), is_target.reshape(target.shape)


@lower("multilabel_margin_loss_backward")
def multilabel_margin_loss_backward(
    grad_output: Array, self: Array, target: Array, reduction: int, is_target: Array
) -> Array:
    _, pull = jax.vjp(lambda x: multilabel_margin_loss_forward(x, target, reduction)[0], widen(self))
    return pull(widen(grad_output).reshape(() if reduction or self.ndim < 2 else self.shape[:1]))[0]


def _multilabel(self: Array, target: Array) -> tuple[Array, Array, Array, Array]:
    classes = self.shape[-1] if self.ndim else 1
    x, rows = widen(self).reshape(-1, classes), target.reshape(-1, classes)
    require((rows >= -1) & (rows < classes), "argument #2 'target' is out of range")
    listed = jnp.cumsum(rows < 0, 1) == 0
    labels = jnp.where(listed, rows, 0).astype(np.int32)
    numbers = lax.broadcasted_iota(np.int32, (1, 1, classes), 2)
    is_target = ((labels[:, :, None] == numbers) & listed[:, :, None]).any(1)
    return x, listed, labels, is_target


def _multilabel_margin(x: Array, listed: Array, labels: Array, is_target: Array) -> Array:
    """sum over listed t and other classes i of max(0, 1 - x[t] + x[i]), over the number of classes."""
    own = jnp.take_along_axis(x, labels, 1, mode="promise_in_bounds")
    gap = 1 - own[:, :, None] + x[:, None, :]
    wanted = listed[:, :, None] & ~is_target[:, None, :] & (gap > 0)
    return jnp.where(wanted, gap, 0).sum((1, 2)) / x.shape[1]
