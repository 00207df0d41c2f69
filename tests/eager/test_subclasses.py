"""Tensor subclasses and modes see on the device what they see on the CPU."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from ..conftest import DEVICE
from .agree import agree


class Tagged(Tensor):
    """A subclass by __torch_function__, which PyTorch's default carries through every function."""


class Noted(nn.Parameter):
    """A parameter of a type of its own."""


def test_a_torch_function_subclass_is_carried_through_ops_copies_and_moves() -> None:
    def program(device: str) -> Any:
        x = torch.ones(2, device=device).as_subclass(Tagged)
        y = x * 2 + torch.ones(2, device=device)
        kinds = [type(t).__name__ for t in (y, y[0], y.detach(), y.cpu(), y.to(device), y.clone(), y.sum())]
        return kinds, y.as_subclass(Tensor)

    agree(program)


def test_a_parameter_of_a_subclass_stays_one() -> None:
    def program(device: str) -> Any:
        layer = nn.Linear(2, 2)
        layer.weight = Noted(torch.ones(2, 2))
        layer.to(device)
        layer(torch.ones(2, device=device)).sum().backward()
        return type(layer.weight).__name__, type(copy.deepcopy(layer).weight).__name__, layer.weight.grad

    agree(program)


class Wrapper(Tensor):
    """A tensor that holds another and notes each ATen op that reaches it."""

    seen: list[str] = []  # noqa: RUF012  (emptied by each program)
    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Wrapper:
        made: Wrapper = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, held.size(), strides=held.stride(), dtype=held.dtype, device=held.device
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(str(op))
        args, kwargs = tree_map(lambda x: x.held if isinstance(x, Wrapper) else x, (args, kwargs or {}))
        return tree_map(lambda x: Wrapper(x) if isinstance(x, Tensor) else x, op(*args, **kwargs))


def test_a_torch_dispatch_wrapper_sees_the_ops_the_cpu_would_give_it() -> None:
    def program(device: str) -> Any:
        Wrapper.seen.clear()
        x = Wrapper(torch.arange(4.0, device=device).reshape(2, 2))
        y = (x @ x + 1).relu_()
        y[0].mul_(5)
        z = torch.cat([x, y.T]).softmax(-1)
        assert z.device.type == torch.device(device).type
        return list(Wrapper.seen), y.held, z.held

    agree(program)


def test_moving_a_module_whose_parameter_is_a_wrapper_does_not_ask_the_wrapper_about_layouts() -> None:
    layer = nn.Linear(2, 2, bias=False)
    layer.weight = nn.Parameter(Wrapper(torch.ones(2, 2)), requires_grad=False)
    Wrapper.seen.clear()
    layer.to(DEVICE)
    assert layer.weight.device.type == DEVICE
    assert not any("shallow_copy" in name for name in Wrapper.seen)


class Ops(TorchDispatchMode):
    """Notes every ATen op inside the `with` block."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(op))
        return op(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    """Notes every torch function inside the `with` block."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, fn: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(getattr(fn, "__name__", str(fn)))
        return fn(*args, **(kwargs or {}))


def test_modes_see_forward_and_backward_as_on_the_cpu() -> None:
    def program(device: str) -> Any:
        layer = nn.Linear(2, 3).to(device)
        x = torch.ones(4, 2, device=device)
        with Ops() as ops:
            loss = layer(x).tanh().sum()
            loss.backward()
        with Functions() as functions:
            torch.add(x, 1).sum().item()
        with FlopCounterMode(display=False) as flops:
            layer(x)
        return ops.seen, functions.seen, flops.get_total_flops(), layer.weight.grad

    agree(program)


def test_a_mode_can_replace_what_an_op_returns() -> None:
    class Doubling(TorchDispatchMode):
        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = op(*args, **(kwargs or {}))
            return result * 2 if op is torch.ops.aten.add.Tensor else result

    def program(device: str) -> Any:
        with Doubling():
            return torch.ones(2, device=device) + torch.ones(2, device=device)

    agree(program)


def test_the_default_device_makes_factories_use_it() -> None:
    with torch.device(DEVICE):
        made = [torch.ones(1), torch.arange(2), torch.tensor([1.0]), nn.Linear(1, 1).weight, torch.randn(1)]
    assert {t.device.type for t in made} == {DEVICE}
    torch.set_default_device(DEVICE)
    try:
        assert torch.zeros(1).device.type == DEVICE and torch.rand(2).device.type == DEVICE
    finally:
        torch.set_default_device(None)
