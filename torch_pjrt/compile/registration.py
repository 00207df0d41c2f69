"""Making Dynamo know the backend when something imports Dynamo, and not before: it takes seconds to import."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from ..imported import when_imported
from .device_lists import enter_name

_DYNAMO = "torch._dynamo"


def register_lazily(name: str) -> None:
    """Register the backend under "pjrt" and the device's `name` as soon as Dynamo is imported, or now if it is."""
    when_imported(_DYNAMO, lambda module: _register(name))
    enter_name(name)


def _register(name: str) -> None:
    from torch._dynamo.backends.registry import _COMPILER_FNS, register_backend
    from torch._dynamo.device_interface import get_registered_device_interfaces, register_interface_for_device

    for backend in dict.fromkeys(["pjrt", name]):
        if backend not in _COMPILER_FNS:
            register_backend(_backend, name=backend)
    get_registered_device_interfaces()  # PyTorch's own first: it has one named "tpu"
    register_interface_for_device(name, _interface())
    torch._dynamo.trace_rules.add(__name__.partition(".")[0])  # our own frames are not the user's program
    _prefer_for_the_device(name)
    from .autocast import pass_autocast

    pass_autocast(name)


def _backend(gm: torch.fx.GraphModule, example_inputs: list[Any], **kwargs: Any) -> Callable[..., Any]:
    from .backend import pjrt

    return pjrt(gm, example_inputs, **kwargs)


def _reset() -> None:
    """What `torch.compiler.reset()` does here: it asks every backend that was used."""
    shared = sys.modules.get(f"{__package__}.shared")
    if shared is not None:
        shared.forget()


_backend.reset = _reset  # type: ignore[attr-defined]


def _interface() -> Any:
    from .interface import Interface

    return Interface


def _is_on(x: Any, device_type: str) -> bool:
    return isinstance(x, torch.Tensor) and x.device.type == device_type


def _makes(node: torch.fx.Node, device_type: str) -> bool:
    """Whether the node's value is on the device: a mask that the graph makes there, an argument that it moves there."""
    value = node.meta.get("example_value")
    return any(_is_on(x, device_type) for x in (value if isinstance(value, (tuple, list)) else (value,)))


def _prefer_for_the_device(name: str) -> None:
    """Give graphs on the device to this backend where a program asked for none: Inductor has no code for it.

    `torch.compile(model)` means Inductor whatever the device, and asks nobody. The mode and options that it was given
    are for a code generator that does not run.
    """
    wrapper = torch._TorchCompileInductorWrapper
    inductor, inductor_reset = wrapper.__call__, wrapper.reset

    def compile_graph(self: Any, model: Any, inputs: Any, **kwargs: Any) -> Any:
        if any(_is_on(x, name) for x in inputs) or any(_makes(n, name) for n in model.graph.nodes):
            return _backend(model, inputs)
        return inductor(self, model, inputs, **kwargs)

    def reset(self: Any) -> None:
        _reset()
        inductor_reset(self)

    wrapper.__call__ = compile_graph  # type: ignore[assignment, method-assign]
    wrapper.reset = reset  # type: ignore[method-assign]
