"""Fused optimizer steps against PyTorch's CPU kernels and against torch.optim's single-tensor code."""

from __future__ import annotations

from typing import Any

import jax
import pytest
import torch

from torch_pjrt.lowering import Spec, apply

from .check import check, to_cpu, to_jax

aten = torch.ops.aten
SHAPES = [(3, 2), (4,), ()]


def _rand(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.rand(s).add(0.1).to(dtype) for s in SHAPES]


def _steps(n: int) -> list[torch.Tensor]:
    return [torch.tensor(float(n)) for _ in SHAPES]


SCALER: list[dict[str, torch.Tensor]] = [
    {},
    {"grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(0.0)},
    {"grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(1.0)},
]


@pytest.mark.parametrize("scaler", SCALER, ids=["plain", "scaled", "skipped"])
@pytest.mark.parametrize(("amsgrad", "maximize"), [(False, False), (True, True)])
@pytest.mark.parametrize("name", ["_fused_adam_", "_fused_adamw_"])
def test_fused_adam_agrees_with_the_cpu_kernel(
    name: str, amsgrad: bool, maximize: bool, scaler: dict[str, torch.Tensor]
) -> None:
    args = (_rand(), _rand(), _rand(), _rand(), _rand() if amsgrad else [], _steps(3))
    options: dict[str, Any] = dict(beta1=0.9, beta2=0.999, weight_decay=0.1, eps=1e-8, amsgrad=amsgrad)
    check(getattr(aten, name).default, *args, lr=0.01, maximize=maximize, **options, **scaler)
    check(getattr(aten, name).tensor_lr, *args, lr=torch.tensor(0.01), maximize=maximize, **options, **scaler)


@pytest.mark.parametrize("scaler", SCALER, ids=["plain", "scaled", "skipped"])
@pytest.mark.parametrize(
    ("momentum", "nesterov", "first", "maximize"),
    [(0.0, False, False, False), (0.9, False, True, True), (0.9, True, False, False), (0.8, False, False, True)],
)
def test_fused_sgd_agrees_with_the_cpu_kernel(
    momentum: float, nesterov: bool, first: bool, maximize: bool, scaler: dict[str, torch.Tensor]
) -> None:
    options: dict[str, Any] = dict(
        weight_decay=0.1, momentum=momentum, dampening=0.0 if nesterov else 0.25, nesterov=nesterov,
        maximize=maximize, is_first_step=first,
    )  # fmt: skip
    args = (_rand(), _rand(), _rand() if momentum else [])
    check(aten._fused_sgd_.default, *args, lr=0.01, **options, **scaler)
    check(aten._fused_sgd_.tensor_lr, *args, lr=torch.tensor(0.01), **options, **scaler)


@pytest.mark.parametrize("scaler", SCALER, ids=["plain", "scaled", "skipped"])
@pytest.mark.parametrize("maximize", [False, True])
def test_fused_adagrad_agrees_with_the_cpu_kernel(maximize: bool, scaler: dict[str, torch.Tensor]) -> None:
    options: dict[str, Any] = dict(lr_decay=0.1, weight_decay=0.1, eps=1e-10, maximize=maximize)
    args = (_rand(), _rand(), _rand(), _steps(4))
    check(aten._fused_adagrad_.default, *args, lr=0.01, **options, **scaler)
    check(aten._fused_adagrad_.tensor_lr, *args, lr=torch.tensor(0.01), **options, **scaler)


def test_fused_adam_keeps_half_parameters_half() -> None:
    half = torch.bfloat16
    args = (_rand(half), _rand(half), _rand(half), _rand(half), [], _steps(1))
    options: dict[str, Any] = dict(beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False)
    check(aten._fused_adamw_.default, *args, lr=0.1, **options, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("decoupled", [False, True])
def test_ten_fused_steps_follow_torch_optims_single_tensor_adam(decoupled: bool) -> None:
    """With lr and the betas as run-time scalars, as the recorder passes them: one executable for all ten steps."""
    torch.manual_seed(0)
    start = torch.randn(5)
    reference = torch.nn.Parameter(start.double())
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    optimizer = kind([reference], lr=0.1, weight_decay=0.01, foreach=False)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    op = aten._fused_adamw_.default if decoupled else aten._fused_adam_.default
    specs = [Spec((5,), torch.float32)] * 4
    traced = 0

    def step(state: list[jax.Array], count: jax.Array, lr: Any, beta1: Any, beta2: Any) -> list[jax.Array]:
        nonlocal traced
        traced += 1
        param, grad, avg, sq = state
        options = dict(weight_decay=0.01, eps=1e-8, amsgrad=False, maximize=False, beta1=beta1, beta2=beta2, lr=lr)
        return apply(op, [[param], [grad], [avg], [sq], [], [count]], options, specs)

    with jax.enable_x64(True):
        compiled = jax.jit(step)
        state = [to_jax(t) for t in (start, start, torch.zeros(5), torch.zeros(5))]
        for i in range(10):
            gradient = torch.randn(5)
            reference.grad = gradient.double()
            state[1] = to_jax(gradient)
            state = compiled(state, to_jax(torch.tensor(i + 1.0)), optimizer.param_groups[0]["lr"], 0.9, 0.999)
            optimizer.step()
            schedule.step()
        assert traced == 1
        torch.testing.assert_close(to_cpu(state[0]).double(), reference.detach(), rtol=2e-6, atol=2e-6)
