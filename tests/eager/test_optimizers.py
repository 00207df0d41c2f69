"""Every optimizer, in each of its variants, trains as on the CPU and compiles nothing from step 3 on."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from ..conftest import DEVICE
from .training import Run, check_steady, follow, mlp

LOOP: dict[str, Any] = {"foreach": False}
FOREACH: dict[str, Any] = {"foreach": True}
FUSED: dict[str, Any] = {"fused": True}
ADAM: dict[str, Any] = {"lr": 1e-2}
SGD: dict[str, Any] = {"lr": 0.1, "momentum": 0.9}

# (optimizer, its settings, the variants it has)
CASES: list[tuple[Callable[..., optim.Optimizer], dict[str, Any], list[dict[str, Any]]]] = [
    (optim.SGD, {"lr": 0.1}, [LOOP, FOREACH, FUSED]),
    (optim.SGD, SGD, [LOOP, FOREACH, FUSED]),
    (optim.SGD, SGD | {"nesterov": True, "weight_decay": 0.01}, [LOOP, FOREACH, FUSED]),
    (optim.Adam, ADAM, [LOOP, FOREACH, FUSED]),
    (optim.Adam, ADAM | {"amsgrad": True}, [LOOP, FOREACH, FUSED]),
    (optim.AdamW, ADAM, [LOOP, FOREACH, FUSED]),
    (optim.Adafactor, ADAM, [LOOP, FOREACH]),
    (optim.Adagrad, ADAM, [FOREACH]),
    (optim.RMSprop, ADAM | {"momentum": 0.5}, [FOREACH]),
    (optim.NAdam, ADAM, [FOREACH]),
    (optim.RAdam, ADAM, [FOREACH]),
    (optim.Muon, ADAM, [{}]),
]
VARIANTS = [
    pytest.param(
        make,
        settings | variant,
        id="-".join([make.__name__, *(f"{k}={v}" for k, v in (settings | variant).items() if k != "lr")]),
    )
    for make, settings, variants in CASES
    for variant in variants
]


def train(device: str, make: Callable[..., optim.Optimizer], settings: dict[str, Any]) -> Run:
    model = mlp(device)
    optimizer = make(model.parameters(), **settings)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return follow(device, step)


@pytest.mark.parametrize(("make", "settings"), VARIANTS)
def test_training_agrees_with_cpu_and_compiles_nothing_from_step_3_on(
    make: Callable[..., optim.Optimizer], settings: dict[str, Any]
) -> None:
    # Muon orthogonalizes in bfloat16, where one rounding is 2^-8.
    rtol = 1e-2 if make is optim.Muon else 1e-4
    check_steady(train("cpu", make, settings), train(DEVICE, make, settings), rtol)
    assert getattr(torch, DEVICE).metrics()["fallbacks"] == {}


def test_radam_compiles_one_program_more_where_its_rectification_starts() -> None:
    run = train(DEVICE, optim.RAdam, ADAM | LOOP)
    # With beta2 = 0.999, rho_t exceeds 5 at t = 6 (Liu et al. 2020, algorithm 2): from there on it is another program.
    assert run.compiled[2:] == [0, 0, 0, 1]


def test_a_step_leaves_as_many_bytes_in_use_as_the_step_before() -> None:
    model = mlp(DEVICE)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(4, 8, device=DEVICE)
    in_use = []
    for _ in range(4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        torch.accelerator.synchronize()
        in_use.append(torch.accelerator.memory_allocated())
    assert in_use[2] == in_use[3]


def test_a_checkpoint_of_model_and_optimizer_goes_on_as_if_it_had_not_stopped() -> None:
    def steps(model: nn.Module, optimizer: optim.Optimizer, seeds: range) -> list[float]:
        losses = []
        for seed in seeds:
            x = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    model = mlp(DEVICE)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    steps(model, optimizer, range(2))
    saved = {k: v.cpu() for k, v in model.state_dict().items()}, optimizer.state_dict()
    other = mlp(DEVICE)
    other.load_state_dict(saved[0])
    resumed = optim.AdamW(other.parameters(), lr=1e-2)
    resumed.load_state_dict(copy.deepcopy(saved[1]))
    assert steps(other, resumed, range(2, 4)) == steps(model, optimizer, range(2, 4))


STEPS: dict[str, Callable[[list[Tensor], list[list[Tensor]]], None]] = {
    "sgd": lambda p, s: torch._fused_sgd_(
        p, s[0], s[1], weight_decay=0.1, momentum=0.9, lr=0.1, dampening=0.0, nesterov=False, maximize=False,
        is_first_step=False,
    ),
    "adamw": lambda p, s: torch._fused_adamw_(
        p, s[0], s[1], s[2], [], s[3], lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.1, eps=1e-6, amsgrad=False,
        maximize=False,
    ),
    "unscaling": lambda p, s: torch._amp_foreach_non_finite_check_and_unscale_(p, s[0][0][0], s[1][0][0]),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_a_fused_step_given_one_tensor_twice_updates_it_twice(name: str) -> None:
    left = []
    for device in ("cpu", DEVICE):
        generator = torch.Generator().manual_seed(3)
        x = torch.rand(4, generator=generator).to(device)
        params = [x, x, x[1:], torch.rand(3, generator=generator).to(device)]
        state = [[torch.rand(p.shape, generator=generator).to(device) for p in params] for _ in range(3)]
        steps = [torch.full((), 2.0, device=device) for _ in params]
        STEPS[name](params, [*state, steps])
        left.append([t.cpu() for t in (*params, *(s for row in state for s in row))])
    torch.testing.assert_close(left[1], left[0])
