"""PyTorch's fused optimizer steps: one op updates every parameter and its state.

Each returns normalized outputs: the new values of the lists its schema writes, in schema order. Formulas as in
torch.optim's single-tensor code (Adam: https://arxiv.org/abs/1412.6980, AdamW: https://arxiv.org/abs/1711.05101).
With `grad_scale` the gradients are stored unscaled; where `found_inf` is 1 nothing changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from .dtypes import opmath, to_numpy, to_torch
from .registry import lower

Number = Array | float  # a hyperparameter: constant, or a 0-d array that changes without a recompile
Lists = tuple[list[Array], ...]


def _adam(
    params: Sequence[Array],
    grads: Sequence[Array],
    exp_avgs: Sequence[Array],
    exp_avg_sqs: Sequence[Array],
    max_exp_avg_sqs: Sequence[Array],
    state_steps: Sequence[Array],
    lr: Number,
    beta1: Number,
    beta2: Number,
    weight_decay: Number,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: Array | None,
    found_inf: Array | None,
    decoupled: bool,
) -> Lists:
    betas = ((1 - beta1, _log(beta1)), (beta2, 1 - beta2, _log(beta2)))
    decay = lr * weight_decay if decoupled else weight_decay
    maxima: Sequence[Array | None] = max_exp_avg_sqs if amsgrad else [None] * len(params)
    rows = [
        _adam_row(*row, lr, betas, decay, grad_scale, found_inf, eps=eps, maximize=maximize, decoupled=decoupled)
        for row in zip(params, grads, exp_avgs, exp_avg_sqs, maxima, state_steps, strict=True)
    ]
    lists = _columns(rows, 5 if amsgrad else 4)
    return lists if amsgrad else (*lists, list(max_exp_avg_sqs))


# The rows are jitted so that JAX traces and lowers one per shape, not one per parameter; XLA inlines them.
@partial(jax.jit, static_argnames=("eps", "maximize", "decoupled"))
def _adam_row(
    old: Array,
    old_grad: Array,
    old_avg: Array,
    old_sq: Array,
    old_max: Array | None,
    step: Array,
    lr: Array,
    betas: tuple[tuple[Array, Array], tuple[Array, Array, Array]],
    decay: Array,
    grad_scale: Array | None,
    found_inf: Array | None,
    *,
    eps: float,
    maximize: bool,
    decoupled: bool,
) -> list[Array]:
    """`betas`: (1 - beta1, log beta1), (beta2, 1 - beta2, log beta2), from the caller's full precision."""
    param, avg, sq = _computed(old), _computed(old_avg), _computed(old_sq)
    (new1, log1), (keep2, new2, log2) = ([b.astype(param.dtype) for b in beta] for beta in betas)
    stored, grad = _gradient(old_grad, param, grad_scale, maximize)
    if decoupled:
        param = param - decay.astype(param.dtype) * param
    else:
        grad = grad + decay.astype(param.dtype) * param
    avg = avg + new1 * (grad - avg)
    sq = keep2 * sq + new2 * grad * grad
    largest = sq if old_max is None else jnp.maximum(_computed(old_max), sq)
    step = step.reshape(()).astype(param.dtype)
    # 1 - beta^step, the bias corrections, without the cancellation that float32 has near 1.
    step_size = lr.reshape(()).astype(param.dtype) / -jnp.expm1(step * log1)
    param = param - step_size * avg / (jnp.sqrt(largest) / jnp.sqrt(-jnp.expm1(step * log2)) + eps)
    before, after = [old, old_grad, old_avg, old_sq], [param, stored, avg, sq]
    if old_max is not None:
        before, after = [*before, old_max], [*after, largest]
    return _unless(found_inf, before, after)


_DYNAMIC = ("lr", "beta1", "beta2", "weight_decay", "momentum", "lr_decay")


@lower("_fused_adam_", "_fused_adam_.tensor_lr", "_fused_adam", "_fused_adam.tensor_lr", dynamic=_DYNAMIC)
def fused_adam(
    self: Sequence[Array],
    grads: Sequence[Array],
    exp_avgs: Sequence[Array],
    exp_avg_sqs: Sequence[Array],
    max_exp_avg_sqs: Sequence[Array],
    state_steps: Sequence[Array],
    *,
    lr: Number,
    beta1: Number,
    beta2: Number,
    weight_decay: Number,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: Array | None = None,
    found_inf: Array | None = None,
) -> Lists:
    return _adam(
        self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr, beta1, beta2, weight_decay, eps,
        amsgrad, maximize, grad_scale, found_inf, decoupled=False,
    )  # fmt: skip


@lower("_fused_adamw_", "_fused_adamw_.tensor_lr", "_fused_adamw", "_fused_adamw.tensor_lr", dynamic=_DYNAMIC)
def fused_adamw(
    self: Sequence[Array],
    grads: Sequence[Array],
    exp_avgs: Sequence[Array],
    exp_avg_sqs: Sequence[Array],
    max_exp_avg_sqs: Sequence[Array],
    state_steps: Sequence[Array],
    *,
    lr: Number,
    beta1: Number,
    beta2: Number,
    weight_decay: Number,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: Array | None = None,
    found_inf: Array | None = None,
) -> Lists:
    return _adam(
        self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr, beta1, beta2, weight_decay, eps,
        amsgrad, maximize, grad_scale, found_inf, decoupled=True,
    )  # fmt: skip


@lower("_fused_sgd_", "_fused_sgd_.tensor_lr", "_fused_sgd", "_fused_sgd.tensor_lr", dynamic=_DYNAMIC)
def fused_sgd(
    self: Sequence[Array],
    grads: Sequence[Array],
    momentum_buffer_list: Sequence[Array],
    *,
    weight_decay: Number,
    momentum: Number,
    lr: Number,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Array | None = None,
    found_inf: Array | None = None,
) -> Lists:
    """An empty `momentum_buffer_list` means no momentum; on the first step a buffer's old content is ignored."""
    buffers: Sequence[Array | None] = momentum_buffer_list or [None] * len(self)
    options = {"dampening": dampening, "nesterov": nesterov, "maximize": maximize, "first": is_first_step}
    rows = [
        _sgd_row(*row, lr, weight_decay, momentum, grad_scale, found_inf, **options)
        for row in zip(self, grads, buffers, strict=True)
    ]
    lists = _columns(rows, 3 if momentum_buffer_list else 2)
    return lists if momentum_buffer_list else (*lists, [])


@partial(jax.jit, static_argnames=("dampening", "nesterov", "maximize", "first"))
def _sgd_row(
    old: Array,
    old_grad: Array,
    old_buffer: Array | None,
    lr: Array,
    weight_decay: Array,
    momentum: Array,
    grad_scale: Array | None,
    found_inf: Array | None,
    *,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    first: bool,
) -> list[Array]:
    param = _computed(old)
    rate, decay, keep = (x.reshape(()).astype(param.dtype) for x in (lr, weight_decay, momentum))
    stored, grad = _gradient(old_grad, param, grad_scale, maximize)
    grad = grad + decay * param
    if old_buffer is None:
        return _unless(found_inf, [old, old_grad], [param - rate * grad, stored])
    buffer = grad if first else keep * _computed(old_buffer) + (1 - dampening) * grad
    grad = grad + keep * buffer if nesterov else buffer
    return _unless(found_inf, [old, old_grad, old_buffer], [param - rate * grad, stored, buffer])


@lower("_fused_adagrad_.tensor_lr", "_fused_adagrad.tensor_lr", dynamic=_DYNAMIC)
def fused_adagrad_tensor_lr(
    self: Sequence[Array],
    grads: Sequence[Array],
    state_sums: Sequence[Array],
    state_steps: Sequence[Array],
    *,
    lr: Number,
    lr_decay: Number,
    weight_decay: Number,
    eps: float,
    maximize: bool,
    grad_scale: Array | None = None,
    found_inf: Array | None = None,
) -> Lists:
    rows = [
        _adagrad_row(*row, lr, lr_decay, weight_decay, grad_scale, found_inf, eps=eps, maximize=maximize)
        for row in zip(self, grads, state_sums, state_steps, strict=True)
    ]
    return _columns(rows, 3)


@partial(jax.jit, static_argnames=("eps", "maximize"))
def _adagrad_row(
    old: Array,
    old_grad: Array,
    old_sum: Array,
    step: Array,
    lr: Array,
    lr_decay: Array,
    weight_decay: Array,
    grad_scale: Array | None,
    found_inf: Array | None,
    *,
    eps: float,
    maximize: bool,
) -> list[Array]:
    param = _computed(old)
    rate, rate_decay, decay, count = (x.reshape(()).astype(param.dtype) for x in (lr, lr_decay, weight_decay, step))
    stored, grad = _gradient(old_grad, param, grad_scale, maximize)
    grad = grad + decay * param
    total = _computed(old_sum) + grad * grad
    param = param - rate / (1 + (count - 1) * rate_decay) * grad / (jnp.sqrt(total) + eps)
    return _unless(found_inf, [old, old_grad, old_sum], [param, stored, total])


@lower("_fused_adagrad_", "_fused_adagrad", dynamic=_DYNAMIC)
def fused_adagrad(
    self: Sequence[Array],
    grads: Sequence[Array],
    state_sums: Sequence[Array],
    state_steps: Sequence[Array],
    *,
    lr: Number,
    lr_decay: Number,
    weight_decay: Number,
    eps: float,
    maximize: bool,
    grad_scale: Array | None = None,
    found_inf: Array | None = None,
) -> Lists:
    """This overload's schema says that it writes `state_steps` too; torch.optim counts them itself, before."""
    lists = fused_adagrad_tensor_lr(
        self, grads, state_sums, state_steps, lr=lr, lr_decay=lr_decay, weight_decay=weight_decay, eps=eps,
        maximize=maximize, grad_scale=grad_scale, found_inf=found_inf,
    )  # fmt: skip
    return (*lists, list(state_steps))


def _computed(x: Array) -> Array:
    return x.astype(to_numpy(opmath(to_torch(x.dtype))))


def _gradient(grad: Array, param: Array, grad_scale: Array | None, maximize: bool) -> tuple[Array, Array]:
    """(the gradient to store, the gradient to descend by)."""
    stored = grad
    wide = grad.astype(param.dtype)
    if grad_scale is not None:
        stored = wide = wide / grad_scale.reshape(()).astype(param.dtype)
    return stored, -wide if maximize else wide


def _log(beta: Number) -> Number:
    if isinstance(beta, Array):
        return jnp.log(beta)
    return math.log(beta) if beta > 0 else -math.inf


def _unless(found_inf: Array | None, before: Sequence[Array], after: Sequence[Array]) -> list[Array]:
    if found_inf is None:
        return list(after)
    skip = found_inf.reshape(()) == 1
    return [jnp.where(skip, old, new.astype(old.dtype)) for old, new in zip(before, after, strict=True)]


def _columns(rows: Sequence[Sequence[Array]], width: int) -> Lists:
    return tuple([row[k] for row in rows] for k in range(width))
