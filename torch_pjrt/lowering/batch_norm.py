"""Batch normalization in all of ATen's spellings, and its gradient.

`native_batch_norm` changes the running statistics without saying so in its schema; only the spellings that say it
(`_native_batch_norm_legit`, `_batch_norm_with_update`) return them here.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax import Array, lax

from .norm import mean_variance, moments
from .registry import lower
from .widen import asked, widen


@lower("_native_batch_norm_legit", dynamic=("momentum",))
def native_batch_norm_legit(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    training: bool,
    momentum: Array | float,
    eps: float,
) -> list[Array | None]:
    """[new running_mean, new running_var, output, save_mean, save_invstd]."""
    out, saved = _normalize(input, weight, bias, running_mean, running_var, training, eps)
    return [*_updated(input, running_mean, running_var, training, momentum), out, *saved]


@lower("_native_batch_norm_legit_functional", dynamic=("momentum",))
def native_batch_norm_legit_functional(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    training: bool,
    momentum: Array | float,
    eps: float,
) -> list[Array | None]:
    out, saved = _normalize(input, weight, bias, running_mean, running_var, training, eps)
    return [out, *saved, *_updated(input, running_mean, running_var, training, momentum)]


@lower("_native_batch_norm_legit.no_stats", dynamic=("momentum",))
def native_batch_norm_legit_no_stats(
    input: Array, weight: Array | None, bias: Array | None, training: bool, momentum: Array | float, eps: float
) -> list[Array | None]:
    out, saved = _normalize(input, weight, bias, None, None, training, eps)
    return [out, *saved]


@lower("_native_batch_norm_legit_no_training", dynamic=("momentum",))
def native_batch_norm_legit_no_training(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: Array | float,
    eps: float,
) -> list[Array | None]:
    out, saved = _normalize(input, weight, bias, running_mean, running_var, False, eps)
    return [out, *saved]


@lower("native_batch_norm", dynamic=("momentum",))
def native_batch_norm(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    training: bool,
    momentum: Array | float,
    eps: float,
) -> list[Array | None]:
    out, saved = _normalize(input, weight, bias, running_mean, running_var, training, eps)
    return [out, *saved]


@lower("_batch_norm_with_update", dynamic=("momentum",))
def batch_norm_with_update(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: Array | float,
    eps: float,
) -> list[Array | None]:
    """[new running_mean, new running_var, output, save_mean, save_invstd, reserve (unused, empty)]."""
    out, saved = _normalize(input, weight, bias, running_mean, running_var, True, eps)
    return [*_updated(input, running_mean, running_var, True, momentum), out, *saved, None]


@lower("_batch_norm_with_update_functional", dynamic=("momentum",))
def batch_norm_with_update_functional(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: Array | float,
    eps: float,
) -> list[Array | None]:
    out, saved = _normalize(input, weight, bias, running_mean, running_var, True, eps)
    return [out, *saved, None, *_updated(input, running_mean, running_var, True, momentum)]


@lower("_batch_norm_no_update", dynamic=("momentum",))
def batch_norm_no_update(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    momentum: Array | float,
    eps: float,
) -> list[Array | None]:
    out, saved = _normalize(input, weight, bias, running_mean, running_var, False, eps)
    return [out, *saved, None]


@lower("native_batch_norm_backward")
def native_batch_norm_backward(
    grad_out: Array,
    input: Array,
    weight: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    save_mean: Array | None,
    save_invstd: Array | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> list[Array]:
    """Ioffe and Szegedy 2015, section 3; the two sums over the batch serve all three gradients."""
    x, grad = widen(input), widen(grad_out)
    axes = _all_but_channels(x)
    mean, rstd = _statistics(
        x, (save_mean, save_invstd) if train else (None, None), (running_mean, running_var), train, eps
    )
    xhat = (x - mean) * rstd
    scale = rstd if weight is None else rstd * _per_channel(weight, x)
    grad_bias, grad_weight = grad.sum(axes), (grad * xhat).sum(axes)
    if train:
        count = max(1, x.size // max(1, x.shape[1]))
        centred = grad - _per_channel(grad_bias / count, x) - xhat * _per_channel(grad_weight / count, x)
    return asked([(centred if train else grad) * scale, grad_weight, grad_bias], output_mask)


@lower("batch_norm_backward")
def batch_norm_backward(
    grad_out: Array,
    input: Array,
    weight: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    save_mean: Array | None,
    save_var: Array | None,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: Array,
) -> list[Array]:
    return native_batch_norm_backward(
        grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask
    )


def _normalize(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    training: bool,
    eps: float,
) -> tuple[Array, list[Array | None]]:
    """The output and [save_mean, save_invstd], which evaluation leaves empty."""
    x = widen(input)
    mean, rstd = _statistics(x, (None, None), (running_mean, running_var), training, eps)
    # One multiply-add per element: the scale and shift are folded per channel.
    scale = rstd if weight is None else rstd * _per_channel(weight, x)
    out = (x - mean) * scale
    if bias is not None:
        out = out + _per_channel(bias, x)
    return out, [mean.reshape(-1), rstd.reshape(-1)] if training else [None, None]


def _statistics(
    x: Array,
    saved: tuple[Array | None, Array | None],
    running: tuple[Array | None, Array | None],
    training: bool,
    eps: float,
) -> tuple[Array, Array]:
    """(mean, 1 / standard deviation) per channel: saved ones, the batch's own in training, else the running ones."""
    if saved[0] is not None and saved[1] is not None:
        return _per_channel(saved[0], x), _per_channel(saved[1], x)
    if training or running[0] is None or running[1] is None:
        return moments(x, _all_but_channels(x), eps)
    return _per_channel(running[0], x), lax.rsqrt(_per_channel(running[1], x) + eps)


def _updated(
    input: Array, running_mean: Array, running_var: Array, training: bool, momentum: Array | float
) -> list[Array]:
    if not training:
        return [running_mean, running_var]
    x = widen(input)
    mean, variance = (m.reshape(-1) for m in mean_variance(x, _all_but_channels(x)))  # XLA shares it with the output's
    count = x.size // x.shape[1] if x.size else 0
    unbiased = variance * (count / (count - 1) if count > 1 else float("nan"))
    return [
        widen(old) + momentum * (new.astype(widen(old).dtype) - widen(old))
        for old, new in ((running_mean, mean), (running_var, unbiased))
    ]


def _all_but_channels(x: Array) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _per_channel(value: Array, x: Array) -> Array:
    return value.astype(x.dtype).reshape(1, -1, *[1] * (x.ndim - 2))
