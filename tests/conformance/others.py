"""Cases of the module and the optimizer database."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .case import Case, Skip
from .place import tensors
from .units import Unit
from .variants import Make, spread

# Steps of an optimizer that are compared; the second is the first that has a state.
STEPS = 3


def _module_inputs(unit: Unit, limit: int | None, gradients: bool) -> Iterator[tuple[str, nn.Module, Any]]:
    """(label, module, (args, kwargs)), in training and in evaluation."""
    torch.manual_seed(0)
    info, dtype = unit.info, unit.torch_dtype
    for training in (True, False):
        made = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=gradients, training=training)
        for i, given in spread(list(enumerate(made)), limit):
            if given.forward_input is None:
                continue
            kwargs = dict(given.constructor_input.kwargs)
            torch.manual_seed(i)
            module = info.module_cls(*given.constructor_input.args, **kwargs).to(dtype)
            module.train(training)
            yield (
                f"{i} {'train' if training else 'eval'}",
                module,
                (given.forward_input.args, given.forward_input.kwargs),
            )


def module_forward(unit: Unit, limit: int | None) -> Iterator[Case]:
    """The module's result, and its buffers afterwards."""

    def program(inputs: Any, _: list[Tensor]) -> Any:
        module, (args, kwargs) = inputs
        with torch.no_grad():
            return module(*args, **kwargs), list(module.buffers())

    for label, module, inputs in _module_inputs(unit, limit, gradients=False):
        yield Case(label, (module, inputs), program)


def module_backward(unit: Unit, limit: int | None) -> Iterator[Case]:
    """Gradients of the module's parameters and inputs."""

    def program(inputs: Any, constants: list[Tensor]) -> Any:
        module, (args, kwargs) = inputs
        outputs = [t for t in tensors(module(*args, **kwargs)) if t.requires_grad]
        leaves = [t for t in [*tensors((args, kwargs)), *module.parameters()] if t.requires_grad]
        if not outputs or not leaves:
            raise Skip("nothing to differentiate")
        if not constants:
            generator = torch.Generator().manual_seed(1)
            constants.extend(torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o) for o in outputs)
        return torch.autograd.grad(outputs, leaves, constants, allow_unused=True)

    for label, module, inputs in _module_inputs(unit, limit, gradients=True):
        yield Case(label, (module, inputs), program)


def optimizer(unit: Unit, limit: int | None) -> Iterator[Case]:
    """Parameters after some steps, for each of the database's settings and each implementation."""
    info = unit.info
    if info.only_supports_sparse_grads:
        raise Skip("the optimizer takes sparse gradients only")
    implementations = [{}, {"foreach": True}, {"foreach": False}]
    if "cpu" in info.supports_fused_on:
        implementations.append({"fused": True})
    settings = list(info.optim_inputs_func(device="cpu"))
    for i, (setting, how) in spread(list(enumerate(itertools.product(settings, implementations))), limit):
        if how and next(iter(how)) not in info.supported_impls:
            continue
        yield Case(f"{i} {setting.desc} {how}", _parameters(unit), _steps(info, setting.kwargs, how))


def _parameters(unit: Unit) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((4, 3), (2, 5)) if unit.op == "Muon" else ((4, 3), (5,), (2, 2, 2))
    made = [torch.randn(s, generator=generator, dtype=torch.float64).to(unit.torch_dtype) for s in shapes]
    return [p.requires_grad_() for p in made]


def _steps(info: Any, settings: dict[str, Any], how: dict[str, bool]) -> Any:
    def program(parameters: list[Tensor], _: list[Tensor]) -> Any:
        kwargs = {**settings, **how}
        if isinstance(kwargs.get("lr"), Tensor) and not kwargs.get("capturable"):
            kwargs["lr"] = kwargs["lr"].cpu()
        optim = info.optim_cls(parameters, **kwargs)

        def closure() -> Tensor:
            optim.zero_grad()
            loss = sum(((p - 0.5) ** 2 * (k + 1)).sum() for k, p in enumerate(parameters))
            assert isinstance(loss, Tensor)
            loss.backward()
            return loss

        for _step in range(STEPS):
            optim.step(closure)
        return [p.detach() for p in parameters]

    return program


MODULE_VARIANTS: dict[str, Make] = {"forward": module_forward, "backward": module_backward}
OPTIMIZER_VARIANTS: dict[str, Make] = {"forward": optimizer}
