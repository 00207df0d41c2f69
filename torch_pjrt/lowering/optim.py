"""PyTorch's fused optimizer steps: one op updates every parameter and its state.

Each returns normalized outputs: the new values of the lists its schema writes, in schema order. Formulas as in
torch.optim's single-tensor code (Adam: https://arxiv.org/abs/1412.6980, AdamW: https://arxiv.org/abs/1711.05101).
With `grad_scale` the gradients are stored unscaled; where `found_inf` is 1 nothing changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
    rows = []
    for i, (old, old_grad, old_avg, old_sq, step) in enumerate(
        zip(params, grads, exp_avgs, exp_avg_sqs, state_steps, strict=True)
    ):
        param, avg, sq = _computed(old), _computed(old_avg), _computed(old_sq)
        stored, grad = _gradient(old_grad, param, grad_scale, maximize)
        if decoupled:
            param = param - _as(lr * weight_decay, param) * param
        else:
            grad = grad + _as(weight_decay, param) * param
        avg = avg + _as(1 - beta1, avg) * (grad - avg)
        sq = _as(beta2, sq) * sq + _as(1 - beta2, sq) * grad * grad
        largest = [jnp.maximum(_computed(max_exp_avg_sqs[i]), sq)] if amsgrad else []
        second = jnp.sqrt(largest[0] if amsgrad else sq)
        step_size = _as(lr, param) / _as(_one_minus_power(beta1, step), param)
        root = jnp.sqrt(_as(_one_minus_power(beta2, step), param))
        param = param - step_size * avg / (second / root + eps)
        before = [old, old_grad, old_avg, old_sq, *([max_exp_avg_sqs[i]] if amsgrad else [])]
        rows.append(_unless(found_inf, before, [param, stored, avg, sq, *largest]))
    lists = _columns(rows, 5 if amsgrad else 4)
    return lists if amsgrad else (*lists, list(max_exp_avg_sqs))


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
    rows = []
    for i, (old, old_grad) in enumerate(zip(self, grads, strict=True)):
        param = _computed(old)
        stored, grad = _gradient(old_grad, param, grad_scale, maximize)
        grad = grad + _as(weight_decay, param) * param
        before, after = [old, old_grad], [stored]
        if momentum_buffer_list:
            buffer = grad
            if not is_first_step:
                buffer = _as(momentum, param) * _computed(momentum_buffer_list[i]) + (1 - dampening) * grad
            grad = grad + _as(momentum, param) * buffer if nesterov else buffer
            before.append(momentum_buffer_list[i])
            after.append(buffer)
        rows.append(_unless(found_inf, before, [param - _as(lr, param) * grad, *after]))
    lists = _columns(rows, 3 if momentum_buffer_list else 2)
    return lists if momentum_buffer_list else (*lists, [])


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
    rows = []
    for old, old_grad, old_sum, step in zip(self, grads, state_sums, state_steps, strict=True):
        param = _computed(old)
        stored, grad = _gradient(old_grad, param, grad_scale, maximize)
        grad = grad + _as(weight_decay, param) * param
        total = _computed(old_sum) + grad * grad
        rate = _as(lr, param) / (1 + (_as(step, param) - 1) * _as(lr_decay, param))
        param = param - rate * grad / (jnp.sqrt(total) + eps)
        rows.append(_unless(found_inf, [old, old_grad, old_sum], [param, stored, total]))
    return _columns(rows, 3)


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


def _as(value: Number, like: Array) -> Array | float:
    """A hyperparameter in the dtype of the computation; a constant stays one."""
    return value.astype(like.dtype) if isinstance(value, Array) else value


def _gradient(grad: Array, param: Array, grad_scale: Array | None, maximize: bool) -> tuple[Array, Array]:
    """(the gradient to store, the gradient to descend by)."""
    stored = grad
    wide = grad.astype(param.dtype)
    if grad_scale is not None:
        stored = wide = wide / grad_scale.reshape(()).astype(param.dtype)
    return stored, -wide if maximize else wide


def _one_minus_power(beta: Number, step: Array) -> Array:
    """1 - beta^step without the cancellation that float32 would have near 1: the bias correction of Adam."""
    if isinstance(beta, Array):
        log = jnp.log(beta)
    else:
        log = jnp.asarray(math.log(beta) if beta > 0 else -math.inf, jnp.float64)
    step = step.reshape(())
    return -jnp.expm1(step * log.astype(step.dtype))


def _unless(found_inf: Array | None, before: Sequence[Array], after: Sequence[Array]) -> list[Array]:
    if found_inf is None:
        return list(after)
    skip = found_inf.reshape(()) == 1
    return [jnp.where(skip, old, new.astype(old.dtype)) for old, new in zip(before, after, strict=True)]


def _columns(rows: Sequence[Sequence[Array]], width: int) -> Lists:
    return tuple([row[k] for row in rows] for k in range(width))
