"""Hooks of every kind run in the order they run on the CPU, see what they see there, and may raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.autograd.graph import register_multi_grad_hook, save_on_cpu, saved_tensors_hooks

from ..conftest import DEVICE
from .agree import agree


def test_module_hooks() -> None:
    def program(device: str) -> Any:
        seen: list[Any] = []
        model = nn.Sequential(nn.Linear(2, 3), nn.ReLU()).to(device)
        model.register_forward_pre_hook(lambda m, args: seen.append("before forward"))
        model.register_forward_hook(lambda m, args, out: (seen.append("after forward"), out * 2)[1])
        model.register_full_backward_pre_hook(lambda m, out: seen.append(("before backward", tuple(out[0].shape))))
        model.register_full_backward_hook(lambda m, into, out: seen.append(("after backward", tuple(into[0].shape))))
        model.register_state_dict_post_hook(lambda m, state, *rest: seen.append(("state dict", len(state))))
        model.register_load_state_dict_post_hook(lambda m, keys: seen.append("loaded"))
        everywhere = nn.modules.module.register_module_forward_hook(lambda m, args, out: seen.append(type(m).__name__))
        x = torch.ones(1, 2, device=device, requires_grad=True)
        y = model(x)
        everywhere.remove()
        y.sum().backward()
        model.load_state_dict(model.state_dict())
        return seen, y, x.grad

    agree(program)


def test_tensor_and_node_hooks() -> None:
    def program(device: str) -> Any:
        seen: list[Any] = []
        x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
        x.register_hook(lambda g: g * 3)
        x.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))
        y = x.exp()
        y.retain_grad()
        assert y.grad_fn is not None
        y.grad_fn.register_prehook(lambda out: seen.append("before the node"))
        y.grad_fn.register_hook(lambda into, out: seen.append("after the node"))
        y.register_hook(lambda g: seen.append("of a result"))
        many = register_multi_grad_hook([x, y], lambda grads: seen.append(len([g for g in grads if g is not None])))
        y.sum().backward()
        many.remove()
        return seen, x.grad, y.grad

    agree(program)


def test_hooks_of_saved_tensors() -> None:
    def program(device: str) -> Any:
        seen: list[str] = []

        def pack(t: Tensor) -> Tensor:
            seen.append("pack")
            return t.cpu()

        def unpack(t: Tensor) -> Tensor:
            seen.append("unpack")
            return t.to(device)

        x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
        with saved_tensors_hooks(pack, unpack):
            y = (x * x).exp()
        y.sum().backward()
        with save_on_cpu(pin_memory=False):
            z = (x * x).exp()
        z.sum().backward()
        return sorted(seen), x.grad

    agree(program)


def test_optimizer_hooks_and_a_step_inside_the_backward_pass() -> None:
    def program(device: str) -> Any:
        seen: list[str] = []
        model = nn.Linear(3, 2).to(device)
        optimizers = {p: optim.SGD([p], 0.1, momentum=0.9) for p in model.parameters()}
        for optimizer in optimizers.values():
            optimizer.register_step_pre_hook(lambda *args: seen.append("before a step"))
            optimizer.register_step_post_hook(lambda *args: seen.append("after a step"))

        def step(p: Tensor) -> None:
            optimizers[p].step()
            optimizers[p].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(step)
        for _ in range(3):
            model(torch.ones(2, 3, device=device)).pow(2).sum().backward()
        return seen, list(model.parameters())

    agree(program)


RAISING: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "before forward": lambda m, x: m.register_forward_pre_hook(_fail),
    "after forward": lambda m, x: m.register_forward_hook(_fail),
    "of a gradient": lambda m, x: x.register_hook(_fail),
    "of an accumulated gradient": lambda m, x: x.register_post_accumulate_grad_hook(_fail),
    "after backward": lambda m, x: m.register_full_backward_hook(_fail),
}


def _fail(*args: Any) -> None:
    raise KeyError("raised in a hook")


@pytest.mark.parametrize("register", RAISING.values(), ids=RAISING)
@pytest.mark.parametrize("mode", ["strict", "async", "fused"])
def test_what_a_hook_raises_reaches_the_program_and_the_next_step_works(
    register: Callable[[nn.Module, Tensor], Any], mode: str
) -> None:
    with getattr(torch, DEVICE).eager_mode(mode):
        model = nn.Linear(2, 2).to(DEVICE)
        x = torch.ones(1, 2, device=DEVICE, requires_grad=True)
        handle = register(model, x)
        with pytest.raises(KeyError, match="raised in a hook"):
            model(x * 1).sum().backward()
        handle.remove()
        model.zero_grad()
        model(x * 1).sum().backward()
        assert model.bias.grad is not None
        assert model.bias.grad.tolist() == [1, 1]
